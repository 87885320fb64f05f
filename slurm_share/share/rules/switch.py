"""Switching sharing off and on: what becomes of the lines of config.toml, and of the jobs in the queue."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.settings import Configuration, Settings
from ...core.typed import Literal
from ..records import Switchable, VerdictUpdate
from . import verdict
from .verdict import Mode

LINE = 'switched_off = true    # by "slurm-share off"; "slurm-share on" takes this line away\n'
_KEY = "switched_off"
_SETTING = re.compile(r"^([ \t]*switched_off[ \t]*=[ \t]*)(true|false)\b", re.MULTILINE)
BATCH = 100
"""Jobs that one scontrol changes."""


def switched_off(text: str) -> str:
    """Return the file with `switched_off = true`. The line goes first: behind a table it would belong to that."""
    if _SETTING.search(text):
        return _SETTING.sub(r"\g<1>true", text, count=1)
    return LINE + text


def switched_on(text: str) -> str:
    """Return the file without what `switched_off` wrote; a line that somebody else wrote says false."""
    if LINE in text:
        return text.replace(LINE, "", 1)
    return _SETTING.sub(r"\g<1>false", text, count=1)


def switched(text: str, *, off: bool) -> str | None:
    """Return the file as it says whether sharing is switched off, and nothing else of it changed; None: the key is
    there in a form that is not changed here, such as in quotes."""
    new = switched_off(text) if off else switched_on(text)
    try:
        after = tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        return None
    is_done = bool(after.get(_KEY)) == off and _others(tomllib.loads(text)) == _others(after)
    return new if is_done else None


def _others(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != _KEY}


def reaches_nodes(settings: Settings) -> bool:
    """Return whether what is written on the controller reaches the nodes: by the jobs' verdicts, or by the mode
    file."""
    return settings.job_submit or bool(settings.mode_file)


def acting(controllers: Mapping[str, bool]) -> str | None:
    """Return the controller that gives jobs to come their verdict: of several the first that is up serves."""
    return next((name for name, is_up in controllers.items() if is_up), None)


def mode_of(configuration: Configuration, partitions: Sequence[str]) -> Mode:
    """Return the mode of a job, as job_submit.lua does: of several partitions the mode that does more."""
    return max((configuration.of(name).mode for name in partitions), key=verdict.MODES.index)


def count(which: str) -> int:
    """Return how many jobs an array's 7_[1-3,9,20-30:5] are."""
    found = 0
    for part in which.partition("[")[2].rstrip("]").split(","):
        first, _, rest = part.partition("-")
        last, _, step = rest.partition(":")
        if last.isdecimal() and first.isdecimal():
            found += len(range(int(first), int(last) + 1, int(step or 1)))
        else:
            found += 1
    return found


def shares(job: Switchable) -> bool:
    """Return whether the job, in its run of now or its next one, is to share."""
    said = verdict.read(job.extra, job.comment)
    return said is not None and said.at(job.restarts) == "on"


def wanted(job: Switchable, mode_of: Callable[[Sequence[str]], Mode], *, off: bool) -> str | None:
    """Return the verdict that the job is to have instead of its own; None: it keeps it.

    A job that runs keeps what it has; switched off, it is not shared any more if it is requeued. Switched on, one that
    was worked out for a share and has no verdict gets one: it was submitted under a release that gave none.
    """
    said = verdict.read(job.extra, job.comment)
    if said is None:
        mode = mode_of(job.partitions) if not off and job.is_pending and job.was_shaped else "off"
        return None if mode == "off" else mode
    if off and said.mode == "off":
        return None
    if off and job.is_pending:
        return "off"
    if off:
        return None if said.mode != "on" or said.runs is not None else f"on,runs={job.restarts + 1}"
    is_changed = said.mode == "off" or said.runs is not None
    if not is_changed or not job.was_shaped or (not job.is_pending and said.mode == "off"):
        return None
    mode = mode_of(job.partitions) if job.is_pending else said.mode
    return None if mode == "off" else mode


def updates(
    jobs: Sequence[Switchable],
    mode_of: Callable[[Sequence[str]], Mode],
    *,
    off: bool,
    field: Literal["extra", "comment"] = "extra",
) -> tuple[VerdictUpdate, ...]:
    """Return the changes for these jobs, those with the same text together. `field`: of a job without a verdict."""
    found: dict[tuple[str, str], list[str]] = {}
    for job in jobs:
        value = wanted(job, mode_of, off=off)
        if value is None:
            continue
        its = _field_of(job) or field
        text = verdict.replaced(job.comment if its == "comment" else job.extra, f"{verdict.NAME}={value}")
        found.setdefault((its, text), []).append(job.which)
    return tuple(
        VerdictUpdate(tuple(part), its, text) for (its, text), named in found.items() for part in _parts(named)
    )


def _field_of(job: Switchable) -> str | None:
    """Return the field in which the job's verdict is; None: it has none."""
    if verdict.read(job.extra, job.comment) is None:
        return None
    return "comment" if verdict.item(job.extra) is None and verdict.item(job.comment) is not None else "extra"


def _parts(jobs: Sequence[str]) -> list[list[str]]:
    """Return lists of jobs for one call each. A list of an array's elements has commas of its own, and goes alone."""
    alone = [[one] for one in jobs if "[" in one]
    plain = [one for one in jobs if "[" not in one]
    return [*(plain[at : at + BATCH] for at in range(0, len(plain), BATCH)), *alone]
