"""GPUs, processes, cgroups, cores and memory of this machine, as driver and kernel describe them."""
