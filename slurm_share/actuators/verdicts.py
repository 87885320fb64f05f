"""Gives jobs of the queue another verdict."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..process import Finished, finish
from ..records import VerdictUpdate

UPDATE_S = 60.0


def argv(update: VerdictUpdate) -> list[str]:
    """Return the command for one change."""
    return ["scontrol", "update", f"jobid={','.join(update.jobs)}", f"{update.field}={update.text}"]


def change(update: VerdictUpdate, run: Callable[..., Finished] = finish) -> str | None:
    """Change these jobs; return what scontrol said where it did not change all of them. One that has begun or ended
    since it was listed is refused, and the others are changed. Raises CommandError where scontrol does not end."""
    done = run(argv(update), timeout_s=UPDATE_S, env=dict(os.environ))
    return None if done.code == 0 else done.stderr.strip()
