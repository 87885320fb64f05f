"""Samples and reports: values in, values out."""
