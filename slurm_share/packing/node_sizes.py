"""Exchange the sizes of running tasks between the nodes of a run, through `sizes.jsonl` in each node's folder.

A launcher appends a line when the memory of a task becomes flat, and reads new lines of the other nodes while it has
tasks of unknown size. Each file has one writer, so no lock is needed. The folders are in the run's folder, on a file
system that all nodes share.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core import files, text_files
from .records import TaskKey
from .rules.fingerprint import tag

FILE = "sizes.jsonl"
NODE_FOLDERS = "p*_*"
"""Folders of nodes in the run's folder of logs, for example p0-p23_n1."""
EVERY_S = 30.0
READ_BYTES = 256 * 1024
"""Most bytes (about 600 lines) of one file per read, so that a damaged file does not delay a launcher."""
LINE_BYTES = 16 * 1024
WRITE_BYTES = 8 << 20
"""Most bytes that a node writes: 20,000 tasks. The tasks of a run have far fewer different sizes."""


class NodeSize(Struct, frozen=True, omit_defaults=True):
    """The memory of a running task, and the age at which it became flat."""

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
        """Start without any sizes. `own`: this node's folder; the other nodes create theirs next to it when they begin.
        `is_alone`: there are no other nodes."""
        self._own = own / FILE
        self._is_alone = is_alone
        self._read: dict[Path, int] = {}
        """File of another node -> number of bytes that were read."""
        self._due_s = 0.0
        self._written = 0
        self._shared: dict[tuple[str, str, str], int] = {}
        """(exact, family, GPU model) -> largest peak in the file: a thousand equal tasks need one line."""

    def append(self, key: TaskKey, gpu_model: str, peak_mib: int, age_s: float) -> str | None:
        """Write the size of a task whose memory is flat. Return a sentence if that fails for the first time."""
        what = (key.exact, key.family, gpu_model)
        if self._shared.get(what, -1) >= peak_mib or self._written < 0 or self._written > WRITE_BYTES:
            return None
        self._shared[what] = peak_mib
        stored = msgspec.structs.replace(key, numbers=tuple((tag(name), x) for name, x in key.numbers))
        line = _encode(NodeSize(key=stored, gpu_model=gpu_model, peak_mib=peak_mib, age_s=age_s)) + b"\n"
        try:
            fd = os.open(self._own, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                if os.write(fd, line) != len(line):
                    os.write(fd, b"\n")  # end the incomplete line, so that the next one is readable
            finally:
                os.close(fd)
        except OSError as error:
            self._written = -1
            return f"the other nodes do not get the sizes of tasks on this node: {self._own}: {error.strerror}"
        self._written += len(line)
        return None

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time to read the others' files again. `now_s`: of a monotonic clock."""
        return not self._is_alone and now_s >= self._due_s

    def read_others(self, now_s: float) -> list[NodeSize]:
        """Return the new sizes of the others. A file that cannot be read is tried again the next time."""
        self._due_s = now_s + EVERY_S
        found: list[NodeSize] = []
        for other in self._own.parent.parent.glob(NODE_FOLDERS):
            if other != self._own.parent:
                self._read.setdefault(other / FILE, 0)
        for file, offset in self._read.items():
            try:
                data = files.read_regular(file, READ_BYTES, start=offset, uid=os.geteuid()) or b""
            except OSError:
                continue
            end = data.rfind(b"\n") + 1
            if end == 0 and len(data) > LINE_BYTES:
                end = len(data)  # a line that slurm-share did not write; continue after it
            self._read[file] = offset + end
            found += [size for line in data[:end].splitlines() if (size := _parse(line)) is not None]
        return found


def _parse(line: bytes) -> NodeSize | None:
    try:
        size = _decode(line)
    except text_files.NOT_JSON:
        return None
    is_sane = size.version == 1 and 0 < size.peak_mib < 1 << 24 and size.age_s >= 0
    return size if is_sane else None
