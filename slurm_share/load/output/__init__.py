"""llload's outputs of a survey: tables, plain lines, TSV and CSV. Values in, lines out."""
