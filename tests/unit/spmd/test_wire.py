"""Lines to and from a rendezvous process can be decoded; other lines are refused."""

from __future__ import annotations

import json

import pytest

from slurm_share.spmd import wire
from slurm_share.spmd.errors import TransportError
from slurm_share.spmd.transport import NodePlace

MESSAGES = [
    wire.Hello(3, 4711, 0),
    wire.RankWaiting("recv", 0, None, None, 2.5, 3, 4),
    wire.RankWaiting("recv", 0, 2, "tag é\n", 2, 3, 4),
    wire.RankWaiting("barrier", (1 << 32) | 7, 2, -5, 2.0, 3, 4),
    wire.RankWorking(),
    wire.Bye(1, 2, 3),
    wire.Welcome(2, (NodePlace("n1", 0, 1, "10.0.0.1"), NodePlace("n2", 1, 1, "")), (1, 2), "s", "00ff", "4711.0"),
    wire.RankEnded(5, "n2", None, 9, "was killed"),
    wire.NodeLoss("n2", (4, 5)),
    wire.RanksStuck(((0, "in recv"), (1, "in bcast"))),
    wire.CallMismatch(5, (0, "a"), (1, "b")),
    wire.RanksMissing((1, 2), 300.0),
    wire.RunAborted(1, 2, "why"),
    wire.RankRefused("why"),
    wire.Setup("4711.0", 1, (("n1", 2), ("n2", 3)), ports=(60000, 60010), folder="/x", start_s=5),
    wire.Setup("4711.0", 0, (("n1", 2),)),
    wire.Ready("name", "10.0.0.1"),
    wire.RankWaits(1, "in recv", 40.0),
    wire.RunEnding(1, "why", (5,)),
    wire.Note("text"),
    wire.NodeJoined("10.0.0.2"),
    wire.Heartbeat(),
    wire.DrainQuestion(3),
    wire.DrainAnswer(3),
    wire.NodeLeft(),
]


def test_each_message_is_read_as_it_was_written():
    for message in MESSAGES:
        line = wire.encode(message)
        assert line.count(b"\n") == 1
        assert line.endswith(b"\n")
        assert wire.decode(line) == message
    assert {type(message) for message in MESSAGES} == set(wire.Record.__subclasses__())


def test_a_field_of_a_later_release_is_left_out():
    line = json.dumps({"kind": "Hello", "rank": 1, "pid": 2, "port": 3, "version": 9, "colour": "red"}).encode()
    assert wire.decode(line) == wire.Hello(1, 2, 3, 9)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"null",
        b"[1]",
        b"{}",
        b"\xff\xfe",
        b'{"kind":"Hello"}',
        b'{"kind":"Nobody","rank":1}',
        b'{"kind":["Hello"],"rank":1}',
        b'{"kind":"Hello","rank":"1","pid":2,"port":3}',
        b'{"kind":"Hello","rank":true,"pid":2,"port":3}',
        b'{"kind":"RankWaiting","call":"recv","context":0,"source":null,"tag":[1],"since_s":1,"sent":1,"taken":1}',
        b'{"kind":"RankWaiting","call":"recv","context":0,"source":null,"tag":1,"since_s":1,"sent":null,"taken":1}',
        b'{"kind":"Welcome","size":1,"nodes":[1],"ports":[],"sockets":"","key":"","run":""}',
        b"[" * 60_000,
        b'{"kind":"RankRefused","why":"' + b"x" * wire.CONTROL_BYTES + b'"}',
    ],
)
def test_what_is_no_message_is_refused(line):
    with pytest.raises(TransportError, match="cannot be read"):
        wire.decode(line)
