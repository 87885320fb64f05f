"""The token with which operators and Prometheus authenticate: a file on the nodes for the agent, and a copy on the
hosts from which operators ask."""

from __future__ import annotations

import grp
import hmac
import os
import stat
from pathlib import Path

from ...core.errors import StateError, UsageError

MIN_BYTES = 16
MAX_BYTES = 4096
INSTEAD = "llload --source srun needs none and shows your own jobs"


def read_token(file: str, least: int = MIN_BYTES, *, is_private: bool = False) -> bytes:
    """Return the token in a file, of at least `least` bytes. Raises OSError if the file cannot be read, StateError if
    all users can read it or it holds no token. `is_private`: it must be the caller's own file, which no group can read
    either, and no link, which is an OSError."""
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_NOFOLLOW if is_private else 0))
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise StateError(file, "is not a file; write a token into a file, in one line")
        if found.st_mode & 0o007 and not is_private:
            raise StateError(
                file, f"is open to everybody on this host (mode {stat.S_IMODE(found.st_mode):04o}); chmod 0640"
            )
        if is_private and found.st_uid != os.geteuid():
            raise StateError(file, "belongs to another user; write a token into a file of your own")
        if is_private and found.st_mode & 0o077:
            raise StateError(file, f"is open to others (mode {stat.S_IMODE(found.st_mode):04o}); chmod 0600")
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


def read_operators_token(file: str, key: str, least: int = MIN_BYTES) -> str:
    """Return the token in `file`, which the setting `key` names. Raises UsageError, which says who may read it and what
    to do."""
    try:
        return read_token(file, least).decode("ascii")
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no token {file} on this host ({key}); copy it here from a node, readable by operators only "
            f"(0640); {INSTEAD}"
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot read the token {file} ({error.strerror}); it is for {_who_may(file)}: an administrator can add "
            f"you; {INSTEAD}"
        ) from error
    except StateError as error:
        raise UsageError(f"{error} ({key})") from error


def _who_may(file: str) -> str:
    try:
        found = Path(file).stat()
    except OSError:
        return "root and the operators"
    if not found.st_mode & 0o040:
        return "root" if found.st_uid == 0 else f"the user of number {found.st_uid}"
    try:
        group = grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        group = str(found.st_gid)
    return f"root and the group {group}" if group != "root" or os.getgid() else "root"
