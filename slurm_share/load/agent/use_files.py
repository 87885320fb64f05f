"""The agent's records of jobs on disk, which a thread of its own writes: a slow or full disk delays no sample.

    STATE/jobs/4711.json           all starts of a job that have ended here
    STATE/running/4711-2001.json   a running job's totals, for the next agent of this boot (job, uid)
    STATE/node.json                counters of energy

The folders are 0750, the files 0600. A file is replaced whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from ...core import files, log, text_files
from ...core.errors import StateError, shown
from ...usage import VERSION
from ...usage import files as record_files
from ..rules.job_energy import StoredNode
from ..rules.job_use import JobRecord, StoredJob

FILE_MAX_BYTES = 16 * 1024 * 1024
MOST_STARTS = 50
"""Most starts of a job in its file; the newest stay."""
PRUNE_S = 3600.0
"""Seconds between two removals of old files."""
RETRY_S = 30.0
"""Seconds before records that could not be written are tried again."""
MOST_PENDING = 1024
"""Most jobs whose record waits for the disk; the oldest are dropped."""
NODE_FILE, JOBS, RUNNING = "node.json", "jobs", "running"


class JobFile(Struct, frozen=True):
    """The content of a job's file."""

    version: int = VERSION
    starts: tuple[JobRecord, ...] = ()
    """The oldest first."""


_job_decoder = msgspec.json.Decoder(JobFile)
_Stored = TypeVar("_Stored", StoredJob, StoredNode)


class UseFiles:
    """The files of one agent. Any thread may call it."""

    def __init__(self, folder: str, days: int, mib: int) -> None:
        """Use that folder; empty: keep everything in memory, as if the disk were full."""
        self._folder = Path(folder) if folder else None
        self._days, self._mib = days, mib
        self._condition = threading.Condition()
        self._ended: dict[int, list[JobRecord]] = {}
        """Records that are not on disk yet, by job."""
        self._running: dict[str, bytes | None] = {}
        """File of a running job -> its new content; None: the job has ended, and the file goes."""
        self._node: bytes | None = None
        self._is_closing = False
        self._said = ""
        self._lock_fd = -1
        self._thread = threading.Thread(target=self._work, name="records", daemon=True)

    # ---- start and end ----

    def open(self) -> tuple[list[StoredJob], StoredNode]:
        """Take the folder and start to write; return what the last agent stored. A folder that cannot be used is
        logged, and the records stay in memory."""
        jobs: list[StoredJob] = []
        node = StoredNode()
        if self._folder is not None:
            try:
                self._take(self._folder)
            except OSError as error:
                self._say(
                    f"keeps no records of jobs: {self._folder} cannot be used ({error.strerror or error}); give it to "
                    "the agent's user (StateDirectory= of its unit), or name another one in usage_folder"
                )
                self._folder = None
        if self._folder is not None:
            node = self._stored(self._folder / NODE_FILE, StoredNode) or node
            for file in sorted((self._folder / RUNNING).glob("*.json")):
                found = self._stored(file, StoredJob)
                if found is not None:
                    jobs.append(found)
                else:
                    with contextlib.suppress(OSError):
                        file.unlink()
        self._thread.start()
        return jobs, node

    def close(self, timeout_s: float) -> None:
        """Write what waits, and stop."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._lock_fd >= 0 and not self._thread.is_alive():
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _take(self, folder: Path) -> None:
        folder.mkdir(mode=0o750, exist_ok=True)
        for name in (JOBS, RUNNING):
            (folder / name).mkdir(mode=0o750, exist_ok=True)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise OSError(0, "another agent uses it") from error
        self._lock_fd = fd

    def _stored(self, file: Path, kind: type[_Stored]) -> _Stored | None:
        try:
            data = files.read(file, FILE_MAX_BYTES)
            return None if data is None else msgspec.json.decode(data, type=kind)
        except (StateError, *text_files.NOT_JSON) as error:
            self._say(f"starts without {file.name}, which is damaged or of another release: {shown(str(error), 200)}")
            return None

    # ---- what is to be written ----

    def put_ended(self, record: JobRecord) -> None:
        """Keep the record of a job that has ended."""
        with self._condition:
            its = self._ended.setdefault(record.use.job, [])
            its[:] = [one for one in its if not _is_same_start(one, record)]
            its.append(record)
            while len(self._ended) > MOST_PENDING:
                self._ended.pop(next(iter(self._ended)))
            self._running[_running_name(record.use.job, record.use.uid)] = None
            self._condition.notify()

    def put_running(self, jobs: Mapping[tuple[int, int], StoredJob], node: StoredNode) -> None:
        """Keep what the next agent needs: of running jobs, by (job, uid), and of the node."""
        encoded = {_running_name(*key): msgspec.json.encode(one) for key, one in jobs.items()}
        data = msgspec.json.encode(node)
        with self._condition:
            self._running |= encoded
            self._node = data
            self._condition.notify()

    # ---- answers ----

    def read(self, job: int) -> list[JobRecord]:
        """Return the records of the ended starts of a job, the oldest first. Raises StateError for a file that cannot
        be read, is damaged or of a newer release."""
        with self._condition:
            pending = list(self._ended.get(job, ()))
        found = [] if self._folder is None else list(_read(self._folder / JOBS / f"{job}.json").starts)
        return _together(found, pending)

    # ---- the thread ----

    def _work(self) -> None:
        prune_at = 0.0
        while True:
            with self._condition:
                if not (self._is_closing or self._ended or self._running or self._node):
                    self._condition.wait(PRUNE_S)
                is_last = self._is_closing
                ended = {job: list(its) for job, its in self._ended.items()}
                running, self._running = self._running, {}
                node, self._node = self._node, None
            folder = self._folder
            if folder is None:
                is_written = False
            else:
                is_written = self._write(folder, ended, running, node)
                if time.monotonic() >= prune_at:
                    prune_at = time.monotonic() + PRUNE_S
                    record_files.prune(folder / JOBS, days=self._days, mib=self._mib)
            if is_last:
                return
            if not is_written:
                with self._condition:
                    if not self._is_closing:
                        self._condition.wait_for(lambda: self._is_closing, RETRY_S)

    def _write(
        self,
        folder: Path,
        ended: Mapping[int, list[JobRecord]],
        running: Mapping[str, bytes | None],
        node: bytes | None,
    ) -> bool:
        """Write everything; return False if the disk did not take it, which is logged once."""
        problem: OSError | None = None
        for job, records in ended.items():
            try:
                _write_job(folder / JOBS / f"{job}.json", records)
            except OSError as error:
                problem = error
                continue
            with self._condition:
                left = [one for one in self._ended.get(job, ()) if not any(one is each for each in records)]
                if left:
                    self._ended[job] = left
                else:
                    self._ended.pop(job, None)
        for name, data in (*((f"{RUNNING}/{name}", data) for name, data in running.items()), (NODE_FILE, node)):
            try:
                if data is not None:
                    _replace(folder / name, data)
                elif name != NODE_FILE:
                    (folder / name).unlink(missing_ok=True)
            except OSError as error:
                problem = error
        if problem is None:
            self._said = ""
        else:
            self._say(f"cannot write the records of jobs to {folder}: {problem.strerror}; it tries again")
        return problem is None

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            log.line("", "agent", text)


def _running_name(job: int, uid: int) -> str:
    return f"{job}-{uid}.json"


def _is_same_start(one: JobRecord, other: JobRecord) -> bool:
    """Return whether two records are of one start of a job, one of them the later."""
    a, b = one.use, other.use
    return (a.uid, a.began, a.restarts if a.began is None else None) == (
        b.uid,
        b.began,
        b.restarts if b.began is None else None,
    )


def _together(found: list[JobRecord], new: list[JobRecord]) -> list[JobRecord]:
    kept = [one for one in found if not any(_is_same_start(one, other) for other in new)]
    return [*kept, *new][-MOST_STARTS:]


def _write_job(file: Path, records: list[JobRecord]) -> None:
    try:
        before = list(_read(file).starts)
    except StateError:
        before = []  # damaged, or of a newer release: the new record counts
    _replace(file, msgspec.json.encode(JobFile(starts=tuple(_together(before, records)))))


def _read(file: Path) -> JobFile:
    data = files.read(file, FILE_MAX_BYTES)
    if data is None:
        return JobFile()
    try:
        found = _job_decoder.decode(data)
    except text_files.NOT_JSON as error:
        raise StateError(str(file), f"is no record of a job: {shown(str(error), 200)}") from error
    if found.version > VERSION:
        raise StateError(str(file), f"written by a newer slurm-share (version {found.version}, this one: {VERSION})")
    return found


def _replace(file: Path, data: bytes) -> None:
    # one temporary name, of which a killed agent leaves at most one file
    files.write(file, data, new=file.with_name(f".{file.name}.new"))
