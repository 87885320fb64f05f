"""Who may see the dashboard: the link that logs a browser in once, the password of Open OnDemand, and the logins.

A link is a secret that leaves this process: it is in the browser's history, and in `ps` if a program was started with
it. So it works once, and the next one stands only in a file that its user can read. What a browser sends afterwards is
a cookie, which scripts cannot read.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from slurm_share.core import files
from slurm_share.core.errors import StateError, UsageError
from slurm_share.load import read_token

COOKIE = "llload_tui"
LOGINS_MOST = 16
"""Most browsers that are logged in; the next one takes the place of the one that was used least recently."""
IDLE_S = 24 * 3600.0
"""After this time without a request, seconds, a login is over."""
GIVEN_MOST = 8
"""Most cookies of our name that are compared: other servers of this host can set some, too."""


class Access:
    """The secrets of one server."""

    def __init__(self, password: bytes = b"", *, clock: Callable[[], float] = time.monotonic) -> None:
        """`password`: what `--token-file` holds; with it there is no link."""
        self._password = password
        self._clock = clock
        self.link = "" if password else secrets.token_urlsafe(32)
        """The secret of the next link; empty: there is none."""
        self._logins: dict[bytes, float] = {}
        """Digests of cookies, with the time of the last request; the latest last."""

    def take_link(self, given: str) -> str:
        """Return the cookie for a link, which then works no more; empty: that is not the link."""
        if not self.link or not _same(given, self.link.encode()):
            return ""
        self.link = secrets.token_urlsafe(32)
        return self._log_in()

    def take_password(self, given: str) -> str:
        """Return the cookie for the password; empty: that is not the password, or there is none."""
        return self._log_in() if self._password and _same(given, self._password) else ""

    def knows(self, cookies: Iterable[str]) -> bool:
        """Return whether one of the cookies is that of a login."""
        now = self._clock()
        for cookie, _ in zip(cookies, range(GIVEN_MOST), strict=False):
            digest = _digest(cookie)
            used = self._logins.pop(digest, None)
            if used is not None and now - used < IDLE_S:
                self._logins[digest] = now
                return True
        return False

    def _log_in(self) -> str:
        cookie = secrets.token_urlsafe(32)
        while len(self._logins) >= LOGINS_MOST:
            del self._logins[next(iter(self._logins))]
        self._logins[_digest(cookie)] = self._clock()
        return cookie


def _same(given: str, secret: bytes) -> bool:
    """Compare in a time that does not depend on what is equal."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), secret)


def _digest(cookie: str) -> bytes:
    """Return what is looked up instead of the cookie: how long that takes tells nothing of the cookie."""
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).digest()


def cookies_in(header: str) -> list[str]:
    """Return the values of all our cookies in a `Cookie` header: other servers of this host can set one, too."""
    pairs = (one.strip().partition("=") for one in header.split(";"))
    return [value for name, _, value in pairs if name == COOKIE]


def set_cookie(value: str, path: str, *, secure: bool) -> str:
    """Return a `Set-Cookie` header for pages below `path`."""
    return f"{COOKIE}={value}; Path={path}; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"


def read_password(file: Path) -> bytes:
    """Return the password in the file of `--token-file`. Raises UsageError, with what to do."""
    try:
        return read_token(str(file), is_private=True)
    except OSError as error:
        why = "is a link; name the file itself" if file.is_symlink() else f"cannot be read: {error.strerror}"
        raise UsageError(f"--token-file {file} {why}") from error
    except StateError as error:
        raise UsageError(f"--token-file {error}") from error


def private_folder(folder: Path) -> Path:
    """Make a folder that only its user can enter, or check the one that is there. Raises UsageError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise UsageError(f"the folder {folder} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{folder} is a link or a file, and must be a folder; remove it")
    if found.st_uid != os.geteuid():
        raise UsageError(f"the folder {folder} belongs to another user; the link for the browser is not put there")
    if found.st_mode & 0o077:
        raise UsageError(f"others can enter the folder {folder} (mode {stat.S_IMODE(found.st_mode):04o}); chmod 0700")
    return folder


class LinkFile:
    """The file with the link that works next, mode 0600 in a folder 0700; removed when the server ends."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, link: str) -> None:
        """Write the link as the file's only line. A link of that name in the folder is replaced, not followed. Raises
        UsageError."""
        private_folder(self.file.parent)
        try:
            files.write(self.file, f"{link}\n".encode(), mode=0o600)
        except OSError as error:
            raise UsageError(f"the link cannot be written into {self.file}: {error.strerror}") from error

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.file.unlink()
