"""Decisions about MPS daemons, made from values alone."""
