"""Workarounds for Textual 8.2, each with its reason."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import threading
from codecs import getincrementaldecoder
from functools import partial
from types import FrameType
from typing import Any

from rich.segment import Segment
from textual.app import App
from textual.color import Color
from textual.drivers import linux_driver
from textual.events import Mount, Resize, ScreenResume
from textual.filter import LineFilter, Monochrome, NoColor
from textual.message import Message
from textual.screen import Screen
from textual.scrollbar import ScrollBar, ScrollBarRender

from .terminal_input import TerminalInput
from .widgets import glyphs


def draw_on_a_terminal() -> None:
    """Draw on standard output if standard error is not a terminal. Textual's driver always writes to the original
    standard error: `llload-tui 2> errors` would show nothing. Call it before there is an app."""
    if sys.__stderr__ is None or not sys.__stderr__.isatty():
        sys.__stderr__ = sys.__stdout__  # type: ignore[misc]


def read_only_keys() -> None:
    """Let Textual's driver read with `TerminalInput`, and drop bytes that are not UTF-8: one such byte, of a paste or
    of an old terminal's mouse, would end the dashboard. Call it before there is an app."""
    driver: Any = linux_driver
    driver.XTermParser = TerminalInput
    driver.getincrementaldecoder = lambda name: partial(getincrementaldecoder(name), errors="replace")


def no_colours(app: App[Any], *, wanted: bool) -> None:
    """Switch colours off, or on. Textual does so for an empty NO_COLOR (no-color.org does not), and then shows greys.
    Call it before anything is drawn."""
    app.no_color = wanted
    app._filters = [one for one in app._filters if not isinstance(one, NoColor | Monochrome)]
    if wanted:
        app._filters.append(NoColor())


def show_no_closing_screen() -> None:
    """Leave a screen alone that is removed while it opens. Textual gives it no widgets then, but tells it that it has
    them: `on_mount` would look for one and end the dashboard with a traceback. Call it before there is a screen."""
    if _dispatch_unless_closing is not Screen._dispatch_message:
        Screen._dispatch_message = _dispatch_unless_closing  # type: ignore[method-assign,assignment]


_dispatch = Screen._dispatch_message


async def _dispatch_unless_closing(self: Screen[Any], message: Message) -> None:
    if not (isinstance(message, Mount | Resize | ScreenResume) and (self._closing or self._pruning)):
        await _dispatch(self, message)


class _Plain(LineFilter):
    """Replaces everything that is drawn by ASCII characters."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(text.isascii() for text, _, _ in segments):
            return segments
        return [Segment(glyphs.to_ascii(text), style, control) for text, style, control in segments]


class _PlainScrollBar(ScrollBarRender):
    VERTICAL_BARS = HORIZONTAL_BARS = [" "] * 8


def plain_signs(app: App[Any]) -> None:
    """Use ASCII for Textual's own borders, scroll bars, notes and palette, which are Unicode only: in another encoding
    its driver writes escape codes. Call it before anything is drawn."""
    if glyphs.is_ascii_only():
        ScrollBar.renderer = _PlainScrollBar
        app._filters.append(_Plain())


def stop_and_go_on(app: App[Any]) -> None:
    """Handle SIGTSTP and SIGCONT. Textual's driver stops only itself, draws only changes when continued, and reads keys
    twice after SIGSTOP. Call it when the driver exists."""
    if app._driver is None or not app._driver.can_suspend or threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()

    def soon(number: int, frame: FrameType | None) -> None:
        if not loop.is_closed():  # in the event loop, not inside the signal handler
            loop.call_soon_threadsafe(stop if number == signal.SIGTSTP else draw_anew, app)

    signal.signal(signal.SIGTSTP, soon)
    signal.signal(signal.SIGCONT, soon)


def stop(app: App[Any]) -> bool:
    """Stop this job with the terminal as it was before, until the shell continues it. Return False if no shell
    could."""
    if app._driver is None or not app._driver.can_suspend or app._exit:
        return False
    continued: list[int] = []
    before = {one: signal.getsignal(one) for one in (signal.SIGTSTP, signal.SIGCONT)}
    with app.suspend():
        try:
            signal.signal(signal.SIGCONT, lambda number, _: continued.append(number))
            signal.signal(signal.SIGTSTP, signal.SIG_IGN)
            os.killpg(os.getpgrp(), signal.SIGTSTP)  # our parent in the same job too: sudo, time, sh -c
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            # To this thread, so that it stops here. The kernel ignores it if no shell could continue the job.
            signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
    return bool(continued)


def draw_anew(app: App[Any]) -> None:
    """Set the terminal up again and draw everything."""
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
