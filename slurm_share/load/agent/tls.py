"""TLS of the agent's HTTP, with the ssl module: the agent's certificate, and what its callers need.

The certificate is read again when its files change, as they do when it is renewed. There is no way back to clear text:
an agent whose certificate cannot be used opens no port, and a caller that wants TLS sends no token without it.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ...core import log
from ...core.errors import StateError, UsageError, shown
from ...core.settings import Settings

RECORD_BYTES = 16384
"""The most that one TLS record carries."""
SEND_BYTES = 1 << 18
"""Bytes of an answer that are encrypted at once."""
CLEAR_TEXT = "HTTP_REQUEST"
"""OpenSSL's reason for a caller that speaks HTTP in clear text."""
_EXPIRED, _NOT_YET, _OTHER_NAME = 10, 9, 62
"""X509_V_ERR_CERT_HAS_EXPIRED, _CERT_NOT_YET_VALID, _HOSTNAME_MISMATCH of x509_vfy.h."""
_PEM_MAX_BYTES = 1 << 20
Found = TypeVar("Found")


class AgentTls:
    """The agent's side of TLS; `context` is that of the certificate as its files are now."""

    def __init__(self, settings: Settings) -> None:
        self.certificate = settings.agent_tls_certificate
        self._key = settings.agent_tls_key or self.certificate
        self._client_ca = settings.agent_tls_client_ca
        self._seen: tuple[object, ...] = ()
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection. Raises StateError if the certificate cannot be used and no
        earlier one was read; an earlier one stays in use."""
        seen = tuple(_identity(file) for file in (self.certificate, self._key, self._client_ca))
        if self._context is not None and seen == self._seen:
            return self._context
        earlier, self._seen = self._context, seen
        try:
            self._context = agent_context(self.certificate, self._key, self._client_ca)
        except StateError as error:
            if earlier is None:
                raise
            log.line("", "agent", f"the earlier certificate stays in use until the files are corrected: {error}")
            return earlier
        problem = problem_of(self.certificate, self._key)
        if problem:
            log.line("", "agent", f"callers refuse this node's certificate: {self.certificate} {problem}")
        elif earlier is not None:
            log.line("", "agent", f"the certificate {self.certificate} was renewed and is in use")
        return self._context


def _identity(file: str) -> object:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def agent_context(certificate: str, key: str, client_ca: str = "") -> ssl.SSLContext:
    """Return the context with which the agent serves. Raises StateError, with what to do about a file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_pair(context, certificate, key)
    if client_ca:
        _load_ca(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def caller_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the context with which agents are called; None: in clear text. Raises UsageError for files of the
    settings that cannot be used."""
    if not settings.agents_ca:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        _load_ca(context, settings.agents_ca)
        if settings.agents_certificate:
            _load_pair(context, settings.agents_certificate, settings.agents_key or settings.agents_certificate)
    except StateError as error:
        raise UsageError(f"{error} (agents_ca, agents_certificate and agents_key in config.toml)") from error
    return context


def server_context(ca_file: str, key: str) -> ssl.SSLContext:
    """Return the context for a server whose certificate is signed by that CA, which the setting `key` names. Raises
    UsageError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        _load_ca(context, ca_file)
    except StateError as error:
        raise UsageError(f"{error} ({key} in config.toml)") from error
    return context


def _load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    _pem(certificate, b"-----BEGIN CERTIFICATE-----", "no certificate", may_be_read=True)
    text = _pem(key, b"PRIVATE KEY-----", "no private key", may_be_read=False)
    if b"ENCRYPTED" in text:
        raise StateError(
            key, "is encrypted with a passphrase, which no service can type; openssl pkey -in FILE -out FILE removes it"
        )
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise StateError(key, f"is not the key of the certificate {certificate}; renew both together") from error
        raise StateError(certificate, f"and the key {key} cannot be used ({_reason(error)})") from error
    except OSError as error:
        raise StateError(certificate, f"cannot be read: {error.strerror}") from error


def _load_ca(context: ssl.SSLContext, file: str) -> None:
    _pem(file, b"-----BEGIN CERTIFICATE-----", "no certificate", may_be_read=True)
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise StateError(file, f"has no certificate of a CA that can be used ({_reason(error)})") from error


def _pem(file: str, mark: bytes, lacks: str, *, may_be_read: bool) -> bytes:
    """Return the text of a PEM file. Raises StateError if it lacks `mark`, or all users can read a key."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise StateError(
            file, f"cannot be read: {error.strerror}; it has to be there, readable by the group that reads it (0640)"
        ) from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise StateError(file, "is not a file; give the name of a PEM file")
        if not may_be_read and found.st_mode & 0o007:
            mode = f"{stat.S_IMODE(found.st_mode):04o}"
            raise StateError(file, f"is open to everybody on this host (mode {mode}); chmod 0640")
        text = os.read(fd, _PEM_MAX_BYTES)
    except OSError as error:
        raise StateError(file, f"cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)
    if mark not in text:
        raise StateError(file, f"has {lacks} in PEM format (-----BEGIN ...)")
    return text


def _reason(error: ssl.SSLError) -> str:
    return shown(error.reason or str(error), 120).lower().replace("_", " ")


def problem_of(certificate: str, key: str, node: str = "", client_ca: str = "") -> str | None:
    """Return why callers would refuse this certificate: it has expired, or is not for this node; None: they would not,
    if they know its CA. Raises StateError if the files cannot be used, `client_ca` among them.

    A handshake in memory, by a caller that knows this very certificate, applies the callers' own rules.
    """
    caller = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    caller.check_hostname = bool(node)
    caller.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _load_ca(caller, certificate)
    if client_ca:
        _load_ca(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), client_ca)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        agent_context(certificate, key).wrap_bio(there, back, server_side=True),
        caller.wrap_bio(back, there, server_hostname=node or None),
    )
    for end in (1, 0, 1):
        try:
            ends[end].do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return _WHY.get(error.verify_code, f"is not valid: {error.verify_message}").format(node=node)
        except ssl.SSLError as error:
            return f"cannot be used: {_reason(error)}"
    return None


_WHY = {
    _EXPIRED: "has expired; renew it",
    _NOT_YET: "is not valid yet; check the clock of the host that made it, and of this one",
    _OTHER_NAME: "is not for {node}; its subjectAltName must have DNS:{node}",
}


class TlsChannel:
    """One connection of the agent that speaks TLS over asyncio's streams.

    The handshake runs here and not in asyncio's server, so that a caller who does not finish it counts as a connection
    and has the same deadline as others.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext) -> None:
        self._reader, self._writer = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def handshake(self) -> None:
        """Meet the caller. Raises ssl.SSLError, ConnectionError."""
        await self._do(self._tls.do_handshake)

    async def read(self, most_bytes: int) -> bytes:
        """Return what the caller sent; empty at its end. Raises ssl.SSLError, ConnectionError."""
        try:
            return await self._do(lambda: self._tls.read(most_bytes))
        except ssl.SSLZeroReturnError:
            return b""

    async def send(self, data: bytes) -> None:
        """Send it all, then the end of TLS. Raises ssl.SSLError, ConnectionError."""
        for at in range(0, len(data), SEND_BYTES):
            self._tls.write(data[at : at + SEND_BYTES])
            await self._flush()
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the caller's own end may come later, and is not waited for
        await self._flush()

    async def _do(self, step: Callable[[], Found]) -> Found:
        while True:
            try:
                found = step()
            except ssl.SSLWantReadError:
                await self._flush()
            except ssl.SSLError:
                await self._flush()  # the alert, which tells the caller why
                raise
            else:
                await self._flush()
                return found
            data = await self._reader.read(RECORD_BYTES)
            if not data:
                raise ConnectionError("closed in the middle of TLS")
            self._incoming.write(data)

    async def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            self._writer.write(data)
            await self._writer.drain()
