"""Lease slots for a node launcher with a lock on each slot's file, and read which slots of a job are leased.

plugins/leases.c does the same for slurmstepd; `names.py` documents the files and the locks. The launcher holds its
slots from before its first task until after its last one, so that no other process gets the GPU between two tasks.

The locks belong to open files, which the launcher's children share until they exec. So a slot is freed by an explicit
unlock. If the launcher is killed its locks are released, but the slot's file still names a task that outlived it.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..core import locks, names, numbers, process
from ..core.errors import StateError
from ..core.paths import Paths
from ..core.process import Deadline

PATIENCE_S = 5.0
"""How long to wait for the lock. A process that chooses slots holds it for well under a millisecond."""
PAUSE_S = 0.001
_HOLDING = re.compile(rb"step ([0-9]{1,19}) holder ([0-9]{1,19}) [0-9]{1,19} task ([0-9]{1,19}) ([0-9]{1,19})\n")
TEXT_MAX = 128
"""A slot's file with so many bytes or more is no text of ours."""
_PID_MOST = 2**31 - 1
_LOCKS = Path("/proc/locks")


class Leases:
    """The slots that this launcher holds."""

    def __init__(self, folder: Path, gpu_of_slot: Sequence[str], step: int = 0) -> None:
        """Prepare to lease the slots in `folder`. `gpu_of_slot`: a name of each slot's GPU. `step`: the number of the
        launcher's step, which is written into the slots' files."""
        self._folder = folder
        self._gpu_of_slot = gpu_of_slot
        self._step = step
        self._files: dict[int, int] = {}
        self._named: dict[int, int] = {}
        holder = process.identify(os.getpid())
        self._holder = (os.getpid(), (holder.start_ticks or 0) if holder is not None else 0)

    @property
    def slots(self) -> tuple[int, ...]:
        """Return the numbers of the slots that are held now."""
        return tuple(self._files)

    def take(self, wanted: int) -> tuple[int, ...]:
        """Take and hold slots for `wanted` processes; return them in order. They are fewer if no more are free, or
        the rest is promised to steps that waited.

        Raises StateError, having taken nothing, if the folder is damaged or another process holds its lock.
        """
        found: dict[int, int] = {}
        try:
            with self._choosing():
                for slot in range(len(self._gpu_of_slot)):
                    if slot not in self._files:
                        fd = self._open(str(slot))
                        if _is_free(fd):
                            found[slot] = fd
                        else:
                            os.close(fd)
                wanted = min(wanted, max(0, len(found) - promised(self._folder)))
                chosen = choose(self._gpu_of_slot, found, wanted)
                for slot in chosen:
                    self._files[slot] = found.pop(slot)
                    self._put_holding(slot, (0, 0))
                return chosen
        finally:
            for fd in found.values():
                _unlock_and_close(fd)

    def name(self, slot: int, pid: int) -> None:
        """Record in the slot's file that the process runs in it; do nothing if it has ended or the slot is not held."""
        if slot in self._files and self._named.get(slot) != pid:
            task = process.identify(pid)
            if task is not None:
                self._put_holding(slot, (task.pid, task.start_ticks or 0))
                self._named[slot] = pid

    def give_back(self, slot: int) -> None:
        """Free the slot; do nothing if it is not held."""
        fd = self._files.pop(slot, None)
        self._named.pop(slot, None)
        if fd is not None:
            _put(fd, f"{names.SLOT_USED}\n")
            _unlock_and_close(fd)
            tell(self._folder)

    def close(self) -> None:
        """Free all slots. A second call does nothing."""
        for slot in self.slots:
            self.give_back(slot)

    def _put_holding(self, slot: int, task: tuple[int, int]) -> None:
        holder, start = self._holder
        _put(self._files[slot], f"step {self._step} holder {holder} {start} task {task[0]} {task[1]}\n")

    @contextmanager
    def _choosing(self) -> Iterator[None]:
        """Hold the lock for choosing slots. Wait at most PATIENCE_S, since any process of the user can hold it."""
        fd = self._open(names.SLOTS_LOCK)
        try:
            if not locks.take(fd, Deadline.after(PATIENCE_S), PAUSE_S):
                why = f"another process of the job holds it for more than {PATIENCE_S:g} s"
                raise StateError(str(self._folder / names.SLOTS_LOCK), why)
            yield
        finally:
            _unlock_and_close(fd)

    def _open(self, name: str) -> int:
        path = self._folder / name
        try:
            fd = os.open(path, OPEN_FLAGS)
        except OSError as error:
            raise StateError(str(path), str(error.strerror)) from error
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise StateError(str(path), "is not a regular file")


def choose(gpu_of_slot: Sequence[str], free: Collection[int], wanted: int) -> tuple[int, ...]:
    """Return slots for `wanted` processes in order, as `ss_slots_choose` of plugins/slots.c does: each time the lowest
    free slot of the GPU with the most free slots; of equal GPUs, that of the lowest free slot."""
    of_gpu: dict[str, deque[int]] = {}
    for slot in sorted(free):
        of_gpu.setdefault(gpu_of_slot[slot], deque()).append(slot)
    chosen: list[int] = []
    while len(chosen) < wanted and of_gpu:
        gpu = min(of_gpu, key=lambda one: (-len(of_gpu[one]), of_gpu[one][0]))
        chosen.append(of_gpu[gpu].popleft())
        if not of_gpu[gpu]:
            del of_gpu[gpu]
    return tuple(chosen)


def _is_free(fd: int) -> bool:
    """Lock the slot's file and return True if the slot is free; else return False, without the lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    if not _has_living_task(fd):
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _has_living_task(fd: int) -> bool:
    """Return whether the task in the file of an unlocked slot is alive: it chose the slot itself, or its holder was
    killed."""
    found = task_in(os.pread(fd, TEXT_MAX, 0))
    task = process.identify(found[0]) if found else None
    return found is not None and task is not None and task.pid > 0 and task.start_ticks == found[1]


def task_in(data: bytes) -> tuple[int, int] | None:
    """Return (pid, start time) of the task in a slot's file; None: there is none. As the plugin reads it."""
    match = _HOLDING.fullmatch(data) if len(data) < TEXT_MAX else None
    if match is None:
        return None
    step, holder, task, start = (int(number) for number in match.groups())
    return (task, start) if step <= numbers.UINT32_MOST and max(holder, task) <= _PID_MOST else None


def _put(fd: int, text: str) -> None:
    data = text.encode()
    try:
        is_written = os.pwrite(fd, data, 0) == len(data)
    except OSError:
        is_written = False  # the file system is full; the lock holds the slot, the text is information
    try:
        # A hole needs no space, and still tells that a task had the slot.
        os.ftruncate(fd, len(data) if is_written else 1)
    except OSError:
        pass


def _unlock_and_close(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def read_leased(paths: Paths, job_id: int, slots: int, locks: Path = _LOCKS) -> frozenset[int] | None:
    """Return which of the job's `slots` slots are leased; None if that cannot be read.

    Not even the user may list the folder, so each file is looked up by its name. Trying a lock would hold it for a
    moment, and a task could be refused for that. So read the device and inode of every lock from /proc/locks (proc(5)),
    which psutil does not cover. A slot without a lock there is leased if the task in its file is alive; a pid namespace
    also hides the locks that were taken outside it, or by a process that has ended.
    """
    try:
        held = {_inode(line) for line in locks.read_text(encoding="ascii").splitlines() if " FLOCK " in line}
        found = [(number, os.lstat(paths.slots(job_id) / str(number))) for number in range(slots)]
    except OSError:
        return None
    return frozenset(
        number
        for number, stat in found
        if (os.major(stat.st_dev), os.minor(stat.st_dev), stat.st_ino) in held
        or (stat.st_size > len(names.SLOT_USED) + 1 and _names_living_task(paths.slots(job_id) / str(number)))
    )


def _names_living_task(file: Path) -> bool:
    """Return whether the task in a slot's file is alive; False if the file cannot be read."""
    try:
        fd = os.open(file, os.O_RDONLY | (OPEN_FLAGS & ~os.O_RDWR))
    except OSError:
        return False
    try:
        return _has_living_task(fd)
    finally:
        os.close(fd)


def _inode(line: str) -> tuple[int, int, int]:
    """Return the device (major, minor) and inode in a line of /proc/locks: (0, 42, 4321) for
    `1: FLOCK ADVISORY WRITE 708 00:2a:4321 0 EOF`."""
    major, minor, inode = next(value for value in line.split() if value.count(":") == 2).split(":")
    return int(major, 16), int(minor, 16), int(inode)


OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK
"""For the files of slots, which belong to the user. O_NONBLOCK: opening a FIFO in a file's place must not block."""
_LOCK = struct.Struct("@hhqqi4x")
"""struct flock of fcntl(2) on 64-bit Linux: type, whence, start, length (0: to the end), pid."""
_STEPS = 1 << 32
_END = names.QUEUE_STEPS + _STEPS * names.QUEUE_ROOM
PASSES_MAX = 8192
"""The most queries of one call. They find at least half as many locks, more than the sruns of a job hold."""


def promised(folder: Path) -> int:
    """Return how many slots of the job are promised to steps that have not chosen yet; 0 if there is no queue.

    The caller holds the lock for choosing slots.
    """
    try:
        queue = os.open(folder / names.SLOTS_QUEUE, OPEN_FLAGS)
    except OSError:
        return 0
    try:
        return sum(_left(queue, start, end) for start, end in _locks(queue))
    except OSError:
        return 0
    finally:
        os.close(queue)


def tell(folder: Path) -> None:
    """Wake the first srun that waits, since a slot may be free."""
    try:
        queue = os.open(folder / names.SLOTS_QUEUE, OPEN_FLAGS)
    except OSError:
        return
    try:
        os.utime(queue)
    except OSError:
        pass  # the srun also checks periodically
    finally:
        os.close(queue)


def _locks(queue: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each promise. The kernel returns any one lock in a range; search on both sides of it."""
    ranges = [(names.QUEUE_CLAIMS, _END)]
    for _ in range(PASSES_MAX):
        if not ranges:
            return
        start, end = ranges.pop()
        if start >= end:
            continue
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
        kind, _, first, length, _ = _LOCK.unpack(fcntl.fcntl(queue, fcntl.F_OFD_GETLK, asked))
        if kind == fcntl.F_UNLCK:
            continue
        found = max(first, start), end if length == 0 else min(first + length, end)
        yield found
        ranges += [(start, found[0]), (found[1], end)]


def _left(queue: int, start: int, end: int) -> int:
    """Return how many slots of a promise are left, i.e. its tasks have not chosen yet."""
    slots = min(end - start, names.QUEUE_ROOM)
    if start < names.QUEUE_STEPS:
        return slots
    step = (start - names.QUEUE_STEPS) // names.QUEUE_ROOM
    chosen = int.from_bytes(os.pread(queue, 2, 2 * step), "little")
    return max(0, slots - chosen)
