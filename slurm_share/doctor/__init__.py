"""`slurm-share doctor`: facts of a host, checks on them, fixes."""
