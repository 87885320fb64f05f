"""What slurmd starts before and after every job: context in, decision, action, exit code."""
