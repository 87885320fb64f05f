"""Decisions about promises: values in, verdicts out."""
