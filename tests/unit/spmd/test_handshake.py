"""Authentication of both ends of a TCP connection."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from slurm_share.spmd.handshake import (
    LIMIT,
    NODES,
    RANKS,
    HandshakeClient,
    HandshakeRefused,
    HandshakeServer,
    signature,
)
from slurm_share.spmd.names import VERSION

KEY = bytes(range(32))
OTHER_KEY = bytes(32)
RUN = "4711.0"


def ends(**changes) -> tuple[HandshakeServer, HandshakeClient]:
    """Return a server of rank 3 and a client of rank 5 that match, except for the client's `changes`."""
    what = {"key": KEY, "run": RUN, "me": 5, "peer": 3, "purpose": RANKS, **changes}
    return HandshakeServer(KEY, RUN, 3, RANKS), HandshakeClient(**what)


def talk(server: HandshakeServer, client: HandshakeClient, size: int = LIMIT) -> None:
    """Pass the bytes of each end to the other, `size` at a time, until both are silent."""
    to_client, to_server = server.start(), client.start()
    while to_client or to_server:
        part, to_server = to_server[:size], to_server[size:]
        if part:
            to_client += server.feed(part)
        part = to_client[: min(size, max(1, client.wants))]
        to_client = to_client[len(part) :]
        if part:
            to_server += client.feed(part)


@pytest.mark.parametrize("size", [1, 7, 33, LIMIT])
def test_both_ends_are_proved_however_the_bytes_are_cut(size):
    server, client = ends()
    talk(server, client, size)
    assert server.done
    assert client.done
    assert (server.peer, client.peer) == (5, 3)


def test_a_blocking_socket_is_served_by_the_loop_of_the_docstring():
    server, client = ends()
    here, there = socket.socketpair()

    def run(side, sock):
        sock.sendall(side.start())
        while not side.done:
            sock.sendall(side.feed(sock.recv(side.wants)))

    other = threading.Thread(target=run, args=(server, there))
    with here, there:
        other.start()
        run(client, here)
        other.join()
        there.sendall(b"first frame")
        assert here.recv(100) == b"first frame"
    assert server.done
    assert client.done


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"key": OTHER_KEY}, "does not know the key"),
        ({"run": "4711.1"}, "another run"),
        ({"run": "4711.00"}, "another run"),
        ({"purpose": NODES}, "another run"),
        ({"peer": 4}, "looks for number 4"),
    ],
)
def test_a_client_that_is_not_meant_is_refused(changes, why):
    server, client = ends(**changes)
    with pytest.raises(HandshakeRefused, match=why):
        talk(server, client)
    assert not server.done
    assert server.peer is None
    assert not client.done


def test_another_version_is_refused_by_number(monkeypatch):
    monkeypatch.setattr("slurm_share.spmd.handshake.VERSION", VERSION + 1)
    client = HandshakeClient(KEY, RUN, 5, 3, RANKS)
    monkeypatch.undo()
    server = HandshakeServer(KEY, RUN, 3, RANKS)
    with pytest.raises(HandshakeRefused, match=f"version {VERSION + 1}.* {VERSION}"):
        talk(server, client)


def test_a_recorded_proof_is_refused_by_the_next_server():
    server, client = ends()
    said = client.feed(server.start())
    server.feed(said)
    assert server.done
    again = HandshakeServer(KEY, RUN, 3, RANKS)
    with pytest.raises(HandshakeRefused, match="does not know the key"):
        again.feed(said)


def test_a_server_without_the_key_is_refused_though_it_repeats_what_it_heard():
    server, client = ends()
    answer = server.feed(client.feed(server.start()))
    fresh = HandshakeClient(KEY, RUN, 5, 3, RANKS)
    said = fresh.feed(server.start())  # the same nonce once more
    with pytest.raises(HandshakeRefused, match="does not know the key"):
        fresh.feed(answer)
    mirrored = HandshakeClient(KEY, RUN, 5, 3, RANKS)
    mirrored.feed(said[:32])
    with pytest.raises(HandshakeRefused, match="does not know the key"):
        mirrored.feed(said[-32:])


@pytest.mark.parametrize("place", [0, 8, 10, 11, 12, 16, 20, 40, 52, 60, 89])
def test_each_changed_byte_is_refused(place):
    server, client = ends()
    said = bytearray(client.feed(server.start()))
    said[place] ^= 1
    with pytest.raises(HandshakeRefused):
        server.feed(bytes(said) + (b"" if place != 11 else b"x"))
    assert not server.done


def test_bytes_behind_the_proof_are_refused():
    for behind in (False, True):
        server, client = ends()
        said = client.feed(server.start())
        if behind:
            server.feed(said)
        with pytest.raises(HandshakeRefused, match="more than its proof"):
            server.feed(b"x" if behind else said + b"x")
        assert not server.done


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", "does not speak"),
        (struct.pack("<8sHBBII", b"LLSPMD\r\n", VERSION, RANKS, 255, 5, 3), "too long"),
        (b"LLSPMD\r\n" + bytes(LIMIT), "too long"),
        (b"", "closed"),
    ],
)
def test_a_client_that_goes_on_is_refused_at_the_limit_or_before(said, why):
    server, client = ends()
    with pytest.raises(HandshakeRefused, match=why):
        server.feed(said)
    with pytest.raises(HandshakeRefused):
        server.feed(client.feed(server.start()))
    assert not server.done


def test_the_client_takes_no_end_and_no_byte_behind_the_servers_proof():
    server, client = ends()
    with pytest.raises(HandshakeRefused, match="did not accept"):
        client.feed(b"")
    server, client = ends()
    answer = server.feed(client.feed(server.start()))
    with pytest.raises(HandshakeRefused, match="more than its proof"):
        client.feed(answer + b"x")
    assert not client.done


def test_the_name_of_a_run_that_does_not_fit_and_a_short_key_are_refused_at_once():
    with pytest.raises(ValueError, match="1 to 172 bytes"):
        HandshakeClient(KEY, "x" * 173, 5, 3, RANKS)
    server = HandshakeServer(KEY, "x" * 172, 3, RANKS)
    client = HandshakeClient(KEY, "x" * 172, 5, 3, RANKS)
    talk(server, client)
    assert server.done
    with pytest.raises(ValueError, match="32 bytes"):
        HandshakeServer(b"short", RUN, 3, RANKS)


def test_a_signature_is_of_one_purpose_one_text_and_one_key():
    signed = [(KEY, "address", "n1 4242"), (KEY, "other", "n1 4242"), (KEY, "address", "n1 4243")]
    signed.append((OTHER_KEY, "address", "n1 4242"))
    assert len({signature(*one) for one in signed * 2}) == 4
