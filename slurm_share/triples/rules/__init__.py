"""Decisions of triples mode: values in, values out."""
