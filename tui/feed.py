"""The dashboard's side of the feed: starts the feed process, reads it in a thread, and posts complete pictures.

The module does not import Textual: the process starts first, and reads while Textual is loaded.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from slurm_share.core.errors import CommandError, shown
from slurm_share.core.process import Deadline, Stream, stream
from slurm_share.load import Origin, QueueState

from . import wire
from .history import FigureHistory
from .picture import SurveyPicture, put_together
from .wire import (
    Command,
    FeedFailure,
    JobEnd,
    JobLife,
    QueueRead,
    ReadEnd,
    ReadLife,
    ReadNow,
    ReadRecorded,
    RecordedPoints,
    Seek,
    StepReplay,
    Subject,
    SurveyBegin,
    SurveyPart,
)

Heard = SurveyPicture | FeedFailure | JobEnd
"""A message to the dashboard."""
Post = Callable[[Heard], object]
PROGRAM = (sys.executable, "-I", "-m", "slurm_share_tui.feed_process")
LINE_MOST = 1 << 28
"""Most bytes of a line, as in a recording: PART_NODES nodes with all their data need a few MiB."""
TURN_BYTES = 1 << 18
"""Bytes to read at a time, so that a line is decoded as soon as it is complete."""
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before each restart of the process while no survey is complete; after these, the last value."""
CLOSE_S = 3.0
"""Time for the process to end; after half of it, it gets SIGTERM."""
NOT_UNDERSTOOD = "a survey was not understood; if slurm-share was upgraded meanwhile, start llload-tui again"


class Feed:
    """Reads pictures from the feed process. `start` may be called before there is an app, `attach` after.

    `history` gets a survey before the picture is posted. `failure`: why no survey will ever come; empty: one may.
    """

    def __init__(
        self,
        origin: Origin,
        post: Post | None = None,
        *,
        program: Sequence[str] = PROGRAM,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self.origin = origin
        self.history = FigureHistory()
        self.failure = ""
        self._program, self._pauses_s = tuple(program), tuple(pauses_s)
        self._lock = threading.Lock()
        """Guards the child and the commands sent to it, which two threads use."""
        self._child: Stream | None = None
        self._state: dict[type[Command], Command] = {}
        """The last command of each kind, which a new process gets again."""
        self._asked: dict[Subject, ReadRecorded] = {}
        """Requests without an answer."""
        self._posting = threading.Lock()
        self._post = post
        self._queue: QueueState | None = None
        self._last: SurveyPicture | None = None
        self._kept: list[Heard] = []
        self._is_closing = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._reader: threading.Thread | None = None
        self._number = 0
        self._failures = 0
        """Number of consecutive processes that ended without a complete survey."""
        self._is_garbled = False
        """True: an unreadable survey was reported, and none was readable since."""
        self._forget()

    @property
    def has_seen(self) -> bool:
        return self._number > 0

    def start(self) -> None:
        """Start the process. Raises CommandError if it cannot be started."""
        self._begin()
        self._reader = threading.Thread(target=self._run, name="feed", daemon=True)
        self._reader.start()

    def attach(self, post: Post) -> None:
        """Post surveys and failures to the app from now on, those received already first."""
        with self._posting:
            self._post = post
            kept, self._kept = self._kept, []
            for one in kept:
                post(one)

    def tell(self, command: Command) -> None:
        """Send a command. Never waits. A process that does not read is killed, and the next one gets all commands that
        are still valid."""
        with self._lock:
            if isinstance(command, ReadRecorded):
                self._asked[command.subject] = command
            elif not isinstance(command, ReadNow | StepReplay | ReadLife | ReadEnd):
                self._state[type(command)] = command
            if self._child is not None and not self._child.say(wire.encode(command)):
                self._child.kill()

    def close(self) -> None:
        """End the process. Further calls do nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        os.eventfd_write(self._wake, 1)
        if self._reader is not None:
            self._reader.join(CLOSE_S + 2.0)
            if self._reader.is_alive():
                return  # the thread hangs in the kernel and still uses the descriptor
        os.close(self._wake)

    def _begin(self) -> None:
        # Not under the lock: starting takes long, and `tell` must not wait.
        child = stream(self._program, line_most=LINE_MOST)
        is_sent = child.say(msgspec.json.encode(self.origin) + b"\n")
        with self._lock:
            for command in (*self._state.values(), *self._asked.values()):
                is_sent = is_sent and child.say(wire.encode(command))
            self._child = child
        if not is_sent:
            child.kill()
        self._forget()

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            if not self._is_closing and not self.failure:
                # An internal error: the interpreter prints the traceback, the screen says why no survey comes.
                self.failure = "internal error of llload-tui: it reads no more surveys; start it again"
                self._send(FeedFailure(self.failure, is_over=True))
            with self._lock:
                child, self._child = self._child, None
            if child is not None:
                child.stop(Deadline.after(CLOSE_S))

    def _follow(self) -> None:
        """Run one feed process after another."""
        while (child := self._child) is not None:
            self._read(child)
            if self._is_closing or self.failure:
                return
            why = _why_ended(child, child.wait(0.5))
            with self._lock:
                self._child = None
            child.stop(Deadline.after(1.0))
            self._again(why)

    def _again(self, why: str) -> None:
        """Start the process again after a pause."""
        while not self._is_closing:
            pause_s = self._pauses_s[min(self._failures, len(self._pauses_s) - 1)]
            self._failures += 1
            self._send(FeedFailure(f"{why}; it starts again in {pause_s:g} s"))
            if select.select([self._wake], [], [], pause_s)[0]:
                return
            try:
                self._begin()
                return
            except CommandError as error:
                why = f"the feed process cannot be started: {shown(error.stderr, 160)}"

    def _read(self, child: Stream) -> None:
        """Read until the process closes its output or the dashboard ends."""
        while not self._is_closing and child.files:
            poll = select.poll()
            for file in child.files:
                poll.register(file, select.POLLIN)
            poll.register(self._wake, select.POLLIN)
            poll.poll()
            for line in child.take_lines(TURN_BYTES):
                self._hear(line)
                if self._is_closing or self.failure:
                    return

    def _forget(self) -> None:
        """Drop an unfinished survey."""
        self._first: SurveyBegin | None = None
        self._parts: list[SurveyPart] = []

    def _hear(self, line: bytes) -> None:
        try:
            said: wire.Message = wire.decode_message(line)
        except (msgspec.DecodeError, RecursionError):
            self._not_understood()
            return
        if isinstance(said, SurveyPart):
            self._parts.append(said)
        elif isinstance(said, SurveyBegin):
            self._first, self._parts = said, []
        elif isinstance(said, FeedFailure):
            if said.is_over:
                self.failure = said.why
            self._send(said)
        elif isinstance(said, RecordedPoints):
            self.history.add_recorded(said)
            with self._lock:
                self._asked.pop(said.subject, None)
        elif isinstance(said, JobEnd):
            self._send(said)
        elif isinstance(said, JobLife):
            self.history.add_life(said)
        elif isinstance(said, QueueRead):
            self._queue = said.state
            if self._last is not None:
                self._last = replace(self._last, queue=said.state)
                self._send(self._last)
        elif self._first is not None:
            self._take(self._first, self._parts)
            self._forget()

    def _not_understood(self) -> None:
        """Report an unreadable line once: the screen gets no new survey from it."""
        self._forget()
        if not self._is_garbled:
            self._is_garbled = True
            self._send(FeedFailure(NOT_UNDERSTOOD))

    def _take(self, begin: SurveyBegin, parts: Sequence[SurveyPart]) -> None:
        rows = tuple(row for part in parts for row in part.rows)
        if len(rows) != begin.nodes:
            self._not_understood()  # a line was lost
            return
        self._is_garbled = False
        self._number += not begin.is_earlier
        self._failures = 0
        advice = tuple(one for part in parts for one in part.advice)
        jobs = tuple(job for part in parts for job in part.jobs)
        picture = put_together(
            begin, rows, advice, jobs=jobs, arrived=time.monotonic(), number=self._number, queue=self._queue
        )
        self.history.take(picture)
        if begin.is_earlier:
            return
        if picture.position is not None:
            with self._lock:
                self._state[Seek] = Seek(picture.survey.taken)
        self._last = picture
        self._send(picture)

    def _send(self, one: Heard) -> None:
        with self._posting:
            if self._post is not None:
                # An app that has just ended has no event loop.
                with contextlib.suppress(RuntimeError):
                    self._post(one)
                return
            if isinstance(one, SurveyPicture):
                self._kept.clear()
            self._kept.append(one)


def _why_ended(child: Stream, code: int | None) -> str:
    said = [line for line in child.said.splitlines() if line.strip()]
    how = "does not answer" if code is None else f"ended by signal {-code}" if code < 0 else f"ended with {code}"
    return f"the feed process {how}" + (f" ({shown(said[-1], 120)})" if said else "")


MakeFeed = Callable[[Origin], Feed]
"""Makes the feed of a source, not started."""
