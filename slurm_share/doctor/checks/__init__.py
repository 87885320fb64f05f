"""What `slurm-share doctor` checks, a module for each theme: facts in, verdicts out."""
