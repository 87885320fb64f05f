"""Decisions about use: made from records alone, without a clock, environment or files."""
