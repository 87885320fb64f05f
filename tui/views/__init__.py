"""The views: one module each, with the rows it shows and what its keys apply to."""
