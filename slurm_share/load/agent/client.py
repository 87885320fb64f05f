"""The agent's local socket: its messages, and the client.

A caller connects, writes one line of JSON (a Question) and reads one line (a Reply) until the stream ends. The agent
identifies the caller by the socket's peer credentials, never by the question.
"""

from __future__ import annotations

import os
import socket
import time

import msgspec
from msgspec import Struct

from ...core import text_files
from ...core.errors import StateError, shown
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
    """True: all users' load, for root and operators. False: the caller's own."""


class Reply(Struct, frozen=True, omit_defaults=True):
    """The answer: a snapshot, or why there is none."""

    snapshot: msgspec.Raw = msgspec.Raw(b"null")
    why: str = ""
    """Why there is no snapshot, as a sentence."""


_reply_decoder = msgspec.json.Decoder(Reply)


def ask(socket_path: str, timeout_s: float, everybody: bool = False) -> Snapshot:
    """Return the newest snapshot of this node's agent: the caller's part, or all of it with `everybody`. Raises
    StateError if no agent answers within `timeout_s`, if it has no sample yet, or if the caller may not see all users'
    load."""
    until = Deadline.after(timeout_s)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        try:
            _connect(link, socket_path, until)
            _set_timeout(link, until)
            link.sendall(msgspec.json.encode(Question(everybody)) + b"\n")
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
        raise StateError(
            socket_path, "the agent closed the connection without an answer, as it does when it ends; ask again"
        )
    try:
        reply = _reply_decoder.decode(data)
    except text_files.NOT_JSON as error:
        raise StateError(
            socket_path, f"what answers there is not slurm-share's agent: {shown(str(error), 200)}"
        ) from error
    if reply.why:
        raise StateError(socket_path, reply.why)
    return snapshots.parse_snapshot(bytes(reply.snapshot), socket_path)


def _connect(link: socket.socket, path: str, until: Deadline) -> None:
    """Connect; try again while the agent's backlog is full, because connect(2) does not wait on a Unix socket."""
    while True:
        _set_timeout(link, until)
        try:
            link.connect(os.fspath(path))
            return
        except BlockingIOError:
            time.sleep(min(_FULL_PAUSE_S, until.left()))


def _read_all(link: socket.socket, until: Deadline) -> bytes:
    data = bytearray()
    while True:
        _set_timeout(link, until)
        part = link.recv(1 << 16)
        if not part:
            return bytes(data)
        data += part
        if len(data) > REPLY_MAX_BYTES:
            raise StateError(
                str(link.getpeername()), "what answers there is not slurm-share's agent: it sends without end"
            )


def _set_timeout(link: socket.socket, until: Deadline) -> None:
    """Set the socket's timeout to the time left. Raises TimeoutError if there is none."""
    left = until.left()
    if left <= 0:
        raise TimeoutError
    link.settimeout(left)
