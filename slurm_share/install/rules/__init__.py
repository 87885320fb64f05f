"""Decisions about the lines that a site's files need: text in, edits out."""
