"""Checks of `slurm-share doctor`, one module for each topic: facts in, verdicts out."""
