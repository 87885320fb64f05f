"""The agent's HTTP server: the full snapshot and the metrics, for callers with the token.

Any user of the cluster can reach the port, so everything is bounded: connections in total and per address, the size of
a request, the time for it. Authenticated connections are counted separately, so that unauthenticated callers evict
only each other.
"""

from __future__ import annotations

import asyncio
import http
import ssl
import time
from collections.abc import Awaitable, Callable

import h11

from ...core import log, numbers
from ...core.errors import StateError, UsageError, shown
from .connections import Connections
from .http_client import FREE_PORTS, TARGET
from .newest import NewestSnapshot
from .socket_server import NO_SAMPLE
from .tls import CLEAR_TEXT, AgentTls, TlsChannel
from .token import Token

MOST = 128
MOST_EACH = 32
"""Most connections at once from one address, such as a login node with several operators."""
REQUEST_S = 5.0
ANSWER_S = 15.0
REQUEST_MAX_BYTES = 8192
SNAPSHOT = b"/snapshot"
NODE_ONLY = b"/snapshot?details=no"
"""The node and the sums over its GPUs, which a line per node needs."""
METRICS = b"/metrics"
MOST_KNOWN = 64
"""Most authenticated connections at once."""
_ANSWERS = (200, 404)
"""Statuses that only a caller with the token gets."""
_COMPLAINT_S = 60.0
"""Least seconds between two lines in the log about rejected requests."""

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"


class HttpServer:
    """Serve HTTP requests in the event loop."""

    def __init__(
        self,
        address: str,
        token: Token,
        newest: NewestSnapshot,
        metrics: Callable[[], tuple[bytes, str] | None],
        usage: Callable[[int], Awaitable[bytes]],
        tls: AgentTls | None = None,
    ) -> None:
        """`metrics` returns the page and its content type; None before the first sample. `usage` returns what is known
        of a job. `tls` None: clear text."""
        self._tls = tls
        self._host, self._port = split_address(address)
        self._token = token
        self._newest = newest
        self._metrics = metrics
        self._usage = usage
        self._unauthenticated = Connections(MOST, MOST_EACH)
        self._authenticated = Connections(MOST_KNOWN, MOST_KNOWN)
        self._complained = -_COMPLAINT_S
        self._rejected = 0
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen. Raises StateError for an invalid token or certificate, OSError if the address cannot be bound."""
        self._token.read()
        if self._tls is not None:
            self._tls.context()
        self._server = await asyncio.start_server(
            self._serve, self._host, self._port, limit=REQUEST_MAX_BYTES, backlog=256
        )
        if self._port >= FREE_PORTS and self._tls is None:
            log.line(
                "",
                "agent",
                f"any user may listen on port {self._port} while no agent does, and receive the operators' token: "
                "choose a port below 1024 for agent_http",
            )

    @property
    def port(self) -> int:
        """Return the port in use; port 0 of the configuration means any free one."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and release the port."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        address = peer[0] if peer else "?"
        connections = self._unauthenticated
        connection = connections.add(address, writer.transport.abort)
        conn = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_MAX_BYTES)
        channel: TlsChannel | None = None
        try:
            async with asyncio.timeout(REQUEST_S):
                if self._tls is not None:
                    channel = TlsChannel(reader, writer, self._tls.context())
                    await self._meet(channel, writer, address)
                read = reader.read if channel is None else channel.read
                status, body, kind = await self._answer(conn, read, address)
            if status in _ANSWERS and connections.remove(connection):
                connections = self._authenticated
                connection = connections.add(address, writer.transport.abort)
            async with asyncio.timeout(ANSWER_S):
                reply = _reply(conn, status, body, kind)
                if channel is None:
                    writer.write(reply)
                    await writer.drain()
                else:
                    await channel.send(reply)
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, h11.ProtocolError):
            pass  # too slow, closed, evicted, or not HTTP
        finally:
            writer.transport.abort()
            connections.remove(connection)

    async def _meet(self, channel: TlsChannel, writer: asyncio.StreamWriter, address: str) -> None:
        """Do the handshake of TLS; tell a caller in clear text what to use. Raises OSError."""
        try:
            await channel.handshake()
        except ssl.SSLError as error:
            self._rejected += 1
            is_clear = error.reason == CLEAR_TEXT
            why = "it speaks HTTP in clear text" if is_clear else (error.reason or str(error)).lower().replace("_", " ")
            self._complain(f"no TLS with {address}: {why}; {self._rejected} requests were rejected so far")
            if is_clear:
                writer.write(_reply(h11.Connection(h11.SERVER), 400, b"this port takes TLS only: https://\n", _TEXT))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            raise

    async def _answer(
        self, conn: h11.Connection, read: Callable[[int], Awaitable[bytes]], address: str
    ) -> tuple[int, bytes, str]:
        """Read the one request that a connection may make, and return status, body and content type of its answer."""
        try:
            request = await _request(conn, read)
        except h11.RemoteProtocolError as error:
            return int(error.error_status_hint), b"that is not a valid request\n", _TEXT
        if request.method == b"HEAD":
            return 405, b"", _TEXT  # the answer to HEAD has no body
        given = next((value for name, value in request.headers if name == b"authorization"), b"")
        try:
            may = self._token.is_in(given)
        except StateError as error:
            self._complain(f"every HTTP request is refused: {error}")
            return 503, b"the agent cannot read its token; its log says why\n", _TEXT
        if not may:
            self._rejected += 1
            self._complain(f"HTTP from {address} without the right token; {self._rejected} such requests so far")
            return 401, b"send the token: Authorization: Bearer TOKEN\n", _TEXT
        if request.method != b"GET":
            return 405, b"GET only\n", _TEXT
        return await self._page(request.target)

    async def _page(self, target: bytes) -> tuple[int, bytes, str]:
        if target == SNAPSHOT:
            data = self._newest.of_all_users()
        elif target == NODE_ONLY:
            data = self._newest.of_node()
        elif target == METRICS:
            page = self._metrics()
            return (503, NO_SAMPLE.encode(), _TEXT) if page is None else (200, *page)
        elif (job := _job_of(target)) is not None:
            return 200, await self._usage(job), _JSON
        else:
            return 404, b"not found; there are /snapshot, /snapshot?details=no, /metrics and /usage/JOB\n", _TEXT
        return (503, NO_SAMPLE.encode(), _TEXT) if data is None else (200, data, _JSON)

    def _complain(self, text: str) -> None:
        now = time.monotonic()
        if now - self._complained >= _COMPLAINT_S:
            self._complained = now
            log.line("", "agent", text)


def _job_of(target: bytes) -> int | None:
    """Return the job that a path is about; None: it is another path."""
    head, _, job = target.partition(TARGET.encode())
    return None if head else numbers.whole(job, numbers.UINT32_MOST)


async def _request(conn: h11.Connection, read: Callable[[int], Awaitable[bytes]]) -> h11.Request:
    """Read the request line and the headers, not the body. Raises h11.RemoteProtocolError, ConnectionError."""
    while True:
        event = conn.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            raise ConnectionError("closed without a request")
        conn.receive_data(await read(REQUEST_MAX_BYTES))


def _reply(conn: h11.Connection, status: int, body: bytes, kind: str) -> bytes:
    headers = [("content-type", kind), ("content-length", str(len(body))), ("connection", "close")]
    if status == 401:
        headers.append(("www-authenticate", "Bearer"))
    response = h11.Response(status_code=status, headers=headers, reason=http.HTTPStatus(status).phrase)
    parts = (conn.send(response), conn.send(h11.Data(data=body)), conn.send(h11.EndOfMessage()))
    return b"".join(part for part in parts if part)


def split_address(text: str) -> tuple[str | None, int]:
    """Split ADDRESS:PORT; an empty address (`:594`) means all addresses of this host. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    number = numbers.whole(port, 65535)
    if not colon or number is None:
        raise UsageError(f"agent_http = {shown(text)} is no ADDRESS:PORT, such as 10.0.0.5:594, [::]:594 or :594")
    return host.strip("[]") or None, number
