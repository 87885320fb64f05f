"""The launcher: starts the tasks of a node, watches them, and records how each ended."""
