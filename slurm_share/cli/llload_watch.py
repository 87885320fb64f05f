"""`llload --watch`: draw a survey at intervals, in place on a terminal, one after another in a pipe."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol

from ..core import names
from ..core import terminal as core_terminal
from ..core.errors import SlurmShareError, UsageError
from ..load import Survey

_HOME, _CLEAR, _LINE_END, _REST = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"
_QUIT = b"qQ"
LEAST_HEIGHT = 5

Came = Literal["time", "quit", "changed"]
"""Why a wait ended: the time is over, q was pressed, or the screen must be drawn again."""


class ReadSurvey(Protocol):
    """A source of surveys that can be called repeatedly."""

    @property
    def is_over(self) -> bool:
        """Return whether there is no further survey."""

    def __call__(self, timeout_s: float) -> Survey:
        """Return the next survey. Raises SlurmShareError."""


Draw = Callable[[Survey, int, int | None, bool], Iterable[str]]
"""(survey, width, height or None, whether it is the first) -> lines."""


def watch(read: ReadSurvey, draw: Draw, *, every_s: float, timeout_s: float, for_people: bool) -> int:
    """Read and draw every `every_s` seconds until q, Ctrl-C or the end of a recording. The first survey may raise
    SlurmShareError. A later failure is shown below the last figures, and the next survey tries again. `for_people`:
    draw in place on a terminal; in a pipe, separate two surveys by a blank line."""
    terminal = for_people and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    with _waiting(terminal) as wait, _ended_by_signals():
        survey, first, problem = None, True, ""
        while True:
            until = time.monotonic() + every_s
            try:
                survey, problem = read(timeout_s), ""
            except UsageError:
                raise
            except SlurmShareError as error:
                if survey is None:
                    raise
                problem = f"no new figures: {core_terminal.safe(str(error))}"
            if terminal:
                _draw_in_place(draw, survey, problem, clear=first)
            elif not problem:
                core_terminal.print_lines([""] if for_people and not first else [])
                core_terminal.print_lines(draw(survey, core_terminal.width(), None, first))
            else:
                print(problem, file=sys.stderr)
            sys.stdout.flush()
            first = False
            if read.is_over:
                return names.EXIT_OK
            while (came := wait(max(0.0, until - time.monotonic()))) == "changed":
                _draw_in_place(draw, survey, problem, clear=True)
                sys.stdout.flush()
            if came == "quit":
                return names.EXIT_OK


def _draw_in_place(draw: Draw, survey: Survey, problem: str, *, clear: bool) -> None:
    """Draw each line over the old one, so that the screen does not flicker."""
    width, height = core_terminal.width(), shutil.get_terminal_size().lines
    room = max(LEAST_HEIGHT, height - 1 - bool(problem))
    drawn = list(draw(survey, width, room, clear))
    if len(drawn) > room:
        drawn = [*drawn[: room - 1], "…"]
    lines = [*drawn, *([core_terminal.shortened(problem, width)] if problem else [])]
    sys.stdout.write(_HOME + (_CLEAR if clear else ""))
    core_terminal.print_lines(f"{line}{_LINE_END}" for line in lines)
    sys.stdout.write(_REST)


@contextlib.contextmanager
def _waiting(terminal: bool) -> Iterator[Callable[[float], Came]]:
    """Yield a function that waits some seconds, or until q is pressed. It reads no keys in a pipe or in the background.
    `terminal`: a resize, and fg after Ctrl-Z, end the wait as well."""
    file = 0
    keys = os.isatty(file) and sys.stdout.isatty()
    before: list[Any] | None = termios.tcgetattr(file) if keys else None
    woken, waking = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waking, False)

    def heard(*_: object) -> None:
        """Do nothing: the byte that the interpreter writes to the wakeup descriptor ends the wait, without a race."""

    def wait(seconds: float) -> Came:
        until = time.monotonic() + seconds
        # A shell may have reset the terminal while this process was stopped. In the background it is the shell's.
        listens = before is not None and _is_foreground(file)
        if listens:
            tty.setcbreak(file, termios.TCSANOW)
        while True:
            ready, _, _ = select.select(
                [woken, file] if listens else [woken], [], [], max(0.0, until - time.monotonic())
            )
            if not ready:
                return "time"
            if woken in ready:
                os.read(woken, 4096)
                return "changed"
            pressed = os.read(file, 64)
            if not pressed or any(key in _QUIT for key in pressed):
                return "quit"

    handled = [signal.SIGWINCH, signal.SIGCONT] if terminal else []
    handlers = {number: signal.signal(number, heard) for number in handled}
    woke_before = signal.set_wakeup_fd(waking, warn_on_full_buffer=False) if terminal else -1
    try:
        yield wait
    finally:
        if terminal:
            signal.set_wakeup_fd(woke_before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(woken)
        os.close(waking)
        if before is not None and _is_foreground(file):
            termios.tcsetattr(file, termios.TCSANOW, before)


def _is_foreground(file: int) -> bool:
    try:
        return os.tcgetpgrp(file) == os.getpgrp()
    except OSError:
        return False


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that the terminal is restored and the source closed."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
