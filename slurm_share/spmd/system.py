"""System calls that ranks and rendezvous processes share. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import struct

from .errors import TransportError

_CREDENTIALS = struct.Struct("3i")
"""`struct ucred`: process, user and group."""


def peer_uid(sock: socket.socket) -> int:
    """Return the uid of the process at the other end of a Unix socket, from the kernel (SO_PEERCRED)."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(data)
    return int(uid)


def is_same_user(sock: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket has this process's uid."""
    return peer_uid(sock) == os.geteuid()


def listen_tcp(address: str, ports: tuple[int, int] | None, backlog: int) -> socket.socket:
    """Listen on the first free port of a range (first, last); None: on any port.

    Raises TransportError.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    reason: OSError | None = None
    for port in range(ports[0], ports[1] + 1) if ports else (0,):
        listener: socket.socket | None = None
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port of a run that has just ended
            listener.bind((address, port))
            listener.listen(backlog)
            return listener
        except OSError as error:
            if listener is not None:
                listener.close()
            reason = error
            if error.errno != errno.EADDRINUSE:
                break
    which = f"ports {ports[0]} to {ports[1]}" if ports else "any port"
    why = reason.strerror if reason else "the range is empty"
    raise TransportError(f"this node cannot take connections on {address}, {which}: {why}") from reason


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit: each connection and each segment needs a descriptor."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # the hard limit is above fs.nr_open
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
