"""One dashboard in a browser: its process, which lives as long as the websocket, and what is passed between them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiohttp import WSMessage, WSMsgType, web
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from slurm_share.core import terminal

CHILD = (sys.executable, "-I", "-m", "slurm_share_tui.browser.child")
DRIVER = "slurm_share_tui.browser.child:BrowserDriver"
COLUMNS, ROWS = (20, 1000), (5, 500)
"""The least and the most that a browser may ask for."""
QUIT_S = 3.0
"""Time for the dashboard to end after it was asked to; after that it is killed with all that it started."""
BEAT_S = 15.0
"""A browser that does not answer a ping within half of this is gone: its network, its machine."""
MESSAGE_BYTES = 1 << 20
"""Most bytes of a message from the browser, such as a paste."""
SAID_BYTES = 4096
"""Bytes kept of the end of what the dashboard wrote to standard error."""
REASON_BYTES = 120
"""Longest reason in the last frame of a websocket (RFC 6455: 123 bytes)."""
ENDED, TAKEN, GOING = 4000, 4001, 4002
"""Codes with which a websocket is closed: the dashboard has ended, a newer one took its place, the server ends."""


class Session:
    """A dashboard and its websocket."""

    def __init__(self, words: Sequence[str]) -> None:
        """`words`: the command line of the dashboard."""
        self._words = tuple(words)
        self._websocket = web.WebSocketResponse(heartbeat=BEAT_S, max_msg_size=MESSAGE_BYTES)

    async def run(self, request: web.BaseRequest) -> web.WebSocketResponse:
        """Answer the request for a websocket, and run the dashboard until either ends."""
        await self._websocket.prepare(request)
        process = DashboardProcess(self._words, self._websocket)
        try:
            await process.start(
                _within(request.query.get("width"), COLUMNS, 80), _within(request.query.get("height"), ROWS, 24)
            )
            async for message in self._websocket:
                if not await _pass_on(message, process, self._websocket):
                    break
        finally:
            # Not cancelled with the request: a child without a parent must not be left.
            await asyncio.shield(process.stop())
            await self.close(ENDED, process.said)
        return self._websocket

    async def close(self, code: int, reason: str) -> None:
        """Close the websocket, which ends the dashboard."""
        cut = reason.encode()[:REASON_BYTES].decode(errors="ignore")
        with contextlib.suppress(ConnectionError, RuntimeError, TimeoutError):
            await self._websocket.close(code=code, message=cut.encode())


async def _pass_on(message: WSMessage, process: DashboardProcess, websocket: web.WebSocketResponse) -> bool:
    """Pass a message of the browser on to the dashboard. Return False for one that no page of ours sends."""
    if message.type != WSMsgType.TEXT:
        return False
    try:
        kind, *rest = json.loads(message.data)
    except (ValueError, TypeError, RecursionError):
        return False
    given = rest[0] if rest else None
    if kind == "stdin" and isinstance(given, str):
        await process.send_bytes(given.encode("utf-8", "replace"))
    elif kind == "resize" and isinstance(given, dict):
        width, height = given.get("width"), given.get("height")
        await process.set_terminal_size(_within(width, COLUMNS, 80), _within(height, ROWS, 24))
    elif kind == "ping" and isinstance(given, str):
        await websocket.send_json(["pong", given[:64]])
    elif kind in ("focus", "blur"):
        await (process.focus() if kind == "focus" else process.blur())
    else:
        return False
    return True


def _within(given: object, span: tuple[int, int], usual: int) -> int:
    """Return a size that the browser asks for, or the nearest one that it may have."""
    try:
        number = int(given) if isinstance(given, str | int) else usual
    except ValueError:  # of thousands of digits, too
        number = usual
    return max(span[0], min(span[1], number))


class DashboardProcess(AppService):
    """The process of a dashboard: in a process group of its own, which is killed if it does not end.

    If this server is killed, the dashboard reads the end of its input, and ends, too.
    """

    def __init__(self, words: Sequence[str], websocket: web.WebSocketResponse) -> None:
        super().__init__(
            "", write_bytes=_quietly(websocket.send_bytes), write_str=_quietly(websocket.send_str),
            close=self._end_of_output, download_manager=DownloadManager(),
        )  # fmt: skip
        self._argv = (*CHILD, *words)
        self._websocket = websocket
        self.said = ""
        """The last line that the dashboard wrote to standard error: why it failed."""

    async def _open_app_process(self, width: int = 80, height: int = 24) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            *self._argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, env=environment(os.environ, width, height), start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        return self._process

    async def run(self) -> None:
        """Pass the output on until it ends; then close the websocket, which ends `Session.run`."""
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        reading = asyncio.create_task(self._read_said(self._process.stderr))
        out = self._process.stdout
        try:
            while (line := await out.readline()) and line != b"__GANGLION__\n":
                pass  # before Textual writes its first packet
            while True:
                kind = await out.readexactly(1)
                payload = await out.readexactly(int.from_bytes(await out.readexactly(4), "big"))
                if kind == b"D":  # nothing else: no file is delivered, and no page opened
                    await self.on_data(payload)
        except (asyncio.IncompleteReadError, ValueError):
            pass
        await asyncio.wait((reading,), timeout=QUIT_S)
        reading.cancel()
        await self._websocket.close(code=ENDED, message=self.said.encode()[:REASON_BYTES])

    async def _read_said(self, errors: asyncio.StreamReader) -> None:
        kept = b""
        while data := await errors.read(SAID_BYTES):
            kept = (kept + data)[-SAID_BYTES:]
            lines = kept.decode("utf-8", "replace").split("\n")
            self.said = terminal.safe(next((line for line in reversed(lines) if line.strip()), "")).strip()

    async def stop(self) -> None:
        """Ask the dashboard to end, and kill it and all of its group if it does not."""
        if self._process is None:
            return
        with contextlib.suppress(ConnectionError, RuntimeError):
            await asyncio.wait_for(self.send_meta({"type": "quit"}), QUIT_S)
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), QUIT_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _end_of_output(self) -> None:
        """Do nothing: `run` closes the websocket."""


def _quietly(send: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Let a dashboard write to a browser that is gone: what waits for the browser ends it."""

    async def quiet(data: bytes | str) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            await send(data)

    return quiet


def environment(environ: Mapping[str, str], width: int, height: int) -> dict[str, str]:
    """Return the environment of a dashboard: the caller's, with what Textual needs for a browser."""
    left_out = ("NO_COLOR", "FORCE_COLOR", "TERM", "TMUX", "STY", "LINES", "TEXTUAL", "TEXTUAL_LOG", "TEXTUAL_DEVTOOLS")
    kept = {name: value for name, value in environ.items() if name not in left_out}
    of_browser = {"TEXTUAL_DRIVER": DRIVER, "TEXTUAL_COLOR_SYSTEM": "truecolor", "TERM": "xterm-256color"}
    return {**kept, **of_browser, "COLUMNS": str(width), "ROWS": str(height)}
