"""How a call waits: for the kernel, or for another thread that waits for it. One thread at a time asks the kernel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from . import wire
from .control import Ends
from .names import WAITING_S
from .peers import Peers
from .transport import Tag
from .turns import Turn

_SPIN_S = 100e-6
"""How long a call asks the kernel without sleeping before it waits. A peer takes 30 to 50 us to answer a small message,
and waking a rank that sleeps costs both sides about as much again. Measured with two ranks on two cores of a
virtual machine, 8 bytes one way: 76 us with 20 us here, 27 to 40 us with 60, 23 to 26 us with 100, 23 us with 200.
"""
_SPINS_IN_VAIN, _WAITS_BETWEEN_SPINS = 8, 256
_SAY_AGAIN_S = 0.2
"""Between two reports of one wait."""
_TICK_S = 0.5
"""Between two checks of what changes without an event: closed connections, and those that have proved nothing."""
_SEND_AGAIN_S = 0.01
"""Between two sends of a backlog that no thread empties."""
_SOMETIMES_S = 0.05


@dataclass(eq=False)
class Wait:
    """A call that waits."""

    call: str
    context: int
    source: int | None
    tag: Tag | None
    began: float
    limit_s: float | None
    said: tuple[int, int] | None = None
    """What was last reported to the rendezvous process."""
    said_at: float = 0.0
    spun: bool = False

    @property
    def what(self) -> str:
        """Source and tag, for people."""
        return f"({'any' if self.source is None else self.source}, {'any' if self.tag is None else repr(self.tag)})"


class Waits:
    """The waiting of all calls of a transport, and the kernel's events. The caller has the transport's lock."""

    def __init__(
        self, turn: Turn, ends: Ends, peers: Peers, counts: Callable[[], tuple[int, int]], *, may_spin: bool
    ) -> None:
        """`counts` returns how many messages this rank has sent to others and has got of them.

        `may_spin`: every rank of the node has a core of its own.
        """
        self._turn, self._ends, self._peers, self._counts, self._may_spin = turn, ends, peers, counts, may_spin
        self._changed = threading.Condition(turn.lock)
        self._others = 0
        """Threads that wait while another one waits for the kernel."""
        self.is_polling = False
        """Whether a thread waits for the kernel."""
        self.is_closed = False
        self._spins = 0
        """Waits since spinning has last spared one."""
        self._handled_at = 0.0

    def wake_others(self) -> None:
        """Let the threads that wait check again what has come."""
        if self.is_polling:
            self._peers.wake()
        if self._others:
            self._changed.notify_all()

    def handle_now(self) -> None:
        """Do what the kernel says can be done, without waiting."""
        self._handled_at = time.monotonic()
        if self._peers.handle(self._peers.epoll.poll(0)):
            self.wake_others()  # what was handled here, such as an end or a call of `wake`, may be what they wait for

    def handle_sometimes(self) -> None:
        """Notice ends and answers in a program that only sends."""
        if time.monotonic() - self._handled_at > _SOMETIMES_S:
            self.handle_now()

    def pause(self, wait: Wait) -> bool:
        """Release the lock until something may have changed; return False when the call's time is over."""
        now = time.monotonic()
        if wait.limit_s is not None and now >= wait.began + wait.limit_s:
            return False
        if self.is_polling:
            self._wait_for_other_thread()
            return True
        peers = self._peers
        if peers.must_send:
            peers.keep_going()
        self.is_polling = True
        try:
            if self._may_spin and not wait.spun:
                wait.spun = True
                if self._spin(now):
                    return True
            try:
                events = self._turn.asleep(peers.epoll, self._patience(wait, now))
            except (ValueError, OSError):
                if not self.is_closed:
                    raise
            if self.is_closed:  # by another thread
                return True
            peers.handle(events)
            if peers.is_busy_accepting:
                peers.tick(time.monotonic())
        finally:
            self.is_polling = False
            if self._others:
                self._changed.notify_all()
        self._report(wait)
        return True

    def finished(self, wait: Wait) -> None:
        """End a call's wait: tell the rendezvous process that the rank goes on, where it said that it waits."""
        self._ends.stuck = None
        if wait.said is not None:
            self._peers.control.say(wire.Working())

    def _spin(self, now: float) -> bool:
        """Ask the kernel for a moment without sleeping; not for a while after this has often been in vain."""
        self._spins += 1
        if self._spins >= _SPINS_IN_VAIN:
            if self._spins < _WAITS_BETWEEN_SPINS:
                return False
            self._spins = 0
        while time.monotonic() - now < _SPIN_S:
            events = self._peers.epoll.poll(0)
            if events:
                self._peers.handle(events)
                self._spins = 0
                return True
        return False

    def _wait_for_other_thread(self) -> None:
        """Wait while another thread waits for the kernel."""
        self._others += 1
        try:
            self._changed.wait(_SAY_AGAIN_S)
        finally:
            self._others -= 1
        self._turn.raise_interrupt()

    def _patience(self, wait: Wait, now: float) -> float | None:
        """Return how long the kernel may be waited for; None: until something comes."""
        due = None
        if wait.limit_s is not None:
            due = wait.began + wait.limit_s - now
        elif wait.said is None:
            due = wait.began + WAITING_S - now
        elif wait.said != self._counts():
            due = wait.said_at + _SAY_AGAIN_S - now
        if self._peers.gone or self._peers.is_busy_accepting or not self._ends.quiet:
            due = _TICK_S if due is None else min(due, _TICK_S)
        if self._peers.must_send:
            due = _SEND_AGAIN_S if due is None else min(due, _SEND_AGAIN_S)
        return None if due is None else max(due, 0.0)

    def _report(self, wait: Wait) -> None:
        """Tell the rendezvous process what this rank waits for. Not while other threads could send a message."""
        now = time.monotonic()
        if wait.limit_s is not None or now - wait.began < WAITING_S:
            return
        counts = self._counts()
        if wait.said == counts:
            return
        if wait.said is not None and now - wait.said_at < _SAY_AGAIN_S:
            return
        wait.said, wait.said_at = counts, now
        if threading.active_count() - self._peers.drains == 1:
            source = wait.source
            self._peers.control.say(
                wire.Waiting(wait.call, wait.context, source, wait.tag, now - wait.began, counts[0], counts[1])
            )
