"""Words in; text and exit codes out."""
