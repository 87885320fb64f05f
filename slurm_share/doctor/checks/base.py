"""Helpers for writing checks: the `check` decorator, verdicts, and access to facts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ...core.settings import Configuration
from ...core.verdicts import fail as fail
from ...core.verdicts import ok as ok
from ...core.verdicts import skip as skip
from ...core.verdicts import unsafe as unsafe
from ...core.verdicts import warn as warn
from ...share import Ledger, site
from ..facts.records import Check, CheckVerdict, Facts, FileFact, HostFacts, Needs, Role, UnknownFact

CONTROLLER: tuple[Role, ...] = ("controller",)
COMPUTE: tuple[Role, ...] = ("compute",)
EVERYWHERE: tuple[Role, ...] = ("controller", "login", "compute")

CheckFunction = Callable[[Facts], Sequence[CheckVerdict]]
Fact = TypeVar("Fact")
Other = TypeVar("Other")


class Skip(Exception):
    """Ends a check whose verdict is SKIP; says why."""


def check(
    name: str, roles: tuple[Role, ...], *, asks: str, why: str, fix: str, needs: Needs = "host"
) -> Callable[[CheckFunction], Check]:
    """Decorate a function to make it a Check. It may raise Skip."""

    def decorate(run: CheckFunction) -> Check:
        @functools.wraps(run)
        def run_or_skip(facts: Facts) -> Sequence[CheckVerdict]:
            try:
                return run(facts)
            except Skip as reason:
                return skip(str(reason))

        return Check(name, roles, asks, why, fix, run_or_skip, needs)

    return decorate


def seen(fact: Fact | UnknownFact) -> Fact:
    """Return a fact. Raises Skip with the reason if it is unknown."""
    if isinstance(fact, UnknownFact):
        raise Skip(fact.why)
    return fact


def seen_or(fact: Fact | UnknownFact, other: Other) -> Fact | Other:
    """Return a fact, or `other` if it is unknown."""
    return other if isinstance(fact, UnknownFact) else fact


def configuration(facts: Facts) -> Configuration:
    """Return the configuration. Raises Skip if config.toml is wrong, for which there is a check of its own."""
    if isinstance(facts.config, UnknownFact):
        raise Skip("config.toml is not understood")
    return facts.config


def ledger_of(facts: Facts) -> Ledger:
    """Return the ledger, an empty one if it is unknown."""
    return seen_or(facts.state.ledger, Ledger(""))


def host_facts(facts: Facts) -> HostFacts:
    """Return the facts of the operating system. Raises Skip if they could not be read."""
    if facts.host_facts.missed:
        raise Skip(facts.host_facts.missed)
    return facts.host_facts


def values(facts: Facts, key: str) -> tuple[str, ...] | UnknownFact:
    """Return the values of a key of slurm.conf, from the controller, or from the file if it does not answer.

    A key that is not set has no value. UnknownFact: neither source is available.
    """
    source = seen_or(facts.slurm.live, facts.slurm.written)
    return source if isinstance(source, UnknownFact) else source.get(key.lower(), ())


def listed_values(facts: Facts, key: str) -> tuple[str, ...] | UnknownFact:
    """Return the values of a key as lower-case items, split at commas."""
    found = values(facts, key)
    if isinstance(found, UnknownFact):
        return found
    return tuple(item.strip().lower() for item in ",".join(found).split(",") if item.strip())


def seconds(facts: Facts, key: str) -> float | None:
    """Return a time of slurm.conf in seconds (`30`, or the controller's `30 sec`); None: unset or unlimited."""
    found = seen_or(values(facts, key), ())
    return site.parse_seconds(found[-1]) if found else None


def failures(whys: Iterable[str]) -> list[CheckVerdict]:
    """Return a FAIL for each different reason."""
    return [verdict for why in dict.fromkeys(whys) for verdict in fail(why)]


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
