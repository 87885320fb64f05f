"""When a node that turns jobs away is to call itself unwell: it is free again at once, and so eats the queue."""

from __future__ import annotations

from msgspec.structs import replace

from ..records import Ledger, RefusedJob

MOST = 3
WINDOW_S = 600.0
"""Two refusals may be two jobs of one unlucky moment; three in ten minutes are a state of the node."""


def note(ledger: Ledger, job_id: int, now: float) -> Ledger:
    """The ledger that knows of one more job that the node had to refuse; of each job once."""
    recent = [one for one in ledger.refused if 0 <= now - one.at < WINDOW_S and one.job_id != job_id]
    return replace(ledger, refused=(*recent, RefusedJob(job_id, now)))


def is_unwell(ledger: Ledger) -> bool:
    """Whether these were too many."""
    return len(ledger.refused) >= MOST


def forget(ledger: Ledger) -> Ledger:
    """The ledger after the node has called itself unwell: an administrator who takes it back into service gives it a
    new start."""
    return replace(ledger, refused=())
