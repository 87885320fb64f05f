"""Call many agents at once over HTTP, with the operators' token: one request to each.

Ten thousand connections with one request each: httpx takes eight times as long as asyncio's sockets, and these twice
as long as `_ClearText`, which has an epoll of its own. Only our agent's form of answer is understood: HTTP/1.1, a
length, and the end of the connection.
"""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ...core import numbers

AT_ONCE = 200
"""Most connections at the same time: a few silent nodes do not delay the others, and it is below the default limit of
1,024 open files."""
NODE_S = 5.0
"""The longest wait for one node."""
ANSWER_MAX_BYTES = 64 * 1024 * 1024
_RESOLVERS = 8
"""Threads that look up addresses: getaddrinfo(3) blocks."""
_TICK_S = 0.1
"""Seconds between two looks for connections whose time is over."""
_ADDRESSES = 3
"""Most addresses of one name that are tried in turn."""

FREE_PORTS = 1024
"""The first port on which any user may listen (net.ipv4.ip_unprivileged_port_start)."""
TARGET = "/usage/"
"""The beginning of the path about a job; its number follows."""

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


Answer = TypeVar("Answer")
Take = Callable[[str, bytes], Answer | str]
"""Makes the answer of a node from its body, or a text that says what is wrong with it."""


class AgentsCaller:
    """Calls of the agents of many nodes with one token. `context` None: in clear text."""

    def __init__(self, port: int, token: str, context: ssl.SSLContext | None) -> None:
        self._port = port
        self._token = token
        self._context = context

    async def ask(
        self, nodes: Iterable[str], addresses: Mapping[str, str], target: str, timeout_s: float, take: Take[Answer]
    ) -> tuple[dict[str, Answer], dict[str, str]]:
        """Return the answers of the nodes to `GET target` within `timeout_s`, and why the others are silent.
        `addresses`: of nodes that have another one than their name."""
        nodes = tuple(nodes)
        found: dict[str, Answer] = {}
        silent: dict[str, str] = {}
        waiting = iter(nodes)
        resolver = _Addresses(self._port)
        clear = _ClearText() if self._context is None and nodes else None

        async def work() -> None:
            for node in waiting:
                data = await self._exchange(resolver, clear, node, addresses.get(node, node), target)
                body = parse_reply(data) if isinstance(data, bytes) else data
                answer = take(node, body) if isinstance(body, bytes) else body
                if isinstance(answer, str):
                    silent[node] = answer
                else:
                    found[node] = answer

        workers = [asyncio.create_task(work()) for _ in range(min(AT_ONCE, len(nodes)))]
        try:
            if workers:
                _, late = await asyncio.wait(workers, timeout=timeout_s)
                for worker in late:
                    worker.cancel()
                for ended in await asyncio.gather(*workers, return_exceptions=True):
                    if isinstance(ended, Exception):  # a fault of ours: a node's failure is a text
                        raise ended
        finally:
            resolver.close()
            if clear is not None:
                clear.close()
        return found, {node: silent.get(node, TIMED_OUT) for node in nodes if node not in found}

    async def _exchange(
        self, resolver: _Addresses, clear: _ClearText | None, node: str, address: str, target: str
    ) -> bytes | str:
        request = (
            f"GET {target} HTTP/1.1\r\nHost: {node}:{self._port}\r\n"
            f"Authorization: Bearer {self._token}\r\nConnection: close\r\n\r\n"
        )
        try:
            until = time.monotonic() + NODE_S
            found = resolver.literal(address)
            if found is None:
                async with asyncio.timeout(NODE_S):
                    found = await resolver.of(address)
            if clear is not None:
                return await clear.exchange(found[:_ADDRESSES], request.encode("ascii"), until)
            assert self._context is not None
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + until - time.monotonic()):
                return await _exchange_by_tls(found[:_ADDRESSES], request.encode("ascii"), self._context, node)
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


class _Addresses:
    """Address look-ups in daemon threads, so that a name server that is down delays neither the survey nor the exit."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._wanted: queue.SimpleQueue[tuple[str, asyncio.Future[list[Any]]] | None] = queue.SimpleQueue()
        self._threads = 0

    def literal(self, host: str) -> list[Any] | None:
        """Return the address that a host's name is, as `of` does; None: it is none, and has to be looked up."""
        if ":" not in host and numbers.whole(host[:1]) is None:
            return None
        try:
            return socket.getaddrinfo(host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except (socket.gaierror, UnicodeError):
            return None

    async def of(self, host: str) -> list[Any]:
        """Return the addresses of a host as socket.getaddrinfo does. Raises socket.gaierror, UnicodeError."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self._wanted.put((host, future))
        if self._threads < _RESOLVERS:
            self._threads += 1
            threading.Thread(target=self._work, name="addresses", daemon=True).start()
        return await future

    def close(self) -> None:
        """End the threads, except those that wait for an answer."""
        for _ in range(self._threads):
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


class _Connection:
    """A connection in clear text with one request, and who waits for its answer."""

    __slots__ = ("addresses", "answer", "data", "is_sent", "link", "request", "until")

    def __init__(self, addresses: list[Any], request: bytes, until: float, answer: asyncio.Future[bytes]) -> None:
        self.addresses, self.request, self.until, self.answer = addresses, request, until, answer
        self.link: socket.socket | None = None
        self.is_sent = False
        self.data = bytearray()


class _ClearText:
    """Exchanges in clear text. One epoll has all connections, and the event loop waits for it as for one socket."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._open: dict[int, _Connection] = {}
        """By descriptor, the one that ends first is first: all have the same time."""
        self._loop.add_reader(self._epoll.fileno(), self._ready)
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    def exchange(self, addresses: list[Any], request: bytes, until: float) -> asyncio.Future[bytes]:
        """Return the future of the whole answer of the first address that accepts a connection. Its exception is an
        OSError, TimeoutError at `until` (monotonic clock)."""
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._connect(_Connection(addresses, request, until, answer))
        return answer

    def close(self) -> None:
        """Close all connections."""
        self._timer.cancel()
        self._loop.remove_reader(self._epoll.fileno())
        for one in self._open.values():
            if one.link is not None:
                one.link.close()
        self._open = {}
        self._epoll.close()

    def _connect(self, one: _Connection) -> None:
        error: OSError | None = None
        while one.addresses:
            family, kind, protocol, _, address = one.addresses[0]
            one.addresses = one.addresses[1:]
            try:
                one.link = link = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
                code = link.connect_ex(address)
                if code in (0, errno.EINPROGRESS):
                    self._open[link.fileno()] = one
                    self._epoll.register(link.fileno(), select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
                    return
                link.close()
                error = OSError(code, os.strerror(code))
            except OSError as problem:
                error = problem
        self._finish(one, error or OSError(errno.ECONNREFUSED, "no address"))

    def _ready(self) -> None:
        """Go on with every connection for which something has happened since (edge-triggered)."""
        for fd, _ in self._epoll.poll(0):
            one = self._open.get(fd)
            if one is None or one.link is None:
                continue
            try:
                if not one.is_sent:
                    one.link.send(one.request)  # a few hundred bytes: a new connection takes them whole
                    one.is_sent = True
                if self._receive(one, one.link):
                    self._finish(one, None)
            except BlockingIOError:
                continue
            except OSError as error:
                self._drop(one)
                if not one.is_sent and one.addresses:
                    self._connect(one)
                else:
                    self._finish(one, error)

    @staticmethod
    def _receive(one: _Connection, link: socket.socket) -> bool:
        """Read what is there; return whether it is the whole answer. Raises BlockingIOError if there will be more."""
        while part := link.recv(1 << 18):
            one.data += part
            if _is_whole(one.data):
                return True
            if len(one.data) > ANSWER_MAX_BYTES:
                one.data.clear()
                return True
        return True

    def _drop(self, one: _Connection) -> None:
        if one.link is not None:
            self._open.pop(one.link.fileno(), None)
            one.link.close()  # which takes it out of the epoll
            one.link = None

    def _finish(self, one: _Connection, error: OSError | None) -> None:
        self._drop(one)
        if one.answer.done():
            return
        if error is None:
            one.answer.set_result(bytes(one.data))
        else:
            one.answer.set_exception(error)

    def _tick(self) -> None:
        """End the connections whose time is over, and those for which nobody waits any more."""
        now = time.monotonic()
        for one in list(self._open.values()):
            if one.answer.done() or now >= one.until:
                self._finish(one, TimeoutError())
        self._timer = self._loop.call_later(_TICK_S, self._tick)


_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,9})\r\n", re.IGNORECASE)


def _is_whole(data: bytearray) -> bool:
    """Return whether an answer has as many bytes as its head says. If not, the end of the connection tells."""
    end = data.find(b"\r\n\r\n", 0, 8192)
    length = _LENGTH.search(data, 0, end + 2) if end >= 0 else None
    return length is not None and len(data) >= end + 4 + int(length[1])


async def _exchange_by_tls(addresses: list[Any], request: bytes, context: ssl.SSLContext, node: str) -> bytes:
    """Return the whole answer of the first address that accepts a connection, by TLS with a server whose certificate
    has the node's name. Raises OSError."""
    loop = asyncio.get_running_loop()
    for place, (family, kind, protocol, _, address) in enumerate(addresses):
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, address)
        except OSError:
            connection.close()
            if place < len(addresses) - 1:
                continue
            raise
        except BaseException:
            connection.close()
            raise
        return await _talk_tls(connection, request, context, node)
    return b""


async def _talk_tls(connection: socket.socket, request: bytes, context: ssl.SSLContext, node: str) -> bytes:
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


def parse_reply(data: bytes) -> bytes | str:
    """Return the body of an agent's HTTP answer, or what is wrong with the answer."""
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
    return CUT_OFF if len(body) < length else body
