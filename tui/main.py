"""`llload-tui`: run the dashboard, or llload where no dashboard is possible.

The order keeps the start short: options, then the feed process, and only then Textual, which takes longer to load than
a first survey of a few nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from slurm_share.core import names
from slurm_share.core.command import enter
from slurm_share.core.errors import UsageError

from . import options
from .feed import Feed
from .options import PROGRAM, Options
from .user_config import RememberedChoices, UserConfig, memory_file, read_config, read_remembered

if TYPE_CHECKING:
    from .app import Dashboard

NEEDED = ("textual", "textual_plotext")
"""Modules of the extra `tui`, which may be missing at a site."""
YOUNG_MOST = 20_000
"""New objects after which the garbage collector runs; with Python's 700 it would run several times in a frame."""


PrintOnce = Callable[[Sequence[str]], int]


def main(argv: Sequence[str] | None, print_once: PrintOnce) -> int:
    """Run the command. `print_once`: runs llload with these arguments where no dashboard is possible, and returns its
    exit code."""
    words = tuple(sys.argv[1:] if argv is None else argv)
    arguments = options.parser().parse_args(words)
    return enter(PROGRAM, lambda: _run(arguments, words, print_once))


def _run(arguments: argparse.Namespace, words: Sequence[str], print_once: PrintOnce) -> int:
    wanted = options.checked(arguments)
    config = read_config(wanted.config)
    if wanted.browser is not None:
        from .browser import serve

        return serve.run(wanted.browser, words)
    why = no_screen(os.environ)
    if why:
        found = options.llload_arguments(arguments)
        _say(f"{why}; this is llload {' '.join(found)}")
        return print_once(found)
    if wanted.no_color:
        os.environ["NO_COLOR"] = "1"
    interval_s = wanted.origin.interval_s or config.interval or options.INTERVAL_S
    feed = Feed(replace(wanted.origin, interval_s=interval_s))
    feed.start()
    with contextlib.closing(feed):
        return _show(feed, wanted, replace(config, interval=interval_s, theme=wanted.theme or config.theme))


def no_screen(environ: Mapping[str, str]) -> str:
    """Return why no dashboard is possible here; empty: it is."""
    for name, stream in (("standard output", sys.__stdout__), ("standard input", sys.__stdin__)):
        if stream is None or stream.closed or not stream.isatty():
            return f"{name} is not a terminal"
    term = environ.get("TERM", "")
    if term in ("", "dumb"):
        return f"TERM is {term}" if term else "TERM is not set"
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"{missing[0]} is not installed here (pip install 'slurm-share[hosts,tui]')" if missing else ""


def _say(sentence: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {sentence}\n")


def _show(feed: Feed, wanted: Options, config: UserConfig) -> int:
    """Run the dashboard until the user quits, and return its exit code."""
    gc.disable()  # the modules loaded below stay: do not walk through them while they are loaded
    from slurm_share.node import host

    from . import workarounds
    from .actions import JobActions
    from .app import Dashboard
    from .location import Location
    from .widgets import glyphs

    workarounds.draw_on_a_terminal()
    workarounds.read_only_keys()
    glyphs.choose(config.ascii, host.read_begun_environ(), sys.__stdout__.encoding if sys.__stdout__ else None)
    remembered, problem = read_remembered(memory_file())
    memory = RememberedChoices(memory_file(), remembered)
    location = None if wanted.view is None else Location(view=wanted.view)
    app = Dashboard(
        feed, commands=JobActions(), config=config, memory=memory, readonly=wanted.readonly, location=location,
        make_feed=Feed,
    )  # fmt: skip
    raise_if_over(feed)
    tune_collector()
    for ends in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(ends) is not signal.SIG_IGN:  # nohup
            signal.signal(ends, lambda number, _: _leave(app, number))
    try:
        app.run()
    finally:
        if app.feed is not feed:  # another source was chosen
            app.feed.close()
    if problem:
        _say(problem)
    raise_if_over(feed)
    return app.return_code or names.EXIT_OK


def _leave(app: Dashboard, number: int) -> None:
    """Handle a signal: restore the terminal and end. Writing to a closed terminal blocks for ever: then only the
    choices are saved, and the signal has its default effect."""
    import asyncio

    from . import workarounds

    if not workarounds.has_terminal():
        app.memory.keep()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise SystemExit(128 + number) from None
    loop.call_soon_threadsafe(app.exit, None, 128 + number)


def tune_collector() -> None:
    """Keep the garbage collector's pauses short. Records of a survey are never tracked (`gc=False` in snapshot.py), and
    what Textual allocated so far is set aside. In a cluster of 10,000 nodes the longest pause is 23 ms; walking through
    one survey alone took 370 ms."""
    gc.freeze()
    gc.set_threshold(YOUNG_MOST, 10, 10)
    gc.enable()


def raise_if_over(feed: Feed) -> None:
    """Raise UsageError if no survey will ever come, so that the command fails as llload does."""
    if feed.failure and not feed.has_seen:
        raise UsageError(feed.failure)
