"""What ranks and rendezvous processes ask of the kernel alike. Standard library only."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group, as `struct ucred` has them."""


def peer_uid(sock: socket.socket) -> int:
    """Return the uid of the process at the other end of a Unix socket, as the kernel says it."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(data)
    return int(uid)


def is_same_user(sock: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket runs as this process's user."""
    return peer_uid(sock) == os.geteuid()


def raise_file_limit() -> None:
    """Let this process open as many files as the system allows it: connections and segments take one each."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # a hard limit above what the kernel allows now
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
