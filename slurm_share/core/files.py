"""Read a file that only root or its reader can have written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import StateError


def read(file: Path, most_bytes: int) -> bytes | None:
    """Return the file's content, at most `most_bytes`; None: there is no such file.

    Raises StateError if it cannot be read, is a link or no regular file, or another user owns it or may write it. The
    caller adds what to do about it.
    """
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(str(file), f"cannot be read ({error.strerror})") from error
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid not in (0, os.geteuid()) or seen.st_mode & 0o022:
            raise StateError(
                str(file),
                "is no file, belongs to another user or can be written by one "
                f"(uid {seen.st_uid}, mode {seen.st_mode & 0o7777:04o})",
            )
        with open(fd, "rb", closefd=False) as stream:
            return stream.read(most_bytes)
    except OSError as error:
        raise StateError(str(file), f"cannot be read ({error.strerror})") from error
    finally:
        os.close(fd)
