"""Start of a rank: its listening sockets, Hello, and the wait for Welcome."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from . import names, wire
from .errors import TransportError
from .lines import LineConnection
from .rules.ends import Ends
from .system import is_same_user, listen_tcp, raise_file_limit


@dataclass
class RankSockets:
    """Sockets and addresses of a rank at the start of the run. All sockets are open and non-blocking."""

    rank: int
    welcome: wire.Welcome
    control: LineConnection
    """Connection to the node's rendezvous process."""
    early: list[bytes]
    """Its lines that were read with Welcome, and came after it."""
    listeners: tuple[socket.socket, ...]
    """The first accepts connections from ranks of this node, the second, if any, those of other nodes."""


def join(environ: Mapping[str, str]) -> RankSockets:
    """Join the run and wait until all ranks have joined.

    Raises TransportError, or RunEnded with the reason if the run cannot begin.
    """
    rank, name = int(environ[names.ENV_RANK]), environ[names.ENV_RENDEZVOUS]
    raise_file_limit()
    with contextlib.ExitStack() as undo:
        sock = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            sock.connect("\0" + name)
        except OSError as error:
            raise TransportError(
                f"rank {rank} cannot reach the rendezvous process of its node ({error.strerror}): it has ended, or "
                "this process is in a container with a network of its own; start them with the network of the host"
            ) from error
        if not is_same_user(sock):
            raise TransportError("the rendezvous socket belongs to another user")
        listeners = [undo.enter_context(_listen_in_node(own_name(name, rank)))]
        if int(environ.get(names.ENV_NODES, "1")) > 1:
            listeners.append(
                undo.enter_context(_listen_between_nodes(environ[names.ENV_ADDRESS], environ.get(names.ENV_PORTS, "")))
            )
        port = listeners[1].getsockname()[1] if len(listeners) > 1 else 0
        control = LineConnection(sock, names.CONTROL_BYTES)
        control.write(wire.encode(wire.Hello(rank, os.getpid(), port)))
        control.flush()
        welcome, early = _welcome(control, rank)
        for listener in listeners:
            listener.setblocking(False)
        undo.pop_all()
    return RankSockets(rank, welcome, control, early, tuple(listeners))


def own_name(rendezvous: str, rank: int) -> str:
    """Return the abstract name of a rank's Unix socket: `sockets` of Welcome and the rank's number."""
    return f"{rendezvous}/r{rank}"


def _listen_in_node(name: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind("\0" + name)
        sock.listen(2 * names.MOST_RANKS_PER_NODE)
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
    return listen_tcp(address, (int(first), int(last)) if ports else None, 16 * names.HALF_OPEN)


def _welcome(control: LineConnection, rank: int) -> tuple[wire.Welcome, list[bytes]]:
    """Wait for Welcome; return it and the lines that were read with it."""
    ends = Ends(rank, ())
    poller = select.poll()
    poller.register(control.file, select.POLLIN)
    while control.end is None:
        poller.poll()
        lines = control.lines()
        for number, line in enumerate(lines, 1):
            record = wire.decode(line)
            if isinstance(record, wire.Welcome):
                return record, lines[number:]
            ends.take(record)
            error = ends.fatal or ends.first
            if error is not None:
                raise error
    raise TransportError("the rendezvous process ended before all ranks were there")
