"""Gives jobs of the queue another verdict."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.process import Check, finish
from .records import VerdictUpdate

UPDATE_S = 60.0


def argv(update: VerdictUpdate) -> list[str]:
    """Return the command for one change."""
    return ["scontrol", "update", f"jobid={','.join(update.jobs)}", f"{update.field}={update.text}"]


def change(update: VerdictUpdate, environ: Mapping[str, str], check: Check | None = None) -> str | None:
    """Change these jobs of the cluster that `environ` leads to; return what scontrol said where it did not change all
    of them. One that has begun or ended since it was listed is refused, and the others are changed. Raises CommandError
    where scontrol does not end; `check`: as for `finish`."""
    done = finish(argv(update), timeout_s=UPDATE_S, env=environ, check=check)
    return None if done.code == 0 else done.stderr.strip()
