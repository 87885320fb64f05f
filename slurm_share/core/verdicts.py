"""Records of `slurm-share doctor`: the verdict of a check, the facts of a file, and an unknown fact."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

Outcome = Literal["PASS", "WARN", "FAIL", "SKIP"]


class UnknownFact(Struct, frozen=True):
    """A fact that is unknown, such as one that only root can read."""

    why: str


class CheckVerdict(Struct, frozen=True):
    """The result of one check for one subject."""

    outcome: Outcome
    what: str
    """A sentence: what was found, or why it is unknown."""
    fix: str = ""
    """Remedy of a WARN or FAIL, one line. Empty: the general remedy of the check."""


class PathOwner(Struct, frozen=True):
    """Owner and mode of one component of a path."""

    path: str
    uid: int
    mode: int
    """Permission bits."""


class FileFact(Struct, frozen=True):
    """An existing file."""

    path: str
    """The path before links are followed."""
    chain: tuple[PathOwner, ...]
    """All components from the root folder to the file, with links followed."""
    is_file: bool = True
    file_system: str = ""
    """Type of the file system: ext4, tmpfs, nfs4."""
    interpreter: str | None = None
    """For a script, the program in its first line."""
    interpreter_is_there: bool = True
    is_ours: bool = False
    """For a hook: whether it is ours, or a script that calls ours."""

    @property
    def is_executable(self) -> bool:
        """Whether root can run it: one x bit of any kind is enough."""
        return self.is_file and bool(self.chain[-1].mode & 0o111)


def ok(what: str) -> list[CheckVerdict]:
    """Return a PASS."""
    return [CheckVerdict("PASS", what)]


def warn(what: str, fix: str = "") -> list[CheckVerdict]:
    """Return a WARN: it works, but not as it should."""
    return [CheckVerdict("WARN", what, fix)]


def fail(what: str, fix: str = "") -> list[CheckVerdict]:
    """Return a FAIL: jobs are refused or run unshared, or the node is drained."""
    return [CheckVerdict("FAIL", what, fix)]


def skip(why: str | UnknownFact) -> list[CheckVerdict]:
    """Return a SKIP: unknown, or not applicable."""
    return [CheckVerdict("SKIP", why.why if isinstance(why, UnknownFact) else why)]


def unsafe(file: FileFact, trusted: Iterable[int] = (0,)) -> str:
    """Return why users other than root could change the file; "": they cannot.

    In a folder with the sticky bit, such as /tmp, users cannot replace files of others.
    """
    for step in file.chain:
        last = step is file.chain[-1]
        if step.uid not in trusted:
            return f"{step.path} belongs to uid {step.uid}"
        if step.mode & 0o022 and (last or not step.mode & 0o1000):
            return f"{step.path} is writable by others (mode {step.mode & 0o7777:04o})"
    return ""
