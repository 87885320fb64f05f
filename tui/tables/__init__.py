"""The columns of each table: what a cell says, what it is sorted and filtered by."""
