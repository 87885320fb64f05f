"""Decide when a run that only fails slows down, and when it stops."""

from __future__ import annotations

import re

from ...core.errors import UsageError, shown
from ..records import Outcome

INSTANT_S = 1.0
"""A task that fails sooner has hardly begun its work: a wrong path, a module that is not loaded, a full disk."""
STREAK = 20
"""Such failures in a row, beyond one in every worker, before starts are slowed down."""
PAUSE_S, PAUSE_MOST_S = 0.5, 5.0


def streak(before: int, outcome: Outcome, seconds: float) -> int:
    """Return how many tasks in a row have failed at once, after one more has ended.

    Tasks that could not even be started are counted by the launcher itself, which gives up after some of them.
    """
    if outcome in ("unfinished", "not started"):
        return before
    return before + 1 if outcome != "done" and seconds < INSTANT_S else 0


def pause_s(failures: int, workers: int) -> float:
    """Return for how many seconds nothing starts after so many instant failures in a row on a node with so many
    workers.

    None up to STREAK and one for every worker; then twice as long for each further failure in every worker, up to
    PAUSE_MOST_S.
    """
    over = failures - STREAK - workers
    return 0.0 if over < 0 else min(PAUSE_S * 2 ** min(over // max(workers, 1), 10), PAUSE_MOST_S)


def parse_max_failures(text: str, tasks: int) -> int:
    """Return how many failed tasks stop a run of so many tasks: K, or P% of them. Raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,9})(%?)", text, re.ASCII)
    number = int(match[1]) if match else 0
    if match is None or number < 1 or (match[2] and number > 100):
        raise UsageError(
            f"--max-failures {shown(text) or repr(text)}: write how many failed tasks stop the run, 1 or more, or "
            "their share of all tasks, 1% to 100%"
        )
    return max(1, -(-tasks * number // 100)) if match[2] else number


def is_too_much(failed: int, max_failures: int | None) -> bool:
    """Return whether so many failed tasks stop the run."""
    return max_failures is not None and failed >= max_failures


def too_much_text(failed: int, max_failures: int | None) -> str:
    """Return why the run stops."""
    tasks = "1 task has" if failed == 1 else f"{failed} tasks have"
    return f"{tasks} failed, and --max-failures {max_failures} stops the run"
