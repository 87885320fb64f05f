"""The dashboard as a program: themes, keys, what the feed says, what is remembered. What is on it is `board.py`.

`Program` and `MainScreen` know each other and nothing of the screens' parts, so that these parts can import both;
`app.py` puts the real screen in.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from textual import events
from textual.app import App
from textual.binding import BindingType
from textual.notifications import Notify
from textual.screen import Screen

from slurm_share.core import terminal
from slurm_share.core.errors import UsageError, shown

from . import keymap, themes, workarounds
from .history import History
from .messages import Arrived, FeedFailed
from .picture import Picture
from .place import Place
from .typed_ahead import TypedAhead
from .user_config import Memory, UserConfig
from .view import View
from .widgets.grid import Grid
from .widgets.status import StatusState
from .wire import Hold, ReadNow, Told

if TYPE_CHECKING:
    from .actions import Commands

INTERVAL_S = 5.0
KEEP_S = 2.0
"""A choice is saved after this many seconds."""
NOTES_MOST = 2
"""Most notes in the corner at once, so that the table behind them can be read."""


class Feed(Protocol):
    """What the dashboard needs of `feed.Feed`."""

    history: History

    def attach(self, post: Callable[[Any], object]) -> None:
        """From now on what arrives goes there."""
        ...

    def tell(self, message: Told) -> None:
        """Say something to the feed process."""
        ...


class MainScreen(Screen[None], inherit_bindings=False):
    """The screen at the bottom of the stack, as the program and the parts of that screen know it: `board.Board`."""

    @property
    def dashboard(self) -> Program:
        """The program."""
        assert isinstance(self.app, Program)
        return self.app

    @property
    def shown(self) -> View | None:
        """The view on the screen; None: none yet."""
        raise NotImplementedError

    @property
    def grid(self) -> Grid[Any] | None:
        """The table that has the focus, else the first of the view."""
        raise NotImplementedError

    async def go(self, way: tuple[Place, ...]) -> None:
        """Show the last of these places."""
        raise NotImplementedError

    def draw(self) -> None:
        """Draw the newest picture."""
        raise NotImplementedError

    def show_status(self) -> None:
        """Draw what the lines above and below the view say."""
        raise NotImplementedError

    def does(self, key: keymap.Key) -> bool:
        """Answer whether the key does something here."""
        raise NotImplementedError


class Program(App[int]):
    """The dashboard without its screen, which a subclass names in `get_default_screen`."""

    BINDINGS: ClassVar[list[BindingType]] = [*keymap.bindings("app")]

    def __init__(
        self,
        feed: Feed,
        *,
        commands: Commands | None = None,
        config: UserConfig | None = None,
        memory: Memory | None = None,
        readonly: bool = False,
        place: Place | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`place`: where it begins; None: where it was left. Raises UsageError for a theme, a view or a key in the
        configuration that there is not."""
        super().__init__()
        self.feed, self.commands, self.clock = feed, commands, clock
        self.config = config or UserConfig()
        self.memory = memory or Memory()
        self.readonly = readonly or self.config.readonly
        if commands is not None and self.readonly:
            commands.readonly = True
        self.keys = keymap.checked(self.config.keys)
        self.picture: Picture | None = None
        self.status = StatusState(interval_s=self.config.interval or INTERVAL_S)
        self._waiting: Picture | None = None
        """Came while paused."""
        self._keeping: threading.Thread | None = None
        """Writes down what was chosen."""
        self._is_asked = False
        """Paused, and a survey was asked for all the same."""
        self.typed = TypedAhead(self, self.keys, is_ending=lambda: self.is_ending)
        self.start = place
        for theme in themes.THEMES:
            self.register_theme(theme)
        self.set_keymap(self.keys)
        workarounds.plain_signs(self)
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
    def board(self) -> MainScreen:
        """The screen at the bottom of the stack."""
        board = self.screen_stack[0]
        assert isinstance(board, MainScreen)
        return board

    def on_mount(self) -> None:
        """The feed may speak now."""
        workarounds.stop_and_go_on(self)
        self.feed.attach(self.post_message)
        self.set_interval(KEEP_S, self.keep)

    def on_unmount(self) -> None:
        """Write down what was chosen."""
        self.typed.close()
        self.memory.keep()

    @property
    def shows_charts(self) -> bool:
        """Whether charts of the row under the cursor are wanted, where there is room for them."""
        return self.memory.now.charts

    @property
    def is_ending(self) -> bool:
        """Somebody has seen enough: nothing is drawn or opened any more."""
        return self._exit or (self.typed.has_begun and not self.screen_stack)

    async def on_event(self, event: events.Event) -> None:
        """What is pressed or pasted comes by here first, and what came too early waits."""
        pressed = event if isinstance(event, events.InputEvent | events.Paste) else None
        if pressed is not None and (self.is_ending or (not pressed.is_forwarded and self.typed.holds(pressed))):
            return
        await super().on_event(event)

    def keep(self) -> None:
        """Write down what was chosen, if there is something new; say so once if it cannot be done. In a thread: a home
        on a file server that hangs stops no key."""
        if self.memory.is_new and (self._keeping is None or not self._keeping.is_alive()):
            self._keeping = threading.Thread(target=self._keep, name="memory", daemon=True)
            self._keeping.start()

    def _keep(self) -> None:
        if problem := self.memory.keep():
            with contextlib.suppress(RuntimeError):  # the dashboard has ended meanwhile, and its loop with it
                self.call_later(self.say, problem, severity="warning")

    def say(self, label: str, *, severity: str = "information") -> None:
        """A note in the corner that goes away by itself. Strangers' text in it stays text."""
        self.notify(terminal.safe(label), severity=severity, markup=False)  # type: ignore[arg-type]

    def on_notify(self, event: Notify) -> None:
        """The same sentence stands there once, however often it is said, and never more than a few."""
        new = event.notification
        same = (new.message, new.title, new.severity)
        there = [one for one in self._notifications if one is not new]
        older = [one for one in there if (one.message, one.title, one.severity) != same]
        kept = older[len(older) - NOTES_MOST + 1 :] if len(older) >= NOTES_MOST else older
        for one in there:
            if one not in kept:
                self._unnotify(one, refresh=False)

    # --- What arrives -------------------------------------------------------------------------------------------------

    def on_arrived(self, message: Arrived) -> None:
        """A survey."""
        if self.is_ending:
            return
        is_wanted = not self.status.held or self._is_asked or self.picture is None or message.picture.is_replay
        if not is_wanted:
            self._waiting = message.picture
            return
        self.take(message.picture)

    def take(self, picture: Picture) -> None:
        """From now on this is what is drawn."""
        self.picture, self._waiting, self._is_asked = picture, None, False
        self.status = replace(self.status, picture=picture, problem="")
        self.board.draw()

    def on_feed_failed(self, message: FeedFailed) -> None:
        """Nothing new, and why."""
        if self.is_ending:
            return
        self.status = replace(self.status, problem=message.why, over=message.is_over)
        self.board.show_status()

    def hold(self, held: bool) -> None:
        """Stand still, or go on, with what came meanwhile."""
        if held == self.status.held:
            return
        self.status = replace(self.status, held=held)
        self.feed.tell(Hold(held))
        if not held and self._waiting is not None:
            self.take(self._waiting)
        self.board.show_status()

    def read_now(self) -> None:
        """Read a survey now, ahead of its time."""
        self._is_asked = True
        self.feed.tell(ReadNow())

    # --- Actions ------------------------------------------------------------------------------------------------------

    def action_suspend_process(self) -> None:
        """Give the terminal to the shell, until it says `fg`."""
        if not workarounds.stop(self):
            self.say("there is no shell here that could bring it back")

    def action_next_theme(self) -> None:
        """The next theme, remembered."""
        if self.no_color:
            self.say("there are no other themes without colours: NO_COLOR is set, or --no-color was written")
            return
        self.choose_theme(themes.after(self.theme))

    def choose_theme(self, name: str) -> None:
        """This theme, remembered."""
        self.theme = name
        self.memory.choose(theme=name)
        self.say(f"theme: {name}")

    async def press(self, key: keymap.Key) -> None:
        """What this key does."""
        await self.run_action(key.action, self.board if key.room == "board" else self)

    async def jump_to(self, place: Place) -> None:
        """There, from the top."""
        top = Place(view="nodes" if place.view == "node" else place.view)
        if place.view == "jobs":
            top = Place(view="users")
        await self.board.go((top, place))
