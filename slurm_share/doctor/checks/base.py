"""The words that every check is written in: how one is declared, and how it says what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...core.verdicts import fail as fail
from ...core.verdicts import ok as ok
from ...core.verdicts import skip as skip
from ...core.verdicts import unsafe as unsafe
from ...core.verdicts import warn as warn
from ...share import site
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

CheckFunction = Callable[[Facts], Sequence[Verdict]]


def check(name: str, roles: tuple[Role, ...], *, asks: str, why: str, fix: str) -> Callable[[CheckFunction], Check]:
    """Make the function below it a Check."""
    return lambda run: Check(name, roles, asks, why, fix, run)


def values(facts: Facts, key: str) -> tuple[str, ...] | Unseen:
    """What a key of slurm.conf says: in the controller's own words, or where it does not answer in the file's.

    A key that nobody wrote has no value. Unseen: neither answers.
    """
    for source in (facts.slurm.live, facts.slurm.written):
        if not isinstance(source, Unseen):
            return source.get(key.lower(), ())
    return facts.slurm.written if isinstance(facts.slurm.written, Unseen) else ()


def listed_values(facts: Facts, key: str) -> tuple[str, ...] | Unseen:
    """The same as a list of lower-case words, split at commas."""
    found = values(facts, key)
    return found if isinstance(found, Unseen) else split(",".join(found))


def split(text: str) -> tuple[str, ...]:
    """A list of Slurm's, in lower case."""
    return tuple(token.strip().lower() for token in text.split(",") if token.strip())


def seconds(facts: Facts, key: str) -> float | None:
    """A time of slurm.conf (`30`, or `30 sec` from the controller); None: nobody set it, or it is without end."""
    found = values(facts, key)
    if isinstance(found, Unseen) or not found:
        return None
    return site.parse_seconds(found[-1])


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
