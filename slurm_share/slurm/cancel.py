"""Cancel jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..core.process import finish

TIMEOUT_S = 120
AT_ONCE = 500
"""Jobs for one scancel: what is refused is found out one by one afterwards."""


def cancel(ids: Sequence[str]) -> dict[str, str]:
    """Tell Slurm to end jobs, `ids` as scancel takes them; what it says against those that it does not end.

    A job that has ended meanwhile is no refusal. Raises CommandError when scancel is not there or hangs.
    """
    refused: dict[str, str] = {}
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        if not _cancel(some):
            continue
        # Once more, each for itself: one that has been ended already is ended again, which does nothing.
        refused |= {one: why for one in some if (why := _cancel([one]))}
    return refused


def _cancel(ids: Sequence[str]) -> str:
    """Cancel the jobs; return what scancel says against it, empty if nothing."""
    # Not what the caller has set for scancel itself: SCANCEL_INTERACTIVE would ask, SCANCEL_STATE leave some alive.
    env = {name: value for name, value in os.environ.items() if not name.startswith("SCANCEL_")}
    done = finish(["scancel", "--", *ids], timeout_s=TIMEOUT_S, env=env)
    said = done.stderr.strip()
    return said.splitlines()[-1] if said else "" if done.code == 0 else f"scancel ended with {done.code}"
