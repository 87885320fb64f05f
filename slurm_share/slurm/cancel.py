"""Cancel jobs with scancel."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..core.process import finish

TIMEOUT_S = 120
AT_ONCE = 500
"""Jobs of one scancel. If it refuses any, each is tried by itself."""


def cancel(ids: Sequence[str]) -> dict[str, str]:
    """Cancel jobs, in scancel's notation. Return why for each that was refused; a job that has ended is not refused.

    Raises CommandError where scancel does not exist or hangs.
    """
    refused: dict[str, str] = {}
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        if not _cancel(some):
            continue
        # To cancel a job twice does nothing.
        refused |= {one: why for one in some if (why := _cancel([one]))}
    return refused


def _cancel(ids: Sequence[str]) -> str:
    """Cancel the jobs. Return why scancel refused; empty: it did not."""
    # SCANCEL_INTERACTIVE of the caller would ask questions, SCANCEL_STATE leave some jobs alive.
    env = {name: value for name, value in os.environ.items() if not name.startswith("SCANCEL_")}
    done = finish(["scancel", "--", *ids], timeout_s=TIMEOUT_S, env=env)
    said = done.stderr.strip()
    return said.splitlines()[-1] if said else "" if done.code == 0 else f"scancel ended with {done.code}"
