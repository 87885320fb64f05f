"""The rates of a launcher's tasks, for llload and the dashboard: a file on the node that only its user can change.

`<tmp>/slurm-share-<uid>/rates/<job>.<pid>`, written whole about every 5 s while tasks run, and removed at the end. A
file whose launcher is gone is passed over.
"""

from __future__ import annotations

from pathlib import Path

from ..packing import NodeRates


class RatesFile:
    """The file of one launcher."""

    def __init__(self, tmp: Path, job: str) -> None:
        """Open nothing yet. `tmp`: the node's folder for temporary files."""

    def write(self, rates: NodeRates) -> None:
        """Replace the file. A disk that takes nothing is no error: the file is only for display."""

    def remove(self) -> None:
        """Remove the file."""


def read_rates(tmp: Path, uids: frozenset[int]) -> dict[int, tuple[NodeRates, ...]]:
    """Return the rates of the launchers of these users that are alive, by user."""
    return {}
