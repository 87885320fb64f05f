"""One share of a node's GPUs: what each task gets."""
