"""The leases of a node launcher: a lock on the file of each slot that one of its processes has. And a reader that tells
which slots of a job are taken, without taking one.

This does in Python what plugins/leases.c does for slurmstepd; `names.py` says what the files hold and what a lock
means. The launcher holds its slots from before its first task to after its last one: between two tasks of a process
nobody else may come onto its GPU.

The locks belong to open files, which the launcher's own children share until they exec. So giving back is an explicit
unlock. Where all of the launcher is killed its locks are gone, and a task that outlived it is still named in its file.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..core import locks, names, process
from ..core.errors import StateError
from ..core.paths import Paths
from ..core.process import Deadline
from . import slot_queue

PATIENCE_S = 5.0
"""Choosing takes well under a millisecond: a process that holds the lock this long is not choosing."""
PAUSE_S = 0.001

_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK
"""O_NONBLOCK: a FIFO in a file's place, which is its user's to make, must not hold up anybody."""
_HOLDING = re.compile(rb"step [0-9]{1,19} holder [0-9]{1,19} [0-9]{1,19} task ([0-9]{1,19}) ([0-9]{1,19})\n")
_TEXT_MAX = 128
_LOCKS = Path("/proc/locks")


class Leases:
    """The slots that this launcher has."""

    def __init__(self, folder: Path, gpu_of_slot: Sequence[str], step: int = 0) -> None:
        """`folder`: the job's slots; `gpu_of_slot`: for each of them, whatever names its GPU; `step`: Slurm's number of
        the launcher's step, for people who look."""
        self._folder = folder
        self._gpu_of_slot = gpu_of_slot
        self._step = step
        self._files: dict[int, int] = {}
        self._named: dict[int, int] = {}
        holder = process.identify(os.getpid())
        self._holder = (os.getpid(), (holder.start_ticks or 0) if holder is not None else 0)

    @property
    def slots(self) -> tuple[int, ...]:
        """Return the slots that are held now."""
        return tuple(self._files)

    def take(self, wanted: int) -> tuple[int, ...]:
        """Take slots for `wanted` processes, in order, and hold them. They are fewer where no more are free, or the
        others are promised to steps that waited for them.

        Raises StateError: the folder is damaged, or another process holds its lock. Nothing was taken then.
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
                wanted = min(wanted, max(0, len(found) - slot_queue.promised(self._folder)))
                chosen = choose(self._gpu_of_slot, found, wanted)
                for slot in chosen:
                    self._files[slot] = found.pop(slot)
                    self._put_holding(slot, (0, 0))
                return chosen
        finally:
            for fd in found.values():
                _unlock_and_close(fd)

    def name(self, slot: int, pid: int) -> None:
        """Note that the process runs in the slot; do nothing if it is gone already, or the slot is not ours."""
        if slot in self._files and self._named.get(slot) != pid:
            task = process.identify(pid)
            if task is not None:
                self._put_holding(slot, (task.pid, task.start_ticks or 0))
                self._named[slot] = pid

    def give_back(self, slot: int) -> None:
        """Free the slot; do nothing if it is not ours."""
        fd = self._files.pop(slot, None)
        self._named.pop(slot, None)
        if fd is not None:
            _put(fd, f"{names.SLOT_USED}\n")
            _unlock_and_close(fd)
            slot_queue.tell(self._folder)

    def close(self) -> None:
        """Give all slots back. Can be done twice."""
        for slot in self.slots:
            self.give_back(slot)

    def _put_holding(self, slot: int, task: tuple[int, int]) -> None:
        holder, start = self._holder
        _put(self._files[slot], f"step {self._step} holder {holder} {start} task {task[0]} {task[1]}\n")

    @contextmanager
    def _choosing(self) -> Iterator[None]:
        """Hold the lock for choosing. Wait at most PATIENCE_S: any process of the user may hold it."""
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
            fd = os.open(path, _OPEN)
        except OSError as error:
            raise StateError(str(path), str(error.strerror)) from error
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise StateError(str(path), "is not a regular file")


def choose(gpu_of_slot: Sequence[str], free: Collection[int], wanted: int) -> tuple[int, ...]:
    """Return slots for `wanted` processes in order, as `ss_slots_choose` of plugins/slots.c has them: always on the
    GPU with the most free ones, on an equal one with the lowest number, and there the lowest. On an empty node: 0,
    1, 2..."""
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
    """Return whether nobody had the slot; we hold its lock then."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    if not _has_orphan(fd):
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _has_orphan(fd: int) -> bool:
    """Return whether nobody has the lock and yet the slot's task lives: the holder was killed."""
    match = _HOLDING.fullmatch(os.pread(fd, _TEXT_MAX, 0))
    task = None if match is None else process.identify(int(match[1]))
    return match is not None and task is not None and task.pid > 0 and task.start_ticks == int(match[2])


def _put(fd: int, text: str) -> None:
    data = text.encode()
    try:
        if os.pwrite(fd, data, 0) == len(data):
            os.ftruncate(fd, len(data))
    except OSError:
        pass  # a full state folder loses the text; the lock is what holds the slot


def _unlock_and_close(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


# --- From outside -----------------------------------------------------------------------------------------------------


def read_leased(paths: Paths, job_id: int, slots: int, locks: Path = _LOCKS) -> frozenset[int] | None:
    """Return which of the job's `slots` slots are held; None where that cannot be seen.

    Nobody may list their folder, not even their user, so the files are named one by one. To try a lock would mean to
    hold it for a moment, and a task would be refused for it. The kernel's list (proc(5), /proc/locks) names device and
    inode of every lock; in another pid namespace it may show none of them.
    """
    try:
        held = {_inode(line) for line in locks.read_text(encoding="ascii").splitlines() if " FLOCK " in line}
        found = [(number, os.lstat(paths.slots(job_id) / str(number))) for number in range(slots)]
    except OSError:
        return None
    return frozenset(
        number for number, stat in found if (os.major(stat.st_dev), os.minor(stat.st_dev), stat.st_ino) in held
    )


def _inode(line: str) -> tuple[int, int, int]:
    """Return device and inode of a lock: (0, 42, 4321) of `1: FLOCK ADVISORY WRITE 708 00:2a:4321 0 EOF`."""
    major, minor, inode = next(value for value in line.split() if value.count(":") == 2).split(":")
    return int(major, 16), int(minor, 16), int(inode)
