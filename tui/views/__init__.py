"""One module for each view: which rows it shows and what its keys do."""
