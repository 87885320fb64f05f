"""Rules of a report: merge records of several sources, add them up, fold many rows, and say what to ask for."""
