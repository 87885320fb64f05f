"""The token with which operators and Prometheus authenticate: a file on the nodes for the agent, and a copy on the
hosts from which operators ask."""

from __future__ import annotations

import hmac
import os
import stat

from ...core.errors import StateError

MIN_BYTES = 16
MAX_BYTES = 4096


def read_token(file: str, least: int = MIN_BYTES) -> bytes:
    """Return the token in a file, of at least `least` bytes.

    Raises OSError if the file cannot be read, StateError if all users can read it or it holds no token.
    """
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise StateError(file, "is not a file; write a token into a file, in one line")
        if found.st_mode & 0o007:
            raise StateError(
                file, f"is open to everybody on this host (mode {stat.S_IMODE(found.st_mode):04o}); chmod 0640"
            )
        token = os.read(fd, MAX_BYTES + 1).strip()
    finally:
        os.close(fd)
    if not least <= len(token) <= MAX_BYTES or len(token.split()) != 1 or not token.isascii():
        raise StateError(file, f"has no token: one word of at least {least} characters, as from: openssl rand -hex 32")
    return token


class Token:
    """The token in a file. It is read at each request, which takes 20 us, so that a new token counts at once."""

    def __init__(self, file: str) -> None:
        self.file = file

    def read(self) -> bytes:
        """Return the token. Raises StateError as `read_token` does."""
        try:
            return read_token(self.file)
        except OSError as error:
            raise StateError(
                self.file,
                f"cannot be read: {error.strerror}; write a token into it and give it to the agent's group (0640)",
            ) from error

    def is_in(self, authorization: bytes) -> bool:
        """Return whether an Authorization header holds the token, in constant time. Raises StateError."""
        kind, _, given = authorization.strip().partition(b" ")
        return hmac.compare_digest(given.strip(), self.read()) and kind.lower() == b"bearer"
