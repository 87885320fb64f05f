"""This machine: its GPUs, processes, cgroups, cores and memory, as driver and kernel describe them."""
