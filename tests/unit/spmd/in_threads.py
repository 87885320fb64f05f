"""Transport between threads of one process, for tests of collectives and arrays without processes.

Matching is the product's (`transport.Queues`). Only the delivery of messages and the deadlock check are replaced.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_share.spmd import wire
from slurm_share.spmd.bodies import Received
from slurm_share.spmd.comm import Comm
from slurm_share.spmd.envelope import RAW, Envelope, Tag
from slurm_share.spmd.errors import CollectiveMismatch, Deadlock, PeerEnded, ReceiveTimeout, SpmdError
from slurm_share.spmd.rules import ends
from slurm_share.spmd.transport import Buffers, NodePlace, Posted, Queues, Transport, answer_of, wanted_text

PATIENCE_S = 60.0
"""A test that waits for longer has failed."""


@dataclass(eq=False)
class ThreadWindow:
    """Shared memory between threads."""

    memory: memoryview
    released: int = 0

    def release(self) -> None:
        self.released += 1


@dataclass(eq=False)
class Shared:
    """State that all ranks of one run share."""

    queues: list[Queues]
    changed: threading.Condition = field(default_factory=threading.Condition)
    ended: SpmdError | None = None
    sent: list[Envelope] = field(default_factory=list)
    waits: dict[int, wire.RankWaiting] = field(default_factory=dict)
    """The waits without an end, by rank."""
    posted: dict[int, Sequence[Posted]] = field(default_factory=dict)
    """The receives for which a rank waits, in the place of `waits`' source and tag."""
    done: set[int] = field(default_factory=set)
    """Ranks that have ended."""

    def deliver(self, dest: int, message: Received) -> None:
        """Put a message into a rank's queues, and answer those that posted receives get. The lock is held."""
        queues = self.queues[dest]
        queues.put(message)
        while queues.to_answer:
            self.answer(dest, *answer_of(queues.to_answer.popleft()))
        self.changed.notify_all()

    def answer(self, source: int, dest: int, context: int, tag: Tag) -> None:
        """Send an empty message. The lock is held."""
        self.deliver(dest, Received(Envelope(source, context, tag, RAW, 0), [memoryview(bytearray())]))

    def look_for_deadlock(self) -> None:
        """Set `ended` if every rank waits and no message is there for any. The lock is held."""
        if self.ended is not None or not self.waits or len(self.waits) + len(self.done) < len(self.queues):
            return
        try:
            for rank, one in self.waits.items():
                if rank in self.posted:
                    if any(posted.is_done for posted in self.posted[rank]):
                        return
                elif self.queues[rank].find(one.source, one.context, one.tag):
                    return
        except CollectiveMismatch:
            return  # the rank of that queue raises it
        told = ends.judge(self.waits)
        if isinstance(told, wire.CallMismatch):
            self.ended = CollectiveMismatch(told.number, *told.here, *told.there, told.where)
        elif self.done:
            self.ended = PeerEnded(min(self.done), "n1", 0, None, ends.NOTHING_MORE)
        else:
            self.ended = Deadlock(told.waits)
        self.changed.notify_all()


class ThreadTransport(Transport):
    """One rank, which is a thread."""

    def __init__(self, rank: int, shared: Shared, nodes: tuple[NodePlace, ...], has_windows: bool = True) -> None:
        self.has_windows = has_windows
        self.rank, self.size, self.nodes = rank, len(shared.queues), nodes
        self.shared, self._lock, self._queues = shared, shared.changed, shared.queues[rank]
        self.windows: list[ThreadWindow] = []

    def send(
        self, dest: int, context: int, tag: Tag, form: int, meta: bytes, buffers: Buffers, window: Any = None
    ) -> None:
        body = bytearray(b"".join(buffers))
        envelope = Envelope(self.rank, context, tag, form, len(body), meta)
        memory = None if window is None else window.memory
        with self.shared.changed:
            self.shared.sent.append(envelope)
            self.shared.deliver(dest, Received(envelope, [memoryview(body)], memory))

    def receive(
        self, source: int | None, context: int, tag: Tag | None, call: str, timeout_s: float | None = None
    ) -> Received:
        found: list[Any] = []

        def is_there() -> bool:
            message = self._queues.take(source, context, tag)
            if message is not None:
                found.append(message)
            return bool(found) or self.shared.ended is not None

        with self.shared.changed:
            try:
                if timeout_s is None and not is_there():
                    self.shared.waits[self.rank] = wire.RankWaiting(
                        call, context, source, tag, 0.0, 0, 0, where=self._queues.where(context)
                    )
                    self.shared.look_for_deadlock()
                there = bool(found) or self.shared.changed.wait_for(
                    is_there, PATIENCE_S if timeout_s is None else timeout_s
                )
            finally:
                self.shared.waits.pop(self.rank, None)
            if not there:
                raise ReceiveTimeout(f"rank {self.rank} waits in {call} for ({source}, {tag!r})")
            if found:
                return found[0]
            assert self.shared.ended is not None
            raise self.shared.ended

    def wait(self, posted: Sequence[Posted], call: str, timeout_s: float | None = None) -> None:
        def is_over() -> bool:
            return any(one.is_done for one in posted) or self.shared.ended is not None

        with self.shared.changed:
            try:
                if timeout_s is None and not is_over():
                    one = posted[0]
                    where = self._queues.where(one.context)
                    waiting = wire.RankWaiting(call, one.context, one.source, one.tag, 0.0, 0, 0, where=where)
                    self.shared.waits[self.rank], self.shared.posted[self.rank] = waiting, posted
                    self.shared.look_for_deadlock()
                there = self.shared.changed.wait_for(is_over, PATIENCE_S if timeout_s is None else timeout_s)
            finally:
                self.shared.waits.pop(self.rank, None)
                self.shared.posted.pop(self.rank, None)
            if not there:
                raise ReceiveTimeout(f"rank {self.rank} waits in {call} for {wanted_text(posted)}")
            if self.shared.ended is not None and not any(one.is_done for one in posted):
                raise self.shared.ended

    def _send_answer(self, dest: int, context: int, tag: Tag) -> None:
        self.shared.answer(self.rank, dest, context, tag)

    def _poll(self) -> None:
        pass

    def window(self, size: int) -> ThreadWindow:
        made = ThreadWindow(memoryview(bytearray(max(size, 1))))
        self.windows.append(made)
        return made

    def abort(self, code: int, why: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def run_ranks(
    size: int, program: Callable[[Any], Any], *, per_node: int | None = None, windows: bool = True
) -> list[Any]:
    """Run `program(transport)` on `size` ranks and return all results. Raises the first error of a rank.

    `per_node`: ranks per node; None: all on one. `windows`: whether the transport has them.
    """
    count = per_node or size
    nodes = tuple(
        NodePlace(f"n{number + 1}", first, min(count, size - first))
        for number, first in enumerate(range(0, size, count))
    )
    shared = Shared([Queues(rank) for rank in range(size)])
    results: list[Any] = [None] * size
    errors: list[tuple[int, BaseException]] = []

    def work(rank: int) -> None:
        try:
            results[rank] = program(ThreadTransport(rank, shared, nodes, windows))
            with shared.changed:
                shared.done.add(rank)
                shared.look_for_deadlock()
        except Exception as error:  # noqa: BLE001 - raised again in the test's own thread
            with shared.changed:
                errors.append((rank, error))
                shared.ended = shared.ended or PeerEnded(rank, "n1", 1, None, f"raised {error!r}")
                shared.changed.notify_all()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S * 3)
    if errors:
        raise errors[0][1]
    return results


def run(size: int, program: Callable[[Comm], Any], **options: Any) -> list[Any]:
    """Run `program(comm)` on `size` ranks; as `run_ranks`."""
    return run_ranks(size, lambda transport: program(Comm(transport)), **options)


def on_ranks(size: int | None = None, **options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test on `size` ranks (None: as its argument `size` says), each of which gets its `comm`.

    Options, and arguments of the test called `per_node` and `windows`, are those of `run_ranks`.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        def on_all(**given: Any) -> None:
            where = {name: given[name] for name in ("per_node", "windows") if name in given}
            run(size or given["size"], lambda comm: test(comm, **given), **where, **options)

        vars(on_all).update(vars(test), __doc__=test.__doc__)
        on_all.__name__, on_all.__module__ = test.__name__, test.__module__
        _comm, *arguments = inspect.signature(test).parameters.values()
        by_name = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in arguments]
        on_all.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
        return on_all

    return decorate
