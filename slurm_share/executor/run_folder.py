"""The files of an executor in the folder of its run.

::

    LLSUB.3/executor/                 0700
        config.json                   how the executor was made: Python, its paths, the working folder, processes
        initializer                   a pickle of (initializer, initargs); missing: there is none
        calls/0, calls/1 ...          one for each client: its calls, in frames
        claims/4711.0/                for each start of a job: 0.17 is a hard link to by-NODE of the node that runs the
                                      17th frame of client 0, or to by-+client.0: that client took its calls back
        results/n1.4711.0.312-5f3a    one for each dispatcher: results, in frames
        data/                         large arguments and results

All are the user's alone (0600). A file of somebody else is never read.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from . import frames

NAME = "executor"
CALLS, CLAIMS, RESULTS, DATA = "calls", "claims", "results", "data"
CONFIG, INITIALIZER = "config.json", "initializer"
VERSION = 1
NUMBER = re.compile("[0-9]{1,18}")
"""A number in a file's name, in ASCII digits alone: int() takes more, and str.isdigit() what int() does not take."""
_CLAIM = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EXDEV})


@dataclass
class Config:
    """How the executor was made, as its workers and later clients need it."""

    processes: int
    """Workers of the run."""
    python: str = field(default_factory=lambda: f"{sys.version_info.major}.{sys.version_info.minor}")
    sys_path: list[str] = field(default_factory=list)
    cwd: str = ""
    is_local: bool = False
    has_initializer: bool = False
    made: dict[str, Any] = field(default_factory=dict)
    """The options of its calls, which those of a client that attaches have too."""
    version: int = VERSION


def make(folder: str, config: Config, initializer: bytes | None) -> None:
    """Make the files of an executor in a run's folder. Raises OSError."""
    os.makedirs(folder, 0o700, exist_ok=True)
    for name in (CALLS, CLAIMS, RESULTS, DATA):
        os.makedirs(f"{folder}/{name}", 0o700, exist_ok=True)
    if initializer is not None:
        frames.write_new(f"{folder}/{INITIALIZER}", initializer)
    frames.write_new(f"{folder}/{CONFIG}", json.dumps(asdict(config)).encode())


def read_config(folder: str) -> Config:
    """Return the configuration. Raises OSError and ValueError."""
    found = json.loads(frames.read_own(f"{folder}/{CONFIG}"))
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise ValueError("it was made by another release of slurm-share")
    return Config(**found)


def is_own_folder(folder: str) -> bool:
    """Return whether a folder is one of this user that nobody else may write to."""
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def new_client(folder: str) -> tuple[int, frames.Appender]:
    """Make the file of a further client; return its number and the file. Raises OSError."""
    number = 0
    for one in clients(folder):
        number = max(number, one + 1)
    while True:
        try:
            return number, frames.Appender(f"{folder}/{CALLS}/{number}")
        except FileExistsError:
            number += 1


def clients(folder: str) -> list[int]:
    """Return the numbers of the clients so far. Raises OSError."""
    return sorted(int(name) for name in os.listdir(f"{folder}/{CALLS}") if NUMBER.fullmatch(name))


class Claims:
    """One claimant's access to the calls of one start of a job.

    A claim is a hard link, as in triples/launcher/claims.py, which tells why that is safe on every file system.
    """

    def __init__(self, folder: str, start: str, who: str) -> None:
        """`who`: unique among the claimants of a start, and the same for successive dispatchers of a node.

        Raises OSError.
        """
        self.folder = f"{folder}/{CLAIMS}/{start}"
        self._stem = f"by-{who}"
        self._files = 0
        self._links = True
        os.makedirs(self.folder, 0o700, exist_ok=True)
        self._mine = f"{self.folder}/{self._stem}.0"
        self._make()

    def _make(self) -> None:
        self._mine = f"{self.folder}/{self._stem}.{self._files}"
        self._files += 1
        try:
            os.close(os.open(self._mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            pass  # of an earlier dispatcher of this node

    def take(self, client: int, number: int) -> bool:
        """Claim a frame of calls; return False if it is claimed. Raises OSError."""
        target = f"{self.folder}/{client}.{number}"
        if self._links:
            try:
                os.link(self._mine, target)
                return True
            except FileExistsError:
                # The request may have been repeated after a lost answer: then it is our own link.
                return os.path.samefile(self._mine, target) and self._is_new(target)
            except OSError as error:
                if error.errno == errno.EMLINK:
                    self._make()
                    return self.take(client, number)
                if error.errno not in _NO_LINKS:
                    raise
                self._links = False
        try:
            os.mkdir(target, 0o700)
            return True
        except FileExistsError:
            return False

    def _is_new(self, target: str) -> bool:
        return target not in self.before

    before: frozenset[str] = frozenset()
    """Paths of the claims that earlier dispatchers of this node made."""

    def own(self) -> list[tuple[int, int]]:
        """Return the frames that earlier dispatchers of this node have claimed, and keep them from `take`.

        Raises OSError.
        """
        inodes, links = set(), []
        for entry in os.scandir(self.folder):
            if entry.name.startswith(f"{self._stem}."):
                inodes.add(entry.inode())
                self._files = max(self._files, int(entry.name.rpartition(".")[2]) + 1)
            elif _CLAIM.fullmatch(entry.name):
                links.append((entry.name, entry.inode()))
        names = [name for name, inode in links if inode in inodes]
        self.before = frozenset(f"{self.folder}/{name}" for name in names)
        return [(int(client), int(number)) for client, _, number in (name.partition(".") for name in names)]

    def taken(self) -> set[tuple[int, int]]:
        """Return all frames that are claimed. Raises OSError."""
        found = (_CLAIM.fullmatch(name) for name in os.listdir(self.folder))
        return {(int(claim[1]), int(claim[2])) for claim in found if claim}

    def is_taken(self, client: int, number: int) -> bool:
        return os.path.lexists(f"{self.folder}/{client}.{number}")
