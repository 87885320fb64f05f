"""Frames, and how a receiver parses a stream of them."""

from __future__ import annotations

import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.spmd import frames
from slurm_share.spmd.bodies import Received
from slurm_share.spmd.channels import Incoming, KeptTotal, Outgoing
from slurm_share.spmd.errors import TransportError
from slurm_share.spmd.names import TAG_BYTES, VERSION

TAGS = st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=60)


@given(TAGS)
def test_tags_are_read_as_they_were(tag: int | str) -> None:
    found = frames.tag_of_bytes(frames.tag_to_bytes(tag))
    assert (found, type(found)) == (tag, type(tag))


@given(st.binary(min_size=frames.HEADER.size, max_size=frames.HEADER.size))
def test_forty_bytes_are_a_frame_within_the_limits_or_an_error(data: bytes) -> None:
    try:
        frame = frames.unpack(data)
    except TransportError:
        return
    assert frames.HELLO <= frame.kind <= frames.BYE
    assert frame.tag_bytes <= TAG_BYTES + 1


@given(
    st.lists(st.tuples(TAGS, st.binary(max_size=300), st.integers(0, 3000)), max_size=8),
    st.lists(st.integers(1, 700), min_size=1, max_size=30),
)
def test_messages_come_whole_however_the_stream_is_cut(
    messages: list[tuple[int | str, bytes, int]], cuts: list[int]
) -> None:
    stream = frames.pack(frames.HELLO, 0, form=VERSION, meta=b"run", context=3)
    bodies = [np.random.default_rng(size).bytes(size) for _tag, _meta, size in messages]
    for number, ((tag, meta, size), body) in enumerate(zip(messages, bodies, strict=True)):
        head = frames.pack(frames.DATA, number + 1, tag=frames.tag_to_bytes(tag), meta=meta, body_bytes=size, context=7)
        stream += head + body
    found: list[Received] = []
    ours, theirs = socket.socketpair()
    incoming = Incoming(ours, None, "run", found.append, lambda lent: None)
    ours.setblocking(False)
    scratch = memoryview(bytearray(512))
    at, turn = 0, 0
    while at < len(stream):
        theirs.sendall(stream[at : at + cuts[turn % len(cuts)]])
        at += cuts[turn % len(cuts)]
        turn += 1
        for _ in range(3):
            incoming.read(scratch)
    theirs.close()
    while not incoming.closed:
        incoming.read(scratch)
    incoming.close()
    assert [(one.envelope.tag, one.envelope.meta, one.envelope.source) for one in found] == [
        (tag, meta, 3) for tag, meta, _size in messages
    ]
    assert [bytes(one.take()) for one in found] == bodies


@given(st.binary(max_size=400), st.integers(0, 400))
def test_any_bytes_behind_hello_are_read_or_an_error_of_the_transport(data: bytes, keep: int) -> None:
    good = frames.pack(frames.DATA, 1, tag=frames.tag_to_bytes(1), body_bytes=4) + b"body"
    stream = frames.pack(frames.HELLO, 0, form=VERSION, meta=b"run", context=3) + good[:keep] + data
    ours, theirs = socket.socketpair()
    incoming = Incoming(ours, None, "run", lambda message: None, lambda lent: None)
    ours.setblocking(False)
    theirs.sendall(stream)
    theirs.close()
    try:
        while not incoming.closed:
            incoming.read(memoryview(bytearray(1 << 16)))
    except TransportError:
        pass
    incoming.close()


def test_what_the_kernel_does_not_take_is_kept_and_sent_later() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    kept = KeptTotal()
    channel = Outgoing(1, ours, kept, None)
    body = bytearray(np.random.default_rng(0).bytes(3 << 20))
    expected = bytes(body)
    channel.write(frames.DATA, [memoryview(body)], tag=frames.tag_to_bytes(1), body_bytes=len(body))
    channel.write(frames.BYE)
    assert 0 < channel.backlog_bytes < len(body)
    assert kept.bytes == channel.backlog_bytes
    body[:] = bytes(len(body))
    found = b""
    while channel.backlog_bytes:
        found += theirs.recv(1 << 20)
        channel.flush()
    theirs.setblocking(False)
    try:
        while True:
            found += theirs.recv(1 << 20)
    except BlockingIOError:
        pass
    assert found[40 + 9 :][: len(expected)] == expected
    assert frames.unpack(found, len(found) - 40).kind == frames.BYE
    assert kept.bytes == 0
    ours.close()
    theirs.close()


def test_a_broken_connection_counts_what_was_not_taken() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    kept = KeptTotal()
    channel = Outgoing(1, ours, kept, None)
    for _ in range(3):
        channel.write(frames.DATA, [memoryview(bytes(1 << 20))], tag=frames.tag_to_bytes(1), body_bytes=1 << 20)
    theirs.close()
    channel.flush()
    assert channel.broken is not None
    assert (channel.untaken, channel.backlog_bytes, kept.bytes) == (3, 0, 0)
    with pytest.raises(TransportError):
        channel.write(frames.BYE)
    ours.close()


def test_a_rank_of_an_older_version_is_refused_before_it_gets_frames_that_it_does_not_know() -> None:
    """A version is raised with its frames: version 1 ended at BYE, version 2 at WAKE."""
    assert {1: frames.BYE, 2: frames.WAKE}[VERSION] == frames.WAKE
    for older in range(1, VERSION):
        ours, theirs = socket.socketpair()
        incoming = Incoming(ours, None, "run", lambda message: None, lambda lent: None)
        theirs.sendall(frames.pack(frames.HELLO, 0, form=older, meta=b"run", context=3))
        with pytest.raises(TransportError, match=f"version {older} of the protocol"):
            incoming.read(memoryview(bytearray(512)))
        theirs.close()
        incoming.close()
