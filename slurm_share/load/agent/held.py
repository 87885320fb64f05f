"""Learn which GPUs of this node each job has from Slurm, for the metric of held GPUs.

A job without a process on its GPUs cannot be seen on the node: other users' devices and environments are not readable.
The ledger of the Prolog names the GPUs of shared jobs. For each other job, Slurm's controller is asked once, when the
job has been here for a while: one record, never the queue. So short jobs cost nothing, and a thousand nodes with jobs
of an hour ask once in four seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from ...core import log
from ...core.background import BackgroundCall
from ...core.errors import OptionError, SlurmShareError, StateError
from ...core.paths import Paths
from ...share import LedgerJob, ledger_file
from ...share import option as share_option
from ...slurm.jobs import read_queue
from ...slurm.records import QueuedJob
from ..rules import idle
from ..snapshot import JobLoad, Snapshot

ASK_AFTER_ROUNDS = 12
"""Samples with a job before Slurm is asked about it: a minute, with the default interval. A GPU is called idle after
ten."""
RETRY_S = 600.0
"""Seconds without a question after one that failed, and before the next about a job that Slurm does not show."""
TIMEOUT_S = 30.0
Ask = Callable[[int], QueuedJob | None]


def ask_slurm(number: int) -> QueuedJob | None:
    """Return Slurm's record of a job; None: Slurm has none, or does not show it. Raises SlurmShareError if Slurm does
    not answer."""
    found = read_queue(jobs=(number,), timeout_s=TIMEOUT_S)[1]
    return next((job for job in found if job.job_id == number), None)


class HeldGpus:
    """The GPUs of the jobs on this node. Used in one thread, which never waits for Slurm."""

    def __init__(self, interval_s: float, ask: Ask = ask_slurm, clock: Callable[[], float] = time.monotonic) -> None:
        self._after_s = ASK_AFTER_ROUNDS * interval_s
        self._ask = ask
        self._clock = clock
        self._records: dict[tuple[int, int], QueuedJob | None] = {}
        """(number, uid) of a job here -> Slurm's record; None: Slurm does not show it."""
        self._asking: tuple[tuple[int, int], BackgroundCall[QueuedJob | None]] | None = None
        self._not_before = float("-inf")
        self._said = ""

    def filled(self, snapshot: Snapshot, ledger: Mapping[int, LedgerJob]) -> Snapshot:
        """Return the snapshot with the GPUs that Slurm gave each job (`JobLoad.granted`), as far as they are known.
        Start the question about one job of which nothing is known yet."""
        here = {(job.job, job.uid) for job in snapshot.jobs}
        self._take()
        self._records = {key: record for key, record in self._records.items() if key in here}
        jobs = tuple(self._with_share(snapshot, job, ledger.get(job.job)) for job in snapshot.jobs)
        self._ask_about_one(jobs)
        return replace(snapshot, jobs=jobs)

    def record(self, job: int, uid: int) -> QueuedJob | None:
        """Return Slurm's record of a job here; None: Slurm was not asked yet, or does not show it."""
        return self._records.get((job, uid))

    def _with_share(self, snapshot: Snapshot, job: JobLoad, known: LedgerJob | None) -> JobLoad:
        if known is not None and known.uid == job.uid and known.share:
            return _with_granted(job, known.gpus)
        record = self._records.get((job.job, job.uid))
        given = None if record is None or record.uid != job.uid else idle.given(snapshot, record, snapshot.node)
        return job if given is None else _with_granted(job, tuple(sorted(given)))

    def _ask_about_one(self, jobs: tuple[JobLoad, ...]) -> None:
        if self._asking is not None or self._clock() < self._not_before:
            return
        for job in jobs:
            key = job.job, job.uid
            if job.granted is None and key not in self._records and job.measured_s >= self._after_s:
                self._asking = key, BackgroundCall(partial(self._ask, job.job))
                return

    def _take(self) -> None:
        if self._asking is None or not self._asking[1].wait(0.0):
            return
        (key, call), self._asking = self._asking, None
        try:
            self._records[key] = call.answer()
        except (SlurmShareError, OSError) as error:
            self._not_before = self._clock() + RETRY_S
            if str(error) != self._said:
                self._said = str(error)
                log.line("", "agent", f"which GPUs the jobs hold is not known: {error}")


def _with_granted(job: JobLoad, gpus: tuple[str, ...]) -> JobLoad:
    unknown = {field: why for field, why in job.unknown.items() if field != "granted"}
    return replace(job, granted=gpus, unknown=unknown)


def read_ledger_jobs(paths: Paths) -> Mapping[int, LedgerJob]:
    """Return the ledger's jobs by number; empty if the ledger cannot be read or is damaged."""
    try:
        ledger = ledger_file.read_ledger(paths, ledger_file.read_boot_id())
    except (OSError, StateError):
        return {}
    return {job.job_id: job for job in ledger.jobs}


def with_shares(snapshot: Snapshot, ledger: Mapping[int, LedgerJob]) -> Snapshot:
    """Return the snapshot with share and slots filled in for jobs that lack them."""
    if not any(job.job in ledger for job in snapshot.jobs):
        return snapshot
    return replace(snapshot, jobs=tuple(_with_share(job, ledger.get(job.job)) for job in snapshot.jobs))


def _with_share(job: JobLoad, known: LedgerJob | None) -> JobLoad:
    if known is None or known.uid != job.uid or not known.share:
        return job
    try:
        option = share_option.parse(known.share)
    except OptionError:
        return job
    share = job.share if job.share is not None or option is None else option.per_gpu
    return job.with_share(share, known.slots if job.slots is None else job.slots, job.sharing)
