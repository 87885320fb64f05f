"""The facts that the checks need, read from a host. Nothing is changed, and every question has a time limit."""
