"""Messages between the processes of a node, on Unix sockets, and notices of changed files (inotify).

A message is a kind, a length and a content. Sockets of workers never block: what cannot be sent yet waits in the link.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct

_HEAD = struct.Struct("<BI")
READ_BYTES = 1024 * 1024

# From a worker to its node's dispatcher
HELLO, DONE, RETURNED, BROKEN = 1, 2, 3, 4
# From the dispatcher to a worker
WORK, STORED, RETURN, END, REST = 16, 17, 18, 19, 20
# Between a worker and its child
CALL, RESULT, READY, FAILED = 32, 33, 34, 35


class Link:
    """One end of a connection that does not block."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._in = bytearray()
        self._out = bytearray()
        self.is_open = True

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def is_waiting(self) -> bool:
        """Return whether something could not be sent yet."""
        return bool(self._out)

    def send(self, kind: int, content: bytes = b"") -> None:
        """Send a message, or keep it until the socket takes it. A closed link drops it."""
        if not self.is_open:
            return
        self._out += _HEAD.pack(kind, len(content))
        self._out += content
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        try:
            while self._out and self.is_open:
                sent = self.sock.send(memoryview(self._out)[:READ_BYTES])
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()  # the reader learns of the end too

    def receive(self) -> list[tuple[int, bytes]]:
        """Return the messages that have come; sets `is_open` to False at the end of the connection."""
        try:
            while data := self.sock.recv(READ_BYTES):
                self._in += data
                if len(data) < READ_BYTES:
                    break
            else:
                self.is_open = False
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False
        found, at, have = [], 0, self._in
        while len(have) - at >= _HEAD.size:
            kind, size = _HEAD.unpack_from(have, at)
            if len(have) < at + _HEAD.size + size:
                break
            at += _HEAD.size
            found.append((kind, bytes(have[at : at + size])))
            at += size
        del have[:at]
        return found

    def close(self) -> None:
        self.is_open = False
        self.sock.close()


def send_blocking(sock: socket.socket, kind: int, content: bytes) -> None:
    """Send a message on a socket that blocks. Raises OSError."""
    sock.sendall(_HEAD.pack(kind, len(content)) + content)


def receive_blocking(sock: socket.socket) -> tuple[int, bytes] | None:
    """Return the next message of a socket that blocks; None: the other end has closed it. Raises OSError."""
    head = _exactly(sock, _HEAD.size)
    if head is None:
        return None
    kind, size = _HEAD.unpack(head)
    content = _exactly(sock, size)
    return None if content is None else (kind, content)


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    data = sock.recv(size) if size else b""
    if len(data) == size:
        return data
    if not data:
        return None
    parts = bytearray(data)
    while len(parts) < size:
        data = sock.recv(min(size - len(parts), READ_BYTES))
        if not data:
            return None
        parts += data
    return bytes(parts)


def socket_path(folder: str) -> tuple[str, int | None]:
    """Return a path of the socket in a folder that is short enough for the kernel (107 bytes), and a descriptor that
    must stay open while the path is used. Raises OSError."""
    path = f"{folder}/executor"
    if len(os.fsencode(path)) <= 107:
        return path, None
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{fd}/executor", fd


_IN_MODIFY, _IN_CREATE, _IN_MOVED_TO = 0x2, 0x100, 0x80
_IN_NONBLOCK = os.O_NONBLOCK | os.O_CLOEXEC


class FolderEvents:
    """inotify(7) for folders: readable as soon as a process of this machine writes there.

    Changes by other machines are not seen; those who wait poll as well. Where the kernel allows no more watches, this
    is never readable.
    """

    def __init__(self) -> None:
        self.fd = -1
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self.fd = self._libc.inotify_init1(_IN_NONBLOCK)
        except (OSError, AttributeError):
            pass

    def watch(self, folder: str) -> None:
        """Watch the files of a folder too. Errors leave the folder to the poll."""
        if self.fd >= 0:
            self._libc.inotify_add_watch(self.fd, os.fsencode(folder), _IN_MODIFY | _IN_CREATE | _IN_MOVED_TO)

    def clear(self) -> None:
        """Take the events that have come."""
        try:
            while len(os.read(self.fd, 65536)) > 32768:
                pass
        except OSError:
            pass  # EAGAIN: there are none; EBADF: there is no inotify

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def die_with_parent() -> None:
    """Let the kernel end this process when its parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    try:
        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
    except (OSError, AttributeError):
        pass
