"""The agent's local socket: any user of the node may ask, and gets the part that the user may see."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from ...core import text_files
from ...core.errors import StateError
from . import callers
from .callers import Caller
from .client import QUESTION_MAX_BYTES, Question, Reply, UsageReply
from .connections import Connections
from .newest import NewestSnapshot
from .usage_answers import UsageAnswers

MOST = 128
"""Most connections at once."""
MOST_EACH = 16
"""Most connections of one user."""
QUESTION_S = 5.0
"""The longest wait for a caller's question, and again for the caller to read the answer."""
ANSWER_S = 15.0
"""The longest time for an answer: other nodes are asked for OTHERS_S of usage_answers, and Slurm before them."""
_CALLER_KEPT_S = 300.0
"""How long a user's name and groups are cached."""
_CALLERS_KEPT = 1024
NO_SAMPLE = "the agent has no sample yet; ask again in a few seconds"

_decoder = msgspec.json.Decoder(Question)


class SocketServer:
    """Serve the local socket in the event loop."""

    def __init__(self, path: Path, newest: NewestSnapshot, usage: UsageAnswers, operators_group: str) -> None:
        self._path = path
        self._usage = usage
        self._newest = newest
        self._operators_group = operators_group
        self._peer_uid = callers.peer_uid
        self._connections = Connections(MOST, MOST_EACH)
        self._known: dict[int, tuple[float, Caller]] = {}
        # A network user database that is down blocks these threads, not the event loop.
        self._lookups = ThreadPoolExecutor(4, thread_name_prefix="users")
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen on the socket. Raises StateError if that fails, as for another file at the socket's path."""
        try:
            link = _bind(self._path)
        except OSError as error:
            raise StateError(
                str(self._path), f"cannot listen: {error.strerror}; make the folder the agent's own"
            ) from error
        self._server = await asyncio.start_unix_server(self._serve, sock=link, limit=QUESTION_MAX_BYTES, backlog=128)

    async def close(self) -> None:
        """Stop listening and remove the socket, so that callers get an error at once."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        self._lookups.shutdown(wait=False, cancel_futures=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            uid = self._peer_uid(writer.get_extra_info("socket"))
        except OSError:
            writer.transport.abort()
            return
        connection = self._connections.add(uid, writer.transport.abort)
        try:
            async with asyncio.timeout(QUESTION_S):
                line = await reader.readline()
            async with asyncio.timeout(ANSWER_S):
                reply = await self._answer(uid, line)
            writer.write(msgspec.json.encode(reply) + b"\n")
            async with asyncio.timeout(QUESTION_S):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, ValueError):
            pass  # ValueError: the line is too long. The caller gets no answer.
        finally:
            writer.transport.abort()
            self._connections.remove(connection)

    async def _answer(self, uid: int, line: bytes) -> Reply | UsageReply:
        try:
            question = _decoder.decode(line)
        except text_files.NOT_JSON:
            return Reply(why="the agent does not know this question; caller and agent may be of different releases")
        caller = await self._caller(uid)
        if question.usage is not None:
            return await self._usage.of_caller(caller, question)
        if question.everybody and not caller.everything:
            group = f", and for members of the group {self._operators_group}" if self._operators_group else ""
            return Reply(why=f"everybody's load is for root{group}; leave out --all for your own")
        data = self._newest.of_all_users() if question.everybody else self._newest.of_user(caller)
        return Reply(why=NO_SAMPLE) if data is None else Reply(snapshot=msgspec.Raw(data))

    async def _caller(self, uid: int) -> Caller:
        known = self._known.get(uid)
        if known is not None and time.monotonic() - known[0] < _CALLER_KEPT_S:
            return known[1]
        loop = asyncio.get_running_loop()
        caller = await loop.run_in_executor(self._lookups, callers.identify, uid, self._operators_group)
        if len(self._known) >= _CALLERS_KEPT:
            self._known.clear()
        self._known[uid] = time.monotonic(), caller
        return caller


def _bind(path: Path) -> socket.socket:
    """Bind the socket for all users (0666), and remove the one of an earlier agent."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        link.bind(os.fspath(path))
        path.chmod(0o666)
    except BaseException:
        link.close()
        raise
    return link
