"""Decisions about MPS daemons: values in, values out."""
