"""The user's history of speed, beside that of sizes: `pairs.jsonl`, `tuned.jsonl`, `shares.jsonl`.

A file of lines of JSON for each kind of record, the newest last; lines that cannot be read are passed over.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from .records import PairRun, ShareRun, TunedRun


class SpeedHistory(Struct, frozen=True):
    """What earlier runs have left, oldest first."""

    pairs: tuple[PairRun, ...] = ()
    tuned: tuple[TunedRun, ...] = ()
    shares: tuple[ShareRun, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences for the job's log."""


def read_speed_history(folder: Path | None = None, *, now: float) -> SpeedHistory:
    """Return the history; `folder` None: the caller's own. `now`: Unix time. What cannot be read is in the notes."""
    return SpeedHistory()


class SpeedWriter:
    """Appends to the user's history, from any number of processes."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` None: the caller's own. Nothing is opened before there is something to write."""

    def append(self, *records: PairRun | TunedRun | ShareRun) -> str | None:
        """Append records. Return a sentence where that fails for the first time; later ones are dropped in silence."""
        return None
