"""One share of a node's GPUs: option, allocation, plan, ledger, admission, release, leases."""
