"""Query, publish and delete a user's history.

The history contains no text of a command, so a command is found by its hashes: of the whole command, of the name that
its user gave it, or of the path of its script. To show names of scripts, the files of a folder are hashed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from ..core.errors import UsageError, shown
from . import fingerprint
from . import history as files
from .history_records import Record, SiteFamily, TaskRun, families
from .records import Estimate, TaskAsk, TaskKey
from .rules import fingerprint as hashes
from .rules.estimate import families as family_rules
from .rules.estimate.estimator import Estimator
from .rules.estimate.families import FamilyHistory as FamilyHistory

FILES_MOST = 5000
"""Most files of a folder that are hashed."""
SHORT = 8
"""Number of digits of a family's hash that are shown."""
SHORTEST = 4
"""Least number of digits that select a hash."""


class CommandHistory(Struct, frozen=True, kw_only=True):
    """The history of one command."""

    key: TaskKey
    runs: int
    family_runs: int
    estimates: Mapping[str, Estimate]
    """By GPU model."""


class HistorySummary(Struct, frozen=True, kw_only=True):
    """The families of a history."""

    families: tuple[FamilyHistory, ...]
    names: Mapping[str, str]
    """Hash of a script -> name of its file in the folder that was searched."""
    runs: int
    passed_over: int
    notes: tuple[str, ...]


def read_summary(folder: Path, name: str = "") -> HistorySummary:
    """Return a summary of all families, or of the one with the user's `name`. `folder`: searched for scripts."""
    history = files.read_history()
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
    """Return the history of a command that would be started in `folder`."""
    history = files.read_history()
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
    """Return the hashes in `scripts` that belong to files of a folder, with the names of the files."""
    found = {}
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count == FILES_MOST:
                    break
                if entry.is_file() and (script := hashes.name_script(os.path.realpath(entry.path))) in scripts:
                    found[script] = entry.name
    except OSError:
        pass  # a folder that cannot be listed names no script
    return found


def publish() -> tuple[SiteFamily, ...]:
    """Return the records for the folder of the setting `estimate_history`."""
    return family_rules.publish(files.read_history().runs)


def forget(what: str, folder: Path) -> int:
    """Remove the runs and speeds of a family from the history, and return their number. `what`: the name that its user
    gave it, a script, or the first digits of its hash.

    Raises UsageError if no family, or more than one, matches; OSError, StateError.
    """
    script = hashes.name_script(os.path.realpath(folder / what)) if "\0" not in what else ""
    found = {family for one in files.read_all() for family in families(one) if _is_meant(one, family, what, script)}
    if not found:
        raise UsageError(
            f"{shown(what)}: the history has no such name, script or hash; slurm-share pack history lists them"
        )
    by_digits = {family for family in found if family.startswith(what)}
    if len(by_digits) > 1:
        raise UsageError(f"{shown(what)}: {len(by_digits)} hashes begin with these digits; give more digits")
    return files.forget(lambda record: not found.isdisjoint(families(record)))


def _is_meant(record: Record, family: str, what: str, script: str) -> bool:
    """Return whether `what` is the name of a family of a record, the first digits of its hash, or its script."""
    if isinstance(record, TaskRun) and record.script and record.script == script:
        return True
    return family == hashes.name_family(what) or (len(what) >= SHORTEST and family.startswith(what))


def forget_all() -> int:
    """Remove the whole history, and return the number of files. Raises OSError, StateError."""
    return files.forget(None)
