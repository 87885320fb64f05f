"""Run `llload-tui --serve`: listen, tell the user how to open it, and end with everything that was started."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import getpass
import importlib.util
import logging
import os
import secrets
import signal
import socket
import ssl
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_share.core import names
from slurm_share.core.errors import StateError, UsageError

from ..options import PROGRAM, BrowserOptions
from ..user_config import memory_file
from . import access, addresses
from .access import Access, LinkFile
from .addresses import Place

NEEDED = ("textual", "textual_plotext", "aiohttp", "textual_serve")
"""Modules of the extras `tui` and `serve`, which may be missing at a site."""
LOCAL_PORT = 8080
"""The port on the user's own computer for a Unix socket, which has none."""


def missing() -> str:
    """Return what is not installed here, as a sentence; empty: nothing."""
    found = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"{found[0]} is not installed here (pip install 'slurm-share[hosts,tui,serve]')" if found else ""


def run(wanted: BrowserOptions, words: Sequence[str]) -> int:
    """Serve until a signal ends it; return the exit code. `words`: the command line, which each dashboard gets, too.
    Raises UsageError."""
    if why := missing():
        raise UsageError(why)
    logging.getLogger("aiohttp").addHandler(logging.NullHandler())  # what others send is no news
    logging.getLogger("aiohttp").propagate = False
    password = access.read_password(wanted.token_file) if wanted.token_file else b""
    tls = _tls(wanted)
    with contextlib.closing(_listen(wanted)) as listening:
        return asyncio.run(_serve(wanted, words, listening, tls, Access(password)))


async def _serve(
    wanted: BrowserOptions, words: Sequence[str], listening: socket.socket, tls: ssl.SSLContext | None, known: Access
) -> int:
    from aiohttp import web

    from .server import REQUEST_S, BoundedServer, Handler

    host = socket.gethostname()
    port = 0 if wanted.socket else listening.getsockname()[1]
    place = _place(wanted, host)
    near = wanted.socket is not None or addresses.is_loopback(wanted.address)
    shown = f"{'https' if tls else 'http'}://{'127.0.0.1' if near else host}:{port or LOCAL_PORT}"
    link_file = LinkFile(memory_file().parent / "browser" / f"{host}-{port or os.getpid()}")

    def link() -> str:
        return f"{place.public_url or shown}{place.entry}?token={known.link}"

    def linked(remote: str) -> None:
        where = f" from {remote}" if remote else ""
        try:
            link_file.write(link())
        except UsageError as error:
            say(f"a browser has logged in{where}; there is no link for another one: {error}")
        else:
            say(f"a browser has logged in{where}; the next link is in {link_file.file}")

    if known.link:
        link_file.write(link())
    handler = Handler(place, known, words, say, linked)
    server = BoundedServer(handler, own_uid=os.geteuid() if wanted.socket else None)
    runner = web.ServerRunner(server)
    over = asyncio.Event()
    number = 0
    accepting: asyncio.Server | None = None

    def end(by: int) -> None:
        nonlocal number
        number = by
        over.set()

    loop = asyncio.get_running_loop()
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(one) is not signal.SIG_IGN:
            loop.add_signal_handler(one, end, one)
    try:
        await runner.setup()
        # Not a site of aiohttp's: it has no limit for the handshake.
        limit = REQUEST_S if tls else None
        accepting = await loop.create_server(
            server, sock=listening, ssl=tls, ssl_handshake_timeout=limit, ssl_shutdown_timeout=limit, backlog=256
        )
        for line in _how(wanted, host, port, link() if known.link else ""):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        await over.wait()
    finally:
        if accepting is not None:
            accepting.close()
        await handler.close()
        await runner.cleanup()
        link_file.remove()
        if wanted.socket:
            wanted.socket.unlink(missing_ok=True)
    return names.EXIT_OK if number == signal.SIGINT else 128 + number


def say(line: str) -> None:
    """Write a line for the user, if somebody reads it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{PROGRAM}: {line}\n")
        sys.stderr.flush()


def _place(wanted: BrowserOptions, host: str) -> Place:
    hosts = set(addresses.LOOPBACK)
    if wanted.public_url:
        hosts = {addresses.host_of(wanted.public_url)}
    elif wanted.socket is None and not addresses.is_loopback(wanted.address):
        hosts |= {host.lower(), socket.getfqdn().lower(), wanted.address.lower()}
    return Place(
        base_path=wanted.base_path, page_id=secrets.token_hex(8), hosts=frozenset(hosts), public_url=wanted.public_url,
        has_tls=bool(wanted.tls_certificate),
    )  # fmt: skip


def _how(wanted: BrowserOptions, host: str, port: int, link: str) -> list[str]:
    """Return the lines that tell how to open it."""
    where = str(wanted.socket) if wanted.socket else f"{wanted.address} port {port}"
    can = "with actions" if wanted.allow_actions else "read-only"
    lines = [f"{PROGRAM}: serving on {where}, {can}; Ctrl-C ends it"]
    if not link:
        return lines
    near = wanted.socket is not None or addresses.is_loopback(wanted.address)
    if near and not wanted.public_url:
        address = f"[{wanted.address}]" if ":" in wanted.address else wanted.address
        theirs = str(wanted.socket) if wanted.socket else f"{address}:{port}"
        lines.append(f"  on your own computer:  ssh -N -L {port or LOCAL_PORT}:{theirs} {getpass.getuser()}@{host}")
    return [*lines, f"  then, once:            {link}"]


def _tls(wanted: BrowserOptions) -> ssl.SSLContext | None:
    if wanted.tls_certificate is None:
        return None
    from slurm_share.load import tls

    try:
        return tls.agent_context(str(wanted.tls_certificate), str(wanted.tls_key or wanted.tls_certificate))
    except StateError as error:
        raise UsageError(str(error)) from error


def _listen(wanted: BrowserOptions) -> socket.socket:
    """Return the listening socket. Raises UsageError, with what to do."""
    if wanted.socket is not None:
        return _listen_unix(wanted.socket)
    try:
        family, _, _, _, address = socket.getaddrinfo(
            wanted.address.strip("[]"), wanted.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise UsageError(f"--address {wanted.address} is no address of this host: {error.strerror}") from error
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(256)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            why = "is in use, perhaps by another user; choose another one, or none for a free one"
            raise UsageError(f"port {wanted.port} of {wanted.address} {why}") from error
        where = f"{wanted.address} port {wanted.port}"
        raise UsageError(f"cannot listen on {where}: {(error.strerror or str(error)).lower()}") from error
    return opened


def _listen_unix(file: Path) -> socket.socket:
    access.private_folder(file.absolute().parent)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        if file.is_socket() and opened.connect_ex(str(file)) == errno.ECONNREFUSED:
            file.unlink()  # of a server that was killed
        opened.bind(str(file))
        opened.listen(256)
    except OSError as error:
        opened.close()
        if error.errno in (errno.EADDRINUSE, errno.EINVAL, errno.EISCONN):
            kind = "is in use by another server" if stat.S_ISSOCK(file.lstat().st_mode) else "is there already"
            raise UsageError(f"--socket {file} {kind}; name another file") from error
        raise UsageError(f"cannot listen on --socket {file}: {(error.strerror or str(error)).lower()}") from error
    finally:
        os.umask(before)
    return opened
