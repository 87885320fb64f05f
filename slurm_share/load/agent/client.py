"""The agent's local socket: its messages, and the client.

A caller connects, writes one line of JSON, a Question, and reads one line, a Reply, to the end of the stream. Who asks
is what the kernel says about the other end of the socket, and nothing that is in the question.
"""

from __future__ import annotations

import os
import socket
import time

import msgspec
from msgspec import Struct

from ...core.errors import StateError
from ...core.process import Deadline
from .. import snapshot as snapshots
from ..snapshot import Snapshot

QUESTION_MAX_BYTES = 256
REPLY_MAX_BYTES = 64 * 1024 * 1024
"""Far above a node with hundreds of processes; a longer reply is not from an agent."""
START_IT = "start slurm-share-agent on this node, or sample without it"
_FULL_PAUSE_S = 0.02


class Question(Struct, frozen=True):
    """A request for the newest snapshot."""

    everybody: bool = False
    """Everybody's, which root and operators get; else what is the caller's own."""


class Reply(Struct, frozen=True, omit_defaults=True):
    """Either of the two."""

    snapshot: msgspec.Raw = msgspec.Raw(b"null")
    why: str = ""
    """A sentence: why there is no snapshot."""


_question_encoder = msgspec.json.Encoder()
_reply_decoder = msgspec.json.Decoder(Reply)


def ask(socket_path: str, timeout_s: float, everybody: bool = False) -> Snapshot:
    """Return the newest snapshot of this node's agent: the caller's part, or all of it with `everybody`.

    Raises StateError, with a sentence, where no agent answers, it takes longer than `timeout_s` for the whole, it has
    no sample yet, or the caller may not see everybody's.
    """
    until = Deadline.after(timeout_s)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        try:
            _connect(link, socket_path, until)
            _give(link, until)
            link.sendall(_question_encoder.encode(Question(everybody)) + b"\n")
            data = _read_all(link, until)
        except TimeoutError as error:
            raise StateError(socket_path, f"the agent did not answer within {timeout_s:g} s") from error
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise StateError(socket_path, f"no agent is there; {START_IT}") from error
        except OSError as error:
            raise StateError(
                socket_path, f"the agent did not answer ({error.strerror or error}); ask again, or see its log"
            ) from error
    if not data:
        raise StateError(socket_path, "the agent closed without an answer, as it does when it ends; ask again")
    try:
        reply = _reply_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(socket_path, f"no agent of ours answers there: {error}") from error
    if reply.why:
        raise StateError(socket_path, reply.why)
    return snapshots.parse_snapshot(bytes(reply.snapshot), socket_path)


def _connect(link: socket.socket, path: str, until: Deadline) -> None:
    """Connect, waiting while the agent's queue of callers is full: unlike TCP, the kernel does not wait for us."""
    while True:
        _give(link, until)
        try:
            link.connect(os.fspath(path))
            return
        except BlockingIOError:
            time.sleep(min(_FULL_PAUSE_S, until.left()))


def _read_all(link: socket.socket, until: Deadline) -> bytes:
    data = bytearray()
    while True:
        _give(link, until)
        part = link.recv(1 << 16)
        if not part:
            return bytes(data)
        data += part
        if len(data) > REPLY_MAX_BYTES:
            raise StateError(str(link.getpeername()), "what answers there is no agent: it sends without end")


def _give(link: socket.socket, until: Deadline) -> None:
    """Set the socket's timeout to what is left of the time. Raises TimeoutError when nothing is."""
    left = until.left()
    if left <= 0:
        raise TimeoutError
    link.settimeout(left)
