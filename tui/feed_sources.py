"""Sources of surveys in the feed process: a live cluster, or a recording that is played."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from slurm_share.core import nodelist
from slurm_share.core.errors import StateError, UsageError, shown
from slurm_share.core.settings import Settings
from slurm_share.load import NodeLoad, Origin, Replay, Survey, SurveySource
from slurm_share.load import origin as load_origin

from .wire import Command, Position, ReadNow, Seek, SetInterval, SetSpeed, ShowDetails, StepReplay

LARGE_NODES = 1000
"""A larger cluster is read as a line for each node, and in detail only when a view needs it."""
LEAST_S = 0.5
"""Shortest time between two surveys, seconds."""
REST = 3.0
"""Least pause after a survey, as a multiple of its duration: surveys must not load the nodes or this host."""
GAP_MOST_S = 10.0
"""A longer gap in a recording is shortened to this."""
FRAME_S = 0.2
"""Least time that a survey of a recording is shown, seconds; surveys in between are skipped."""
SPEEDS = (1 / 64, 1024.0)
DEMO_EARLIER_S, DEMO_EARLIER_STEP_S = 600, 20
"""A demonstration begins with a history of this length, in surveys this far apart, seconds: sparklines show ten
minutes."""
DEMO_EARLIER_NODES = 48
"""A demonstration with more nodes begins without a history, which would delay the start."""
Open = Callable[[Origin, Settings], SurveySource]


class LiveSource:
    """A cluster, or a demonstration of one."""

    details = False
    """Whether the last survey has more than a line for each node."""
    position: Position | None = None
    file: Path | None = None

    def __init__(self, origin: Origin, settings: Settings, open_it: Open = load_origin.open_survey_source) -> None:
        self._origin, self._settings, self._open = origin, settings, open_it
        self._every_s = max(LEAST_S, origin.interval_s or settings.agent_interval_s)
        self._wanted = False
        is_local = not origin.demo and (origin.source or settings.load_source) == "local"
        self._may_be_large = origin.everybody and not (origin.nodes or origin.jobs or is_local)
        self._is_large = self._may_be_large and (not origin.demo or origin.demo_nodes > LARGE_NODES)
        """Assumed until the first survey, since one line for each node is cheap on any cluster."""
        self._sources: dict[bool, SurveySource] = {}
        """The sources with and without details. Both stay open, so that switching does not ask Slurm more often."""

    @property
    def _is_detailed(self) -> bool:
        return self._wanted or not self._is_large

    def earlier(self) -> Iterable[Survey]:
        """Yield the surveys of a demonstration before the first one, oldest first. A real cluster has none."""
        one, now = self._origin, time.time()
        if one.demo and one.demo_nodes <= DEMO_EARLIER_NODES:
            from slurm_share.load import Demo

            past = partial(Demo, user=one.user, everybody=one.everybody, nodes=one.nodes, jobs=one.jobs)
            for ago_s in range(DEMO_EARLIER_S, 0, -DEMO_EARLIER_STEP_S):
                yield past(count=one.demo_nodes, clock=partial(float, now - ago_s)).read()

    def read(self, timeout_s: float) -> Survey:
        """Return the next survey. Raises the errors of its source."""
        self.details = self._is_detailed
        if self.details not in self._sources:
            self._sources[self.details] = self._open(replace(self._origin, details=self.details), self._settings)
        survey = self._sources[self.details].read(timeout_s)
        if self._may_be_large:
            self._is_large = len(survey.nodes) > LARGE_NODES
        return survey if self.details else lines_only(survey)

    def obey(self, command: Command) -> bool:
        """Carry out SetInterval, ShowDetails and ReadNow; other commands are for recordings. Return True if there is
        something new to show at once."""
        if isinstance(command, SetInterval) and math.isfinite(command.seconds):
            self._every_s = max(LEAST_S, command.seconds)
        elif isinstance(command, ShowDetails):
            self._wanted = command.wanted
            return self._is_detailed and not self.details
        elif isinstance(command, ReadNow):
            from slurm_share.load import SurveyReader

            for source in self._sources.values():
                if isinstance(source, SurveyReader):
                    source.ask_again()
        return False

    def pause_s(self, took_s: float) -> float | None:
        """Return the seconds from the start of the last survey to the next one: the interval, or more if a survey takes
        long."""
        return 0.0 if self._is_detailed and not self.details else max(self._every_s, REST * took_s)

    def close(self) -> None:
        for source in self._sources.values():
            source.close()
        self._sources.clear()


class ReplaySource:
    """A recording, played at its own pace, faster, slower, or step by step."""

    details = False
    position: Position | None = None

    def __init__(self, origin: Origin, settings: Settings) -> None:
        """Raises UsageError for an invalid time or a file that is not a recording."""
        assert origin.replay is not None
        self.file: Path | None = Path(origin.replay)
        try:
            replay = load_origin.open_survey_source(origin, settings)
        except StateError as error:
            raise UsageError(str(error)) from error
        assert isinstance(replay, Replay)
        self._replay = replay
        self._nodes = origin.nodes
        self._speed = 1.0
        self._wanted = False
        self._taken = 0.0

    def earlier(self) -> Iterable[Survey]:
        """Return nothing: ReadRecorded reads the whole recording."""
        return ()

    def read(self, timeout_s: float) -> Survey:
        """Return the next survey. Raises UsageError for a node that is not in the first one, StateError for an
        unreadable file."""
        survey = self._replay.read(timeout_s)
        self._taken = survey.taken
        if self._nodes:
            survey = replace(survey, nodes=self._chosen(survey))
        one = self._replay
        self.position = Position(
            number=one.position, count=one.count, first=one.first, last=one.last, speed=self._speed, is_over=one.is_over
        )
        self.details = self._wanted or len(survey.nodes) <= LARGE_NODES
        return survey if self.details else lines_only(survey)

    def _chosen(self, survey: Survey) -> tuple[NodeLoad, ...]:
        there = {node.name: node for node in survey.nodes}
        missing = [name for name in self._nodes if name not in there]
        if missing and self.position is None:
            known = shown(nodelist.fold(there), 200)
            raise UsageError(f"there is no node {shown(missing[0])} in the recording; there are {known}")
        return tuple(node for name, node in there.items() if name in self._nodes)

    def obey(self, command: Command) -> bool:
        """Carry out Step, Seek, SetSpeed and ShowDetails; the last two show the same survey again."""
        if isinstance(command, ShowDetails):
            self._wanted = command.wanted
        match command:
            case StepReplay(count):
                self._go(count)
            case Seek(taken) if math.isfinite(taken):
                self._replay.seek(taken)
            case SetSpeed(factor) if factor > 0:
                self._speed = min(max(factor, SPEEDS[0]), SPEEDS[1])
                self._go(0)
            case ShowDetails(True) if not self.details:
                self._go(0)
            case _:
                return False
        return True

    def _go(self, count: int) -> None:
        """Move by this number of surveys from the one shown."""
        if self.position is not None:
            self._replay.step(self.position.number - 1 + count - self._replay.position)

    def pause_s(self, took_s: float) -> float | None:
        """Return the pause that the recording has, divided by the speed, None at its end; skip surveys that would be
        shown for too short a time."""
        least, total, taken = max(FRAME_S, REST * took_s), 0.0, self._taken
        while (next_taken := self._replay.next_taken) is not None:
            total += min(max(0.0, next_taken - taken), GAP_MOST_S) / self._speed
            taken = next_taken
            if total >= least or self._replay.position + 1 >= self._replay.count:
                return max(total, least)
            self._replay.step(1)
        return None

    def close(self) -> None:
        self._replay.close()


FeedSource = LiveSource | ReplaySource


def open_feed_source(origin: Origin, settings: Settings) -> FeedSource:
    """Return the source that the origin describes. Raises UsageError for a file that is not a recording."""
    return LiveSource(origin, settings) if origin.replay is None else ReplaySource(origin, settings)


def lines_only(survey: Survey) -> Survey:
    """Return the survey reduced to one line for each node, as a source without details gives it."""
    return replace(survey, nodes=tuple(map(_line, survey.nodes)), jobs=())


def _line(node: NodeLoad) -> NodeLoad:
    snapshot = node.snapshot
    if snapshot is None or not (snapshot.gpus or snapshot.processes or snapshot.jobs or snapshot.users):
        return node
    return replace(node, snapshot=replace(snapshot, gpus=(), processes=(), jobs=(), users=(), gpu_sums=snapshot.sums))
