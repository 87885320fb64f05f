"""The token that operators and Prometheus show, and the file that it is in: on the nodes for the agent, and where
operators log in for those who ask."""

from __future__ import annotations

import hmac
import os
import stat

from ...core.errors import StateError

MIN_BYTES = 16
MAX_BYTES = 4096


def read_token(file: str, least: int = MIN_BYTES) -> bytes:
    """Return the token in a file, of at least `least` bytes.

    Raises OSError where it cannot be read, StateError where others than its owner and its group can read it too, or
    where it has no such word.
    """
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise StateError(file, "is no file; it is to hold a token, in one line")
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
    """The token in a file. Read at each request, which takes 20 us, so that a new one counts at once."""

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
        """Return whether an Authorization header has it, in the same time for every wrong one. Raises StateError."""
        kind, _, given = authorization.strip().partition(b" ")
        return hmac.compare_digest(given.strip(), self.read()) and kind.lower() == b"bearer"
