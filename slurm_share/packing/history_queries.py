"""What a user's history knows, and how its user finds a command again in it.

The history holds no word of any command, so a command is found by its hashes: of the command itself, as it would be
written now; of the name that its user gave it; or of the path of its script, of which those in a folder can be tried.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from ..core.errors import UsageError, shown
from . import fingerprint, speed_history, task_history
from .history_records import SiteFamily, TaskRun
from .records import Estimate, TaskAsk, TaskKey
from .rules import fingerprint as hashes
from .rules.estimate import families as family_rules
from .rules.estimate.estimator import Estimator
from .rules.estimate.families import FamilyHistory as FamilyHistory

FILES_MOST = 5000
"""Files of a folder that are tried."""
SHORT = 8
"""Digits of a family's hash that are shown."""
SHORTEST = 4
"""Digits that are taken for the beginning of a hash."""


class CommandHistory(Struct, frozen=True, kw_only=True):
    """What is known of one command."""

    key: TaskKey
    runs: int
    family_runs: int
    estimates: Mapping[str, Estimate]
    """GPU model -> what would be reserved there."""


class HistorySummary(Struct, frozen=True, kw_only=True):
    """What a history knows."""

    families: tuple[FamilyHistory, ...]
    names: Mapping[str, str]
    """Hash of a script -> its file in the folder that was looked at."""
    runs: int
    passed_over: int
    notes: tuple[str, ...]


def read_summary(folder: Path, name: str = "") -> HistorySummary:
    """Return what is known of all families, or of the one to which its user gave that name. `folder`: where scripts
    are looked for."""
    history = task_history.read_history()
    families = family_rules.group(history.runs)
    if name:
        families = tuple(one for one in families if one.family == hashes.name_family(name))
    return HistorySummary(
        families=families,
        names=find_scripts(folder, {one.script for one in families}),
        runs=len(history.runs),
        passed_over=history.passed_over,
        notes=history.notes,
    )


def read_command(argv: Sequence[str], folder: Path, name: str = "") -> CommandHistory:
    """Return what is known of a command, were it started in that folder."""
    history = task_history.read_history()
    key = fingerprint.key_of(argv, folder, name)
    estimator = Estimator(history.runs, now=time.time())
    sizes = {run.gpu_model: run.gpu_total_mib for run in history.runs}
    ask = TaskAsk(task=0, key=key, name=name)
    estimates = {model: estimator.estimate(ask, model, total) for model, total in sizes.items()}
    return CommandHistory(
        key=key,
        runs=sum(run.exact == key.exact for run in history.runs) if key.exact else 0,
        family_runs=sum(run.family == key.family for run in history.runs),
        estimates={model: one for model, one in estimates.items() if one.point_mib is not None},
    )


def find_scripts(folder: Path, scripts: Container[str]) -> dict[str, str]:
    """Return which of those hashes are of the paths of a folder's files, with the files' names."""
    found = {}
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count == FILES_MOST:
                    break
                if entry.is_file() and (script := hashes.name_script(os.path.realpath(entry.path))) in scripts:
                    found[script] = entry.name
    except OSError:
        return found  # a folder that cannot be listed names no script
    return found


def publish() -> tuple[SiteFamily, ...]:
    """Return the lines for the folder of the setting `estimate_history`."""
    return family_rules.publish(task_history.read_history().runs)


def forget(what: str, folder: Path) -> int:
    """Remove the runs of a family from the history, also what they have shown of speed; return how many runs and
    speeds that were. `what`: the name that its user gave it, a script, or the first digits of its hash.

    Raises UsageError where nothing is known by that, or more than one family by those digits; OSError, StateError.
    """
    script = hashes.name_script(os.path.realpath(folder / what)) if "\0" not in what else ""
    families = {run.family for run in task_history.every_run() if _is_meant(run, what, script)}
    families |= {family for family in speed_history.every_family() if _is_name(family, what)}
    if not families:
        raise UsageError(
            f"{shown(what)}: nothing is known by that; slurm-share pack history lists what is, by script and hash"
        )
    by_digits = {family for family in families if family.startswith(what)}
    if len(by_digits) > 1:
        raise UsageError(f"{shown(what)}: {len(by_digits)} families begin with that; give more digits")
    return task_history.forget(lambda run: run.family in families) + speed_history.forget(families)


def _is_meant(run: TaskRun, what: str, script: str) -> bool:
    return _is_name(run.family, what) or bool(run.script and run.script == script)


def _is_name(family: str, what: str) -> bool:
    """Return whether a user means a family by a name, or by the first digits of its hash."""
    return family == hashes.name_family(what) or (len(what) >= SHORTEST and family.startswith(what))


def forget_all() -> int:
    """Remove the whole history, and return how many files that were. Raises OSError, StateError."""
    return task_history.forget_all() + speed_history.forget_all()
