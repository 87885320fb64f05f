"""Mutual authentication of both ends of a TCP connection by the run's key, before anything else is read.

    server -> client   nonce (32 bytes)
    client -> server   header, nonce (32 bytes), run, HMAC("C" | header, nonce, run | server's nonce)
    server -> client   HMAC("S" | the same)

The header holds magic, protocol version, purpose, the length of the run's name, the client's number and the number of
the peer that it wants. New nonces make a recorded proof useless later. The HMAC covers purpose, run and both numbers,
which makes a proof for one peer useless at another.

`HandshakeServer` and `HandshakeClient` do no I/O, so they work with blocking and non-blocking sockets. Both ends run
the same loop:

    sock.sendall(side.start())
    while not side.done:
        sock.sendall(side.feed(sock.recv(side.wants)))

`feed(b"")` reports the end of the stream. After Refused, the caller closes the connection without an answer. The caller
also limits the time to HANDSHAKE_S. Standard library only.
"""

from __future__ import annotations

import os
import struct

from .errors import TransportError
from .names import VERSION

RANKS, NODES = 1, 2
"""Purposes of a connection: between ranks of two nodes, and between rendezvous processes."""
KEY_BYTES = 32
LIMIT = 256
"""Limit of a client's message, in bytes."""

_MAGIC = b"LLSPMD\r\n"
_NONCE = 32
_PROOF = 32
_HEADER = struct.Struct("<8sHBBII")
_RUN_LIMIT = LIMIT - _HEADER.size - _NONCE - _PROOF


class HandshakeRefused(TransportError):
    """Failed authentication of the other end. The message says why, for a log."""


class HandshakeServer:
    """The end that accepted the connection."""

    def __init__(self, key: bytes, run: str, me: int, purpose: int) -> None:
        """`me`: the number of this rank or node; `run`: the name of the run, the same on all nodes."""
        self._key, self._run, self._me, self._purpose = _checked(key), _bytes_of(run), me, purpose
        self._nonce = os.urandom(_NONCE)
        self._read = b""
        self._over = False
        self.peer: int | None = None
        """Number of the rank or node at the other end; None: not authenticated."""

    @property
    def done(self) -> bool:
        """Whether the client is authenticated. The last answer of `feed` must still be sent."""
        return self.peer is not None

    @property
    def wants(self) -> int:
        """Number of bytes to read at most: one more than allowed, which reveals a message that is too long."""
        return LIMIT + 1 - len(self._read)

    def start(self) -> bytes:
        """Return the bytes to send first."""
        return self._nonce

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the client; return the answer to send. Raises Refused."""
        if self._over or not data:
            raise self._refused("it sent more than its proof" if self._over else "it closed the connection")
        self._read += data
        if len(self._read) > LIMIT:
            raise self._refused("its message is too long")
        if not _MAGIC.startswith(self._read[: len(_MAGIC)]):
            raise self._refused("it does not speak this protocol")
        if len(self._read) < _HEADER.size:
            return b""
        _magic, version, purpose, run_bytes, rank, peer = _HEADER.unpack_from(self._read)
        if version != VERSION:
            raise self._refused(f"it speaks version {version} of the protocol, this end {VERSION}")
        signed = _HEADER.size + _NONCE + run_bytes
        if signed + _PROOF > LIMIT:
            raise self._refused("its message is too long")
        if len(self._read) < signed + _PROOF:
            return b""
        if len(self._read) > signed + _PROOF:
            raise self._refused("it sent more than its proof")
        said, proof = self._read[:signed], self._read[signed:]
        # The proof is checked first, so that a client without the key learns nothing about the run.
        if not _is_same(proof, _proof(self._key, b"C", said, self._nonce)):
            raise self._refused("it does not know the key of this run")
        if (purpose, said[_HEADER.size + _NONCE :]) != (self._purpose, self._run):
            raise self._refused("it belongs to another run")
        if peer != self._me:
            raise self._refused(f"it looks for number {peer}, this is {self._me}")
        self._over = True
        self.peer = rank
        return _proof(self._key, b"S", said, self._nonce)

    def _refused(self, why: str) -> HandshakeRefused:
        self._over = True
        self.peer = None
        return HandshakeRefused(f"a connection was refused: {why}")


class HandshakeClient:
    """The end that made the connection."""

    def __init__(self, key: bytes, run: str, me: int, peer: int, purpose: int) -> None:
        """`me`: the number of this rank or node; `peer`: the number of the wanted server."""
        self._key = _checked(key)
        name = _bytes_of(run)
        header = _HEADER.pack(_MAGIC, VERSION, purpose, len(name), me, peer)
        self._said = header + os.urandom(_NONCE) + name
        self._read = b""
        self._theirs: bytes | None = None
        self._over = False
        self.peer = peer
        self.done = False
        """Whether the server is authenticated."""

    @property
    def wants(self) -> int:
        """Number of bytes to read at most: bytes after the proof do not belong to the handshake."""
        return (_NONCE if self._theirs is None else _PROOF) - len(self._read)

    def start(self) -> bytes:
        """Return no bytes: the server sends first."""
        return b""

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the server; return the answer to send. Raises Refused."""
        if self._over or not data or len(data) > self.wants:
            self._over, self.done = True, False
            raise HandshakeRefused(
                f"number {self.peer} did not accept this connection"
                if not data
                else f"number {self.peer} sent more than its proof"
            )
        self._read += data
        if self.wants:
            return b""
        read, self._read = self._read, b""
        if self._theirs is None:
            self._theirs = read
            return self._said + _proof(self._key, b"C", self._said, read)
        self._over = True
        if not _is_same(read, _proof(self._key, b"S", self._said, self._theirs)):
            raise HandshakeRefused(f"the process that answers for number {self.peer} does not know the key of this run")
        self.done = True
        return b""


def signature(key: bytes, purpose: str, text: str) -> str:
    """Return the HMAC of a text as hex. `purpose`: what is signed, such as the address of node 0."""
    return _hmac(_checked(key), b"T" + purpose.encode() + b"\0" + text.encode()).hex()


def _proof(key: bytes, side: bytes, said: bytes, server_nonce: bytes) -> bytes:
    return _hmac(key, side + said + server_nonce)


def _hmac(key: bytes, text: bytes) -> bytes:
    import hmac  # loads OpenSSL, 3 ms; a run of one node does not need it

    return hmac.digest(key, text, "sha256")


def _is_same(one: bytes, other: bytes) -> bool:
    import hmac

    return hmac.compare_digest(one, other)


def _checked(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    return key


def _bytes_of(run: str) -> bytes:
    name = run.encode()
    if not 0 < len(name) <= _RUN_LIMIT:
        raise ValueError(f"the name of a run has 1 to {_RUN_LIMIT} bytes, not {len(name)}")
    return name
