"""pPython's names on top of this package, for programs that were written for it."""
