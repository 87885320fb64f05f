"""What has to be done behind Textual's back, each with its reason. Looked up in Textual 8.2."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import threading
from types import FrameType
from typing import Any

from rich.segment import Segment
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter, Monochrome, NoColor
from textual.scrollbar import ScrollBar, ScrollBarRender

from .widgets import signs


def draw_on_a_terminal() -> None:
    """Textual's driver draws on the original standard error, whatever that is: `llload-tui 2> errors` would show
    nothing and fill the file with escapes. Called before there is an app, it draws on standard output then."""
    if sys.__stderr__ is None or not sys.__stderr__.isatty():
        sys.__stderr__ = sys.__stdout__  # type: ignore[misc]


def no_colours(app: App[Any], *, wanted: bool) -> None:
    """Textual takes an empty NO_COLOR for one (no-color.org does not), and makes greys of colours where none are wanted
    at all. Called when there is an app and nothing has been drawn yet."""
    app.no_color = wanted
    app._filters = [one for one in app._filters if not isinstance(one, NoColor | Monochrome)]
    if wanted:
        app._filters.append(NoColor())


class _Plain(LineFilter):
    """Everything that is drawn, in ASCII and what strangers' names have of the terminal's own letters."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """As LineFilter has it."""
        if all(text.isascii() for text, _, _ in segments):
            return segments
        return [Segment(signs.plain(text), style, control) for text, style, control in segments]


class _PlainScrollBar(ScrollBarRender):
    VERTICAL_BARS = HORIZONTAL_BARS = [" "] * 8


def plain_signs(app: App[Any]) -> None:
    """Borders, bars that scroll, notes and the palette are Textual's, and know nothing but Unicode; where the encoding
    has not, its driver would write backslashes and numbers. Called when there is an app and nothing has been drawn
    yet."""
    if signs.are_plain():
        ScrollBar.renderer = _PlainScrollBar
        app._filters.append(_Plain())


def stop_and_go_on(app: App[Any]) -> None:
    """Textual's driver stops itself alone and for ever, where a shell waits for a whole job or there is none; continued
    it draws only what changes; and after a SIGSTOP it reads the keys twice. Called when its driver is there."""
    if app._driver is None or not app._driver.can_suspend or threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    signal.signal(signal.SIGTSTP, lambda number, frame: _soon(loop, stop, app))
    signal.signal(signal.SIGCONT, lambda number, frame: _soon(loop, draw_anew, app))


def _soon(loop: asyncio.AbstractEventLoop, do: Any, app: App[Any]) -> None:
    """Not within the signal: whatever was going on then is over first."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(do, app)


def stop(app: App[Any]) -> bool:
    """Stop this job, with the terminal as it was before, and go on when the shell says so. False: nobody could."""
    if app._driver is None or not app._driver.can_suspend or app._exit:
        return False
    went_on = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal went_on
        went_on = True

    before = {one: signal.getsignal(one) for one in (signal.SIGTSTP, signal.SIGCONT)}
    with app.suspend():
        try:
            signal.signal(signal.SIGCONT, note)
            signal.signal(signal.SIGTSTP, signal.SIG_IGN)
            os.killpg(os.getpgrp(), signal.SIGTSTP)  # whoever started us in our own job: sudo, time, sh -c
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            # To this thread, so that it goes no further. The kernel leaves it out where no shell could go on with it.
            signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
    return went_on


def draw_anew(app: App[Any]) -> None:
    """Take the terminal again, whatever was done to it meanwhile, and draw everything."""
    if app._driver is not None and app._driver.can_suspend and not app._exit:
        with app.suspend():
            pass


def has_terminal() -> bool:
    """Return whether the terminal is still there: writing to one that was closed waits for ever."""
    try:
        termios.tcgetattr(0)
    except (termios.error, OSError):
        return False
    return True
