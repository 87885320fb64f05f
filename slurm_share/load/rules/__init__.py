"""Decisions about load: snapshots in, figures, flags and advice out."""
