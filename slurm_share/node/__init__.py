"""This machine: its GPUs and its processes, as driver and kernel describe them."""
