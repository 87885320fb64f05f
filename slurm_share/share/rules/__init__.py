"""Records in, a Plan or a Refusal out: no clock, no environment, no files."""
