"""Hold back keys that are typed faster than they are handled: pasted text, a slow line, a script.

Textual delivers every key that has arrived to the widget with the focus, before the first one has been handled: after
`/squeue` in one write the table would get all letters, and `q` would quit. So after a key that may open or close
something, the next one is delivered only when the first has been handled and the focus has moved.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from textual import events
from textual.app import App
from textual.message_pump import MessagePump
from textual.widgets import Input

from . import keymap
from .widgets.grid import Grid

PATIENCE_S = 1.0
"""Longest time that keys wait for something to open, seconds: Slurm may not answer."""
ROUNDS_LEAST, ROUNDS_MOST = 3, 8
"""Rounds of messages to wait for. A key's message goes from a widget up to the application, and may cause further
messages: three rounds are enough (a click, its row, the location of the row); more are needed if something is slow."""

Pressed = events.InputEvent | events.Paste


class TypedAhead:
    """Delivers keys that are typed ahead one at a time, in order, to the screen they were meant for."""

    def __init__(self, app: App[Any], keys: Mapping[str, str], *, is_ending: Callable[[], bool]) -> None:
        """`keys`: of the configuration. `is_ending`: returns whether the dashboard is ending."""
        self._app, self._is_ending = app, is_ending
        ids = (key.id for key in keymap.KEYS if key.id.startswith("grid."))
        self._moves = {one for id in ids for one in keymap.keys_of(id, keys)}
        """Keys that only move the cursor: they need not be waited for."""
        self._waiting: deque[Pressed] = deque()
        self._now: Pressed | None = None
        """The key that is being handled."""
        self._busy: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._lookup: asyncio.Event | None = None

    def begin(self) -> None:
        """Note that a view is shown; keys pressed before are delivered now."""
        self._begun.set()

    @property
    def has_begun(self) -> bool:
        """Whether a view has been shown."""
        return self._begun.is_set()

    def holds(self, event: Pressed) -> bool:
        """Return whether an event has to wait; if so, keep it. Priority keys never wait."""
        if event is self._now or self._is_for_all(event):
            return False
        if self._busy is not None or self._lookup is not None or not self._begun.is_set():
            self._waiting.append(event)
            self._begin_to_give()
            return True
        if self._moves_on(event):
            self._begin_to_give()
        return False

    def begin_lookup(self) -> None:
        """Begin a lookup that will open a screen: keys typed from now on are for that screen, not for the table."""
        self._lookup = asyncio.Event()

    def end_lookup(self) -> None:
        """End the lookup: the screen is open, or will not open."""
        if self._lookup is not None:
            self._lookup.set()
            self._lookup = None

    def close(self) -> None:
        """Drop the waiting keys and stop delivering."""
        self._waiting.clear()
        if self._busy is not None:
            self._busy.cancel()

    def _begin_to_give(self) -> None:
        if self._busy is None:
            self._busy = asyncio.create_task(self._give_out(), name="keys typed ahead")

    async def _give_out(self) -> None:
        try:
            await self._begun.wait()
            await self._settled()
            while self._waiting and not self._is_ending():
                self._now = event = self._waiting.popleft()
                moves_on = self._moves_on(event)
                if not self._app.post_message(event):
                    break
                await (self._settled() if moves_on else _passed(self._app))
        finally:
            self._now = self._busy = None

    def _is_for_all(self, event: Pressed) -> bool:
        return isinstance(event, events.Key) and any(
            one.priority for one in self._app._bindings.key_to_bindings.get(event.key, ())
        )

    def _moves_on(self, event: Pressed) -> bool:
        """Return whether the next key may be for something else than this one."""
        focused = self._app.focused
        if not isinstance(event, events.Key):
            return isinstance(event, events.MouseUp)
        if isinstance(focused, Input):
            return not event.is_printable
        return not (isinstance(focused, Grid) and event.key in self._moves)

    async def _settled(self) -> None:
        """Wait until the delivered key has been handled and what it opened has the focus."""
        if self._is_ending():
            return
        for number in range(ROUNDS_MOST):
            before = self._app.focused or self._app.screen
            under = [] if self._app.mouse_over is None else self._app.mouse_over.ancestors_with_self
            pumps = [*under, *before.ancestors_with_self, self._app]
            for pump in pumps:
                await _passed(pump)
            if self._is_ending():
                return
            after = self._app.focused or self._app.screen
            is_quiet = after is before and not any(pump.message_queue_size for pump in pumps)
            if is_quiet and number + 1 >= ROUNDS_LEAST:
                break
        if (lookup := self._lookup) is not None:
            try:
                await asyncio.wait_for(lookup.wait(), PATIENCE_S)
            except TimeoutError:
                self.end_lookup()
            else:
                await self._settled()


async def _passed(pump: MessagePump) -> None:
    """Wait until a message pump has handled its messages or has ended. A new one is mounted first."""
    done = asyncio.get_running_loop().create_future()

    def tell() -> None:
        if not done.done():
            done.set_result(None)

    if not pump.call_later(tell):
        return
    task = pump._task
    await asyncio.wait({done} if task is None else {done, task}, return_when=asyncio.FIRST_COMPLETED)
