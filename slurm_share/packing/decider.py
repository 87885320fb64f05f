"""Let a board decide: within the bookings of the user's other launchers, with each decision in the node's log."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ..core.errors import StateError
from .bookings import Booking, Bookings, BookingsBusyError
from .decision_records import Action
from .events import EventLog
from .rules.board import Board


class Decider:
    """Asks one board for its actions."""

    def __init__(
        self,
        board: Board,
        events: EventLog,
        bookings: Bookings | None = None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """`bookings` None: ignore other launchers. `say` writes a sentence to the job's log."""
        self.board = board
        self.events = events
        self._bookings = bookings
        self._say = say

    def decide(self, now_s: float) -> tuple[Action, ...]:
        """Return the actions that are due. The caller carries them out."""
        board = self.board
        if (found := board.repeat(now_s)) is not None:
            ended, start = found
            self.events.repeat(now_s, ended, start.task)
            return (start,)
        if not board.is_due(now_s):
            return ()
        if self._bookings is None:
            return self._decide(now_s)
        try:
            with self._bookings.section():
                self._ask_others(self._bookings)
                actions = self._decide(now_s)
                self._book()
                return actions
        except BookingsBusyError:
            return ()  # try again at the next call

    def _decide(self, now_s: float) -> tuple[Action, ...]:
        view, decision = self.board.decide(now_s)
        self.events.decide(view, decision)
        return decision.actions

    def _ask_others(self, bookings: Bookings) -> None:
        try:
            for uuid, other in bookings.others().items():
                self.board.note_elsewhere(uuid, other.booked_mib, other.memory_mib, other.clients)
        except StateError as error:
            self._go_on_alone(error)

    def _book(self) -> None:
        if self._bookings is None:
            return
        try:
            self._bookings.write(booked(self.board))
        except StateError as error:
            self._go_on_alone(error)

    def _go_on_alone(self, error: StateError) -> None:
        """Continue without the bookings of other launchers, whose folder cannot be used. Their used memory still
        counts, since the driver shows it."""
        self._say(f"{error}; the bookings of your other launchers on this node are ignored from now on")
        self._bookings = None
        for uuid in self.board.facts:
            self.board.note_elsewhere(uuid, 0, 0, 0)


def booked(board: Board) -> dict[str, Booking]:
    """Return the booking of a board's launcher on each GPU."""
    found = dict.fromkeys(board.facts, Booking())
    for its in board.running.values():
        for uuid in its.gpus:
            before = found[uuid]
            memory = its.memory.get(uuid, 0)
            found[uuid] = replace(
                before,
                booked_mib=before.booked_mib + max(its.reserved_mib, memory),
                memory_mib=before.memory_mib + memory,
                clients=before.clients + its.clients,
                tasks=before.tasks + 1,
            )
    for uuid, (task, since_s) in board.holds().items():
        found[uuid] = replace(found[uuid], held_for=task, held_since=round(board.unix_s + since_s, 3))
    return found
