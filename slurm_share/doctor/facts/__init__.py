"""Read the facts that the checks need from a host. Changes nothing; all queries have a time limit."""
