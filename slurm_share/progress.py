"""Tell the launcher of a run how much this program has done: `from slurm_share import progress; progress.tick()`.

Writes a number into the file that LLSUB_PROGRESS names, and does nothing where there is no such variable. Imports
nothing else of slurm_share. Never raises: a full disk must not end a training.

One process of a task counts. The first that calls holds a lock (lockf(3)) on the file, and calls of others have no
effect, such as those of a data loader's children or of the other ranks of a distributed training. A child made by
fork(2) has no lock, and its calls have no effect while its parent lives. A later program of the same task goes on from
the number that is there.
"""

from __future__ import annotations

import fcntl
import os
from _thread import RLock

VARIABLE = "LLSUB_PROGRESS"
_WIDTH = 31
"""Of the number in the file: each write replaces all of the one before."""
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_HIGH = 900
"""A program that closes all files, as daemons do, gets the lowest numbers for those that it opens next. With our number
among them, the next call would write into a file of the program."""
_UNKNOWN, _NONE = -2, -1

_lock = RLock()
"""A signal's handler may call while it has interrupted a call of the same thread."""
_file = _UNKNOWN
"""The open file; _NONE: calls have no effect."""
_identity = (0, 0)
"""Device and inode of that file."""
_total: float = 0


def tick(units: float = 1) -> None:
    """Add work that was done: samples, steps, files; always the same unit. About 2 microseconds."""
    _count(units, is_total=False)


def report(value: float) -> None:
    """Set how much has been done since the program began, in the same unit at every call."""
    _count(value, is_total=True)


def _count(units: float, *, is_total: bool) -> None:
    global _file, _total
    if _file == _NONE:
        return
    try:
        with _lock:
            if _file == _UNKNOWN:
                _file = _begin()
            if _file < 0:
                return
            units = float(units)  # a number of NumPy's is as short as its type: 2048 + 1 = 2048 in float16
            total = units if is_total else _total + units
            if units >= 0 and total - total == 0:  # False for what is not a number, or infinite
                _total = total
                _write(b"%-*b\n" % (_WIDTH, b"%.15g" % total))
    except Exception:  # noqa: BLE001  (a word about progress is not worth a program's end)
        pass


def _write(line: bytes) -> None:
    global _file
    try:
        os.pwrite(_file, line, 0)
    except OSError:
        if _is_open(_file):
            raise
        _file = _begin()  # the program has closed all files
        os.pwrite(_file, line, 0)


def _begin() -> int:
    """Open the file, take the lock on it and the number that is there; return it, or _NONE: calls have no effect."""
    global _total, _identity
    path = os.environ.get(VARIABLE)
    if not path:
        return _NONE
    try:
        file = _moved(os.open(path, _OPEN, 0o600))
    except (OSError, ValueError):
        return _NONE
    try:
        os.lockf(file, os.F_TLOCK, 0)
        _total = _number(os.pread(file, _WIDTH + 1, 0))
        _identity = _identity_of(file)
    except OSError:  # another process counts, or this is no file
        os.close(file)
        return _NONE
    return file


def _moved(file: int) -> int:
    """Return the file under a high number, which no file that the program opens later gets."""
    try:
        high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except (OSError, ValueError):  # no process may have so many
        return file
    os.close(file)
    return high


def _identity_of(file: int) -> tuple[int, int]:
    seen = os.fstat(file)
    return seen.st_dev, seen.st_ino


def _is_open(file: int) -> bool:
    """Return whether this is still the file that was opened, and not closed or another one by the same number."""
    try:
        return file == _NONE or _identity_of(file) == _identity
    except OSError:
        return False


def _number(data: bytes) -> float:
    try:
        found = float(data)
    except ValueError:
        return 0
    return found if found >= 0 and found - found == 0 else 0


def _after_fork() -> None:
    """Begin anew in a child: another thread may have held the lock, and the file is the parent's."""
    global _lock, _file
    _lock = RLock()
    file, _file = _file, _UNKNOWN
    if file >= 0 and _is_open(file):
        try:
            os.close(file)
        except OSError:
            pass  # the program has closed it


os.register_at_fork(after_in_child=_after_fork)
