"""Ask the world, answer in records. Each file is the only doorway to its source."""
