"""Read the share of each job from this node's ledger.

A task's environment has it too, but only its user and root can read that. The ledger can also be read by the operators'
group, in which the agent has to be.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ...core.errors import OptionError, StateError
from ...core.paths import Paths
from ...share import LedgerJob, ledger_file
from ...share import option as share_option
from ..snapshot import JobLoad, Snapshot


def read(paths: Paths) -> Mapping[int, LedgerJob]:
    """Return the ledger's jobs by number; empty if the ledger cannot be read or is damaged."""
    try:
        ledger = ledger_file.read_ledger(paths, ledger_file.read_boot_id())
    except (OSError, StateError):
        return {}
    return {job.job_id: job for job in ledger.jobs}


def filled(snapshot: Snapshot, ledger: Mapping[int, LedgerJob]) -> Snapshot:
    """Return the snapshot with share and slots filled in for jobs that lack them."""
    if not any(job.job in ledger for job in snapshot.jobs):
        return snapshot
    return replace(snapshot, jobs=tuple(_filled(job, ledger.get(job.job)) for job in snapshot.jobs))


def _filled(job: JobLoad, known: LedgerJob | None) -> JobLoad:
    if known is None or known.uid != job.uid or not known.share:
        return job
    try:
        option = share_option.parse(known.share)
    except OptionError:
        return job
    share = job.share if job.share is not None or option is None else option.per_gpu
    return job.with_share(share, known.slots if job.slots is None else job.slots)
