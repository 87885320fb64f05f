"""Where looks come from, whoever wants them: a cluster, a demonstration or a recording, opened by one description."""

from __future__ import annotations

import contextlib
import datetime
import os
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from .. import config
from ..errors import UsageError, shown
from ..settings import Settings
from ..snapshot import Advice, Survey

SOURCES = ("srun", "local", "agents", "prometheus")
DEMO_NODES = 12
SECOND = 0.999_999
"""So far a second goes, by a clock that shows whole ones."""
MOST_TIME_S = 1e11
"""Unix time of a year that a calendar has."""


class Looker(Protocol):
    """Whatever can be looked at again and again."""

    def look(self, timeout_s: float) -> Survey:
        """What there is now."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


class Origin(Struct, frozen=True, kw_only=True):
    """What to look at, and how. It travels to another process as JSON."""

    user: str
    """Whose nodes."""
    everybody: bool = False
    nodes: tuple[str, ...] = ()
    """Only these; of a recording whoever shows it chooses."""
    jobs: tuple[str, ...] = ()
    """Only these, as squeue writes them."""
    details: bool = True
    """Whether more than a line for each node is wanted."""
    source: str = ""
    """One of SOURCES; empty: the site's load_source."""
    demo: bool = False
    demo_nodes: int = DEMO_NODES
    replay: str | None = None
    """A recording's file."""
    at: str | None = None
    """Where a recording is entered, as `moment` reads it."""
    interval_s: float | None = None
    """Between two looks; None: there will be one, which of a recording is its last."""


def open_looker(origin: Origin, settings: Settings) -> Looker:
    """What will be asked; only the source that is wanted is imported. Raises UsageError, StateError."""
    if origin.demo:
        from .demo import Demo

        return Demo(
            user=origin.user,
            everybody=origin.everybody,
            nodes=origin.nodes,
            jobs=origin.jobs,
            count=origin.demo_nodes,
        )
    if origin.replay is not None:
        from .replay import Replay

        replay = Replay(Path(origin.replay))
        if origin.at is not None:
            replay.seek(until(origin.at, replay.last))
        elif origin.interval_s is None:
            replay.seek(replay.last)
        return replay
    from . import surveyor

    return surveyor.Surveyor(
        surveyor.open_source(origin.source or settings.load_source, settings, interval_s=origin.interval_s),
        user=origin.user,
        everybody=origin.everybody,
        nodes=origin.nodes,
        jobs=origin.jobs,
        details=origin.details,
        settings=settings,
    )


def moment(text: str, last: float) -> float:
    """Unix time of `2026-01-31T14:30`, of `14:30` on the last day of a recording, or of seconds since 1970. Raises
    UsageError."""
    with contextlib.suppress(ValueError):
        seconds = float(text)
        if 0 <= seconds <= MOST_TIME_S:
            return seconds
    day = datetime.date.fromtimestamp(last).isoformat()
    for form in (text, f"{day}T{text}"):
        try:
            return datetime.datetime.fromisoformat(form).timestamp()
        except (ValueError, OverflowError):
            continue
    raise UsageError(f"--at {shown(text)}: write 2026-01-31T14:30, 14:30 (of the recording's last day), or seconds")


def until(text: str, last: float) -> float:
    """As `moment`, for going there: a time without a fraction is the end of its second, so that a look taken at
    14:30:39.6, which is shown as 14:30:39, is found by that. Raises UsageError."""
    found = moment(text, last)
    return found if "." in text else found + SECOND


def advice_of(survey: Survey) -> tuple[Advice, ...]:
    """What to run next, of every running job in it, by this site's settings. Raises UsageError for a job whose nodes
    are no list, and for a configuration that is none."""
    from ..decide.advice import advise
    from ..readers import run_results

    site = config.load()
    # A recording, and a demonstration, is of other jobs than those whose results lie here.
    is_now = survey.source not in ("replay", "demo")
    failures = run_results.read_memory_failures(survey.jobs, os.geteuid()) if is_now else {}
    return advise.advise_all(survey, site.settings, site.partitions, failures)
