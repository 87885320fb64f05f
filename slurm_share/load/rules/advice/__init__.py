"""Advise how many tasks a node should run, from what was measured (evidence) and what each resource allows (bounds)."""
