"""The tasks that are added to a run after its submission (`llsub --add`): the entries in its folder `added`.

An entry is a file whose name is its number, from 1. It is written under another name and appears whole by link(2) with
the next free number, so that two clients never get the same number, and a client that is killed leaves no half entry.
The numbers put all additions and the ends of all jobs into one order: when the launchers of a job find nothing left to
do, they add a *seal*, an entry without tasks. The job runs every task that was added before its seal. If there is an
entry that they have not seen, its number is taken, and they go on. Whoever adds tasks after the seal knows that the job
will not run them, and submits the run again.

Locks do not work here, for the reasons in launcher/claims.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..core import numbers, text_files
from ..core.errors import StateError, shown
from ..node import processes

FOLDER = "added"
LEASE = "open-"
"""Beginning of the name of a lease (task_stream.py): a client that will add further tasks renews it."""
_NEW = ".new-"
"""Beginning of the name of an entry that has no number yet."""
_OLD_S = 3600.0
"""Seconds after which such a file counts as left by a client that was killed."""
_HEAD_BYTES = 1 << 16
"""Bytes that are read for the head of an entry, which lists at most 2,000 numbers of lines."""


class Head(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of an entry. The lines of its tasks follow, then their options, one JSON object for each task."""

    first: int
    """Number of its first task, which is also the number of tasks before it."""
    tasks: int = 0
    at: float = 0.0
    """Unix time, seconds."""
    source: str = ""
    """The file of --tasks as written; `-`: standard input. Empty: there was none."""
    other_lines: tuple[int, ...] | None = ()
    """As in records.Run, for that file."""
    first_line: int = 1
    """Number of the first line of `source` that was read for this entry; the numbers in `other_lines` begin there."""
    has_lines: bool = False
    has_specs: bool = False
    seal: str = ""
    """In a seal: the start of the job (records.Ended.job) whose launchers run no entry after it. Empty: tasks."""
    sealed: str = ""
    """The last seal before this entry; empty: there is none."""

    @property
    def end(self) -> int:
        """Return the number of tasks up to this entry."""
        return self.first + self.tasks

    @property
    def last_seal(self) -> str:
        """Return the last seal up to this entry."""
        return self.seal or self.sealed


class Entry(Struct, frozen=True):
    """An entry with its contents."""

    number: int
    head: Head
    lines: tuple[str, ...] = ()
    specs: tuple[bytes, ...] = ()
    """The options of each task, as JSON; empty: all have the run's."""


_head = msgspec.json.Decoder(Head)


def read_numbers(folder: Path) -> int:
    """Return the number of entries of a run. Raises OSError, except for a run without entries.

    The folder is listed, because a client of NFS that looks up a name may rely on an old answer for a while.
    """
    try:
        names = {entry.name for entry in os.scandir(folder / FOLDER)}
    except FileNotFoundError:
        return 0
    number = 0
    while str(number + 1) in names:
        number += 1
    return number


def read_leases(folder: Path) -> dict[Path, bytes]:
    """Return the leases of a run with their contents, without those that cannot be read."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder / FOLDER):
            if entry.name.startswith(LEASE):
                with contextlib.suppress(OSError), _open(Path(entry.path)) as opened:
                    found[Path(entry.path)] = opened.read(64)
    return found


def read_last(folder: Path) -> tuple[int, Head | None]:
    """Return the number and the head of the last entry; 0 and None: there is none. Raises StateError."""
    with _reading(folder):
        number = read_numbers(folder)
    return (number, read_head(folder, number)) if number else (0, None)


def read_head(folder: Path, number: int) -> Head:
    """Return the head of an entry. Raises StateError."""
    file = folder / FOLDER / str(number)
    with _reading(file), _open(file) as opened:
        return _decode_head(file, opened.read(_HEAD_BYTES).partition(b"\n")[0])


def read_entry(folder: Path, number: int, owner: int | None = None) -> Entry:
    """Return an entry. Raises StateError for one that cannot be read or is damaged, or has another `owner`."""
    file = folder / FOLDER / str(number)
    with _reading(file), _open(file) as opened:
        uid = os.fstat(opened.fileno()).st_uid
        if owner not in (None, uid):
            raise StateError(
                str(file),
                f"it belongs to {processes.read_user_name(uid)}, whose tasks do not run here; remove it, or "
                "submit the run again",
            )
        data = opened.read()
    *lines, rest = data.split(b"\n")
    head = _decode_head(file, lines[0] if lines else rest)
    count = head.tasks
    texts = lines[1 : 1 + count] if head.has_lines else []
    specs = lines[1 + len(texts) : 1 + len(texts) + count] if head.has_specs else []
    if rest or len(lines) != 1 + count * (head.has_lines + head.has_specs):
        raise StateError(str(file), f"it has not the {count} tasks that its first line says; submit the run again")
    return Entry(number, head, tuple(map(text_files.decode, texts)), tuple(specs))


def read_entries(folder: Path, after: int = 0, owner: int | None = None) -> Iterator[Entry]:
    """Yield the entries with numbers above `after`. Raises StateError, also for one with another `owner` (a uid)."""
    with _reading(folder):
        last = read_numbers(folder)
    return (read_entry(folder, number, owner) for number in range(after + 1, last + 1))


def find_head(folder: Path, task: int) -> Head | None:
    """Return the head of the entry that added a task; None: none did, or it cannot be read."""
    try:
        low, high = 1, read_numbers(folder)
        while low <= high:
            middle = (low + high) // 2
            head = read_head(folder, middle)
            if head.first <= task < head.end:
                return head
            low, high = (middle + 1, high) if task >= head.end else (low, middle - 1)
    except (OSError, StateError):
        pass
    return None


def append(
    folder: Path, head: Head, lines: Sequence[str] = (), specs: Sequence[bytes] = (), *, tasks: int, most: int
) -> Entry | None:
    """Add an entry with the next free number, and return it; None: the run would have more than `most` tasks.

    `head.first` and `head.sealed` are set here. `tasks`: the run's own tasks, before any was added. The entry is on the
    disk when this returns. Raises OSError if it was not added, StateError if the last entry cannot be read.
    """
    with _PartFile(folder) as part:
        number, last = read_last(folder)
        while True:
            first = tasks if last is None else last.end
            if first + head.tasks > most:
                return None
            made = replace(head, first=first, sealed="" if last is None else last.last_seal, at=round(time.time(), 3))
            part.write(_render(made, lines, specs))
            if part.link(number + 1):
                return Entry(number + 1, made, tuple(lines), tuple(specs))
            number += 1
            last = read_head(folder, number)


def seal(folder: Path, job: str, seen: int, tasks: int) -> bool:
    """Seal a job if it has seen all entries, and return True; False: there is a further entry.

    `job`: the start, as in records.Ended. `seen`: number of the last entry that it has seen. `tasks`: as for `append`.
    Raises OSError, StateError.
    """
    last = read_head(folder, seen) if seen else None
    if last is not None and last.last_seal == job:
        return True  # further entries are not this job's
    with _PartFile(folder, is_kept=False) as part:
        before = "" if last is None else last.last_seal
        first = tasks if last is None else last.end
        made = Head(first=first, seal=job, sealed=before, at=round(time.time(), 3))
        part.write(_render(made, (), ()))
        return part.link(seen + 1)


def read_seal(folder: Path, job: str) -> Head | None:
    """Return the seal of a start of a job; None: it has none. Raises StateError."""
    with _reading(folder):
        number = read_numbers(folder)
    while number:
        head = read_head(folder, number)
        if head.seal == job:
            return head
        if head.sealed != job:
            return None
        number -= 1
    return None


class _PartFile:
    """A file that becomes an entry when it gets a number. Raises OSError."""

    def __init__(self, folder: Path, *, is_kept: bool = True) -> None:
        """`is_kept`: the entry has to survive a power loss."""
        self._folder = folder / FOLDER
        self._folder.mkdir(exist_ok=True)
        self._is_kept = is_kept
        self._file = self._folder / f"{_NEW}{os.getpid()}-{secrets.token_hex(8)}"

    def __enter__(self) -> _PartFile:
        return self

    def write(self, data: bytes) -> None:
        fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with open(fd, "wb") as opened:
            opened.write(data)
            opened.flush()
            if self._is_kept:
                os.fsync(opened.fileno())

    def link(self, number: int) -> bool:
        """Give it a number; return False if another entry has it."""
        target = self._folder / str(number)
        try:
            os.link(self._file, target)
        except FileExistsError:
            if not target.samefile(self._file):  # NFS repeats a request whose answer is lost
                return False
        if self._is_kept:
            fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync a folder
                    raise
            finally:
                os.close(fd)
        return True

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._file.unlink()
        if self._is_kept:
            self._remove_old()

    def _remove_old(self) -> None:
        """Remove what killed clients have left."""
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                if entry.name.startswith(_NEW) and time.time() - entry.stat(follow_symlinks=False).st_mtime > _OLD_S:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)  # noqa: PTH108


def _render(head: Head, lines: Sequence[str], specs: Sequence[bytes]) -> bytes:
    texts = [line.encode("utf-8", "surrogateescape") for line in lines]
    return b"".join(part + b"\n" for part in (msgspec.json.encode(head), *texts, *specs))


def _decode_head(file: Path, line: bytes) -> Head:
    try:
        head = _head.decode(line)
    except text_files.NOT_JSON as error:
        raise StateError(str(file), f"it is damaged ({shown(str(error), 200)}); submit the run again") from error
    if head.first < 0 or head.tasks < 0 or head.first + head.tasks > numbers.UINT32_MOST:
        raise StateError(str(file), "it is damaged: its numbers of tasks are impossible; submit the run again")
    return head


def _open(file: Path) -> BinaryIO:
    """Open an entry: neither a link, nor waiting for the writer of a FIFO, which others may leave in an open folder."""
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    return open(fd, "rb", buffering=0)


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(str(file), f"the added tasks cannot be read ({error.strerror})") from error
