"""Which lines a site's files need: text in, lines out."""
