"""Both ends of a rendezvous process for tests: a parent that starts it, and ranks that speak by hand."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TypeVar

from slurm_share.spmd import names, wire
from slurm_share.spmd.rules import ends

PATIENCE_S = 120.0
"""A test that waits for longer has failed."""
Kind = TypeVar("Kind")


class Speaker:
    """A rank that says what a test tells it to."""

    def __init__(self, name: str, rank: int, *, port: int = 0, is_silent: bool = False) -> None:
        self.rank = rank
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect("\0" + name)
        self._lines = self.sock.makefile("rb")
        if not is_silent:
            self.say(wire.Hello(rank, os.getpid(), port))

    def say(self, message: wire.Record) -> None:
        self.sock.sendall(wire.encode(message))

    def hear(self) -> wire.Record | None:
        """Return the next message; None: the connection was closed."""
        try:
            line = self._lines.readline()
        except ConnectionError:
            return None
        return wire.decode(line) if line else None

    def expect(self, kind: type[Kind]) -> Kind:
        message = self.hear()
        assert isinstance(message, kind), message
        return message

    def hears_nothing(self, for_s: float) -> bool:
        return not select.select([self.sock], [], [], for_s)[0]

    def close(self) -> None:
        self._lines.close()
        self.sock.close()


class Node:
    """The parent of a rendezvous process."""

    def __init__(self, setup: wire.Setup) -> None:
        self.setup = setup
        self.name = setup.nodes[setup.node][0]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slurm_share.spmd.rendezvous"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self.speakers: list[Speaker] = []
        self.heard: list[wire.Record] = []
        self._rest = b""
        self.say(setup)

    def start(self) -> wire.Ready:
        """Wait until ranks can be started."""
        self.ready = self.expect(wire.Ready)
        return self.ready

    def say(self, message: wire.Record) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(wire.encode(message))

    def end(self, rank: int, code: int | None = 0, signal: int | None = None) -> None:
        self.say(wire.RankEnded(rank, self.name, code, signal, ends.reason(code, signal)))

    def messages(self, for_s: float) -> Iterator[wire.Record]:
        """Yield what it says, until it is silent for that long."""
        assert self.process.stdout is not None
        while True:
            while b"\n" in self._rest:
                line, self._rest = self._rest.split(b"\n", 1)
                message = wire.decode(line)
                self.heard.append(message)
                yield message
            if not select.select([self.process.stdout], [], [], for_s)[0]:
                return
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                return
            self._rest += data

    def expect(self, kind: type[Kind]) -> Kind:
        """Return its next message of that kind; others are left out."""
        for message in self.messages(PATIENCE_S):
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} came, but {self.heard} and {self.error()!r}")

    def rank(self, rank: int, **options: object) -> Speaker:
        speaker = Speaker(self.ready.name, rank, **options)  # type: ignore[arg-type]
        self.speakers.append(speaker)
        return speaker

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def error(self) -> str:
        assert self.process.stderr is not None
        return os.read(self.process.stderr.fileno(), 65536).decode() if self.process.poll() is not None else ""

    def close(self) -> None:
        for speaker in self.speakers:
            speaker.close()
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


def variables(ready: wire.Ready, rank: int, size: int, per_node: int) -> dict[str, str]:
    """Return the variables that a launcher gives a rank; each node has `per_node` ranks, the last one the rest."""
    node, local = divmod(rank, per_node)
    return {
        names.ENV_RENDEZVOUS: ready.name,
        names.ENV_ADDRESS: ready.address,
        names.ENV_RANK: str(rank),
        names.ENV_SIZE: str(size),
        names.ENV_NODE: str(node),
        names.ENV_NODES: str(-(-size // per_node)),
        names.ENV_LOCAL_RANK: str(local),
        names.ENV_LOCAL_SIZE: str(min(per_node, size - node * per_node)),
    }


def wait_for(condition: object, what: str) -> None:
    """Wait until `condition()` holds."""
    assert callable(condition)
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)
