"""The dashboard's end of the pipes: starts the feed process, reads it in a thread, and posts whole pictures.

Nothing here imports Textual before there is an app: the process is started first, and looks while Textual is loaded.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from slurm_share.core.errors import CommandError, shown
from slurm_share.core.process import Deadline, Stream, stream
from slurm_share.load import Origin

from . import wire
from .history import History
from .picture import Picture, put_together
from .wire import (
    AskRecorded,
    Begin,
    FeedFailure,
    Part,
    ReadNow,
    RecordedPoints,
    Said,
    Seek,
    Step,
    Subject,
    Told,
)

if TYPE_CHECKING:
    from textual.message import Message

PROGRAM = (sys.executable, "-I", "-m", "slurm_share_tui.feed_process")
LINE_MOST = 1 << 28
"""Bytes of one line, 256 MiB, as of a recording: PART_NODES nodes with all that can be on them have a few."""
TURN_BYTES = 1 << 18
"""What is read at a time, so that a line is decoded as soon as it is there."""
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Before the process is started again, each time that it ends without having seen anything; then the last one."""
CLOSE_S = 3.0
"""What the process has to end: half of it by itself."""
NOT_UNDERSTOOD = "a look was not understood; was slurm-share upgraded meanwhile? Start llload-tui again"


class Feed:
    """Read pictures from another process. `start` may be called before there is an app, `attach` after.

    `history` is fed before a picture is posted. `failure`: why nothing will ever come, empty as long as something may.
    """

    def __init__(
        self,
        origin: Origin,
        post: Callable[[Message], object] | None = None,
        *,
        program: Sequence[str] = PROGRAM,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self.origin = origin
        self.history = History()
        self.failure = ""
        self._program, self._pauses_s = tuple(program), tuple(pauses_s)
        self._lock = threading.Lock()
        """Guards the child and what it was told: two threads use them."""
        self._child: Stream | None = None
        self._state: dict[type[Told], Told] = {}
        """What a new process has to be told again: each kind's last one."""
        self._asked: dict[Subject, AskRecorded] = {}
        """Questions without an answer."""
        self._posting = threading.Lock()
        self._post = post
        self._kept: list[Picture | FeedFailure] = []
        self._is_closing = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._reader: threading.Thread | None = None
        self._number = 0
        self._failures = 0
        """Processes, one after another, that ended without a whole survey."""
        self._is_garbled = False
        """A survey was not understood, none after it was, and that has been said."""
        self._forget()

    @property
    def has_seen(self) -> bool:
        """Return whether there was a picture."""
        return self._number > 0

    # ---- for the app ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process. Raises CommandError where that cannot be done."""
        self._begin()
        self._reader = threading.Thread(target=self._run, name="feed", daemon=True)
        self._reader.start()

    def attach(self, post: Callable[[Message], object]) -> None:
        """Send messages to the app from now on, first those received already."""
        with self._posting:
            self._post = post
            kept, self._kept = self._kept, []
            for one in kept:
                post(_message(one))

    def tell(self, told: Told) -> None:
        """Give an order. Never waits; a process that is started anew is told all that still holds, as is the one that
        comes after one that does not read."""
        with self._lock:
            if isinstance(told, AskRecorded):
                self._asked[told.subject] = told
            elif not isinstance(told, ReadNow | Step):
                self._state[type(told)] = told
            if self._child is not None and not self._child.say(wire.line(told)):
                self._child.kill()

    def close(self) -> None:
        """End the process. May be called twice."""
        if self._is_closing:
            return
        self._is_closing = True
        os.eventfd_write(self._wake, 1)
        if self._reader is not None:
            self._reader.join(CLOSE_S + 2.0)
            if self._reader.is_alive():
                return  # it sits in the kernel, and the descriptor is its own
        os.close(self._wake)

    # ---- the process ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        # Not under the lock, for which whoever tells something waits: a start takes long.
        child = stream(self._program, line_most=LINE_MOST)
        heard = child.say(msgspec.json.encode(self.origin) + b"\n")
        with self._lock:
            for told in (*self._state.values(), *self._asked.values()):
                heard = heard and child.say(wire.line(told))
            self._child = child
        if not heard:
            child.kill()
        self._forget()

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            if not self._is_closing and not self.failure:
                # A fault of ours, whose traceback the interpreter prints: a screen that grows old says why.
                self.failure = "a fault of llload-tui: it reads nothing any more; start it again"
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
        """Start it again, after a pause."""
        while not self._is_closing:
            pause_s = self._pauses_s[min(self._failures, len(self._pauses_s) - 1)]
            self._failures += 1
            self._send(FeedFailure(f"{why}; it is started again in {pause_s:g} s"))
            if select.select([self._wake], [], [], pause_s)[0]:
                return
            try:
                self._begin()
                return
            except CommandError as error:
                why = f"the process that looks cannot be started: {shown(error.stderr, 160)}"

    def _read(self, child: Stream) -> None:
        """Read until it closes its output, or we end."""
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

    # ---- what it says -----------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """Drop what was begun and will not be finished."""
        self._first: Begin | None = None
        self._parts: list[Part] = []

    def _hear(self, line: bytes) -> None:
        try:
            said: Said = wire.said(line)
        except (msgspec.DecodeError, RecursionError):
            self._not_understood()
            return
        if isinstance(said, Part):
            self._parts.append(said)
        elif isinstance(said, Begin):
            self._first, self._parts = said, []
        elif isinstance(said, FeedFailure):
            if said.is_over:
                self.failure = said.why
            self._send(said)
        elif isinstance(said, RecordedPoints):
            self.history.add_recorded(said)
            with self._lock:
                self._asked.pop(said.subject, None)
        elif self._first is not None:
            self._take(self._first, self._parts)
            self._forget()

    def _not_understood(self) -> None:
        """What is on the screen grows old from here on: why is said, once and not for every line."""
        self._forget()
        if not self._is_garbled:
            self._is_garbled = True
            self._send(FeedFailure(NOT_UNDERSTOOD))

    def _take(self, begin: Begin, parts: Sequence[Part]) -> None:
        rows = tuple(row for part in parts for row in part.rows)
        if len(rows) != begin.nodes:
            self._not_understood()  # a line was lost
            return
        self._is_garbled = False
        self._number += not begin.is_earlier
        self._failures = 0
        picture = put_together(
            begin,
            rows,
            tuple(one for part in parts for one in part.advice),
            jobs=tuple(job for part in parts for job in part.jobs),
            arrived=time.monotonic(),
            number=self._number,
        )
        self.history.take(picture)
        if begin.is_earlier:
            return
        if picture.position is not None:
            with self._lock:
                self._state[Seek] = Seek(picture.survey.taken)
        self._send(picture)

    def _send(self, one: Picture | FeedFailure) -> None:
        with self._posting:
            if self._post is not None:
                # An app that has just ended has no loop to call into; then nobody waits for this.
                with contextlib.suppress(RuntimeError):
                    self._post(_message(one))
                return
            if isinstance(one, Picture):
                self._kept.clear()
            self._kept.append(one)


def _message(one: Picture | FeedFailure) -> Message:
    from .messages import Arrived, FeedFailed

    if isinstance(one, Picture):
        return Arrived(one)
    return FeedFailed(one.why, is_over=one.is_over)


def _why_ended(child: Stream, code: int | None) -> str:
    said = [line for line in child.said.splitlines() if line.strip()]
    how = "does not answer" if code is None else f"ended by signal {-code}" if code < 0 else f"ended with {code}"
    return f"the process that looks {how}" + (f" ({shown(said[-1], 120)})" if said else "")
