"""Waiting of calls. One thread at a time waits in epoll; the other threads wait for that one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from . import threads, wire
from .envelope import Tag
from .interrupts import TransportLock
from .names import WAITING_S
from .peers import Peers
from .rings import HEAD
from .rules.ends import Ends

_SPIN_S = 200e-6
"""Time for which a call polls without sleeping before it waits. A peer takes 30 to 50 us to answer a small message, and
waking a sleeping rank costs both sides about as much again. Two ranks that sleep once would go on to do so with less
time than the answer of a sleeping rank takes, 150 us.
"""
_ALONE_S = 15e-6
"""Time after which the core is offered to other processes between two looks: the kernel may have put both ranks on one
core. Before that it is not, because another program's process may keep it for milliseconds.
"""
_SPINS_IN_VAIN, _WAITS_BETWEEN_SPINS = 8, 64
_LOOKS, _MORE_LOOKS = range(8), range(64)
"""Numbers of looks into rings, of 0.1 us each, for one into the sockets, which takes 1 us."""
_SAY_AGAIN_S = 0.2
"""Seconds between two reports of one wait."""
_ASK_AGAIN_S = 1.0
"""Seconds between the two looks at other threads before a wait is reported."""
_TICK_S = 0.5
"""Seconds between two checks of closed and of unauthenticated connections, which need no event to be due."""
_SEND_AGAIN_S = 0.01
"""Seconds between two attempts to send a backlog for which there is no thread."""
SOMETIMES_S = 0.05


@dataclass(eq=False)
class Wait:
    """One waiting call."""

    call: str
    context: int
    source: int | None
    tag: Tag | None
    began: float
    limit_s: float | None
    said: tuple[int, int] | None = None
    """Message counts in the last report to the rendezvous process; None: there was none."""
    said_at: float = 0.0
    spun: bool = False
    threads: tuple[int, tuple[tuple[int, int], ...]] | None = None
    """The last answer of `threads.at_rest`; None: not asked."""

    @property
    def what(self) -> str:
        """Source and tag as text for messages."""
        return f"({'any' if self.source is None else self.source}, {'any' if self.tag is None else repr(self.tag)})"


class Waits:
    """The waits of all calls of a transport, and the handling of events. The caller holds the transport's lock."""

    def __init__(
        self,
        lock: TransportLock,
        ends: Ends,
        peers: Peers,
        counts: Callable[[], tuple[int, int]],
        where: Callable[[int], str],
        *,
        may_spin: bool,
    ) -> None:
        """`counts` returns the numbers of messages sent to and received from other ranks, `where` the communicator of a
        context as text (`transport.Queues.where`).

        `may_spin`: there is a core for every rank of the node.
        """
        self._lock, self._ends, self._peers, self._counts, self._may_spin = lock, ends, peers, counts, may_spin
        self._where = where
        self._changed = threading.Condition(lock.lock)
        self._others = 0
        """Number of threads that wait for the thread in epoll."""
        self.is_polling = False
        """Whether a thread waits in epoll."""
        self.is_closed = False
        self._spins = 0
        """Number of waits since spinning last avoided a sleep."""
        self.has_spun = False
        """Whether `spin_for` has decided against spinning or was in vain, so that `pause` need not spin."""
        self.handled_at = 0.0

    def wake_others(self) -> None:
        """Make all waiting threads check again for messages."""
        if self.is_polling:
            self._peers.wake()
        if self._others:
            self._changed.notify_all()

    def handle_now(self) -> None:
        """Handle the pending events without waiting."""
        self.handled_at = time.monotonic()
        had_frames = self._peers.read_rings()
        if self._peers.handle(self._peers.epoll.poll(0)) or had_frames:
            self.wake_others()  # the events, such as an end or a call of `wake`, may be what they wait for

    def handle_sometimes(self) -> None:
        """Handle events now and then, for programs that only send."""
        if time.monotonic() - self.handled_at > SOMETIMES_S:
            self.handle_now()

    def pause(self, wait: Wait) -> bool:
        """Release the lock until something may have changed; return False if the call's time is over."""
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
            if not peers.fall_asleep():
                return True
            try:
                events = self._lock.poll_unlocked(peers.epoll, self._patience(wait, now))
            except (ValueError, OSError):
                if not self.is_closed:
                    raise
            finally:
                peers.wake_up()
            if self.is_closed:  # by another thread, during the wait
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
        """End a call's wait, and tell the rendezvous process if it was told of the wait."""
        self._ends.stuck = None
        if wait.said is not None:
            self._peers.say(wire.RankWorking())

    def _spin(self, now: float) -> bool:
        """Poll for a moment without sleeping; pause that for a while after it has often been useless."""
        if not self._is_worth_spinning():
            return False
        peers = self._peers
        while (spun_s := time.monotonic() - now) < _SPIN_S:
            for _ in _LOOKS:
                if peers.read_rings():
                    self._spins = 0
                    return True
            events = peers.epoll.poll(0)
            if events:
                peers.handle(events)
                self._spins = 0
                return True
            if spun_s > _ALONE_S:
                os.sched_yield()
        return False

    def _is_worth_spinning(self) -> bool:
        self._spins += 1
        if self._spins < _SPINS_IN_VAIN:
            return True
        if self._spins < _WAITS_BETWEEN_SPINS:
            return False
        self._spins = 0
        return True

    def spin_for(self, words: memoryview, tail: int) -> bool:
        """Poll one ring for a moment as `pause` does; return whether there is a frame."""
        if self._may_spin and self._is_worth_spinning():
            began = now = time.monotonic()
            while now - began < _SPIN_S:
                for _ in _MORE_LOOKS:
                    if words[HEAD] != tail:
                        self._spins = 0
                        return True
                if self._peers.epoll.poll(0):  # the caller handles it
                    self._spins = 0
                    break
                now = time.monotonic()
                if now - began > _ALONE_S:
                    os.sched_yield()
        self.has_spun = True
        return False

    def _wait_for_other_thread(self) -> None:
        self._others += 1
        try:
            self._changed.wait(_SAY_AGAIN_S)
        finally:
            self._others -= 1
        self._lock.raise_interrupt()

    def _patience(self, wait: Wait, now: float) -> float | None:
        """Return the timeout for epoll in seconds; None: without a limit."""
        due = None
        if wait.limit_s is not None:
            due = wait.began + wait.limit_s - now
        elif wait.said is None:
            due = max(wait.began + WAITING_S, wait.said_at + _ASK_AGAIN_S) - now
        elif wait.said != self._counts():
            due = wait.said_at + _SAY_AGAIN_S - now
        if self._peers.gone or self._peers.is_busy_accepting or not self._ends.quiet:
            due = _TICK_S if due is None else min(due, _TICK_S)
        if self._peers.must_send:
            due = _SEND_AGAIN_S if due is None else min(due, _SEND_AGAIN_S)
        return None if due is None else max(due, 0.0)

    def _report(self, wait: Wait) -> None:
        """Tell the rendezvous process what this rank waits for, and how many other threads could still send."""
        now = time.monotonic()
        if wait.limit_s is not None or now - wait.began < WAITING_S:
            return
        counts = self._counts()
        if wait.said == counts:
            return
        if now - wait.said_at < (_SAY_AGAIN_S if wait.said is not None else _ASK_AGAIN_S):
            return
        active = 0
        if threading.active_count() > 1:
            asked = wait.threads
            wait.threads = threads.at_rest(self._peers.drainer.thread)
            active = wait.threads[0]
            if not active and wait.threads != asked:
                wait.said_at = now  # a thread that was continued a moment ago may not have run yet
                return
        wait.said, wait.said_at = counts, now
        waited_s, where = now - wait.began, self._where(wait.context)
        self._peers.say(
            wire.RankWaiting(wait.call, wait.context, wait.source, wait.tag, waited_s, *counts, active, where)
        )
