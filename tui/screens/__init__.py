"""What opens over the dashboard and is closed again: help, questions, logs, choices."""
