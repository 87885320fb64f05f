"""What nodes carry: snapshots, collectors, statistics, columns, advice, sources, the agent."""
