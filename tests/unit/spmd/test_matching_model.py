"""Random posts, sends, receives, probes and cancels give what a model of MPI's matching rules gives.

All ranks are in one thread, so that the order of events is known; a call waits only for what is there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from in_threads import Shared, ThreadTransport

from slurm_share.spmd import MPI
from slurm_share.spmd.comm import Comm
from slurm_share.spmd.errors import MessageMismatch
from slurm_share.spmd.transport import NodePlace, Queues

SIZE = 3
STEPS = 80


@dataclass(eq=False)
class Sent:
    """A message of the model. `value`: a number as an object, or a list of numbers as an array."""

    source: int
    tag: int
    value: Any
    synchronous: Any = None
    """Request of a synchronous send."""


@dataclass(eq=False)
class PostedReceive:
    """A posted receive of the model."""

    source: int
    tag: int
    request: Any
    room: Any = None
    """Buffer; None: an object is received."""
    got: Sent | None = None


@dataclass
class Model:
    """MPI's rules for one receiving rank: two queues, each in its order."""

    arrived: list[Sent] = field(default_factory=list)
    posted: list[PostedReceive] = field(default_factory=list)

    def send(self, sent: Sent) -> None:
        for one in self.posted:
            if one.got is None and fits(sent, one.source, one.tag):
                one.got = sent
                return
        self.arrived.append(sent)

    def first(self, source: int, tag: int) -> Sent | None:
        return next((one for one in self.arrived if fits(one, source, tag)), None)

    def put_back(self, sent: Sent, order: list[Sent]) -> None:
        for one in self.posted:
            if one.got is None and fits(sent, one.source, one.tag):
                one.got = sent
                return
        self.arrived.append(sent)
        self.arrived.sort(key=order.index)


def fits(sent: Sent, source: int, tag: int) -> bool:
    return source in (MPI.ANY_SOURCE, sent.source) and tag in (MPI.ANY_TAG, sent.tag)


class Play:
    """One random play of calls, made by the ranks and by the model."""

    def __init__(self, seed: int) -> None:
        shared = Shared([Queues(rank) for rank in range(SIZE)])
        nodes = (NodePlace("n1", 0, SIZE),)
        self.comms = [Comm(ThreadTransport(rank, shared, nodes)) for rank in range(SIZE)]
        self.comm, self.rng, self.model = self.comms[0], random.Random(seed), Model()
        self.order: list[Sent] = []

    def wanted(self) -> tuple[int, int]:
        return self.rng.choice([MPI.ANY_SOURCE, 0, 1, 2]), self.rng.choice([MPI.ANY_TAG, 1, 2])

    def send(self) -> None:
        source, tag, number = self.rng.randrange(SIZE), self.rng.choice([1, 2]), len(self.order)
        sent = Sent(source, tag, number)
        comm = self.comms[source]
        kind = self.rng.choice(["send", "Send", "issend"])
        if kind == "send":
            comm.send(number, 0, tag)
        elif kind == "issend":
            sent.synchronous = comm.issend(number, 0, tag)
        else:
            sent.value = [float(number)] * self.rng.randint(1, 3)
            comm.Send(np.array(sent.value), 0, tag)
        self.order.append(sent)
        self.model.send(sent)

    def post(self) -> None:
        source, tag = self.wanted()
        found = self.model.first(source, tag)
        if self.rng.random() < 0.5:
            room = np.full(self.rng.randint(1, 3), -1.0)
            posted = PostedReceive(source, tag, self.comm.Irecv(room, source, tag), room, found)
        else:
            posted = PostedReceive(source, tag, self.comm.irecv(source=source, tag=tag), None, found)
        if found is not None:
            self.model.arrived.remove(found)
        self.model.posted.append(posted)

    def receive(self) -> None:
        source, tag = self.wanted()
        found, status = self.model.first(source, tag), MPI.Status()
        assert self.comm.iprobe(source, tag, status) == (found is not None)
        if found is None:
            assert self.comm.improbe(source, tag) is None
            return
        assert (status.source, status.tag) == (found.source, found.tag)
        how = self.rng.choice(["recv", "mprobe", "improbe"])
        self.model.arrived.remove(found)
        if how == "recv":
            value = self.comm.recv(None, source, tag, status)
        else:
            message = getattr(self.comm, how)(source, tag, status)
            value = message.recv()
        self.expect(found, value, status)

    def finish(self, posted: PostedReceive | None = None) -> None:
        """Wait for a posted receive that has its message, or test one that has none."""
        if not self.model.posted:
            return
        posted = posted or self.rng.choice(self.model.posted)
        status = MPI.Status()
        if posted.got is None:
            assert posted.request.test(status) == (False, None)
            assert not posted.request.Get_status()
            return
        self.model.posted.remove(posted)
        sent = posted.got
        if posted.room is not None and (not isinstance(sent.value, list) or len(sent.value) > posted.room.size):
            with pytest.raises(MessageMismatch):
                posted.request.wait()
            assert (posted.room == -1).all()
            self.model.put_back(sent, self.order)
        else:
            how = self.rng.choice(["wait", "test", "waitany", "waitall"])
            if how == "wait":
                value = posted.request.wait(status)
            elif how == "test":
                done, value = posted.request.test(status)
                assert done
            elif how == "waitany":
                others = [one.request for one in self.model.posted if one.got is None]
                place, value = MPI.Request.waitany([*others, posted.request], status)
                assert place == len(others)
            else:
                (value,) = MPI.Request.waitall([posted.request], [status])
            if posted.room is not None:
                assert value is None
                value = posted.room[: len(sent.value)]
                assert (posted.room[len(sent.value) :] == -1).all()
            self.expect(sent, value, status)
        assert posted.request == MPI.REQUEST_NULL

    def cancel(self) -> None:
        if not self.model.posted:
            return
        posted = self.rng.choice(self.model.posted)
        posted.request.Cancel()
        if posted.got is not None:
            self.finish(posted)
            return
        self.model.posted.remove(posted)
        status = MPI.Status()
        assert posted.request.wait(status) is None
        assert status.Is_cancelled()

    def expect(self, sent: Sent, value: Any, status: MPI.Status) -> None:
        assert (status.source, status.tag) == (sent.source, sent.tag)
        assert list(value) == sent.value if isinstance(sent.value, list) else value == sent.value
        assert sent.synchronous is None or sent.synchronous.test() == (True, None)


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_random_calls_give_what_mpis_rules_give(first: int) -> None:
    for seed in range(first, first + 20):
        play = Play(seed)
        for _ in range(STEPS):
            play.rng.choice([play.send, play.send, play.post, play.receive, play.finish, play.cancel])()
            assert play.comm.iprobe() == bool(play.model.arrived), seed
        while any(one.got for one in play.model.posted):
            play.finish(next(one for one in play.model.posted if one.got))
        for posted in play.model.posted:
            posted.request.Cancel()
        while play.model.arrived:
            sent = play.model.arrived.pop(0)
            status = MPI.Status()
            play.expect(sent, play.comm.recv(status=status), status)
        assert not play.comm.transport._queues.by_context
