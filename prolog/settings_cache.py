"""The site's settings as the last hook understood them, in a file of root's, for hooks alone.

To read TOML and to check every value costs a hook as much as half of its work. So the hook that does it writes down
what it found, beside the state folder; the next one takes that if the configuration file is still the very same, and
the code that reads it, too. Where in doubt the file is read anew.
"""

from __future__ import annotations

import marshal
import os
import stat
import sys
import time

from slurm_share import names

TYPE_CHECKING = False  # as mypy knows it, without the import of `typing`
if TYPE_CHECKING:
    from typing import Any

    from slurm_share.settings import Configuration, Settings

    Key = tuple[Any, ...]
    Values = dict[str, Any]

LIMIT_BYTES = 1 << 20
SETTLED_S = 2.0
"""A file that was changed less than so long ago may change again under the same time stamp."""
_CODE = ("names", "share_option", "settings", "config")
"""The modules that decide what a configuration file means."""


def place() -> str:
    """Where it lies: on a tmpfs, where root alone may write."""
    return f"{names.STATE_ROOT}.settings"


def key() -> Key | None:
    """Return what the settings depend on; None without a configuration file, or where a file cannot be looked at."""
    code = os.path.dirname(names.__file__)  # noqa: PTH120  (pathlib: see hook.py)
    files = (names.CONFIG_FILE, *(f"{code}/{module}.py" for module in _CODE))
    try:
        looks = tuple(os.stat(file) for file in files)  # noqa: PTH116
    except OSError:
        return None
    ids = tuple((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in looks)
    return (sys.implementation.cache_tag, files, ids)


def read(partition: str | None) -> tuple[Values, str] | None:
    """Return the values of that partition's Settings, and the site's log file; None where nothing fits.

    A file that is not root's own, or that others could write or read, is not looked into: what is in it is trusted.
    """
    try:
        fd = os.open(place(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        about = os.fstat(fd)
        if about.st_uid != os.geteuid() or about.st_mode & 0o077 or not stat.S_ISREG(about.st_mode):
            return None
        data = os.read(fd, LIMIT_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)
    try:
        written_for, site, partitions = marshal.loads(data)
    except (ValueError, TypeError, EOFError):
        return None
    if written_for != key():
        return None
    return partitions.get(partition or "", site), site["log_file"]


def write(configuration: Configuration, before: Key | None) -> None:
    """Keep the settings for the next hook. `before`: the key from before the file was read; where it is another one
    now, or the file is not the site's own, nothing is written. Never raises: it is the next hook's time alone."""
    after = key()
    if os.geteuid() != 0 or after is None or after != before or configuration.file != names.CONFIG_FILE:
        return
    if abs(time.time() - after[2][0][4] / 1e9) < SETTLED_S:
        return
    partitions = {name: _values(settings) for name, settings in configuration.partitions.items()}
    aside = f"{place()}.{os.getpid()}"
    try:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, marshal.dumps((after, _values(configuration.settings), partitions)))
        finally:
            os.close(fd)
        os.replace(aside, place())  # noqa: PTH105
    except (OSError, ValueError):
        try:
            os.unlink(aside)  # noqa: PTH108
        except OSError:
            pass  # it was not made


def _values(settings: Settings) -> Values:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}
