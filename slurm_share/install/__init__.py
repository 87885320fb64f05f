"""`slurm-share install`: edits of Slurm's files, their journal, and undo."""
