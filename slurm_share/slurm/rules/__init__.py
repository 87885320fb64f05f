"""Decisions about what Slurm says: values in, values out."""
