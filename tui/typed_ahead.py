"""Keys that come faster than they are acted on: in one paste, over a slow line, from a script.

Textual gives every key that has arrived to whatever has the focus then, and acts on the first of them afterwards: of
`/squeue` in one write the table would have had all the letters, and `q` would have ended it. So a key that may open or
close something is followed by the next one only when it has been acted on, and what it opened has the focus.
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
"""Longest time that keys wait for something that is being opened, seconds: Slurm may not answer."""
ROUNDS_LEAST, ROUNDS_MOST = 3, 8
"""What is done about a key goes from a widget up to the program; what that sets off, begins anew. Three times is the
most that there is (a click, the row that it was on, the place that is below it); more only where somebody is slow."""

Pressed = events.InputEvent | events.Paste


class TypedAhead:
    """Deliver keys typed ahead one at a time, in order, to the screen they were meant for."""

    def __init__(self, app: App[Any], keys: Mapping[str, str], *, is_ending: Callable[[], bool]) -> None:
        """`keys`: those of the configuration. `is_ending`: whether nothing is drawn or opened any more."""
        self._app, self._keys, self._is_ending = app, keys, is_ending
        self._waiting: deque[Pressed] = deque()
        self._now: Pressed | None = None
        """The key that is being handled."""
        self._busy: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._lookup: asyncio.Event | None = None

    def begin(self) -> None:
        """There is a view, and keys that were pressed before there was one have something to be for."""
        self._begun.set()

    @property
    def has_begun(self) -> bool:
        """Whether there was a view."""
        return self._begun.is_set()

    def holds(self, event: Pressed) -> bool:
        """Whether it has to wait, and is kept for later. Those that act whatever is open wait for nothing."""
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
        """Nothing is acted on any more."""
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
        """Whether the next key could be for something else than this one."""
        focused = self._app.focused
        if isinstance(event, events.Key):
            if isinstance(focused, Input):
                return not event.is_printable
            return not (isinstance(focused, Grid) and event.key in self._moves)
        return isinstance(event, events.MouseUp)

    @property
    def _moves(self) -> set[str]:
        """Keys that only move the cursor: a held one costs no more than it must."""
        ids = (key.id for key in keymap.KEYS if key.id.startswith("grid."))
        return {one for id in ids for one in keymap.keys_of(id, self._keys)}

    async def _settled(self) -> None:
        """Until what was given out has been acted on, and what that has opened is there; at the end at once."""
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
    """Until all that it had to do has been done, or it does nothing any more. One that is new is mounted first."""
    done = asyncio.get_running_loop().create_future()

    def tell() -> None:
        if not done.done():
            done.set_result(None)

    if not pump.call_later(tell):
        return
    task = pump._task
    await asyncio.wait({done} if task is None else {done, task}, return_when=asyncio.FIRST_COMPLETED)
