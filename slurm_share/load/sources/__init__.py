"""Sources of snapshots and surveys: srun, this node, agents, Prometheus, a recording, a demonstration."""
