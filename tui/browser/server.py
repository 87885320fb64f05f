"""The HTTP server of `llload-tui --serve`: every answer needs a login, and everything is bounded.

Each user of the host reaches the port. Connections without a login are few and short, and evict only each other;
requests are small; what is served is a list of files in memory, so no path leads to another file.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any, cast

import textual_serve
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from slurm_share.load import Connection, Connections

from . import access
from .access import Access
from .addresses import Place, Target, refusal, target
from .session import GOING, TAKEN, Session

CONNECTIONS_MOST = 64
"""Most connections at once without a login."""
REQUEST_S = 10.0
"""Time for a request without a login, seconds: after it the connection is closed, whatever it has sent."""
SESSIONS_MOST = 4
"""Most dashboards at once; the next one takes the place of the oldest."""
FORM_BYTES = 4096
PAGE = Path(__file__).parent / "page"
_TYPES = {
    ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".html": "text/html; charset=utf-8",
    ".ttf": "font/ttf", ".png": "image/png",
}  # fmt: skip
_FROM_TEXTUAL = ("css/xterm.css", "js/textual.js", "fonts/RobotoMono-VariableFont_wght.ttf")
HEADERS = {
    # xterm.js writes its colours as style elements
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",  # a portal may show it in a frame of its own page
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "llload-tui",
}
UNKNOWN = (
    "This needs a login. Open the link that the program printed; it works once, and the next one is in the file that "
    "the program named. In Open OnDemand use the button of the session."
)


class Handler:
    """Answers requests."""

    def __init__(
        self, place: Place, secrets: Access, words: Sequence[str], say: Callable[[str], None],
        is_linked: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """`words`: the command line of a dashboard. `say`: writes a line for the user. `is_linked`: called when a link
        was used, with the address of the browser."""
        self._place, self._access, self._words, self._say, self._is_linked = place, secrets, words, say, is_linked
        self._files = read_files()
        self._sessions: list[Session] = []
        self._refused = 0
        self.server: BoundedServer | None = None

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        found = target(self._place, request.rel_url.raw_path)
        kind = "page" if found is None else found.kind
        given = request.query.get("token") if kind == "entry" else None
        is_known = self._access.knows(access.cookies_in(request.headers.get("Cookie", "")))
        if not is_known and kind != "login" and given is None:
            return self._refuse(request, 401, UNKNOWN)
        if why := refusal(self._place, kind, request.headers):
            return self._refuse(request, 403, f"Refused: {why}.")
        if kind == "login":
            return await self._login(request)
        if given is not None:
            return self._entry(request, given)
        assert self.server is not None
        self.server.know(request)
        if request.method != "GET":
            return answer(405, "GET only.")
        if found is None:
            return answer(404, "There is no such page.")
        return await self._page(request, found)

    def _entry(self, request: web.BaseRequest, given: str) -> web.StreamResponse:
        """Take a link: give the browser a cookie, and send it on to a page without the link in its address."""
        cookie = self._access.take_link(given) if request.method == "GET" else ""
        if not cookie:
            return self._refuse(request, 401, f"This link does not work, or no more. {UNKNOWN}")
        self._is_linked(request.remote or "")
        return self._logged_in(cookie)

    async def _login(self, request: web.BaseRequest) -> web.StreamResponse:
        """Take the password from a form, as Open OnDemand's page of a session sends it."""
        if request.method != "POST" or (request.content_length or FORM_BYTES + 1) > FORM_BYTES:
            return self._refuse(request, 401, UNKNOWN)
        given = (await request.post()).get("password")
        cookie = self._access.take_password(given) if isinstance(given, str) else ""
        return self._logged_in(cookie) if cookie else self._refuse(request, 401, UNKNOWN)

    def _logged_in(self, cookie: str) -> web.StreamResponse:
        place = self._place
        headers = {
            "Location": place.pages,
            "Set-Cookie": access.set_cookie(cookie, place.pages, secure=place.is_secure),
        }
        return answer(303, "", headers)

    async def _page(self, request: web.BaseRequest, found: Target) -> web.StreamResponse:
        if found.kind == "socket":
            return await self._socket(request)
        if found.kind == "entry":
            return answer(303, "", {"Location": self._place.pages})
        file = self._files.get("index.html" if found.kind == "page" else found.name)
        if file is None:
            return answer(404, "There is no such page.")
        data, kind = file
        return web.Response(body=data, headers={**HEADERS, "Content-Type": kind})

    async def _socket(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() != "websocket":
            return answer(400, "This is for a websocket.")
        while len(self._sessions) >= SESSIONS_MOST:
            await self._sessions.pop(0).close(TAKEN, f"{SESSIONS_MOST} dashboards are open, and this was the oldest")
        session = Session(self._words)
        self._sessions.append(session)
        try:
            return await session.run(request)
        finally:
            if session in self._sessions:
                self._sessions.remove(session)

    async def close(self) -> None:
        """End all dashboards."""
        await asyncio.gather(*(session.close(GOING, "the server has ended") for session in self._sessions))

    def _refuse(self, request: web.BaseRequest, status: int, sentence: str) -> web.StreamResponse:
        self._refused += 1
        if self._refused.bit_count() == 1:  # 1, 2, 4, 8 ...: nobody can fill the terminal
            many = f"; {self._refused} so far" if self._refused > 1 else ""
            self._say(f"a request without a login was refused ({status}){many}")
        headers = {"Connection": "close"}
        if request.method == "GET" and request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
            # A browser sends no SameSite=Strict cookie when another page, such as a terminal in the browser, has opened
            # the link. It does when our own page is the one that asks again.
            headers["Refresh"] = "0"
        response = answer(status, sentence, headers)
        response.force_close()
        return response


def answer(status: int, sentence: str, headers: dict[str, str] | None = None) -> web.Response:
    """Return a page with a sentence."""
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{status}</title><p>{escape(sentence)}</p></html>\n"
    )
    more = {"Content-Type": _TYPES[".html"], **(headers or {})}
    return web.Response(status=status, body=text.encode(), headers={**HEADERS, **more})


def read_files() -> dict[str, tuple[bytes, str]]:
    """Return all files that are served, with their types, by name."""
    theirs = Path(textual_serve.__file__).parent / "static"
    found = {name: theirs / name for name in _FROM_TEXTUAL}
    found |= {file.name: file for file in PAGE.iterdir() if file.suffix in _TYPES}
    return {name: (file.read_bytes(), _TYPES[file.suffix]) for name, file in found.items()}


class BoundedServer(web.Server):
    """aiohttp's server with bounded connections."""

    def __init__(self, handler: Handler, *, own_uid: int | None = None) -> None:
        """`own_uid`: on a Unix socket, the only user besides root whose connections are kept; None: it is none."""
        super().__init__(cast(Any, handler), access_log=None, keepalive_timeout=30.0, lingering_time=0.0)
        handler.server = self
        self._own_uid = own_uid
        self._bounds = Connections(CONNECTIONS_MOST, CONNECTIONS_MOST)
        self._unknown: dict[RequestHandler, tuple[Connection, asyncio.TimerHandle]] = {}
        """Connections without a login."""

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if self._own_uid is not None and _peer_uid(transport) not in (0, self._own_uid):
            transport.abort()
            return
        connection = self._bounds.add("", transport.abort)
        self._unknown[handler] = (connection, self._loop.call_later(REQUEST_S, transport.abort))

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        self._forget(handler)
        super().connection_lost(handler, exc)

    def know(self, request: web.BaseRequest) -> None:
        """Count the request's connection no more: it has a login."""
        self._forget(request.protocol)

    def _forget(self, handler: RequestHandler) -> None:
        if entry := self._unknown.pop(handler, None):
            self._bounds.remove(entry[0])
            entry[1].cancel()


def _peer_uid(transport: asyncio.Transport) -> int:
    """Return the user at the other end of a Unix socket (SO_PEERCRED, unix(7))."""
    taken = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("iII", taken)[1])
