"""Start of a rank: its listening sockets, Hello, and the wait for Welcome."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from . import wire
from .control import Ends
from .errors import TransportError
from .names import (
    CONTROL_BYTES,
    ENV_ADDRESS,
    ENV_NODES,
    ENV_PORTS,
    ENV_RANK,
    ENV_RENDEZVOUS,
    HALF_OPEN,
    MOST_RANKS_PER_NODE,
)
from .system import is_same_user, listen_tcp, raise_file_limit
from .transport import NodePlace


@dataclass
class Joined:
    """Sockets and addresses of a rank at the start of the run. All sockets are open and non-blocking."""

    rank: int
    welcome: wire.Welcome
    nodes: tuple[NodePlace, ...]
    control: socket.socket
    rest: bytes
    """Bytes that were read after Welcome."""
    listeners: tuple[socket.socket, ...]
    """The first accepts connections from ranks of this node, the second, if any, those of other nodes."""


def join(environ: Mapping[str, str]) -> Joined:
    """Join the run and wait until all ranks have joined.

    Raises TransportError, or RunEnded with the reason if the run cannot begin.
    """
    rank, name = int(environ[ENV_RANK]), environ[ENV_RENDEZVOUS]
    raise_file_limit()
    with contextlib.ExitStack() as undo:
        control = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            control.connect("\0" + name)
        except OSError as error:
            raise TransportError(
                f"rank {rank} cannot reach the rendezvous process of its node ({error.strerror}): it has ended, or "
                "this process is in a container with a network of its own; start them with the network of the host"
            ) from error
        if not is_same_user(control):
            raise TransportError("the rendezvous socket belongs to another user")
        listeners = [undo.enter_context(_listen_in_node(own_name(name, rank)))]
        if int(environ.get(ENV_NODES, "1")) > 1:
            listeners.append(
                undo.enter_context(_listen_between_nodes(environ[ENV_ADDRESS], environ.get(ENV_PORTS, "")))
            )
        port = listeners[1].getsockname()[1] if len(listeners) > 1 else 0
        with contextlib.suppress(OSError):  # the process has ended; the next read reports it
            control.sendall(wire.encode(wire.Hello(rank, os.getpid(), port)))
        welcome, rest = _welcome(control, rank)
        for sock in (control, *listeners):
            sock.setblocking(False)
        undo.pop_all()
    nodes = tuple(NodePlace(place.name, place.first, place.count) for place in welcome.nodes)
    return Joined(rank, welcome, nodes, control, rest, tuple(listeners))


def own_name(rendezvous: str, rank: int) -> str:
    """Return the abstract name of a rank's Unix socket: `sockets` of Welcome and the rank's number."""
    return f"{rendezvous}/r{rank}"


def _listen_in_node(name: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind("\0" + name)
        sock.listen(2 * MOST_RANKS_PER_NODE)
    except OSError as error:
        sock.close()
        raise TransportError(
            f"the socket of this rank cannot be opened ({error.strerror}): is it running twice? A process that it "
            'starts must not use messages; with the method spawn, put the calls under `if __name__ == "__main__":`'
        ) from error
    return sock


def _listen_between_nodes(address: str, ports: str) -> socket.socket:
    """Listen on the first free port of a range such as `60000-60999`; empty: on any port."""
    first, _, last = ports.partition("-")
    try:
        return listen_tcp(address, (int(first), int(last)) if ports else None, 16 * HALF_OPEN)
    except OSError as error:
        raise TransportError(str(error)) from error


def _welcome(control: socket.socket, rank: int) -> tuple[wire.Welcome, bytes]:
    """Wait for Welcome; return it and the bytes that were read after it."""
    for line, rest in _lines(control):
        record = wire.decode(line)
        if isinstance(record, wire.Welcome):
            return record, rest
        ends = Ends(rank, ())
        ends.take(record)
        error = ends.fatal or ends.first
        if error is not None:
            raise error
    raise TransportError("the rendezvous process ended before all ranks were there")


def _lines(control: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    """Yield each line and the bytes that were read after it."""
    data = b""
    while True:
        line, newline, rest = data.partition(b"\n")
        if newline:
            yield line, rest
            data = rest
            continue
        try:
            more = control.recv(CONTROL_BYTES)
        except OSError:
            more = b""
        if not more:
            return
        data += more
