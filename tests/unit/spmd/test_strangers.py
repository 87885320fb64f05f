"""Connections of other processes are closed, and the ranks continue."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_processes import RUN, Run
from transports import ranks

from slurm_share.spmd import frames
from slurm_share.spmd.envelope import PICKLE5
from slurm_share.spmd.errors import ReceiveTimeout, RunEnded, SpmdError
from slurm_share.spmd.handshake import RANKS, HandshakeClient
from slurm_share.spmd.names import VERSION
from slurm_share.spmd.transport import USER

AS_NOBODY = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(10)
sock.connect("\\0" + sys.argv[1])
try:
    sock.sendall(bytes.fromhex(sys.argv[2]))
    print("closed" if sock.recv(1) == b"" else "open")
except OSError as error:
    print("closed")
"""


class Bomb:
    """Object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def started(per_node: int | None) -> Run:
    run = Run(2, "serve", 40, 4.0, per_node=per_node)
    run.wait_for_start()
    return run


def to_rank(run: Run, rank: int, per_node: int | None) -> socket.socket:
    if per_node is None:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(f"\0{run.name}/r{rank}")
    else:
        sock = socket.create_connection(("127.0.0.1", run.port(rank)))
    sock.settimeout(20)
    _opened.append(sock)
    return sock


_opened: list[socket.socket] = []


@pytest.fixture(autouse=True)
def _close_all() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


def is_closed(sock: socket.socket, before: int = 0) -> bool:
    """Return whether the other end closes the connection, after a limited number of bytes."""
    got = 0
    try:
        while data := sock.recv(4096):
            got += len(data)
    except ConnectionError:
        return True
    return got <= before


def hello(rank: int, *, run: str = RUN, version: int = VERSION) -> bytes:
    return frames.pack(frames.HELLO, 0, form=version, meta=run.encode(), context=rank)


def data(sequence: int, body: bytes, **fields: Any) -> bytes:
    made = {"tag": frames.tag_to_bytes(0), "body_bytes": len(body), **fields}
    return frames.pack(frames.DATA, sequence, **made) + body


def bomb(path: Path) -> bytes:
    return data(0, pickle.dumps(Bomb(path)), form=PICKLE5)


def test_whoever_sends_something_else_first_is_closed_and_nothing_is_unpickled(tmp_path: Path) -> None:
    fire = tmp_path / "fire"
    firsts = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3,
        bytes(40),
        bomb(fire),
        hello(1, version=VERSION + 1),
        hello(1, run="other.0"),
        hello(0),
        hello(7),
        frames.pack(frames.BYE, 0),
        hello(1)[:20] + b"\xff" * 60,
    ]
    with started(None) as run:
        for first in firsts:
            sock = to_rank(run, 0, None)
            sock.sendall(first)
            assert is_closed(sock), first
        assert run.results() == [40, 40]
    assert not fire.exists()


def test_over_tcp_nothing_is_read_before_the_key_is_proved(tmp_path: Path) -> None:
    fire = tmp_path / "fire"
    with started(1) as run:
        for first in (bomb(fire), bytes(300), hello(1) + bomb(fire)):
            sock = to_rank(run, 0, 1)
            sock.sendall(first)
            assert is_closed(sock, before=32), first
        for key, name, peer in (
            (bytes(32), RUN, 0),
            (run.key, "other.0", 0),
            (run.key, RUN, 1),
        ):
            sock = to_rank(run, 0, 1)
            answer = HandshakeClient(key, name, 1, peer, RANKS).feed(sock.recv(32))
            sock.sendall(answer + bomb(fire))
            assert is_closed(sock)
        said = HandshakeClient(run.key, RUN, 1, 0, RANKS).feed(bytes(32))  # a proof for another nonce
        sock = to_rank(run, 0, 1)
        sock.sendall(said)
        assert is_closed(sock, before=32)
        assert run.results() == [40, 40]
    assert not fire.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_another_user_of_the_node_is_closed(tmp_path: Path) -> None:
    with started(None) as run:
        said = subprocess.run(
            ["/usr/bin/python3", "-c", AS_NOBODY, f"{run.name}/r0", hello(1).hex()],
            user=65534,
            group=65534,
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout == "closed\n"
        assert run.results() == [40, 40]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_another_user_cannot_fill_the_log_of_a_rank(capfd: pytest.CaptureFixture[str]) -> None:
    with started(None) as run:
        program = f"for _ in range(50):\n    exec({AS_NOBODY!r})"
        subprocess.run(
            ["/usr/bin/python3", "-c", program, f"{run.name}/r0", hello(1).hex()],
            user=65534,
            group=65534,
            cwd="/",
            check=True,
        )
        assert run.results() == [40, 40]
    said = capfd.readouterr().err.splitlines()
    closed = [line for line in said if "a connection of another user was closed" in line]
    assert len(closed) == 20
    assert closed[-1].endswith("; further ones are not named")


@pytest.mark.parametrize("per_node", [None, 1], ids=["one node", "two nodes"])
def test_many_connections_that_say_nothing_stop_nobody(per_node: int | None) -> None:
    with Run(2, "serve", 40, 4.0, per_node=per_node) as run:
        run.wait_for_start(then_s=0)
        socks = [to_rank(run, 0, per_node) for _ in range(200)]
        assert run.results() == [40, 40]
        assert all(is_closed(sock, before=32) for sock in socks)


BREAKS = {
    "a gap": data(7, b"x"),
    "another hello": hello(1, run="test.0"),
    "unknown kind": frames.HEADER.pack(99, 0, 0, 0, 0, 2, 0, 0),
    "unknown form": frames.HEADER.pack(frames.DATA, 77, 0, 0, 0, 2, 0, 0),
    "long meta": frames.HEADER.pack(frames.DATA, 0, 0, 1 << 30, 0, 2, 0, 0),
    "long tag": frames.HEADER.pack(frames.DATA, 0, 60_000, 0, 0, 2, 0, 0),
    "impossible body": frames.HEADER.pack(frames.DATA, 0, 0, 0, 1 << 60, 2, 0, 0),
    "too large a body": data(2, b"", body_bytes=1 << 46),
    "broken tag": data(2, b"x", tag=b"q123"),
    "segment that is not there": frames.pack(frames.SEGMENT, 2, tag=frames.tag_to_bytes(0), body_bytes=9, segment=5),
    "descriptor that does not come": frames.pack(
        frames.SEGMENT | frames.FD, 2, tag=frames.tag_to_bytes(0), body_bytes=9, segment=5
    ),
    "free of nothing": frames.pack(frames.FREE, 2, segment=1),
}


@pytest.mark.parametrize("what", list(BREAKS))
def test_a_broken_frame_ends_the_connection_and_is_named_to_who_waits_for_that_rank(what: str) -> None:
    with ranks(2) as ((rank, _control), _other), socket.socket(socket.AF_UNIX) as sock:
        sock.connect(f"\0{rank._peers._joined.welcome.sockets}0")
        sock.sendall(hello(1, run="test.0") + data(1, b"good") + BREAKS[what])
        assert bytes(rank.receive(1, USER, 0, "recv", 10.0).take()) == b"good"
        with pytest.raises(SpmdError) as raised:
            rank.receive(1, USER, None, "recv", 10.0)
    assert str(raised.value)
    assert not isinstance(raised.value, ReceiveTimeout | RunEnded)
