"""One module per command: arguments in, text and exit codes out."""
