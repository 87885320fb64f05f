"""How a process becomes a rank: its listening sockets, Hello, and the wait for Welcome."""

from __future__ import annotations

import contextlib
import errno
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
from .system import is_same_user, raise_file_limit
from .transport import NodePlace


@dataclass
class Joined:
    """What a rank has once all ranks are there. All sockets are open and do not block."""

    rank: int
    welcome: wire.Welcome
    nodes: tuple[NodePlace, ...]
    control: socket.socket
    rest: bytes
    """What came behind Welcome."""
    listeners: tuple[socket.socket, ...]
    """The first takes connections of this node's ranks, the second, where there is one, those of other nodes'."""


def join(environ: Mapping[str, str]) -> Joined:
    """Meet the other ranks of the run. Waits until all of them are there.

    Raises TransportError, or as RunEnded why the run cannot begin.
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
        with contextlib.suppress(OSError):  # the process has ended: reading says so
            control.sendall(wire.encode(wire.Hello(rank, os.getpid(), port)))
        welcome, rest = _welcome(control, rank)
        for sock in (control, *listeners):
            sock.setblocking(False)
        undo.pop_all()
    nodes = tuple(NodePlace(place.name, place.first, place.count) for place in welcome.nodes)
    return Joined(rank, welcome, nodes, control, rest, tuple(listeners))


def own_name(rendezvous: str, rank: int) -> str:
    """Return the abstract name of a rank's Unix socket: Welcome's `sockets` and the rank's number."""
    return f"{rendezvous}/r{rank}"


def _listen_in_node(name: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind("\0" + name)
        sock.listen(2 * MOST_RANKS_PER_NODE)
    except OSError as error:
        sock.close()
        raise TransportError(
            f"the socket of this rank cannot be opened ({error.strerror}): is it running twice?"
        ) from error
    return sock


def _listen_between_nodes(address: str, ports: str) -> socket.socket:
    """Listen on the first free port of a range such as `60000-60999`; empty: on any."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    first, _, last = ports.partition("-")
    for port in range(int(first), int(last) + 1) if ports else (0,):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one of a run that has just ended
            sock.bind((address, port))
            sock.listen(16 * HALF_OPEN)
            return sock
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise TransportError(f"this node's address {address} cannot be used: {error.strerror}") from error
    raise TransportError(f"no TCP port of {ports or 'any'} is free on this node's address {address}")


def _welcome(control: socket.socket, rank: int) -> tuple[wire.Welcome, bytes]:
    """Wait for Welcome; return it and what came behind it."""
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
    """Yield each line and what has come behind it."""
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
