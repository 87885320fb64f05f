"""Calls and results as bytes: frames in files that only one process appends to, and messages on sockets.

A frame is a head (kind, length, checksum) and its content. Each file of frames has one writer for its whole life, so a
frame that its writer did not finish is the last one of its file, and readers wait for the rest of it. A wrong checksum
is treated in the same way: file servers may show the length of a write before its content.

No frame holds pickles outside the parts that are marked here; dispatchers copy those and never load them.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

_HEAD = struct.Struct("<2sBxII")
_MAGIC = b"\xe5X"
_CALL = struct.Struct("<QIIIBxH")
_RESULT = struct.Struct("<IQBBHfI")
READ_BYTES = 4 * 1024 * 1024
"""Most bytes of one read."""
LARGE_BYTES = 256 * 1024
"""Arguments and results from this size on have files of their own."""
_SAME = 0xFFFFFFFF
"""In place of the length of a function: it is that of the call before."""

# Frames of a client's file
CALLS, CANCELLED, CLOSED, RESIZED, OPENED, GONE = 1, 2, 3, 4, 5, 6
# Frames of a dispatcher's file
RESULTS, BROKEN, ENDED, STARTED = 16, 17, 18, 19
# Outcomes of a call
VALUE, RAISED, LOST, TOO_LONG, UNSTORED, UNREADABLE, REFUSED = 0, 1, 2, 3, 4, 5, 6
IN_FILE = 1
"""Flag of a call or a result: the pickle is in a file of its own, and the content is that file's name."""

Key = tuple[int, int]
"""A call: the number of its client, and its own number in that client's file."""


@dataclass(slots=True)
class Call:
    """One call as it stands in a client's file."""

    index: int
    function: bytes
    """A pickle."""
    arguments: bytes
    """A pickle of (args, kwargs), or with IN_FILE the name of its file."""
    options: bytes = b""
    """JSON: an object with `timeout`, `retries`, `gpu_mem`; empty: none."""
    flags: int = 0
    client: int = -1
    attempt: int = 1

    @property
    def key(self) -> Key:
        return self.client, self.index


@dataclass(slots=True)
class Result:
    """How a call ended."""

    client: int
    index: int
    kind: int
    seconds: float
    content: bytes
    """VALUE, RAISED: a pickle, or with IN_FILE the name of its file. Else text."""
    flags: int = 0
    attempt: int = 1

    @property
    def key(self) -> Key:
        return self.client, self.index


def frame(kind: int, content: bytes) -> bytes:
    """Return a frame of a file."""
    return _HEAD.pack(_MAGIC, kind, len(content), zlib.crc32(content)) + content


def pack_calls(calls: list[Call]) -> bytes:
    """Return calls as the content of a frame or a message."""
    parts = []
    before: bytes | None = None
    for call in calls:
        same = call.function == before
        parts.append(
            _CALL.pack(
                call.index,
                _SAME if same else len(call.function),
                len(call.arguments),
                len(call.options),
                call.flags,
                min(call.attempt, 65535),
            )
        )
        if not same:
            parts.append(call.function)
            before = call.function
        parts += (call.arguments, call.options)
    return b"".join(parts)


def unpack_calls(content: bytes, client: int) -> list[Call]:
    """Return the calls of a frame."""
    calls = []
    at, function = 0, b""
    while at < len(content):
        index, size, arguments, options, flags, attempt = _CALL.unpack_from(content, at)
        at += _CALL.size
        if size != _SAME:
            function = content[at : at + size]
            at += size
        middle = at + arguments
        calls.append(
            Call(index, function, content[at:middle], content[middle : middle + options], flags, client, attempt)
        )
        at = middle + options
    return calls


def call_indexes(content: bytes) -> list[int]:
    """Return the numbers of the calls of a frame, without their pickles."""
    found, at = [], 0
    while at < len(content):
        index, size, arguments, options, _, _ = _CALL.unpack_from(content, at)
        found.append(index)
        at += _CALL.size + (0 if size == _SAME else size) + arguments + options
    return found


def pack_result(result: Result) -> bytes:
    """Return a result as part of a frame's content, or as a message."""
    return (
        _RESULT.pack(
            result.client,
            result.index,
            result.kind,
            result.flags,
            min(result.attempt, 65535),
            result.seconds,
            len(result.content),
        )
        + result.content
    )


def unpack_results(content: bytes) -> list[Result]:
    """Return the results of a frame."""
    found, at = [], 0
    while at < len(content):
        client, index, kind, flags, attempt, seconds, size = _RESULT.unpack_from(content, at)
        at += _RESULT.size
        found.append(Result(client, index, kind, seconds, content[at : at + size], flags, attempt))
        at += size
    return found


def pack_keys(keys: list[Key]) -> bytes:
    return b"".join(struct.pack("<IQ", *key) for key in keys)


def unpack_keys(content: bytes) -> list[Key]:
    return [(client, index) for client, index in struct.iter_unpack("<IQ", content)]


class NotOwnFile(PermissionError):
    """A file of the run belongs to somebody else, or is not a plain file: it is not read."""


def open_own(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a plain file that belongs to this user; follow no link. Raises NotOwnFile and OSError."""
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotOwnFile(errno.EPERM, "it is a symbolic link, so it is not read", path) from error
        raise
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise NotOwnFile(errno.EPERM, "it is not a plain file of this user, so it is not read", path)
    return fd


def read_own(path: str) -> bytes:
    """Return the content of a plain file of this user. Raises NotOwnFile and OSError."""
    with open(open_own(path), "rb") as file:
        return file.read()


def write_new(path: str, content: bytes) -> None:
    """Write a file of this user alone, so that it appears whole. Raises OSError."""
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
        os.replace(part, path)
    except OSError:
        try:
            os.unlink(part)
        except OSError:
            pass
        raise


@dataclass(slots=True)
class Reader:
    """Reads the frames of a file that another process appends to."""

    path: str
    offset: int = 0
    _rest: bytearray = field(default_factory=bytearray)
    is_foreign: bool = False
    """True: the file is not one of this user, and nothing of it was read."""

    def read(self) -> Iterator[tuple[int, bytes, int]]:
        """Yield kind, content and offset of each further whole frame. Raises OSError."""
        if self.is_foreign:
            return
        try:
            # Opened each time: on NFS that asks the server for the file's present length.
            fd = open_own(self.path)
        except FileNotFoundError:
            return
        except NotOwnFile:
            self.is_foreign = True
            raise
        try:
            while True:
                data = os.pread(fd, READ_BYTES, self.offset + len(self._rest))
                self._rest += data
                yield from self._take()
                if len(data) < READ_BYTES:
                    break
        finally:
            os.close(fd)
            # Part of a frame is read again: if the disk was full, its writer has put another one in its place.
            self._rest.clear()

    def _take(self) -> Iterator[tuple[int, bytes, int]]:
        at = 0
        rest = self._rest
        try:
            while len(rest) - at >= _HEAD.size:
                magic, kind, size, checksum = _HEAD.unpack_from(rest, at)
                end = at + _HEAD.size + size
                if magic != _MAGIC:
                    del rest[at:]  # read again the next time
                    return
                if len(rest) < end:
                    return
                content = bytes(rest[at + _HEAD.size : end])
                if zlib.crc32(content) != checksum:
                    del rest[at:]
                    return
                start = self.offset + at
                at = end
                yield kind, content, start
        finally:
            del rest[:at]
            self.offset += at


def read_at(path: str, offset: int) -> bytes:
    """Return the content of the frame at an offset, which was whole before. Raises OSError."""
    fd = open_own(path)
    try:
        head = os.pread(fd, _HEAD.size, offset)
        if len(head) < _HEAD.size:
            raise OSError(errno.EIO, "the file is shorter than before", path)
        _, _, size, checksum = _HEAD.unpack(head)
        content = os.pread(fd, size, offset + _HEAD.size)
    finally:
        os.close(fd)
    if zlib.crc32(content) != checksum:
        raise OSError(errno.EIO, "its content has changed", path)
    return content


class Appender:
    """Appends frames to a file of its own: each whole, or not at all."""

    def __init__(self, path: str) -> None:
        """Make the file. Raises OSError (FileExistsError)."""
        self.path = path
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.size = 0

    def append(self, data: bytes) -> None:
        """Append whole frames. Raises OSError, after which nothing of `data` is in the file."""
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self.fd, memoryview(data)[done:], self.size + done)
        except OSError:
            try:
                os.ftruncate(self.fd, self.size)
            except OSError:
                pass  # the next append overwrites what is there
            raise
        self.size += done

    def touch(self) -> None:
        """Show readers that the writer lives."""
        try:
            os.utime(self.fd)
        except OSError:
            pass

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
