"""Frames in shared memory between two ranks of a node, in one order with those on the socket."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_processes import Run
from transports import ranks

from slurm_share.spmd import codec, frames, rings
from slurm_share.spmd.bodies import Received
from slurm_share.spmd.channels import SCRATCH_BYTES, Incoming, KeptTotal, Outgoing
from slurm_share.spmd.errors import RunEnded, TransportError, UsageError
from slurm_share.spmd.names import VERSION
from slurm_share.spmd.rings import AWAKE, HEAD, RING_BYTES, RING_MESSAGES, SEGMENT_BYTES, TAIL, RingReader, RingWriter
from slurm_share.spmd.segments import MappedSegment, Segment
from slurm_share.spmd.transport import USER

pytestmark = pytest.mark.skipif(not rings.IS_ORDERED, reason="rings need the order of stores of x86-64")


def a_ring() -> tuple[RingWriter, RingReader]:
    segment = Segment(0, SEGMENT_BYTES)
    reader = RingReader(MappedSegment(os.dup(segment.fd), SEGMENT_BYTES))
    segment.close()
    reader.words[AWAKE] = 1
    return RingWriter(segment), reader


class Pair:
    """A connection in one process, with a ring; `got` are the messages in the order of delivery."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        theirs.setblocking(False)
        self.kept = KeptTotal()
        self.got: list[tuple[int, bytes]] = []
        self.outgoing = Outgoing(1, ours, self.kept, None)
        self.incoming = Incoming(theirs, None, "run", self._deliver, lambda _lent: None)
        self.outgoing.write(frames.HELLO, form=VERSION, meta=b"run", context=0)
        segment = Segment(0, SEGMENT_BYTES)
        self.outgoing.write(frames.RING, body_bytes=SEGMENT_BYTES, segment=segment)
        self.outgoing.ring = RingWriter(segment)
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.read()

    def _deliver(self, message: Received) -> None:
        self.got.append((int(message.envelope.tag), bytes(message.take())))

    def read(self) -> None:
        self.incoming.read(self._scratch)

    def may_use_the_ring(self, answer: bool) -> None:
        assert self.incoming.ring is not None
        self.incoming.ring.words[AWAKE] = answer

    def send(self, tag: int, body: bytes) -> None:
        self.outgoing.write(frames.DATA, [memoryview(body)], tag=frames.tag_to_bytes(tag), body_bytes=len(body))

    def close(self) -> None:
        self.outgoing.sock.close()
        self.incoming.close()


@contextmanager
def a_pair() -> Iterator[Pair]:
    pair = Pair()
    try:
        yield pair
    finally:
        pair.close()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(0, 70_000)),
            st.tuples(st.just("awake"), st.booleans()),
            st.tuples(st.just("read"), st.none()),
            st.tuples(st.just("flush"), st.none()),
        ),
        max_size=60,
    )
)
def test_frames_of_ring_socket_and_backlog_arrive_once_and_in_order(steps: list[tuple[str, Any]]) -> None:
    with a_pair() as pair:
        sent = []
        for kind, value in steps:
            if kind == "send":
                sent.append((len(sent), bytes([len(sent) % 251]) * value))
                pair.send(*sent[-1])
            elif kind == "awake":
                pair.may_use_the_ring(value)
            elif kind == "read":
                pair.read()
            else:
                pair.outgoing.flush()
            assert pair.got == sent[: len(pair.got)]
        until = time.monotonic() + 20
        while len(pair.got) < len(sent) and time.monotonic() < until:
            pair.outgoing.flush()
            pair.read()
        assert pair.got == sent


def test_frames_keep_their_order_when_the_receiver_falls_asleep_and_wakes_between_them() -> None:
    with a_pair() as pair:
        for number in range(8):
            pair.may_use_the_ring(number % 2 == 0)
            pair.send(number, b"x")
        assert pair.got == []
        pair.read()
        assert [tag for tag, _ in pair.got] == list(range(8))


def test_a_frame_in_the_ring_waits_for_an_earlier_one_in_the_socket() -> None:
    with a_pair() as pair:
        pair.may_use_the_ring(False)
        pair.send(0, b"first")
        pair.may_use_the_ring(True)
        pair.send(1, b"second")
        assert not pair.incoming.read_ring()
        pair.read()
        assert pair.got == [(0, b"first"), (1, b"second")]


def test_a_body_that_is_half_read_from_the_socket_comes_before_the_next_frame_of_the_ring() -> None:
    with a_pair() as pair:
        pair.send(0, bytes(SCRATCH_BYTES + 5))
        pair.may_use_the_ring(True)
        pair.outgoing.flush()
        pair.incoming._parse(memoryview(pair.incoming.sock.recv(SCRATCH_BYTES)))
        pair.outgoing.flush()
        pair.send(1, b"later")
        assert not pair.incoming.read_ring()
        while len(pair.got) < 2:
            pair.outgoing.flush()
            pair.read()
        assert [tag for tag, _ in pair.got] == [0, 1]


def test_a_ring_carries_many_times_its_size_in_frames_of_all_lengths() -> None:
    writer, reader = a_ring()
    rng = random.Random(4)
    for number in range(3000):
        body = rng.randbytes(rng.choice((0, 1, 7, 8, 9, 100, 2048, 2049, 65536)))
        description = writer.describe(number % 7, 0, b"m" * (number % 5))
        head = writer.put(number, 3, description, [memoryview(body)], len(body))
        assert head
        writer.words[HEAD] = head
        first = reader.first()
        assert first is not None
        sequence, context, described, at, size, after = first
        assert (sequence, context, bytes(reader.body(at, size))) == (number, 3, body)
        assert reader.plain(described) == (number % 7, 0, b"m" * (number % 5))
        reader.words[TAIL] = after
    assert reader.is_empty


def test_a_full_ring_takes_nothing_until_the_receiver_has_read() -> None:
    writer, reader = a_ring()
    body = memoryview(bytes(60_000))
    description = writer.describe(0, 0, b"")
    written = 0
    while head := writer.put(written, 0, description, [body], body.nbytes):
        writer.words[HEAD] = head
        written += 1
    assert written == RING_BYTES // 60_100
    first = reader.first()
    assert first is not None
    reader.words[TAIL] = first[5]
    assert writer.put(written, 0, description, [body], body.nbytes)


def test_a_full_ring_is_followed_by_the_socket() -> None:
    with a_pair() as pair:
        pair.may_use_the_ring(True)
        for number in range(200):
            pair.send(number, bytes(10_000))
        assert pair.kept.bytes > 0
        until = time.monotonic() + 20
        while len(pair.got) < 200 and time.monotonic() < until:
            pair.read()
            pair.outgoing.flush()
        assert [tag for tag, _ in pair.got] == list(range(200))


def test_a_frame_that_is_not_yet_shown_is_not_read() -> None:
    writer, reader = a_ring()
    description = writer.describe(0, 0, b"")
    head = writer.put(0, 0, description, [memoryview(b"abc")], 3)
    assert reader.first() is None
    writer.words[HEAD] = head
    assert reader.first() is not None


def test_a_frame_that_was_delivered_is_dropped_if_it_is_still_there() -> None:
    with a_pair() as pair:
        pair.may_use_the_ring(True)
        pair.send(0, b"once")
        assert pair.incoming.ring is not None
        before = pair.incoming.ring.words[TAIL]
        pair.read()
        pair.incoming.ring.words[TAIL] = before  # as if an exception had come before the position was stored
        pair.send(1, b"next")
        pair.read()
        assert pair.got == [(0, b"once"), (1, b"next")]


def test_a_frame_that_reaches_beyond_the_ring_is_refused() -> None:
    writer, reader = a_ring()
    writer._map[rings.DATA_AT : rings.DATA_AT + rings.FRAME_BYTES] = rings.FRAME.pack(0, 0, 50, RING_BYTES)
    writer.words[HEAD] = 8
    with pytest.raises(TransportError, match="a frame of 50 and"):
        reader.first()


def test_memory_that_is_too_small_for_a_ring_is_refused() -> None:
    segment = Segment(0, 8192)
    with pytest.raises(TransportError, match="a ring of 8192 bytes"):
        RingReader(MappedSegment(os.dup(segment.fd), 8192))
    segment.close()


# ---- Transports ----


def send(transport: Any, dest: int, value: Any, tag: Any = 0) -> None:
    transport.send(dest, USER, tag, *codec.encode(value))


def recv(transport: Any, source: int | None, tag: Any = None) -> Any:
    message = transport.receive(source, USER, tag, "recv", None)
    return codec.decode(message.envelope.form, message.envelope.meta, message.take())


def test_a_ring_begins_after_some_messages_and_carries_the_next_ones() -> None:
    with ranks(2) as ((first, _), (second, _)):
        for number in range(RING_MESSAGES - 1):
            send(first, 1, number)
        assert not first._peers.ringed
        send(first, 1, RING_MESSAGES - 1)
        assert list(first._peers.ringed) == [1]
        assert [recv(second, 0) for _ in range(RING_MESSAGES)] == list(range(RING_MESSAGES))
        ring = first._peers.ringed[1].ring
        assert ring is not None
        before = ring.words[HEAD]
        send(first, 1, "in the ring")
        assert ring.words[HEAD] > before
        assert recv(second, 0) == "in the ring"
        assert ring.words[HEAD] == ring.words[TAIL]


def test_a_message_is_sent_although_its_receiver_ends_before_the_ring_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last message of a program may be the one after which the sender makes a ring."""
    with ranks(2) as ((first, _), (second, _)):
        make_ring = first._peers.make_ring

        def make_ring_late(channel: Outgoing) -> None:
            channel.sock.shutdown(socket.SHUT_WR)
            make_ring(channel)

        monkeypatch.setattr(first._peers, "make_ring", make_ring_late)
        for number in range(RING_MESSAGES):
            send(first, 1, number)
        assert not first._peers.ringed
        assert [recv(second, 0) for _ in range(RING_MESSAGES)] == list(range(RING_MESSAGES))


@pytest.mark.parametrize("is_read", [True, False])
def test_a_receiver_that_ends_while_it_is_woken_is_an_error_only_if_it_has_not_read_the_ring(
    is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Outgoing.write

    def write_late(channel: Outgoing, kind: int, *words: Any, **more: Any) -> None:
        if is_read:
            assert pair.incoming.read_ring()
        channel.sock.shutdown(socket.SHUT_WR)
        write(channel, kind, *words, **more)

    with a_pair() as pair:
        pair.may_use_the_ring(True)
        pair.send(0, b"x")
        pair.may_use_the_ring(False)
        monkeypatch.setattr(Outgoing, "write", write_late)
        if is_read:
            pair.outgoing.wake_reader()
            assert pair.got == [(0, b"x")]
        else:
            with pytest.raises(TransportError, match="Broken pipe"):
                pair.outgoing.wake_reader()


def test_a_rank_makes_a_limited_number_of_rings_and_reaches_all_others() -> None:
    with ranks(rings.MOST_RINGS + 4) as made:
        first = made[0][0]
        for round_number in range(RING_MESSAGES + 2):
            for dest in range(1, len(made)):
                send(first, dest, round_number)
        assert len(first._peers.ringed) == rings.MOST_RINGS
        for transport, _ in made[1:]:
            assert [recv(transport, 0) for _ in range(RING_MESSAGES + 2)] == list(range(RING_MESSAGES + 2))


def with_ring(first: Any, second: Any) -> Any:
    """Exchange messages until the first has a ring to the second, which is awake."""
    for number in range(RING_MESSAGES):
        send(first, second.rank, number)
        recv(second, first.rank)
    ring = first._peers.ringed[second.rank].ring
    assert ring.words[AWAKE] == 1
    return ring


def test_messages_of_other_tags_sources_and_contexts_stay_in_order() -> None:
    with ranks(3) as ((first, _), (second, _), (third, _)):
        with_ring(first, third)
        with_ring(second, third)
        for number in range(20):
            send(first, 2, ("first", number), "a" if number % 2 else "b")
            send(second, 2, ("second", number), 7)
        assert [recv(third, 0, "b") for _ in range(10)] == [("first", number) for number in range(0, 20, 2)]
        assert [recv(third, None, 7) for _ in range(20)] == [("second", number) for number in range(20)]
        assert [recv(third, 0) for _ in range(10)] == [("first", number) for number in range(1, 20, 2)]


def test_a_tag_and_its_text_are_different_in_a_ring() -> None:
    with ranks(2) as ((first, _), (second, _)):
        with_ring(first, second)
        send(first, 1, "number", 1)
        send(first, 1, "text", "1")
        assert recv(second, 0, "1") == "text"
        assert recv(second, 0, 1) == "number"


def test_a_receiver_that_falls_asleep_while_a_frame_is_written_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    with ranks(2) as ((first, _), (second, _)):
        ring = with_ring(first, second)
        put = RingWriter.put

        def put_while_it_falls_asleep(self: RingWriter, *arguments: Any) -> int:
            head = put(self, *arguments)
            assert second._peers.fall_asleep()
            return head

        with monkeypatch.context() as patched:
            patched.setattr(RingWriter, "put", put_while_it_falls_asleep)
            send(first, 1, "late")
        assert ring.words[AWAKE] == 0
        assert second._peers.epoll.poll(5.0)
        second._peers.wake_up()
        assert recv(second, 0) == "late"


def test_a_receiver_that_sleeps_gets_its_message_through_the_socket() -> None:
    with ranks(2) as ((first, _), (second, _)):
        ring = with_ring(first, second)
        second._peers.fall_asleep()
        before = ring.words[HEAD]
        send(first, 1, "wake up")
        assert ring.words[HEAD] == before
        assert second._peers.epoll.poll(5.0)
        second._peers.wake_up()
        assert recv(second, 0) == "wake up"


def test_a_message_that_took_a_segment_is_followed_by_messages_in_the_rings() -> None:
    body = np.zeros(50_000, np.uint8)
    with ranks(2) as ((first, _), (second, _)):
        there, back = with_ring(first, second), with_ring(second, first)
        second._peers.fall_asleep()
        send(first, 1, body)  # through the socket, after which there is a segment for the next one
        send(first, 1, body)
        second._peers.wake_up()
        assert [recv(second, 0).nbytes for _ in range(2)] == [body.nbytes] * 2
        assert second._peers.to_free, "the message was in no segment"
        second._peers.pool.grow(body.nbytes)
        for sender, receiver, ring in ((second, first, back), (first, second, there)) * 3:
            before = ring.words[HEAD]
            send(sender, receiver.rank, body)
            assert ring.words[HEAD] >= before + body.nbytes
            assert recv(receiver, sender.rank).nbytes == body.nbytes


def test_a_body_of_256_kib_goes_through_the_ring_wherever_the_frame_before_it_ended() -> None:
    with ranks(2) as ((first, _), (second, _)):
        ring = with_ring(first, second)
        for size in (1, 256 << 10, 256 << 10, 70_000, 256 << 10, 3000, 200_000, 256 << 10):
            body = np.random.default_rng(size).bytes(size - 200 if size > 200 else size)
            before = ring.words[HEAD]
            send(first, 1, body)
            assert ring.words[HEAD] >= before + len(body)
            assert recv(second, 0) == body


def test_a_receiver_with_frames_in_its_ring_does_not_sleep() -> None:
    with ranks(2) as ((first, _), (second, _)):
        ring = with_ring(first, second)
        send(first, 1, "there")
        assert not second._peers.fall_asleep()
        assert ring.words[AWAKE] == 1
        assert recv(second, 0) == "there"


def test_two_threads_of_a_rank_share_its_rings() -> None:
    with ranks(2) as ((first, _), (second, _)):
        with_ring(first, second)
        found: dict[str, list[Any]] = {"a": [], "b": []}

        def take(tag: str) -> None:
            found[tag] = [recv(second, 0, tag) for _ in range(300)]

        def give(tag: str) -> None:
            for number in range(300):
                send(first, 1, number, tag)

        threads = [threading.Thread(target=call, args=(tag,)) for tag in found for call in (take, give)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(30)
        assert found == {"a": list(range(300)), "b": list(range(300))}


# ---- Processes ----


def test_a_rank_that_is_killed_in_the_middle_of_a_frame_leaves_only_whole_ones() -> None:
    with Run(2, "stop_in_a_ring_frame") as run:
        stopped = run.processes[1]
        _wait_until_stopped(stopped.pid)
        time.sleep(0.3)
        stopped.send_signal(signal.SIGKILL)
        result, _ = run.results()
    values, error = result
    assert values[:20] == list(range(20))
    assert set(values[20:]) <= {bytes(3000)}  # those that found the receiver asleep
    assert isinstance(error, RunEnded)


def test_a_forked_child_does_not_write_into_the_ring() -> None:
    with Run(2, "fork_beside_a_ring") as run:
        (said, heads), values = run.results()
    assert isinstance(said, UsageError)
    assert heads[0] == heads[1]
    assert values == list(range(RING_MESSAGES + 3))


def test_messages_through_rings_of_several_processes_are_whole() -> None:
    with Run(4, "all_first", 50, 3000) as run:
        assert run.results() == [150] * 4


def _wait_until_stopped(pid: int) -> None:
    until = time.monotonic() + 300
    while time.monotonic() < until:
        with open(f"/proc/{pid}/stat") as stream:
            if stream.read().rpartition(")")[2].split()[0] == "T":
                return
        select.select([], [], [], 0.02)
    raise TimeoutError("the rank has not stopped itself")


def test_an_array_of_a_ring_is_writable_and_belongs_to_the_receiver() -> None:
    with ranks(2) as ((first, _), (second, _)):
        with_ring(first, second)
        send(first, 1, np.arange(10))
        got = recv(second, 0)
        got[:] = 5
        send(first, 1, np.arange(10))
        assert recv(second, 0).tolist() == list(range(10))
        assert got.tolist() == [5] * 10
