"""Keep what the jobs of this node use: the totals in memory, and their files."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...core import log
from ...core.settings import Settings
from ...share import LedgerJob
from ..rules.job_use import JobFacts, JobRecord, NodeUse
from ..snapshot import Snapshot
from .held import HeldGpus
from .use_files import UseFiles

if TYPE_CHECKING:  # loads the driver's library
    from ..sampler import NodeSampler

STORE_S = 60.0
"""Seconds between two writes of running jobs. A SIGKILL loses no more."""
FIRST_STORE_S = 10.0
"""Seconds after which a new agent writes them first: one that is killed again and again loses no job's beginning."""


class UseKeeper:
    """The records of jobs. One thread samples, any thread asks."""

    def __init__(self, settings: Settings, held: HeldGpus) -> None:
        self._files = UseFiles(settings.usage_folder, settings.usage_days, settings.usage_mib)
        self._held = held
        self._lock = threading.Lock()
        self._use: NodeUse | None = None
        self._stored = time.monotonic() - STORE_S + FIRST_STORE_S
        self._said = ""

    def add(self, sampler: NodeSampler, snapshot: Snapshot, ledger: Mapping[int, LedgerJob]) -> Snapshot:
        """Add a sample and return its snapshot with the energy of jobs and users. A fault here is logged, and stops no
        sample."""
        if sampler.readings is None:
            return snapshot
        host, driver = sampler.readings
        boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)

        def facts(job: int, uid: int) -> JobFacts:
            known = ledger.get(job)
            if known is not None and known.uid == uid:
                return JobFacts(known.restart_count, host.taken - (boot_s - known.since))
            record = self._held.record(job, uid)
            return JobFacts() if record is None else JobFacts(record.restarts, record.start)

        try:
            with self._lock:
                if self._use is None:
                    self._use = self._restored(snapshot.node, host.boot_id)
                for record in self._use.add(host, driver, snapshot, facts):
                    self._files.put_ended(record)
                if time.monotonic() - self._stored >= STORE_S:
                    self._store(self._use)
                return self._use.filled(snapshot)
        except Exception as error:  # noqa: BLE001 - a snapshot without energy is better than none
            if repr(error) != self._said:
                self._said = repr(error)
                log.line("", "agent", f"the records of jobs lack this sample: {error!r}")
            return snapshot

    def records(self, job: int) -> list[JobRecord]:
        """Return the records of all starts of a job here, whoever's it is. Raises StateError as UseFiles.read does."""
        with self._lock:
            live = [] if self._use is None else self._use.records(job)
        shown = {(one.use.uid, one.use.began) for one in live}
        return [*(one for one in self._files.read(job) if (one.use.uid, one.use.began) not in shown), *live]

    def close(self, timeout_s: float) -> None:
        """Store the running jobs for the next agent."""
        with self._lock:
            if self._use is not None:
                self._store(self._use)
        self._files.close(timeout_s)

    def _restored(self, node: str, boot_id: str) -> NodeUse:
        use = NodeUse(node)
        jobs, stored = self._files.open()
        for record in use.restore(boot_id, jobs, stored):
            self._files.put_ended(record)
        return use

    def _store(self, use: NodeUse) -> None:
        self._stored = time.monotonic()
        self._files.put_running(use.stored_jobs(), use.stored_node())
