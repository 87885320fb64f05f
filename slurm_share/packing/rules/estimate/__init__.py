"""Estimate the GPU memory of a task from what is known of it."""
