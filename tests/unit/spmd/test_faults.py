"""Ranks whose calls are interrupted, that use their transport in several threads, or that end in disagreement."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from transports import ranks, said

from slurm_share.spmd import frames, interrupts, peers, sockets, wire, world
from slurm_share.spmd.drainer import Drainer
from slurm_share.spmd.envelope import RAW
from slurm_share.spmd.errors import (
    CollectiveMismatch,
    NodeLost,
    NoRoom,
    PeerEnded,
    ReceiveTimeout,
    SpmdError,
    TransportError,
    UsageError,
)
from slurm_share.spmd.names import META_BYTES
from slurm_share.spmd.rules.ends import Ends
from slurm_share.spmd.system import listen_tcp
from slurm_share.spmd.transport import USER, NodePlace

CALL = 1 << 32


def body(size: int) -> list[memoryview]:
    return [memoryview(bytes(size))]


def test_a_send_waits_for_room_before_its_first_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    with ranks(2) as ((sender, _control), _other):
        monkeypatch.setattr(sockets, "PIECE_BYTES", 1 << 16)
        sender._peers.pool.grow(1 << 16)
        order: list[Any] = []
        monkeypatch.setattr(sender, "_wait_for_room", lambda *_arguments: order.append("wait"))
        channel = sender._peers.to(1)
        write = channel.write

        def noted(kind: int, *arguments: Any, **named: Any) -> None:
            order.append(kind)
            write(kind, *arguments, **named)

        monkeypatch.setattr(channel, "write", noted)
        sender.send(1, USER, 0, RAW, b"", body(100 << 10))
        assert order == ["wait", frames.PART, frames.DATA]


def test_what_one_thread_handles_wakes_the_thread_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with ranks(2) as ((rank, _control), _other):
        woken: list[bool] = []
        rank._waits.is_polling = True
        rank._peers.wake()
        monkeypatch.setattr(rank._peers, "wake", lambda: woken.append(True))
        rank._waits.handle_now()
        rank._waits.is_polling = False
        assert woken == [True]


def test_a_rank_that_has_got_a_message_of_a_finished_call_says_so_at_its_end() -> None:
    with ranks(2) as ((first, control), (second, _control)):
        second.send(0, CALL | 1, "bcast(root=1)", RAW, b"", body(3))
        first.finish(CALL | 1)
        first.close()
        told = [one for one in said(control) if isinstance(one, wire.CallMismatch)]
        assert told == [wire.CallMismatch(1, (0, "no call, because it has returned from main"), (1, "bcast(root=1)"))]


def test_a_mismatch_that_a_call_has_raised_is_not_told_again() -> None:
    with ranks(2) as ((first, control), (second, _control)):
        second.send(0, CALL | 1, "bcast(root=1)", RAW, b"", body(3))
        first.finish(CALL | 1)
        with pytest.raises(CollectiveMismatch):
            first.receive(1, CALL | 2, "barrier()", "barrier", 10.0)
        first.close()
        assert not [one for one in said(control) if isinstance(one, wire.CallMismatch)]


def test_a_send_in_a_collective_call_names_the_first_rank_that_died() -> None:
    ends = Ends(0, (NodePlace("n", 0, 3),))
    ends.take(wire.RankEnded(2, "n", None, 9, "was killed"))
    ends.take(wire.RankEnded(1, "n", 0, None, ""))
    error = ends.error_for_send(1, CALL | 1)
    assert isinstance(error, PeerEnded)
    assert error.rank == 2
    error = ends.error_for_send(1, USER)
    assert isinstance(error, PeerEnded)
    assert error.rank == 1


def test_a_backlog_is_sent_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread:
        def __init__(self, **_arguments: Any) -> None: ...

        def start(self) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

    with ranks(2) as ((sender, _control), (receiver, _other)):
        size = 8 << 20
        with monkeypatch.context() as patched:
            patched.setattr(threading, "Thread", NoThread)
            sender.send(1, USER, 0, RAW, b"", body(size))
            assert sender._peers.must_send
            until = time.monotonic() + 120
            while sender._peers.kept.bytes and time.monotonic() < until:
                sender.probe(1, USER, 0)
                sender._peers.keep_going()
                receiver.probe(0, USER, 0)
        assert receiver.receive(0, USER, 0, "recv", 10.0).envelope.size == size


def test_a_connection_that_is_given_up_where_there_is_no_thread_ends_the_wait_for_it() -> None:
    one: Any = SimpleNamespace(backlog_bytes=1, broken=None, retry_at=0.0)
    one.reconnect = lambda: vars(one).update(backlog_bytes=0, broken="takes no connections", retry_at=None)
    woken: list[bool] = []
    Drainer(threading.Lock(), lambda: [one], lambda: woken.append(True)).send_now()
    assert woken == [True]


def test_a_long_reason_for_an_abort_fits_the_lines_of_the_rendezvous_process() -> None:
    with ranks(2) as ((rank, control), _other):
        rank.abort(1, "x" * 100_000)
        (told,) = said(control)
        assert isinstance(told, wire.RunAborted)
        assert len(told.why) == 1000


def test_a_call_that_waits_ends_when_its_transport_is_closed() -> None:
    with ranks(2) as ((rank, _control), _other):
        found: list[SpmdError] = []

        def wait() -> None:
            try:
                rank.receive(1, USER, 0, "recv", 0.5)
            except SpmdError as error:
                found.append(error)

        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        until = time.monotonic() + 120
        while not rank._waits.is_polling and time.monotonic() < until:
            time.sleep(0.01)
        rank.close()
        waiter.join(10)
        assert isinstance(found[0], UsageError)


def test_a_child_forked_after_the_end_closes_no_descriptor_of_others() -> None:
    with ranks(2) as ((rank, _control), _other):
        rank.close()
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
        rank.leave("forked")
        for fd in fds:
            os.close(fd)


def test_one_message_beyond_the_limit_has_no_room() -> None:
    with (
        ranks(2, {"LLSUB_SEND_LIMIT": "1000"}) as ((sender, _control), _other),
        pytest.raises(NoRoom, match="SEND_LIMIT"),
    ):
        sender.send(1, USER, 0, RAW, b"", body(1001))


@pytest.mark.parametrize(
    ("told", "error", "text"),
    [
        (wire.NodeLoss("n2", (1,)), NodeLost, "node n2 with rank 1 does not answer any more"),
        (wire.CallMismatch(4, (1, "bcast"), (0, "gather")), CollectiveMismatch, "rank 0 is in gather, rank 1 in bcast"),
    ],
)
def test_what_the_rendezvous_process_tells_ends_a_wait(told: wire.Record, error: type[SpmdError], text: str) -> None:
    with ranks(2) as ((rank, control), _other):
        control.sendall(wire.encode(told))
        with pytest.raises(error, match=text):
            rank.receive(1, USER, 0, "recv", 10.0)


def test_with_checksums_bodies_come_by_socket_and_segment_and_a_torn_one_is_an_error() -> None:
    sent = bytes(range(256)) * 400
    with ranks(2, {"LLSUB_CHECK": "1"}) as ((sender, _control), (receiver, _other)):
        for way in ("socket", "segment"):
            sender.send(1, USER, way, RAW, b"", [memoryview(sent)])
            assert receiver.receive(0, USER, way, "recv", 10.0).take() == sent
            receiver.probe(0, USER, "none")  # frees the segment
        sender.send(1, USER, "torn", RAW, b"", [memoryview(sent)])
        for segment in sender._peers.pool._all.values():
            segment.memory[12345] ^= 1
        with pytest.raises(TransportError, match="differs from what rank 0 sent"):
            receiver.receive(0, USER, "torn", "recv", 10.0).take()


def test_a_rank_can_send_to_itself_and_change_the_body_afterwards() -> None:
    with ranks(1) as ((rank, _control),):
        sent = bytearray(b"first")
        rank.send(0, USER, 0, RAW, b"", [memoryview(sent)])
        sent[:] = b"later"
        assert rank.receive(0, USER, 0, "recv", 10.0).take() == b"first"


def test_a_description_that_no_receiver_reads_is_refused() -> None:
    with ranks(2) as ((sender, _control), _other):
        with pytest.raises(UsageError, match="description"):
            sender.send(1, USER, 0, RAW, bytes(META_BYTES + 1), body(1))
        sender.send(1, USER, 0, RAW, b"", body(1))


@pytest.mark.parametrize(("rendezvous", "refused"), [("somewhere", True), ("", False)])
def test_a_child_forked_before_the_first_message_does_not_become_the_rank(
    monkeypatch: pytest.MonkeyPatch, rendezvous: str, refused: bool
) -> None:
    monkeypatch.setattr(world, "_made", None)
    monkeypatch.setattr(world, "_forked", False)
    monkeypatch.setenv("LLSUB_RENDEZVOUS", rendezvous)
    child = os.fork()
    if not child:
        os._exit(world._forked)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == refused


def test_ctrl_c_ends_a_send_to_a_rank_whose_queue_of_connections_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        tries = 0

        def connect(self, name: str) -> None:
            self.tries += 1
            raise BlockingIOError if self.tries < 50 else ConnectionRefusedError(errno.ECONNREFUSED, "refused")

        def close(self) -> None: ...

    with ranks(2) as ((sender, _control), _other):
        monkeypatch.setattr(peers, "_socket", lambda *_arguments: Full())
        interrupts.GATE.delayed.append((signal.default_int_handler, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            sender.send(1, USER, 0, RAW, b"", body(1))


def test_too_many_open_files_are_an_error_of_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_arguments: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(sockets, "_END_S", 0.1)
    with ranks(2) as ((sender, _control), _other):
        with monkeypatch.context() as patched:
            patched.setattr(socket, "socket", none)
            with pytest.raises(TransportError, match="Too many open files"):
                sender.send(1, USER, 0, RAW, b"", body(1))
            with pytest.raises(TransportError, match=r"connections on 127\.0\.0\.1, any port: Too many open files"):
                listen_tcp("127.0.0.1", None, 1)
        sender.send(1, USER, 0, RAW, b"", body(1))


def test_very_many_connections_are_worth_one_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "NOTED_CONNECTIONS", 1)
    with ranks(4) as ((sender, _control), *_others):
        for dest in (1, 2, 3):
            sender.send(dest, USER, 0, RAW, b"", body(1))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("slurm-share: rank 0 has more than 1 connections to other ranks; each takes one of the ")


def test_a_message_without_memory_ends_its_connection_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_arguments: Any) -> Any:
        raise MemoryError

    with ranks(2) as ((receiver, _control), (sender, _other)):
        sender.send(0, USER, 0, RAW, b"", body(1))
        assert receiver.receive(1, USER, 0, "recv", 10.0).envelope.size == 1
        sender.send(0, USER, 0, RAW, b"", body(1))
        with monkeypatch.context() as patched:
            patched.setattr(frames, "unpack", none)
            with pytest.raises(NoRoom):
                receiver.receive(1, USER, 0, "recv", 10.0)


def test_a_receive_from_any_source_waits_for_what_an_ended_rank_has_sent() -> None:
    with ranks(2) as ((receiver, control), (sender, _other)):
        sender.send(0, USER, 0, RAW, b"", body(1))
        receiver.receive(1, USER, 0, "recv", 10.0)
        control.sendall(wire.encode(wire.RankEnded(1, "n", 0, None, "")))
        with pytest.raises(ReceiveTimeout, match=r"rank 0 has waited 0\.3\d* s in recv for \(any, 0\)"):
            receiver.receive(None, USER, 0, "recv", 0.3)
        sender.send(0, USER, 0, RAW, b"", body(2))
        assert receiver.receive(None, USER, 0, "recv", 10.0).envelope.size == 2
        sender.close()
        with pytest.raises(PeerEnded):
            receiver.receive(None, USER, 0, "recv", 10.0)
