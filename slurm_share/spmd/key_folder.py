"""Folder of a run of several nodes: its key, the address of node 0, and nodes that cannot take part.

Standard library only.

`make_folder` is called once, at submission. That is usually long before another node reads the folder, so negative
entries in the cache of a network file system have expired by then.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import stat
from collections.abc import Iterator

from .errors import SpmdError
from .handshake import KEY_BYTES, signature

KEY = "key"
_PURPOSE = "address"
_ADDRESS_BYTES = 4096
_FAILED = "failed"
_WHY_CHARACTERS = 1000


class FolderRefused(SpmdError):
    """Folder or file that is missing or that other users can access. The message says which and why."""


class FolderGone(FolderRefused):
    """The folder is missing: node 0 has removed it at its end."""


Address = tuple[str, int]
"""Host and port on which node 0 accepts connections."""


def make_folder(folder: str) -> None:
    """Make the folder (0700) with a new key (0600). Raises FileExistsError if the folder exists."""
    os.mkdir(folder, 0o700)  # noqa: PTH102
    with _opened(folder) as place:
        _write_new(place, KEY, os.urandom(KEY_BYTES), os.O_EXCL)


def read_key(folder: str) -> bytes:
    """Return the run's key. Raises FolderRefused."""
    with _opened(folder) as place:
        key = _read(place, KEY, folder)
    if key is None:
        raise FolderRefused(f"there is no file {KEY} in {folder}; submit the run anew")
    if len(key) != KEY_BYTES:
        raise FolderRefused(f"{folder}/{KEY} has {len(key)} bytes, not {KEY_BYTES}; submit the run anew")
    return key


def write_address(folder: str, run: str, key: bytes, address: Address) -> None:
    """Write the signed address of node 0 for the other nodes. Raises FolderRefused, OSError."""
    text = json.dumps([*address, signature(key, _PURPOSE, _signed(run, address))])
    _write(folder, run, text.encode())


def read_address(folder: str, run: str, key: bytes) -> Address | None:
    """Return the address of node 0; None: it has not been written yet. Raises FolderRefused."""
    with _opened(folder) as place:
        _refresh(place)
        text = _read(place, run, folder)
    if text is None:
        return None
    try:
        host, port, proof = json.loads(text)
        address = str(host), int(port)
        is_ours = hmac.compare_digest(str(proof), signature(key, _PURPOSE, _signed(run, address)))
    except (ValueError, TypeError):
        is_ours = False
    if not is_ours:
        raise FolderRefused(f"{folder}/{run} was not written by node 0 of this run")
    return address


def write_failure(folder: str, run: str, node: int, why: str) -> None:
    """Write that a node cannot take part, for node 0. Raises FolderRefused, OSError."""
    _write(folder, f"{run}.{_FAILED}.{node}", why[:_WHY_CHARACTERS].encode())


def read_failures(folder: str, run: str) -> dict[int, str]:
    """Return the nodes that cannot take part, with the reasons. Raises FolderRefused, OSError."""
    found = {}
    with _opened(folder) as place:
        _refresh(place)
        for name in os.listdir(place):  # noqa: PTH208  # a descriptor
            begin, _, node = name.rpartition(".")
            if begin == f"{run}.{_FAILED}" and node.isdecimal():
                found[int(node)] = (_read(place, name, folder) or b"").decode(errors="replace")
    return found


def _refresh(place: int) -> None:
    """Set the times of a folder, so that a network file system asks its server and does not answer from its cache."""
    with contextlib.suppress(OSError):
        os.utime(place)


def _write(folder: str, name: str, data: bytes) -> None:
    """Write a file under another name and rename it, so that a reader never sees half of it."""
    with _opened(folder) as place:
        _write_new(place, f".{name}", data, os.O_TRUNC)
        os.rename(f".{name}", name, src_dir_fd=place, dst_dir_fd=place)


def _write_new(place: int, name: str, data: bytes, flag: int) -> None:
    """Write a file of mode 0600 and flush it to disk."""
    file = os.open(name, os.O_WRONLY | os.O_CREAT | flag | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place)
    try:
        os.write(file, data)
        os.fsync(file)
    finally:
        os.close(file)


def _signed(run: str, address: Address) -> str:
    return f"{run}\0{address[0]}\0{address[1]}"


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int]:
    """Give a file descriptor of the folder. Raises FolderRefused."""
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        kind = FolderGone if isinstance(error, FileNotFoundError) else FolderRefused
        raise kind(f"the run's folder {folder} cannot be read: {error.strerror}") from error
    try:
        _must_be_own(place, folder)
        yield place
    finally:
        os.close(place)


def _must_be_own(file: int, path: str) -> None:
    status = os.fstat(file)
    if status.st_uid != os.geteuid():
        raise FolderRefused(f"{path} belongs to uid {status.st_uid}, not to uid {os.geteuid()} that runs here")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise FolderRefused(
            f"{path} can be read or written by others (mode {stat.S_IMODE(status.st_mode):o}); submit the run anew"
        )


def _read(place: int, name: str, folder: str) -> bytes | None:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FolderRefused(f"{folder}/{name} cannot be read: {error.strerror}") from error
    try:
        _must_be_own(file, f"{folder}/{name}")
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise FolderRefused(f"{folder}/{name} is not a plain file")
        return os.read(file, _ADDRESS_BYTES)
    finally:
        os.close(file)
