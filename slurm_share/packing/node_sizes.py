"""What the nodes of one run tell one another of the sizes of running tasks: `sizes.jsonl` in each node's folder.

A launcher appends a line when the memory of a task has become flat, and reads the new lines of the other nodes while
it has tasks of unknown size. Each file has one writer, so no lock is needed; the folders are in the run's folder, on a
file system that all nodes share.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
from msgspec import Struct

from .records import TaskKey
from .rules.fingerprint import tag

FILE = "sizes.jsonl"
NODE_FOLDERS = "p*_*"
"""Folders of nodes, in the run's folder of logs: p0-p23_n1."""
EVERY_S = 30.0
READ_BYTES = 256 * 1024
"""At most so much of one file at once, so that a damaged one cannot hold up a launcher: 600 lines."""
LINE_BYTES = 16 * 1024
WRITE_BYTES = 8 << 20
"""A node writes no more than this: 20,000 tasks. The tasks of a run are of far fewer kinds."""


class NodeSize(Struct, frozen=True, omit_defaults=True):
    """The memory of a running task, at the age at which it had become flat."""

    version: int = 1
    key: TaskKey = TaskKey("", "")
    gpu_model: str = ""
    peak_mib: int = 0
    age_s: float = 0.0


_decode = msgspec.json.Decoder(NodeSize).decode
_encode = msgspec.json.Encoder().encode


class NodeSizes:
    """The file of this node, and those of the others."""

    def __init__(self, own: Path, *, is_alone: bool = False) -> None:
        """`own`: this node's folder; those of the others are beside it, and are made when their nodes begin.
        `is_alone`: there are no others."""
        self._own = own / FILE
        self._is_alone = is_alone
        self._read: dict[Path, int] = {}
        """The others' files -> what has been read of them, in bytes."""
        self._due_s = 0.0
        self._written = 0
        self._told: dict[tuple[str, str, str], int] = {}
        """What was told of a command -> its peak: a run of a thousand equal tasks needs one line of them."""
        self.passed_over = 0
        """Lines of the others that are none."""

    def append(self, key: TaskKey, gpu_model: str, peak_mib: int, age_s: float) -> str | None:
        """Tell the others of a task whose memory is flat. Return a sentence where that fails for the first time."""
        what = (key.exact, key.family, gpu_model)
        if self._told.get(what, -1) >= peak_mib or self._written < 0 or self._written > WRITE_BYTES:
            return None
        self._told[what] = peak_mib
        stored = msgspec.structs.replace(key, numbers=tuple((tag(name), x) for name, x in key.numbers))
        line = _encode(NodeSize(key=stored, gpu_model=gpu_model, peak_mib=peak_mib, age_s=age_s)) + b"\n"
        try:
            fd = os.open(self._own, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                # A line of which only a part was written ends here; the next one begins a new line.
                whole = os.write(fd, line) == len(line)
                if not whole:
                    os.write(fd, b"\n")
            finally:
                os.close(fd)
        except OSError as error:
            self._written = -1
            return f"the other nodes are not told of the sizes of tasks here: {self._own}: {error.strerror}"
        self._written += len(line)
        return None

    def is_due(self, now_s: float) -> bool:
        """Return whether the others' files are to be read again. `now_s`: of a monotonic clock."""
        return not self._is_alone and now_s >= self._due_s

    def read_others(self, now_s: float) -> list[NodeSize]:
        """Return what the others have told since the last time. It never fails: a file that cannot be read is tried
        again the next time."""
        self._due_s = now_s + EVERY_S
        found: list[NodeSize] = []
        for other in self._own.parent.parent.glob(NODE_FOLDERS):
            if other != self._own.parent:
                self._read.setdefault(other / FILE, 0)
        for file, offset in self._read.items():
            try:
                data = _read_from(file, offset)
            except OSError:
                continue
            end = data.rfind(b"\n") + 1
            if end == 0 and len(data) > LINE_BYTES:
                end = len(data)  # no line of ours; go on behind it
            self._read[file] = offset + end
            for line in data[:end].splitlines():
                size = _parse(line)
                if size is None:
                    self.passed_over += bool(line)
                else:
                    found.append(size)
        return found


def _parse(line: bytes) -> NodeSize | None:
    try:
        size = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    is_sane = size.version == 1 and 0 < size.peak_mib < 1 << 24 and size.age_s >= 0
    return size if is_sane else None


def _read_from(file: Path, offset: int) -> bytes:
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid():
            return b""
        return os.pread(fd, READ_BYTES, offset)
    finally:
        os.close(fd)
