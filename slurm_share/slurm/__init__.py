"""Ask Slurm and tell Slurm: jobs, nodes, configuration files, a hook's environment, submission, signals."""
