"""A discrete-event simulator of packing: the same rules as live, on tasks and GPUs that do not exist."""
