"""Decide when repeated failures slow a run down, and when they stop it."""

from __future__ import annotations

import re

from msgspec.structs import replace

from ...core.errors import UsageError, shown
from ...core.text import counted
from ..records import Outcome, Run

INSTANT_S = 1.0
"""Seconds within which a failure counts as instant: a wrong path, a missing module, a full disk."""
STREAK = 20
"""Instant failures in a row, plus one per worker, after which starts are slowed down."""
PAUSE_S, PAUSE_MOST_S = 0.5, 5.0


def streak(before: int, outcome: Outcome, seconds: float) -> int:
    """Return the number of instant failures in a row after one more end. Failed starts are counted elsewhere."""
    if outcome in ("saved", "unfinished", "not started"):
        return before
    return before + 1 if outcome != "done" and seconds < INSTANT_S else 0


def pause_s(failures: int, workers: int) -> float:
    """Return the seconds without starts after `failures` instant failures in a row on a node with `workers` workers.

    0 up to STREAK + `workers` failures. Then PAUSE_S, doubled after each `workers` further failures, at most
    PAUSE_MOST_S.
    """
    over = failures - STREAK - workers
    return 0.0 if over < 0 else min(PAUSE_S * 2 ** min(over // max(workers, 1), 10), PAUSE_MOST_S)


def parse_max_failures(text: str, tasks: int) -> int:
    """Return the number of failed tasks that stops a run of `tasks` tasks, from `K` or `P%`. Raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,9})(%?)", text, re.ASCII)
    number = int(match[1]) if match else 0
    if match is None or number < 1 or (match[2] and number > 100):
        raise UsageError(
            f"--max-failures {shown(text) or repr(text)}: write the number of failed tasks that stops the run, 1 or "
            "more, or a percentage of all tasks, 1% to 100%"
        )
    return max(1, -(-tasks * number // 100)) if match[2] else number


def is_too_much(failed: int, max_failures: int | None) -> bool:
    return max_failures is not None and failed >= max_failures


def failure_limit_text(run: Run) -> str:
    """Return --max-failures of a run as it was written; for a percentage with the number of tasks."""
    written = run.max_failures_written
    share = f" ({run.max_failures} of {counted(run.tasks, 'task')})" if written.endswith("%") else ""
    return f"--max-failures {written}{share}"


def too_much_text(failed: int, run: Run) -> str:
    tasks = "1 task has" if failed == 1 else f"{failed} tasks have"
    return f"{tasks} failed, and {failure_limit_text(run)} stops the run"


def with_max_failures(run: Run, text: str) -> Run:
    """Return a run with the value of --max-failures. Raises UsageError."""
    return replace(run, max_failures=parse_max_failures(text, run.tasks), max_failures_written=text)
