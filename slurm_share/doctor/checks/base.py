"""Helpers for writing checks: the `check` decorator, verdicts, and access to settings of slurm.conf."""

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
    """Decorate a function to make it a Check."""
    return lambda run: Check(name, roles, asks, why, fix, run)


def values(facts: Facts, key: str) -> tuple[str, ...] | Unseen:
    """Return the values of a key of slurm.conf, from the controller, or from the file if it does not answer.

    A key that is not set has no value. Unseen: neither source is available.
    """
    for source in (facts.slurm.live, facts.slurm.written):
        if not isinstance(source, Unseen):
            return source.get(key.lower(), ())
    return facts.slurm.written if isinstance(facts.slurm.written, Unseen) else ()


def listed_values(facts: Facts, key: str) -> tuple[str, ...] | Unseen:
    """Return the values of a key as lower-case items, split at commas."""
    found = values(facts, key)
    return found if isinstance(found, Unseen) else split(",".join(found))


def split(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of Slurm's, in lower case."""
    return tuple(item.strip().lower() for item in text.split(",") if item.strip())


def seconds(facts: Facts, key: str) -> float | None:
    """Return a time of slurm.conf in seconds (`30`, or the controller's `30 sec`); None: unset or unlimited."""
    found = values(facts, key)
    if isinstance(found, Unseen) or not found:
        return None
    return site.parse_seconds(found[-1])


def closed(file: FileFact) -> str:
    """Return the component of a path that users cannot read or pass; "": they can use it all."""
    for step in file.chain:
        wanted = 0o004 if step is file.chain[-1] and file.is_file else 0o001 if step is not file.chain[-1] else 0o005
        if step.mode & wanted != wanted:
            return f"{step.path} has mode {step.mode & 0o7777:04o}"
    return ""


def release_of(version: str) -> str:
    """Return the release of a version (26.05 of 26.05.5), which Slurm compares when it loads a plugin."""
    return ".".join(version.split(".")[:2])


def named(items: Iterable[object], most: int = 4) -> str:
    """Return items as text: the first few, and how many more there are."""
    found = [str(item) for item in items]
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
