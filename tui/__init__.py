"""The dashboard's room; nothing is in it yet."""
