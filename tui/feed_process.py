"""The feed process: `python -m slurm_share_tui.feed_process`, started and read by the dashboard (`feed.py`).

Its input is the Origin as a line of JSON, then commands (`wire.Command`); its output is messages (`wire.Message`).
Reading and decoding surveys happens here, so that it delays no key press. The process ends when its input ends, and so
whenever the dashboard ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from slurm_share.core import config
from slurm_share.core.errors import CommandError, SlurmShareError, StateError, UsageError, shown
from slurm_share.load import Advisor, NodeLoad, NodeRow, Origin, Survey, figures, idle, recording, rows_of

from . import wire
from .feed_life import LifeReader, read_end, read_life
from .feed_queue import QueueWatcher
from .feed_sources import FeedSource, open_feed_source
from .history_values import point_of
from .wire import (
    Command,
    FeedFailure,
    PauseFeed,
    Point,
    ReadEnd,
    ReadLife,
    ReadNow,
    ReadRecorded,
    RecordedPoints,
    ShowQueue,
    Subject,
    SurveyBegin,
    SurveyEnd,
)

TIMEOUT_S = 15.0
"""Limit of one survey, seconds, as in llload."""
RETRY_S = 5.0
"""Least pause after a failed survey, seconds."""
END_S = 4.0
"""Time for a survey in progress to end after the input has ended, seconds."""
PIPE_BYTES = 1 << 20
"""Size of the output pipe: a survey of 10,000 nodes needs fewer writes."""
WITHOUT_SLURM = "llload-tui --source local shows this machine, llload-tui --demo a simulated cluster"

POINTS_MOST = 1000
"""Most points, more than a plot has columns. Longer recordings are sampled at even distances."""
Say = Callable[[wire.Message], None]
Clock = Callable[[], float]


class CommandReader:
    """Read the dashboard's commands in a thread."""

    def __init__(self) -> None:
        self._received: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self.is_over = False
        """True: the dashboard has closed the pipe."""

    def read(self, file: int, rest: bytes = b"") -> None:
        """Read commands until the end of the file, of which `rest` has been read already."""
        while True:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                # Skip an invalid line: a dashboard of another release fails at the first line already.
                with contextlib.suppress(msgspec.DecodeError, RecursionError):
                    self.add(wire.decode_command(line))
            data = os.read(file, 65536)
            if not data:
                break
            rest += data
        self.end()

    def add(self, command: Command) -> None:
        self._received.put(command)

    def end(self) -> None:
        """Note that no more commands come."""
        self.is_over = True
        self._received.put(None)

    def take(self, timeout_s: float | None) -> list[Command]:
        """Return the commands received; wait up to `timeout_s` for the first one, or for the end."""
        received: list[Command | None] = []
        with contextlib.suppress(queue.Empty):
            received.append(self._received.get(timeout=timeout_s))
            while True:
                received.append(self._received.get_nowait())
        return [command for command in received if command is not None]


class Watch:
    """Reads surveys repeatedly and follows the dashboard's commands."""

    def __init__(
        self, commands: CommandReader, say: Say, open_source: Callable[[], FeedSource], *, clock: Clock = time.monotonic
    ) -> None:
        self._commands, self._say, self._open, self._clock = commands, say, open_source, clock
        self._source: FeedSource | None = None
        self._early: list[Command] = []
        """Commands received before the source was open."""
        self._recorded: RecordedReader | None = None
        self._queue = QueueWatcher(say)
        self._life: LifeReader | None = None
        self._rows = False
        self._due: float | None = 0.0
        """When the next survey is due, on our clock; None: there is none."""
        self._wanted = True
        """Whether a survey is due now, even while paused."""
        self._begun = 0.0
        self._took_s = 0.0
        self._has_seen = False
        self._advise = Advisor()

    def run(self) -> None:
        """Run until the dashboard closes the pipe or the source has ended."""
        try:
            while not self._commands.is_over:
                for command in self._commands.take(self._wait_s()):
                    self._obey(command)
                if not self._commands.is_over and self._wait_s() == 0.0 and not self._read():
                    return
        finally:
            self._queue.close()
            if self._life is not None:
                self._life.close()
            if self._recorded is not None:
                self._recorded.close()
            if self._source is not None:
                self._source.close()

    def _wait_s(self) -> float | None:
        if self._wanted:
            return 0.0
        if self._rows or self._due is None:
            return None
        return max(0.0, self._due - self._clock())

    def _obey(self, command: Command) -> None:
        if isinstance(command, ReadNow):
            self._wanted = True
            self._queue.ask_again()
            if self._source is not None:
                self._source.obey(command)
        elif isinstance(command, ShowQueue):
            self._queue.want(command.wanted)
        elif isinstance(command, PauseFeed):
            self._rows = command.held
        elif isinstance(command, ReadEnd):
            read_end(command, self._say)
        elif isinstance(command, ReadLife):
            if self._life is None:
                self._life = LifeReader(self._say, lambda asked: read_life(asked, config.load().settings))
            self._life.ask(command)
        elif self._source is None:
            self._early.append(command)
        elif isinstance(command, ReadRecorded):
            self._read_recorded(command, self._source)
        else:
            self._wanted |= self._source.obey(command)
            if not self._wanted and self._has_seen:
                self._next()

    def _read(self) -> bool:
        """Read one survey; return False if it was the last."""
        self._wanted, self._begun = False, self._clock()
        try:
            if self._source is None:
                self._source = self._open()
                for survey in self._source.earlier():
                    self._tell(self._source, survey, took_s=0.0, is_earlier=True)
                early, self._early = self._early, []
                for command in early:
                    self._obey(command)
                self._wanted = False
            survey = self._source.read(TIMEOUT_S)
            self._tell(self._source, survey, took_s=self._clock() - self._begun)
        except BrokenPipeError:
            return False
        except SlurmShareError as error:
            why, is_usage = str(error), isinstance(error, UsageError)
            if isinstance(error, CommandError) and isinstance(error.__cause__, FileNotFoundError):
                why, is_usage = f"{why}; without Slurm {WITHOUT_SLURM}", True
            self._took_s = self._clock() - self._begun
            is_over = is_usage and not self._has_seen
            self._say(FeedFailure(why, is_over))
            if is_over:
                return False
            usual_s = None if self._source is None else self._source.pause_s(0.0)
            self._due = self._clock() + max(RETRY_S, usual_s or 0.0)
            return True
        self._has_seen = True
        self._took_s = self._clock() - self._begun
        self._next()
        return True

    def _next(self) -> None:
        assert self._source is not None
        pause_s = self._source.pause_s(self._took_s)
        self._due = None if pause_s is None else self._begun + pause_s

    def _tell(self, source: FeedSource, survey: Survey, *, took_s: float, is_earlier: bool = False) -> None:
        rows = rows_of(survey)
        notes = survey.notes
        try:
            advice = () if is_earlier else self._advise(survey)
        except SlurmShareError as error:
            advice, notes = (), (*notes, f"no advice: {shown(str(error), 160)}")
        begin = SurveyBegin(
            survey=replace(survey, nodes=(), jobs=(), notes=notes), nodes=len(rows), took_s=took_s,
            details=source.details, position=source.position, is_earlier=is_earlier,
        )  # fmt: skip
        messages: tuple[wire.Message, ...] = (begin, *wire.parts(rows, survey.jobs, advice), SurveyEnd())
        for message in messages:
            self._say(message)

    def _read_recorded(self, command: ReadRecorded, source: FeedSource) -> None:
        if source.file is None:
            self._say(RecordedPoints(command.subject, ()))
            return
        if self._recorded is None:
            self._recorded = RecordedReader(source.file, self._say)
        self._recorded.ask(command.subject)


class RecordedReader:
    """Reads the history of one node, GPU, job or user from a recording while it is played, for the large plot. Reads in
    its own thread. A new question cancels an unanswered one."""

    def __init__(self, file: Path, say: Callable[[RecordedPoints], None]) -> None:
        self._file, self._say = file, say
        self._asked: Subject | None = None
        self._is_over = False
        self._came = threading.Condition()
        threading.Thread(target=self._run, name="recorded history", daemon=True).start()

    def ask(self, subject: Subject) -> None:
        """Read a subject's points and post them."""
        with self._came:
            self._asked = subject
            self._came.notify()

    def close(self) -> None:
        with self._came:
            self._is_over = True
            self._came.notify()

    def _run(self) -> None:
        # The file may change meanwhile, and the dashboard may end.
        with contextlib.suppress(StateError, OSError), contextlib.closing(recording.Recording(self._file)) as whole:
            places = sorted(whole.places(), key=lambda place: place.taken)
            if len(places) > POINTS_MOST:
                last = len(places) - 1
                places = [places[at * last // (POINTS_MOST - 1)] for at in range(POINTS_MOST)]
            while (subject := self._next()) is not None:
                taken = self._points(whole, places, subject)
                if taken is not None:
                    self._say(RecordedPoints(subject, taken))

    def _next(self) -> Subject | None:
        with self._came:
            self._came.wait_for(lambda: self._asked is not None or self._is_over)
            subject, self._asked = self._asked, None
            return None if self._is_over else subject

    def _points(
        self, whole: recording.Recording, places: Sequence[recording.RecordingPlace], subject: Subject
    ) -> tuple[Point, ...] | None:
        """Return the points of a subject; None: another one is asked for, or the end has come."""
        found = []
        for place in places:
            if self._asked is not None or self._is_over:
                return None
            with contextlib.suppress(StateError):  # the line holds no survey
                nodes = idle.judged(whole.at(place)).nodes if subject.job else whole.at(place).nodes
                rows = [NodeRow(node, figures.figures(node)) for node in nodes if _has(node, subject)]
                found.append(point_of(rows, subject, place.taken))
        return tuple(found)


def _has(node: NodeLoad, subject: Subject) -> bool:
    if subject.job:
        numbers = {one.job for one in node.held_gpus or ()}
        return node.snapshot is not None and subject.job in numbers.union(one.job for one in node.snapshot.jobs)
    if not subject.user:
        return node.name == subject.node
    return node.snapshot is not None and any(user.user == subject.user for user in node.snapshot.users)


def main() -> int:
    """Serve the dashboard at the other end of the standard streams."""
    # A library's prints go to standard error, not between our lines.
    out = os.dup(1)
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    voice = threading.Lock()

    def say(message: wire.Message) -> None:
        data = memoryview(wire.encode(message))
        with voice:
            while data:
                data = data[os.write(out, data) :]

    text = b""
    while b"\n" not in text:
        data = os.read(0, 65536)
        if not data:
            return 0
        text += data
    first, _, rest = text.partition(b"\n")
    origin = msgspec.json.decode(first, type=Origin)
    commands, done = CommandReader(), threading.Event()

    def listen() -> None:
        commands.read(0, rest)
        if not done.wait(END_S):
            os._exit(0)

    threading.Thread(target=listen, name="commands", daemon=True).start()
    watch = Watch(commands, say, lambda: open_feed_source(origin, config.load().settings))
    try:
        watch.run()
    except BrokenPipeError:
        pass  # the dashboard has ended
    done.set()
    return 0


if __name__ == "__main__":
    sys.exit(main())
