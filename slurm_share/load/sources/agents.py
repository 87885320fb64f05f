"""Read all agents at once over HTTP, with the operators' token.

Uses asyncio's sockets: httpx takes eight times as long for a thousand connections with one request each. Only our
agent's form of answer is understood: HTTP/1.1, a length, and the end of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import queue
import socket
import ssl
import threading
from collections.abc import Mapping
from typing import Any

from ...core import numbers
from ...core.errors import StateError
from ...core.settings import Settings
from ...core.text import counted
from .. import snapshot as snapshots
from ..agent import tls
from ..agent.token import read_operators_token
from ..rules import visible
from ..snapshot import Snapshot, SourceName
from .base import Source, SourceAnswer, SourceRequest

AT_ONCE = 200
"""Most connections at the same time: a few silent nodes do not delay the others, and it is below the default limit of
1,024 open files."""
NODE_S = 5.0
"""The longest wait for one node."""
ANSWER_MAX_BYTES = 64 * 1024 * 1024
_RESOLVERS = 8
"""Threads that look up addresses: getaddrinfo(3) blocks."""
_ADDRESSES = 3
"""Most addresses of one name that are tried in turn."""

REFUSED = "no agent answers"
TIMED_OUT = "timeout"
WRONG_TOKEN = "wrong token"
NO_SAMPLE = "agent starting"
NOT_OURS = "not slurm-share's agent"
CUT_OFF = "connection lost"
NO_TLS = "no TLS there"
WANTS_TLS = "takes TLS only"
WANTS_CERTIFICATE = "wants a certificate of the caller"
_MESSAGES: Mapping[int, str] = {
    errno.ECONNREFUSED: REFUSED,
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.ETIMEDOUT: TIMED_OUT,
    errno.ECONNRESET: CUT_OFF,
    errno.EPIPE: CUT_OFF,
}


class AgentsSource(Source):
    """The agents of all nodes, read at each survey. Raises UsageError if the token cannot be read."""

    name: SourceName = "agent"

    def __init__(self, settings: Settings) -> None:
        self._port = settings.agents_port
        self._token = read_operators_token(settings.agent_token_file, "agent_token_file")
        self._tls = tls.caller_context(settings)

    def read(self, asked: SourceRequest, timeout_s: float) -> SourceAnswer:
        """Return the snapshots of the nodes that answer within `timeout_s`, and why the others are silent."""
        found, silent = asyncio.run(self._ask_all(asked, timeout_s))
        notes = []
        wrong = sum(why == WRONG_TOKEN for why in silent.values())
        if wrong:
            notes.append(
                f"{counted(wrong, 'agent')} refused the token; agent_token_file must be the same there and here"
            )
        notes += [note for why, note in _NOTES.items() if why in silent.values()]
        if asked.nodes and all(why == REFUSED for why in silent.values()) and not found:
            notes.append(
                f"no agent answers on port {self._port} of any node; start slurm-share-agent.service there and set "
                "agent_http in its configuration"
            )
        return SourceAnswer(snapshots=found, silent=silent, notes=notes)

    async def _ask_all(self, asked: SourceRequest, timeout_s: float) -> tuple[dict[str, Snapshot], dict[str, str]]:
        found: dict[str, Snapshot] = {}
        silent: dict[str, str] = {}
        waiting = iter(asked.nodes)
        addresses = _Addresses(self._port)

        async def work() -> None:
            for node in waiting:
                answer = await self._ask(addresses, node, asked)
                if isinstance(answer, Snapshot):
                    found[node] = answer
                else:
                    silent[node] = answer

        workers = [asyncio.create_task(work()) for _ in range(min(AT_ONCE, len(asked.nodes)))]
        if workers:
            _, late = await asyncio.wait(workers, timeout=timeout_s)
            for worker in late:
                worker.cancel()
            for ended in await asyncio.gather(*workers, return_exceptions=True):
                if isinstance(ended, Exception):  # a fault of ours: a node's failure is a text
                    raise ended
        addresses.close()
        return found, {node: silent.get(node, TIMED_OUT) for node in asked.nodes if node not in found}

    async def _ask(self, addresses: _Addresses, node: str, asked: SourceRequest) -> Snapshot | str:
        whole = asked.details or asked.user  # a user's part is made from the whole
        request = (
            f"GET /snapshot{'' if whole else '?details=no'} HTTP/1.1\r\nHost: {node}:{self._port}\r\n"
            f"Authorization: Bearer {self._token}\r\nConnection: close\r\n\r\n"
        )
        try:
            async with asyncio.timeout(NODE_S):
                found = await addresses.of(asked.addresses.get(node, node))
                data = await _exchange(found, request.encode("ascii"), self._tls, node)
        except TimeoutError:
            return TIMED_OUT
        except socket.gaierror:
            return "no such host"
        except ssl.SSLError as error:
            return _tls_message(error)
        except OSError as error:
            return _MESSAGES.get(error.errno or 0, "no answer")
        except UnicodeError:
            return "no such host"  # the name cannot be a host's
        return _answer(node, data, asked.user)


class _Addresses:
    """Address look-ups in daemon threads, so that a name server that is down delays neither the survey nor the exit."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._wanted: queue.SimpleQueue[tuple[str, asyncio.Future[list[Any]]] | None] = queue.SimpleQueue()
        for _ in range(_RESOLVERS):
            threading.Thread(target=self._work, name="addresses", daemon=True).start()

    async def of(self, host: str) -> list[Any]:
        """Return the addresses of a host as socket.getaddrinfo does. Raises socket.gaierror, UnicodeError."""
        if ":" in host or numbers.whole(host[:1]) is not None:  # nearly always an address, which needs no look-up
            with contextlib.suppress(socket.gaierror):
                return socket.getaddrinfo(host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self._wanted.put((host, future))
        return await future

    def close(self) -> None:
        """End the threads, except those that wait for an answer."""
        for _ in range(_RESOLVERS):
            self._wanted.put(None)

    def _work(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            host, future = wanted
            found: list[Any] | Exception
            try:
                found = socket.getaddrinfo(host, self._port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                found = error
            try:
                self._loop.call_soon_threadsafe(_settle, future, found)
            except RuntimeError:
                return  # the survey is over


def _settle(future: asyncio.Future[list[Any]], found: list[Any] | Exception) -> None:
    if future.done():
        return
    if isinstance(found, Exception):
        future.set_exception(found)
    else:
        future.set_result(found)


_NOTES = {
    NO_TLS: "agents_ca is set here, and some agents serve in clear text; set agent_tls_certificate on their nodes",
    WANTS_TLS: "some agents take TLS only; set agents_ca here, to the CA of their certificates",
    WANTS_CERTIFICATE: "some agents want a certificate that their agent_tls_client_ca signed; set agents_certificate "
    "and agents_key here",
}
_CLEAR_TEXT = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's reasons for an answer that is not TLS; which one depends on its release."""


def _tls_message(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message[:100]}"
    reason = error.reason or ""
    if reason in _CLEAR_TEXT:
        return NO_TLS
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return WANTS_CERTIFICATE
    if "ALERT" in reason and "CA" in reason.split("_"):
        return "refuses the caller's certificate (unknown CA)"
    return f"TLS: {(reason or str(error)).lower().replace('_', ' ')[:100]}"


async def _exchange(addresses: list[Any], request: bytes, context: ssl.SSLContext | None, node: str) -> bytes:
    """Return the whole answer of the first address that accepts a connection. With a context, by TLS with a server
    whose certificate has the node's name. Raises OSError."""
    loop = asyncio.get_running_loop()
    tried = addresses[:_ADDRESSES]
    for place, (family, kind, protocol, _, address) in enumerate(tried):
        with socket.socket(family, kind, protocol) as connection:
            connection.setblocking(False)
            try:
                await loop.sock_connect(connection, address)
            except OSError:
                if place < len(tried) - 1:
                    continue
                raise
            if context is not None:
                return await _exchange_by_tls(connection, request, context, node)
            await loop.sock_sendall(connection, request)
            data = bytearray()
            while part := await loop.sock_recv(connection, 1 << 16):
                data += part
                if len(data) > ANSWER_MAX_BYTES:
                    return b""
            return bytes(data)
    return b""


async def _exchange_by_tls(connection: socket.socket, request: bytes, context: ssl.SSLContext, node: str) -> bytes:
    reader, writer = await asyncio.open_connection(sock=connection, ssl=context, server_hostname=node)
    try:
        writer.write(request)
        await writer.drain()
        data = bytearray()
        while part := await reader.read(1 << 16):
            data += part
            if len(data) > ANSWER_MAX_BYTES:
                return b""
        return bytes(data)
    finally:
        writer.transport.abort()


def _answer(node: str, data: bytes, user: str) -> Snapshot | str:
    head, blank, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    tokens = first.split()
    if len(tokens) < 2 or not tokens[0].startswith(b"HTTP/1.") or not (status := numbers.whole(tokens[1])):
        return NOT_OURS if data else CUT_OFF
    if status != 200:
        if status == 400 and b"TLS only" in body:
            return WANTS_TLS
        return {401: WRONG_TOKEN, 503: NO_SAMPLE}.get(status, f"{NOT_OURS} (HTTP {status})")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    length = numbers.whole(headers.get(b"content-length"))
    if length is None or not blank:
        return NOT_OURS
    if len(body) < length:
        return CUT_OFF
    try:
        snapshot = snapshots.parse_snapshot(body, node)
    except StateError as error:
        return "newer release" if "newer" in error.why else NOT_OURS
    if snapshot.node != node:
        return f"answers as {snapshot.node[:64]!r}"
    return for_user(snapshot, user) if user else snapshot


def for_user(snapshot: Snapshot, user: str) -> Snapshot:
    """Return one user's part of an operator's snapshot; for a user without load there, only the node."""
    uids = [one.uid for one in snapshot.users if one.user == user]
    uids += [one.uid for one in snapshot.processes if one.user == user]
    return visible.for_user(snapshot, next(iter(uids), -1), user)
