"""Shared by every package: errors, names, paths, settings, processes, files, text."""
