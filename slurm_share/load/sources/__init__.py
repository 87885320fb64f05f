"""Ways to the snapshots of some nodes: srun, this node, agents, Prometheus, a recording, a demonstration."""
