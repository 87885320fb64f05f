"""The dashboard's application: themes, keys, messages of the feed, remembered choices.

`Program` and `MainScreen` are defined here without the parts of the screen, so that these parts can import both;
`app.py` puts the real screen in.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import App
from textual.binding import BindingType
from textual.message import Message
from textual.notifications import Notify
from textual.screen import Screen

from slurm_share.core import terminal
from slurm_share.core.errors import UsageError, shown

from . import alerts, keymap, themes, workarounds
from .location import Location, ViewName
from .options import INTERVAL_S
from .picture import SurveyPicture
from .typed_ahead import TypedAhead
from .user_config import RememberedChoices, UserConfig
from .views.table import TableView
from .widgets.grid import Grid
from .widgets.status import StatusState
from .wire import FeedFailure, JobEnd, PauseFeed, ReadEnd, ReadNow

if TYPE_CHECKING:
    from .actions import JobActions
    from .feed import Feed, MakeFeed

KEEP_S = 2.0
"""Interval between two writes of remembered choices, seconds."""
NOTES_MOST = 2
"""Most notes in the corner at once, so that the table behind them stays readable."""


class SurveyArrived(Message):
    """A complete survey, ready to be drawn. A newer one replaces one that is not drawn yet, so that a slow terminal
    skips surveys instead of falling behind."""

    def __init__(self, picture: SurveyPicture) -> None:
        self.picture = picture
        super().__init__()

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SurveyArrived)


class FeedFailed(Message):
    """A survey failed. The screen keeps the last one, whose age grows visibly."""

    def __init__(self, failure: FeedFailure) -> None:
        self.failure = failure
        super().__init__()


class JobEnded(Message):
    """Slurm has said how a job has ended."""

    def __init__(self, end: JobEnd) -> None:
        self.end = end
        super().__init__()


class MainScreen(Screen[None], inherit_bindings=False):
    """The interface of the main screen (`main_screen.DashboardScreen`), at the bottom of the stack."""

    @property
    def dashboard(self) -> Program:
        assert isinstance(self.app, Program)
        return self.app

    @property
    def shown(self) -> TableView[Any] | None:
        """The view on the screen; None: none yet."""
        raise NotImplementedError

    @property
    def grid(self) -> Grid[Any] | None:
        """The view's table."""
        raise NotImplementedError

    async def go(self, path: tuple[Location, ...]) -> None:
        """Show the last location of the path."""
        raise NotImplementedError

    def draw(self) -> None:
        """Draw the newest picture in the view on the screen."""
        raise NotImplementedError

    def show_status(self) -> None:
        """Draw the lines above and below the view."""
        raise NotImplementedError

    async def forget(self) -> None:
        """Remove all views: their history is of a source that is gone."""
        raise NotImplementedError

    def show_alerts(self) -> None:
        """Draw the banner of alerts."""
        raise NotImplementedError

    def is_available(self, key: keymap.Key) -> bool:
        """Return whether the key does something here."""
        raise NotImplementedError


class Program(App[int]):
    """The dashboard without its screen, which a subclass returns from `get_default_screen`."""

    BINDINGS: ClassVar[list[BindingType]] = [*keymap.bindings("app")]

    def __init__(
        self,
        feed: Feed,
        *,
        commands: JobActions | None = None,
        config: UserConfig | None = None,
        memory: RememberedChoices | None = None,
        readonly: bool = False,
        location: Location | None = None,
        clock: Callable[[], float] = time.monotonic,
        make_feed: MakeFeed | None = None,
    ) -> None:
        """`location`: where to start; None: where the user left off. `make_feed`: makes a feed of another source; None:
        there is only this one. Raises UsageError for an unknown theme or key in the configuration."""
        super().__init__()
        self.feed, self.commands, self.clock = feed, commands, clock
        self.make_feed = make_feed
        self.first_origin = None if make_feed is None else feed.origin
        self.trial: Feed | None = None
        """The feed of a source that is being tried."""
        self.config = config or UserConfig()
        self.memory = memory or RememberedChoices()
        self.readonly = readonly or self.config.readonly
        if commands is not None and self.readonly:
            commands.readonly = True
        self.keys = keymap.checked(self.config.keys)
        self.picture: SurveyPicture | None = None
        self.alerts = alerts.AlertBook(self.config.alerts)
        self.status = StatusState(interval_s=self.config.interval or INTERVAL_S)
        self._waiting: SurveyPicture | None = None
        """The picture that arrived while paused."""
        self._keeping: threading.Thread | None = None
        """The thread that writes the choices."""
        self._is_asked = False
        """True: paused, and a survey was asked for."""
        self.typed = TypedAhead(self, self.keys, is_ending=lambda: self.is_ending)
        self.start = location
        for theme in themes.THEMES:
            self.register_theme(theme)
        self.set_keymap(self.keys)
        workarounds.plain_signs(self)
        workarounds.show_no_closing_screen()
        self.theme = self._first_theme()

    def _first_theme(self) -> str:
        if self.config.theme and not themes.known(self.config.theme):
            raise UsageError(f"there is no theme {shown(self.config.theme)}; there are {', '.join(themes.NAMES)}")
        colourless = themes.is_colourless(os.environ)
        workarounds.no_colours(self, wanted=colourless)
        if colourless:
            return themes.MONO
        wanted = themes.known(self.config.theme) or themes.known(self.memory.now.theme)
        return wanted or themes.suited(os.environ, self.console.color_system)

    @property
    def main_screen(self) -> MainScreen:
        """The screen at the bottom of the stack."""
        main_screen = self.screen_stack[0]
        assert isinstance(main_screen, MainScreen)
        return main_screen

    def on_mount(self) -> None:
        workarounds.stop_and_go_on(self)
        self.feed.attach(self.hear)
        self.set_interval(KEEP_S, self.keep)

    def on_unmount(self) -> None:
        self.typed.close()
        self.memory.keep()
        if self.trial is not None:
            self.trial.close()

    @property
    def shows_charts(self) -> bool:
        return self.memory.now.charts

    @property
    def is_ending(self) -> bool:
        """True: the dashboard is ending and neither draws nor opens anything."""
        return self._exit or (self.typed.has_begun and not self.screen_stack)

    async def on_event(self, event: events.Event) -> None:
        """Hold back a key that is typed too early; pass on every other event."""
        pressed = event if isinstance(event, events.InputEvent | events.Paste) else None
        if pressed is None or not (self.is_ending or (not pressed.is_forwarded and self.typed.holds(pressed))):
            await super().on_event(event)

    def on_paste(self, event: events.Paste) -> None:
        """Say where a paste could go, if nothing on the screen takes text."""
        if not self.is_ending:
            key = keymap.key_text(keymap.keys_of("filter", self.keys)[0])
            where = f"; to filter by it, press {key} before" if self.screen is self.main_screen else ""
            self.say(f"pasted text is not typed as keys{where}")

    def keep(self) -> None:
        """Write new choices, and report a failure once. A thread writes, since a home directory on a file server may
        hang."""
        if self.memory.is_new and (self._keeping is None or not self._keeping.is_alive()):
            self._keeping = threading.Thread(target=self._keep, name="memory", daemon=True)
            self._keeping.start()

    def _keep(self) -> None:
        if problem := self.memory.keep():
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self.call_later(self.say, problem, severity="warning")

    def say(self, label: str, *, severity: str = "information") -> None:
        """Show a note in the corner for a few seconds. Its text is never markup."""
        self.notify(terminal.safe(label), severity=severity, markup=False)  # type: ignore[arg-type]

    def on_notify(self, event: Notify) -> None:
        """Drop a note with the same text, and all but the newest NOTES_MOST."""
        new = event.notification
        same = (new.message, new.title, new.severity)
        there = [one for one in self._notifications if one is not new]
        others = [one for one in there if (one.message, one.title, one.severity) != same]
        for one in there:
            if one not in others[1 - NOTES_MOST :]:
                self._unnotify(one, refresh=False)

    def hear(self, one: SurveyPicture | FeedFailure | JobEnd) -> None:
        """Pass on what the feed sends, from any thread."""
        if isinstance(one, JobEnd):
            self.post_message(JobEnded(one))
        else:
            self.post_message(SurveyArrived(one) if isinstance(one, SurveyPicture) else FeedFailed(one))

    def on_survey_arrived(self, message: SurveyArrived) -> None:
        """Draw a survey; keep it for later while paused."""
        if self.is_ending:
            return
        is_same = self.picture is not None and message.picture.survey is self.picture.survey
        if not self.status.held or self._is_asked or self.picture is None or is_same or message.picture.is_replay:
            self.take(message.picture)
        else:
            self._waiting = message.picture

    def take(self, picture: SurveyPicture) -> None:
        is_first = self.picture is None
        is_same = self.picture is not None and picture.survey is self.picture.survey
        self.picture, self._waiting, self._is_asked = picture, None, False
        if not is_same:
            self._look_for_alerts(picture, is_first=is_first)
        self.status = replace(self.status, picture=picture, problem="")
        self.main_screen.draw()

    def _look_for_alerts(self, picture: SurveyPicture, *, is_first: bool) -> None:
        """Show new alerts, and ring the bell except for what was so before the dashboard began."""
        new = self.alerts.take(picture)
        for one in new:
            if (
                one.kind == "ended"
                and one.location is not None
                and one.location.job
                and picture.survey.source != "demo"
            ):
                self.feed.tell(ReadEnd(one.location.job))
        if new and not is_first and self.config.alerts.bell:
            self.bell()

    def on_job_ended(self, message: JobEnded) -> None:
        record = message.end.record
        if record is not None and not self.is_ending:
            self.alerts.explain(message.end.job, alerts.ended_text(record))
            self.main_screen.show_alerts()

    async def change_feed(self, feed: Feed, picture: SurveyPicture) -> None:
        """Show another source from now on, with its own history."""
        self.feed = feed
        self.picture = self._waiting = None
        self.alerts = alerts.AlertBook(self.config.alerts)
        self.status = StatusState(interval_s=self.status.interval_s)
        await self.main_screen.forget()
        feed.attach(self.hear)
        if self.picture is None:
            self.take(picture)

    def on_feed_failed(self, message: FeedFailed) -> None:
        """Show why there is no new survey. End if none has come and none ever will: `main` reports why."""
        if message.failure.is_over and self.picture is None and not self.is_ending:
            self.exit()
        elif not self.is_ending:
            self.status = replace(self.status, problem=message.failure.why)
            self.main_screen.show_status()

    def hold(self, held: bool) -> None:
        """Pause, or resume with the newest survey."""
        if held == self.status.held:
            return
        self.status = replace(self.status, held=held)
        self.feed.tell(PauseFeed(held))
        if not held and self._waiting is not None:
            self.take(self._waiting)
        self.main_screen.show_status()

    def read_now(self) -> None:
        self._is_asked = True
        self.feed.tell(ReadNow())

    def action_suspend_process(self) -> None:
        if not workarounds.stop(self):
            self.say("there is no shell here that could resume it")

    def action_next_theme(self) -> None:
        if self.no_color:
            self.say("no other theme works without colours: NO_COLOR is set, or --no-color was given")
        else:
            self.choose_theme(themes.after(self.theme))

    def choose_theme(self, name: str) -> None:
        self.theme = name
        self.memory.choose(theme=name)
        self.say(f"theme: {name}")

    async def press(self, key: keymap.Key) -> None:
        await self.run_action(key.action, self.main_screen if key.handler == "screen" else self)

    async def jump_to(self, location: Location) -> None:
        """Go to a location, with its table of all as the first step of the path."""
        tops: dict[ViewName, ViewName] = {"node": "nodes", "jobs": "users"}
        await self.main_screen.go((Location(view=tops.get(location.view, location.view)), location))
