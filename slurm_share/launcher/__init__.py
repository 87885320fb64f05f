"""The node launcher: puts readers, decisions and actuators together, as `prolog/` does for the hooks."""
