"""The archive of what users' jobs did, and reports on it."""
