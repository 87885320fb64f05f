"""The agent's local socket: its messages, and the client.

A caller connects, writes one line of JSON (a Question) and reads one line (a Reply, or a UsageReply) until the stream
ends. The agent identifies the caller by the socket's peer credentials, never by the question.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ...core import text_files
from ...core.errors import StateError, shown
from ...core.process import Deadline
from ...core.records import Count, NodeName
from ...core.settings import Settings
from ...usage import VERSION, JobUse, UseSeries
from .. import snapshot as snapshots
from ..snapshot import Snapshot

QUESTION_MAX_BYTES = 32 * 1024
MOST_NODES = 64
"""Most nodes of one question; `usage_of` asks about more in several."""
REPLY_MAX_BYTES = 64 * 1024 * 1024
"""Far above a node with hundreds of processes; a longer reply is not from an agent."""
START_IT = "start slurm-share-agent on this node, or sample without it"
_FULL_PAUSE_S = 0.02


class Question(Struct, frozen=True, omit_defaults=True):
    """A request for the newest snapshot, or with `usage` for what a job has used."""

    everybody: bool = False
    """True: all users' load, for root and operators. False: the caller's own."""
    usage: Count | None = None
    """Slurm's number of a job, which may have ended."""
    nodes: Annotated[tuple[NodeName, ...], Meta(max_length=MOST_NODES)] = ()
    """Nodes of that job; empty: the agent's own node. The agent asks the agents of other nodes with its token."""


class UsageReply(Struct, frozen=True, omit_defaults=True):
    """The use of a job on the nodes whose agents know it, as far as the caller may see it."""

    usage: tuple[JobUse, ...] = ()
    """For each start of the job and node."""
    series: tuple[UseSeries, ...] = ()
    problems: tuple[str, ...] = ()
    """Why a node is missing, a sentence each."""
    why: str = ""
    """Why there is no answer at all, as a sentence."""


class Reply(Struct, frozen=True, omit_defaults=True):
    """The answer: a snapshot, or why there is none."""

    snapshot: msgspec.Raw = msgspec.Raw(b"null")
    why: str = ""
    """Why there is no snapshot, as a sentence."""


_reply_decoder = msgspec.json.Decoder(Reply)


_usage_decoder = msgspec.json.Decoder(UsageReply)
USAGE_S = 10.0
"""The longest time for the answers about a job: NODE_S of http_client for a silent node, and some for the others."""


def ask(socket_path: str, timeout_s: float, everybody: bool = False) -> Snapshot:
    """Return the newest snapshot of this node's agent: the caller's part, or all of it with `everybody`. Raises
    StateError if no agent answers within `timeout_s`, if it has no sample yet, or if the caller may not see all users'
    load."""
    data = _exchange(socket_path, timeout_s, Question(everybody))
    try:
        reply = _reply_decoder.decode(data)
    except text_files.NOT_JSON as error:
        raise _not_ours(socket_path, error) from error
    if reply.why:
        raise StateError(socket_path, reply.why)
    return snapshots.parse_snapshot(bytes(reply.snapshot), socket_path)


def usage_of(
    job: int, nodes: Sequence[str], settings: Settings, timeout_s: float = USAGE_S
) -> tuple[list[JobUse], list[UseSeries], list[str]]:
    """Return what a job, which may have ended, has used by the records of the agents: for each start and node, its
    course over time, and the problems, a sentence each.

    `nodes`: the job's; empty: this one. This host's agent asks the others, and gives each user what is theirs; nothing
    is found about a job of somebody else. Never raises for an agent that is not there or does not answer.
    """
    until = Deadline.after(timeout_s)
    usage: list[JobUse] = []
    series: list[UseSeries] = []
    problems: dict[str, None] = {}
    names = tuple(dict.fromkeys(nodes))
    for start in range(0, max(1, len(names)), MOST_NODES):
        try:
            found = _ask_usage(settings.agent_socket, max(0.1, until.left()), job, names[start : start + MOST_NODES])
        except StateError as error:
            problems[str(error)] = None
            break
        usage += found.usage
        series += found.series
        problems |= dict.fromkeys(found.problems)
    return usage, series, list(problems)


def _ask_usage(socket_path: str, timeout_s: float, job: int, nodes: tuple[str, ...]) -> UsageReply:
    data = _exchange(socket_path, timeout_s, Question(usage=job, nodes=nodes))
    reply = parse_usage(data, socket_path)
    if reply.why or not (reply.usage or reply.problems):
        raise StateError(socket_path, reply.why or "the agent is of an older release, which keeps no records of jobs")
    return reply


def parse_usage(data: bytes, origin: str) -> UsageReply:
    """Return an agent's answer about a job. Raises StateError, which names `origin`, for anything else and for records
    of a newer release."""
    try:
        reply = _usage_decoder.decode(data)
    except text_files.NOT_JSON as error:
        raise _not_ours(origin, error) from error
    if any(one.version > VERSION for one in reply.usage) or any(one.version > VERSION for one in reply.series):
        raise StateError(
            origin, f"the agent's records are of a newer slurm-share; this one reads version {VERSION}: update it"
        )
    return reply


def _not_ours(origin: str, error: Exception) -> StateError:
    return StateError(origin, f"what answers there is not slurm-share's agent: {shown(str(error), 200)}")


def _exchange(socket_path: str, timeout_s: float, question: Question) -> bytes:
    """Return the agent's answer, which is not empty. Raises StateError."""
    until = Deadline.after(timeout_s)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        try:
            _connect(link, socket_path, until)
            _set_timeout(link, until)
            link.sendall(msgspec.json.encode(question) + b"\n")
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
    return data


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
