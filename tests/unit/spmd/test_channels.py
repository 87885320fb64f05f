"""The sender's end of a connection when the kernel or the memory fails."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from slurm_share.spmd import channels, frames
from slurm_share.spmd.channels import KeptTotal, Outgoing
from slurm_share.spmd.errors import NoRoom
from slurm_share.spmd.segments import Segment


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_a_connection_that_cannot_be_made_is_given_up_with_a_sentence() -> None:
    def connect() -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    made = Outgoing(3, socket.socket(), KeptTotal(), connect)
    assert made.broken == "rank 3 takes no connections: Too many open files"


def test_a_frame_without_room_counts_as_not_sent(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    channel = Outgoing(1, ours, KeptTotal(), None)
    segment = Segment(1, 4096)

    def full(self: Outgoing, parts: Any, sent: int, fd_of: Any, is_message: bool) -> None:
        raise NoRoom("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(Outgoing, "_push", lambda *_arguments: 0)
        patched.setattr(Outgoing, "_keep", full)
        with pytest.raises(NoRoom):
            channel.write(frames.SEGMENT, body_bytes=10, segment=segment)
    channel.write(frames.SEGMENT, body_bytes=10, segment=segment)
    data, rights, _flags, _address = theirs.recvmsg(4096, 64)
    frame = frames.unpack(data)
    for _level, _kind, passed in rights:
        os.close(int.from_bytes(passed, "little"))
    segment.close()
    assert (frame.sequence, frame.has_fd, len(rights)) == (0, True, 1)


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS])
def test_a_kernel_without_memory_for_the_moment_does_not_break_a_connection(number: int) -> None:
    class Full:
        family = socket.AF_UNIX

        def sendmsg(self, *_arguments: Any) -> int:
            raise OSError(number, os.strerror(number))

    kept = KeptTotal()
    channel = Outgoing(1, Full(), kept, None)  # type: ignore[arg-type]
    channel.write(frames.DATA, (memoryview(b"abc"),), body_bytes=3)
    assert channel.broken is None
    assert kept.bytes == channels.frames.HEADER.size + 3


def test_a_large_frame_that_the_peer_reads_is_not_copied(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.setblocking(True)
    kept = KeptTotal()
    channel = Outgoing(1, ours, kept, None)
    body = bytes(range(256)) * (16 << 12)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(_read_exactly, theirs, frames.HEADER.size + len(body))
        channel.write(frames.DATA, [memoryview(body[:1000]), memoryview(body)[1000:]], body_bytes=len(body))
        while kept.bytes:  # where this thread was held up for longer than a peer may take
            channel.flush()
        assert read.result(30)[frames.HEADER.size :] == body


def _read_exactly(sock: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size and (data := sock.recv(1 << 20)):
        found += data
    return bytes(found)
