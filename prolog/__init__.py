"""The Prolog and Epilog that slurmd starts before and after every job: read, decide, act, return an exit code."""
