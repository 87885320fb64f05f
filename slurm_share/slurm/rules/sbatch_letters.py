"""The one-letter options of sbatch with their long names (sbatch(1) of 24.11 and 26.05)."""

from __future__ import annotations

WITH_VALUE = {
    "A": "account", "a": "array", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir",
    "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "i": "input", "J": "job-name", "L": "licenses",
    "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks", "o": "output", "p": "partition", "q": "qos",
    "S": "core-spec", "t": "time", "w": "nodelist", "x": "exclude", "B": "extra-node-info",
}  # fmt: skip
WITHOUT_VALUE = {"H": "hold", "I": "immediate", "k": "no-kill", "O": "overcommit", "Q": "quiet",
                 "s": "oversubscribe", "v": "verbose", "W": "wait", "h": "help", "V": "version"}  # fmt: skip
MAYBE_VALUE = frozenset("Ik")
"""Letters of WITHOUT_VALUE that may have a value in the same word: -I60."""
