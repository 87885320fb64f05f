"""Decisions of messages and distributed arrays: values in, values out."""
