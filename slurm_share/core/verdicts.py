"""Records of `slurm-share doctor`: the verdict of a check, a file as it was seen, and a fact that cannot be seen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

Outcome = Literal["PASS", "WARN", "FAIL", "SKIP"]


class Unseen(Struct, frozen=True):
    """A fact that this caller, on this host, now, cannot see."""

    why: str


class Verdict(Struct, frozen=True):
    """What one check says about one thing."""

    outcome: Outcome
    what: str
    """A sentence: what was seen, or why it was not."""
    fix: str = ""
    """What to do about a WARN or FAIL, in one line. Empty: what the check says in general."""


class Owned(Struct, frozen=True):
    """One step of a path."""

    path: str
    uid: int
    mode: int
    """Permission bits."""


class FileFact(Struct, frozen=True):
    """A file that is there."""

    path: str
    """As it was asked for."""
    chain: tuple[Owned, ...]
    """From the root folder down to the file, links followed."""
    is_file: bool = True
    file_system: str = ""
    """The kernel's name of it: ext4, tmpfs, nfs4."""
    interpreter: str | None = None
    """For a script, the program in its first line."""
    interpreter_is_there: bool = True
    is_ours: bool = False
    """For a hook: it is one of ours, or a script that names it."""

    @property
    def is_executable(self) -> bool:
        """Whether root may start it: root needs one x bit of any."""
        return self.is_file and bool(self.chain[-1].mode & 0o111)


def ok(what: str) -> list[Verdict]:
    """Return PASS: all is well."""
    return [Verdict("PASS", what)]


def warn(what: str, fix: str = "") -> list[Verdict]:
    """Return WARN: it works, but not as it should."""
    return [Verdict("WARN", what, fix)]


def fail(what: str, fix: str = "") -> list[Verdict]:
    """Return FAIL: jobs are refused or run unshared, or the node is drained."""
    return [Verdict("FAIL", what, fix)]


def skip(why: str | Unseen) -> list[Verdict]:
    """Return SKIP: it cannot be seen, or there is nothing to see."""
    return [Verdict("SKIP", why.why if isinstance(why, Unseen) else why)]


def unsafe(file: FileFact, trusted: Iterable[int] = (0,)) -> str:
    """Return why somebody else than root could change what is run or read here; empty: nobody can.

    A folder with the sticky bit, such as /tmp, keeps others from replacing what is not theirs.
    """
    for step in file.chain:
        last = step is file.chain[-1]
        if step.uid not in trusted:
            return f"{step.path} belongs to uid {step.uid}"
        if step.mode & 0o022 and (last or not step.mode & 0o1000):
            return f"{step.path} is writable by others (mode {step.mode & 0o7777:04o})"
    return ""
