"""The process of one dashboard in a browser: `python -m slurm_share_tui.browser.child`, started by `session.py`.

Its words are those of `llload-tui`. Its input and output are packets of Textual's web driver. It ends when its input
ends, and so whenever the server ends, even by kill -9.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
import threading
import time
from codecs import getincrementaldecoder
from functools import partial
from typing import Any

from msgspec.structs import replace
from textual import messages
from textual.drivers import web_driver
from textual.drivers.web_driver import WebDriver

from slurm_share.core import names
from slurm_share.core.command import enter

from .. import main as terminal_main
from .. import options
from ..feed import Feed
from ..options import PROGRAM, Options
from ..terminal_input import TerminalInput
from ..user_config import RememberedChoices, UserConfig, memory_file, read_config, read_remembered

END_S = 5.0
"""Time for the dashboard to end after its input has ended, seconds."""


class BrowserDriver(WebDriver):
    """Textual's driver, which reads keys as ours in a terminal does, and ends the dashboard with its input."""

    def run_input_thread(self) -> None:
        try:
            super().run_input_thread()
        finally:
            if not self.exit_event.is_set():
                threading.Thread(target=_end_late, name="end", daemon=True).start()
                with contextlib.suppress(RuntimeError):  # the event loop has ended
                    self._app.call_from_thread(self._app.post_message, messages.ExitApp())


def _end_late() -> None:
    time.sleep(END_S)
    os._exit(1)


def main(argv: list[str] | None = None) -> int:
    """Run the dashboard until the browser is gone or the user quits; return its exit code."""
    arguments = options.parser().parse_args(argv)
    return enter(PROGRAM, lambda: _run(options.checked(arguments)))


def _run(wanted: Options) -> int:
    assert wanted.browser is not None
    config = read_config(wanted.config)
    interval_s = wanted.origin.interval_s or config.interval or options.INTERVAL_S
    if wanted.no_color:
        os.environ["NO_COLOR"] = "1"
    feed = Feed(replace(wanted.origin, interval_s=interval_s))
    feed.start()
    with contextlib.closing(feed):
        return _show(feed, wanted, replace(config, interval=interval_s, theme=wanted.theme or config.theme))


def _show(feed: Feed, wanted: Options, config: UserConfig) -> int:
    gc.disable()  # as in a terminal

    from ..actions import JobActions
    from ..app import Dashboard
    from ..location import Location
    from ..widgets import glyphs

    read_keys()
    glyphs.choose(config.ascii, {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}, "utf-8")
    assert wanted.browser is not None
    may_act = wanted.browser.allow_actions
    if not may_act:
        write_no_files()
    remembered, _ = read_remembered(memory_file())
    app = Dashboard(
        feed, commands=JobActions(), config=config, readonly=wanted.readonly or not may_act,
        memory=RememberedChoices(memory_file() if may_act else None, remembered),
        location=None if wanted.view is None else Location(view=wanted.view),
    )  # fmt: skip
    terminal_main.raise_if_over(feed)
    terminal_main.tune_collector()
    app.run()
    terminal_main.raise_if_over(feed)
    return app.return_code or names.EXIT_OK


def write_no_files() -> None:
    """Let the kernel refuse every write into a file, whatever key asks for it; pipes are no files (RLIMIT_FSIZE of
    getrlimit(2), EFBIG)."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def read_keys() -> None:
    """Let Textual's web driver read keys with `TerminalInput`, and drop bytes that are not UTF-8."""
    driver: Any = web_driver
    driver.XTermParser = TerminalInput
    driver.getincrementaldecoder = lambda name: partial(getincrementaldecoder(name), errors="replace")


if __name__ == "__main__":
    sys.exit(main())
