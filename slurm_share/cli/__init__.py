"""One file per command: arguments in, text and exit code out."""
