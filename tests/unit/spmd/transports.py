"""Socket transports of several ranks in one process, each with a connection in place of its rendezvous process."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from slurm_share.spmd import joining, wire
from slurm_share.spmd.lines import LineConnection
from slurm_share.spmd.names import CONTROL_BYTES
from slurm_share.spmd.sockets import SocketTransport
from slurm_share.spmd.transport import NodePlace


@contextmanager
def ranks(size: int, environ: Mapping[str, str] | None = None) -> Iterator[list[tuple[SocketTransport, socket.socket]]]:
    """Yield the transport of each rank with the rendezvous process's end of its connection."""
    name = f"test-{uuid.uuid4().hex}"
    welcome = wire.Welcome(size, (NodePlace("n", 0, size),), (0,) * size, f"{name}/r", "", "test.0")
    made = []
    for rank in range(size):
        listener = joining._listen_in_node(joining.own_name(name, rank))
        control, far_end = socket.socketpair()
        listener.setblocking(False)
        far_end.setblocking(False)
        joined = joining.RankSockets(rank, welcome, LineConnection(control, CONTROL_BYTES), [], (listener,))
        made.append((SocketTransport(joined, environ or {}), far_end))
    try:
        yield made
    finally:
        for transport, far_end in made:
            transport.leave("closed by the test")
            far_end.close()


def said(far_end: socket.socket) -> list[wire.Record]:
    """Return the messages of a rank to its rendezvous process so far."""
    try:
        return [wire.decode(line) for line in far_end.recv(1 << 16).splitlines()]
    except BlockingIOError:
        return []
