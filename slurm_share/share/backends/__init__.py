"""The ways in which tasks share a GPU: one backend each, with the same five methods."""
