"""The words that every check is written in: how one is declared, and how it says what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...share.rules import site
from ..facts.records import (
    Check,
    Facts,
    FileFact,
    Role,
    Unseen,
    Verdict,
)

CONTROLLER: tuple[Role, ...] = ("controller",)
COMPUTE: tuple[Role, ...] = ("compute",)
EVERYWHERE: tuple[Role, ...] = ("controller", "login", "compute")

Look = Callable[[Facts], Sequence[Verdict]]


def check(name: str, roles: tuple[Role, ...], *, asks: str, why: str, fix: str) -> Callable[[Look], Check]:
    """Make the function below it a Check."""
    return lambda look: Check(name, roles, asks, why, fix, look)


def ok(what: str) -> list[Verdict]:
    """All is well."""
    return [Verdict("PASS", what)]


def warn(what: str, fix: str = "") -> list[Verdict]:
    """It works, and not as it should."""
    return [Verdict("WARN", what, fix)]


def fail(what: str, fix: str = "") -> list[Verdict]:
    """Jobs are refused, run unshared, or a node goes down by it."""
    return [Verdict("FAIL", what, fix)]


def skip(why: str | Unseen) -> list[Verdict]:
    """It cannot be seen, or there is nothing to see."""
    return [Verdict("SKIP", why.why if isinstance(why, Unseen) else why)]


def values(facts: Facts, key: str) -> tuple[str, ...] | Unseen:
    """What a key of slurm.conf says: in the controller's own words, or where it does not answer in the file's.

    A key that nobody wrote has no value. Unseen: neither answers.
    """
    for source in (facts.slurm.live, facts.slurm.written):
        if not isinstance(source, Unseen):
            return source.get(key.lower(), ())
    return facts.slurm.written if isinstance(facts.slurm.written, Unseen) else ()


def words(facts: Facts, key: str) -> tuple[str, ...] | Unseen:
    """The same as a list of lower-case words, split at commas."""
    found = values(facts, key)
    return found if isinstance(found, Unseen) else split(",".join(found))


def split(text: str) -> tuple[str, ...]:
    """A list of Slurm's, in lower case."""
    return tuple(word.strip().lower() for word in text.split(",") if word.strip())


def seconds(facts: Facts, key: str) -> float | None:
    """A time of slurm.conf (`30`, or `30 sec` from the controller); None: nobody set it, or it is without end."""
    found = values(facts, key)
    if isinstance(found, Unseen) or not found:
        return None
    return site.parse_seconds(found[-1])


def unsafe(file: FileFact, trusted: Iterable[int] = (0,)) -> str:
    """Why somebody else than root could change what is run or read here; empty: nobody can.

    A folder with the sticky bit, such as /tmp, keeps others from replacing what is not theirs.
    """
    for step in file.chain:
        last = step is file.chain[-1]
        if step.uid not in trusted:
            return f"{step.path} belongs to uid {step.uid}"
        if step.mode & 0o022 and (last or not step.mode & 0o1000):
            return f"{step.path} is writable by others (mode {step.mode & 0o7777:04o})"
    return ""


def closed(file: FileFact) -> str:
    """The part of a path that users cannot read or pass; empty: they can."""
    for step in file.chain:
        wanted = 0o004 if step is file.chain[-1] and file.is_file else 0o001 if step is not file.chain[-1] else 0o005
        if step.mode & wanted != wanted:
            return f"{step.path} has mode {step.mode & 0o7777:04o}"
    return ""


def release_of(version: str) -> str:
    """26.05 of 26.05.5: what Slurm compares when it loads a plugin."""
    return ".".join(version.split(".")[:2])


def named(items: Iterable[object], most: int = 4) -> str:
    """Some things in a sentence; of many the first few and how many more."""
    found = [str(item) for item in items]
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
