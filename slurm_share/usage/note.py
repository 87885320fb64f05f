"""Note the energy counters of a job's GPUs at its start and end on a node, as Prolog and Epilog do.

The note is a file of root's in the state folder, `usage/JOB`, from the Prolog until the record of the ended job is
written (`report/after_end.py`, in a process of its own). Nothing here may hold a job up or drain a node: the driver is
asked in a child process that has READ_S seconds, and what fails is a sentence in the log.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..core import files, names, numbers, text_files
from ..core.errors import DriverError, StateError
from ..core.process import in_time
from ..node.gpus import counters
from ..node.gpus.counters import GpuCounter

READ_S = 2.0
"""The most time for the driver's answer. 8 GPUs take some milliseconds; with persistence mode off the first call waits
for the GPUs to wake up."""
MOST_BYTES = 1 << 20
NO_ANSWER = f"the driver did not answer within {READ_S:g} s"
_REFUSED = ".accounting-refused"
"""A file that says that the log has the reason why accounting mode is not on. It is gone after a boot."""
_ENCODER = msgspec.json.Encoder()


class NotedGpu(Struct, frozen=True, kw_only=True):
    """One GPU of a job, with its counter at both ends."""

    uuid: str
    index: int | None = None
    name: str = ""
    simulated: bool = False
    memory_total_mib: int | None = None
    memory_cap_mib: int | None = None
    begin_mj: int | None = None
    end_mj: int | None = None
    problem: str = ""
    """Why one of the two is not known."""
    memory_least_mib: int | None = None


class UseNote(Struct, frozen=True, kw_only=True):
    """One start of a job on this node."""

    job: int
    restarts: int | None = None
    uid: int
    gid: int
    node: str
    nodes: int | None = None
    node_list: str = ""
    """The job's nodes as Slurm writes them; empty: not told."""
    is_batch: bool = False
    share: int | None = None
    slots: int | None = None
    is_part: bool = False
    """The job has a part of a GPU, so that others of its user may have the rest."""
    began: float
    """Unix time."""
    ended: float | None = None
    gpus: tuple[NotedGpu, ...] = ()
    shared: tuple[str, ...] = ()
    """GPUs of which other jobs had a part in the same time."""
    sharing: str | None = None
    """How the tasks of its share have their GPUs, as in JobUse."""


def folder_of(root: Path) -> Path:
    """Return the folder of notes below the state folder."""
    return root / names.USAGE_FOLDER


def begin(note: UseNote, root: Path, *, accounting: bool, say: Callable[[str], None]) -> None:
    """Read the counters of the note's GPUs and write it. `accounting`: turn on the driver's accounting mode.

    Never raises for the job's sake: `say` gets a sentence instead.
    """
    found = read_in_time([one.uuid for one in note.gpus], accounting=accounting)
    gpus = tuple(_with_begin(one, found.get(one.uuid)) for one in note.gpus)
    try:
        folder = folder_of(root)
        root.mkdir(mode=0o755, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        _unmark(folder, note.job)
        _write(folder, replace(note, gpus=gpus))
        if note.is_part:
            _mark_shared(folder, note)
        refused = {one.accounting for one in found.values() if one.accounting}
        if refused and _is_first(folder):
            say(
                f"accounting mode of the GPUs is not on ({', '.join(sorted(refused))}): reports do without the "
                "driver's figures of each process; gpu_accounting = false stops the attempt"
            )
    except OSError as error:
        say(f"job {note.job}: {error.filename or root}: {error.strerror}: what it uses of its GPUs is not recorded")


def end(job: int, root: Path, now: float, say: Callable[[str], None]) -> bool:
    """Read the counters again and complete the job's note; return whether there is one. Never raises, as `begin`."""
    folder = folder_of(root)
    try:
        note = read(folder / str(job))
    except StateError as error:
        say(f"{error}: what job {job} used of its GPUs is not recorded")
        return False
    if note is None:
        return False
    if note.ended is not None:
        return True  # an earlier Epilog of this start was ended after it had written it
    found = read_in_time([one.uuid for one in note.gpus], accounting=False)
    gpus = tuple(_with_end(one, found.get(one.uuid)) for one in note.gpus)
    shared = tuple(one.uuid for one in gpus if (folder / _mark(job, one.uuid)).exists())
    try:
        _write(folder, replace(note, ended=now, gpus=gpus, shared=shared))
    except OSError as error:
        say(f"job {job}: {folder}: {error.strerror}: its record has no figures of its end")
    return True


def read(file: Path) -> UseNote | None:
    """Return a note; None: there is none. Raises StateError if it cannot be read, or is damaged."""
    try:
        data = files.read_regular(file, MOST_BYTES)
        return None if data is None else msgspec.json.decode(data, type=UseNote)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(str(file), f"cannot be read ({error.strerror})") from error
    except text_files.NOT_JSON as error:
        raise StateError(str(file), f"is damaged: {error}") from error


def remove(job: int, root: Path) -> None:
    """Remove a job's note. Raises OSError."""
    folder = folder_of(root)
    _unmark(folder, job)
    (folder / str(job)).unlink(missing_ok=True)


def read_in_time(uuids: Sequence[str], *, accounting: bool) -> dict[str, GpuCounter]:
    """Return the counters of these GPUs, each with its problem, after READ_S seconds at most."""
    if not uuids:
        return {}

    def call() -> bytes:
        try:
            return _ENCODER.encode(counters.read_counters(uuids, accounting=accounting))
        except DriverError as error:
            return _ENCODER.encode([GpuCounter(uuid, problem=error.reason) for uuid in uuids])

    try:
        data = in_time(call, READ_S)
        found = () if data is None else msgspec.json.decode(data, type=tuple[GpuCounter, ...])
    except (OSError, *text_files.NOT_JSON):
        found = ()
    return {uuid: GpuCounter(uuid, problem=NO_ANSWER) for uuid in uuids} | {one.uuid: one for one in found}


def _with_begin(gpu: NotedGpu, found: GpuCounter | None) -> NotedGpu:
    return gpu if found is None else replace(gpu, begin_mj=found.energy_mj, problem=found.problem)


def _with_end(gpu: NotedGpu, found: GpuCounter | None) -> NotedGpu:
    return gpu if found is None else replace(gpu, end_mj=found.energy_mj, problem=gpu.problem or found.problem)


def _write(folder: Path, note: UseNote) -> None:
    files.write(folder / str(note.job), _ENCODER.encode(note))


def _mark(job: int, uuid: str) -> str:
    return f"{job}.{uuid.replace('/', '_')}"


def _mark_shared(folder: Path, note: UseNote) -> None:
    """Mark the GPUs of which this job and another one here have parts, in both jobs.

    Each job writes its note before it looks for others, so of two that begin at the same time at least one sees the
    other. A whole GPU is nobody else's: a note that has it as well is one of a job whose Epilog was killed.
    """
    mine = {one.uuid for one in note.gpus}
    for name in os.listdir(folder):  # noqa: PTH208  (a Path for each is slow)
        if numbers.whole(name) is None or name == str(note.job):
            continue
        try:
            other = read(folder / name)
        except StateError:
            continue
        if other is None or not other.is_part or other.ended is not None:
            continue
        for uuid in mine & {one.uuid for one in other.gpus}:
            for job in (note.job, other.job):
                (folder / _mark(job, uuid)).touch(mode=0o600)


def _unmark(folder: Path, job: int) -> None:
    for file in folder.glob(f"{job}.*"):
        file.unlink(missing_ok=True)


def _is_first(folder: Path) -> bool:
    try:
        os.close(os.open(folder / _REFUSED, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True
