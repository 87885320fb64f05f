"""MPS: control daemons, their life cycle, folders, cgroups and processes."""
