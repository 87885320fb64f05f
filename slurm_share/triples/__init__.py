"""Triples mode: planning, submission, task list, launcher, results."""
