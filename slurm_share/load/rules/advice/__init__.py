"""How many tasks a node should run: what was measured (evidence), what each resource allows (bounds), the answer."""
