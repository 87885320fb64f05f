"""Decisions about shares, made from records alone: without a clock, environment or files."""
