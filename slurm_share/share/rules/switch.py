"""Switch sharing off and on: the text of config.toml, the verdicts of the jobs in the queue, the modes of the nodes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core import numbers
from ...core.settings import Configuration, Settings
from ..records import NodeShares, SwitchableJob, VerdictUpdate
from . import verdict
from .verdict import Mode

LINE = 'switched_off = true    # by "slurm-share off"; "slurm-share on" takes this line away\n'
_KEY = "switched_off"
_SETTING = re.compile(r"^([ \t]*switched_off[ \t]*=[ \t]*)(true|false)\b", re.MULTILINE)
BATCH = 100
"""The most jobs that one call of scontrol changes."""


def is_off(text: str) -> bool:
    """Return whether the text of config.toml switches sharing off, also where the rest of it is no TOML."""
    found = _SETTING.search(text)
    return found is not None and found[2] == "true"


def switched_off(text: str) -> str:
    """Return the text of config.toml with `switched_off = true`, as its first line: after a table's header it would
    belong to the table."""
    if _SETTING.search(text):
        return _SETTING.sub(r"\g<1>true", text, count=1)
    return LINE + text


def switched_on(text: str) -> str:
    """Return the text without the line that `switched_off` wrote; set another line with that key to false."""
    if LINE in text:
        return text.replace(LINE, "", 1)
    return _SETTING.sub(r"\g<1>false", text, count=1)


def switched(text: str, *, off: bool) -> str | None:
    """Return the text of config.toml with sharing switched off or on, and nothing else changed; None: the key is
    written in a form that is not supported here, such as in quotes."""
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
    """Return whether a change on the controller reaches the nodes, by the jobs' verdicts or by the mode file."""
    return settings.job_submit or bool(settings.mode_file)


def acting(controllers: Mapping[str, bool]) -> str | None:
    """Return the controller that is in charge, which is the first one that is up; None: none is up."""
    return next((name for name, is_up in controllers.items() if is_up), None)


def mode_of(configuration: Configuration, partitions: Sequence[str]) -> Mode:
    """Return the mode of a job in these partitions, as job_submit.lua does: the greatest of their modes."""
    return max((configuration.of(name).mode for name in partitions), key=verdict.MODES.index)


def count(which: str) -> int:
    """Return the number of jobs in an array's name such as 7_[1-3,9,20-30:5]."""
    found = 0
    for part in which.partition("[")[2].rstrip("]").split(","):
        begin, _, rest = part.partition("-")
        end, _, step = rest.partition(":")
        first, last = numbers.whole(begin, numbers.UINT32_MOST), numbers.whole(end, numbers.UINT32_MOST)
        found += 1 if first is None or last is None else len(range(first, last + 1, numbers.whole(step) or 1))
    return found


def shares(job: SwitchableJob) -> bool:
    """Return whether the job shares in its present run, or, if it is pending, in its next one."""
    said = verdict.read(job.extra, job.comment)
    return said is not None and said.at(job.restarts) == "on"


def wanted(job: SwitchableJob, mode_of: Callable[[Sequence[str]], Mode], *, off: bool) -> str | None:
    """Return the new verdict of the job; None: it keeps its own.

    A running job keeps sharing until it ends; after switching off, it does not share again if it is requeued.
    """
    said = verdict.read(job.extra, job.comment)
    if said is None or (off and said.mode == "off"):
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
    jobs: Sequence[SwitchableJob], mode_of: Callable[[Sequence[str]], Mode], *, off: bool
) -> tuple[VerdictUpdate, ...]:
    """Return the changes for these jobs, grouped by their text."""
    found: dict[tuple[str, str], list[str]] = {}
    for job in jobs:
        value = wanted(job, mode_of, off=off)
        if value is None:
            continue
        its = _field_of(job)
        said = verdict.read(job.extra, job.comment)
        item = verdict.written(value, "" if said is None else said.share)
        text = verdict.replaced(job.comment if its == "comment" else job.extra, item)
        found.setdefault((its, text), []).append(job.which)
    return tuple(
        VerdictUpdate(tuple(part), its, text) for (its, text), named in found.items() for part in _parts(named)
    )


def _field_of(job: SwitchableJob) -> str:
    """Return the name of the field with the job's verdict."""
    return "comment" if verdict.item(job.extra) is None and verdict.item(job.comment) is not None else "extra"


def _parts(jobs: Sequence[str]) -> list[list[str]]:
    """Return the jobs of each call of scontrol. A list of array elements has commas in it: it needs its own call."""
    alone = [[one] for one in jobs if "[" in one]
    plain = [one for one in jobs if "[" not in one]
    return [*(plain[at : at + BATCH] for at in range(0, len(plain), BATCH)), *alone]


# ---- All nodes of the cluster ----


def modes_text(mode: str | None, partition_modes: Mapping[str, str]) -> str:
    """Return a node's mode and those of partitions that differ from it; `?` if the node did not answer."""
    if mode is None:
        return "?"
    return ", ".join([mode, *(f"{name}: {its}" for name, its in sorted(partition_modes.items()) if its != mode)])


_SAID = {"off": "sharing is switched off", "observe": "slurm-share observes only and shares nothing"}


def mode_sentences(modes: Mapping[str, str]) -> list[str]:
    """Return where jobs are not shared; empty if all may share. modes: by partition; key "": all others.

    The sentence about the general mode names the partitions where sharing is on.
    """
    own = modes[""]
    shared = sorted(name for name, mode in modes.items() if name and mode == "on")
    lines = []
    if own != "on":
        some = f"partition {shared[0]}" if len(shared) == 1 else f"partitions {', '.join(shared)}"
        lines.append(_SAID[own] + (f", except in {some}, where sharing is on" if shared else ""))
    others = sorted(name for name, mode in modes.items() if name and mode not in ("on", own))
    return [*lines, *(f"{_SAID[modes[name]]} in partition {name}" for name in others)]


def without_driver_problem(one: NodeShares, *, has_gpus: bool) -> NodeShares:
    """Return a node's answer. Remove its problem, which is the missing driver, if the node has no GPUs."""
    if has_gpus or one.mode is None:
        return one
    return NodeShares(one.node, one.mode, one.partition_modes, one.jobs, one.slots, one.daemons)


def nodes_by_other_mode(own: str, nodes: Mapping[str, NodeShares]) -> dict[str, list[str]]:
    """Return nodes by their mode (`modes_text`), for the modes that differ from the controller's `own`."""
    differ: dict[str, list[str]] = {}
    for node, one in nodes.items():
        its = modes_text(one.mode, one.partition_modes)
        if one.mode is not None and its != own:
            differ.setdefault(its, []).append(node)
    return differ
