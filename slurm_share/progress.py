"""Report the progress and the results of this program: `from slurm_share import progress; progress.tick()`.

Progress is a number in the file that LLSUB_PROGRESS names, which the launcher of the run reads; without that variable
nothing is written. Results are lines of the program's output. Imports nothing else of slurm_share. Never raises: a full
disk must not end a training.

Only one process of a task counts: the first caller locks the file (lockf(3)), and calls of other processes have no
effect, such as children of a data loader or other ranks of a distributed training. A child made by fork(2) does not
inherit the lock, so its calls have no effect while its parent is alive. A later program of the same task continues from
the number in the file.
"""

from __future__ import annotations

import fcntl
import os
import sys
from _thread import RLock

VARIABLE = "LLSUB_PROGRESS"
_WIDTH = 31
"""Width of the number in the file, so that each write replaces the previous one completely."""
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_HIGH = 900
"""Least descriptor of our file. A program that closes all files, as daemons do, gets low descriptors for the files that
it opens next. With a low descriptor, we would then write into one of these files."""
_UNKNOWN, _NONE = -2, -1

_lock = RLock()
"""Reentrant, because a signal handler may call while it interrupts a call of the same thread."""
_file = _UNKNOWN
"""Descriptor of the open file; _NONE: calls have no effect."""
_identity = (0, 0)
"""Device and inode of the open file."""
_total: float = 0


def tick(units: float = 1) -> None:
    """Add finished work, always in the same unit, such as samples, steps or files. Takes about 2 us."""
    _count(units, is_total=False)


def report(value: float) -> None:
    """Set the work finished since the start of the program, always in the same unit."""
    _count(value, is_total=True)


def result(**values: object) -> None:
    """Print results, numbers or text, as a line `LLSUB_RESULT loss=0.12`, for `slurm-share results`.

    The last value of a name counts. The line begins with a CR, because a progress bar may have left the output in the
    middle of a line.
    """
    try:
        line = " ".join(f"{name}={_text(value)}" for name, value in values.items())
        sys.stdout.write(f"\rLLSUB_RESULT {line}\n")
        sys.stdout.flush()
    except Exception:  # noqa: BLE001  (as in _count)
        pass


def _text(value: object) -> str:
    if isinstance(value, (int, str)):
        text = str(value)
    else:
        try:
            text = repr(float(value))  # type: ignore[arg-type]  # numbers of NumPy and tensors with one element too
        except (TypeError, ValueError):
            text = str(value)
    return text if text and not any(one in text for one in ' \t"') else '"' + text.replace('"', '""') + '"'


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
            units = float(units)  # NumPy numbers keep their precision: 2048 + 1 = 2048 in float16
            total = units if is_total else _total + units
            if units >= 0 and total - total == 0:  # False for NaN and infinity
                _total = total
                _write(b"%-*b\n" % (_WIDTH, b"%.15g" % total))
    except Exception:  # noqa: BLE001  (a report of progress must never end a program)
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
    """Open and lock the file, and read its number; return the descriptor, or _NONE if calls have no effect."""
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
    except OSError:  # another process holds the lock, or this is not a regular file
        os.close(file)
        return _NONE
    return file


def _moved(file: int) -> int:
    """Move the file to a descriptor from _HIGH on, if the limit of descriptors allows it; return the descriptor."""
    try:
        high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except (OSError, ValueError):
        return file
    os.close(file)
    return high


def _identity_of(file: int) -> tuple[int, int]:
    seen = os.fstat(file)
    return seen.st_dev, seen.st_ino


def _is_open(file: int) -> bool:
    """Return whether the descriptor still refers to the file that was opened."""
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
    """Reset the state in a child: another thread may have held the lock, and the file belongs to the parent."""
    global _lock, _file
    _lock = RLock()
    file, _file = _file, _UNKNOWN
    if file >= 0 and _is_open(file):
        try:
            os.close(file)
        except OSError:
            pass  # the program has closed it


os.register_at_fork(after_in_child=_after_fork)
