"""Mount and unmount file systems, and detach those that users mount on files and folders of theirs in folders of ours.

A user can mount one on what he owns with fusermount3(1), which is set-uid. Until it is detached, the kernel neither
renames nor removes the file or folder (EBUSY). A mount in another mount namespace, such as one that the user made
himself, is not in the way: the kernel detaches it when its file or folder is removed (rename(2), unlink(2), rmdir(2)
look at the caller's namespace only since Linux 3.18).

The function that detaches a user's mount takes an open folder and a name in it, and follows no link at that name: a
path through a user's folders could lead anywhere by the time it is used. Nothing here asks the mounted file system
anything, since it may never answer.
"""

from __future__ import annotations

import errno
import os
import time

TYPE_CHECKING = False  # mypy takes it for True; hooks load this module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST = 2_000
"""The most file systems that are detached from one place: fusermount3 allows 1,000 by default (mount_max)."""
MOST_S = 1.0
"""The most seconds in which one process detaches file systems and reads what they are. A hook may do it under the
ledger's lock, for which others wait for two; the next hook continues. Each takes up to 10 ms (measured)."""
MOST_NAMED = 20
"""The most file systems that one process names: a hook's log has a line for each."""
_READ_S, _KIND_MOST = 0.5, 100
"""The most seconds for reading what is mounted, and characters of each description. A user gives his file systems names
of up to 4,000; a thousand such lines took one second."""
NOSUID, NODEV, NOEXEC = 2, 4, 8
"""Flags of mount(2)."""
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
"""Flags of umount2(2)."""
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
"""Opens a name, and asks the file system that is mounted on it nothing."""
MOUNTINFO = "/proc/self/mountinfo"


def mount(source: str, folder: str, kind: str, flags: int = 0, options: str | None = None) -> int:
    """Mount a file system, as mount(2); return 0, or the number of the error."""
    import ctypes  # most hooks mount nothing

    libc = ctypes.CDLL(None, use_errno=True)
    data = None if options is None else os.fsencode(options)
    words = os.fsencode(source), os.fsencode(folder), os.fsencode(kind), ctypes.c_ulong(flags), data
    return 0 if libc.mount(*words) == 0 else ctypes.get_errno()


def unmount(path: str, flags: int = 0) -> int:
    """Unmount what is mounted on a file or folder, as umount2(2), and follow no link there; return 0, or the number of
    the error."""
    import ctypes  # most hooks unmount nothing

    libc = ctypes.CDLL(None, use_errno=True)
    return 0 if libc.umount2(os.fsencode(path), flags | _UMOUNT_NOFOLLOW) == 0 else ctypes.get_errno()


def read_points(below: str, file: str = MOUNTINFO) -> Iterator[tuple[str, str]]:
    """Yield the path and a description of each mount at or below the folder `below`, in the kernel's order."""
    mark = os.fsencode(below)
    with open(file, "rb") as lines:  # a node can have tens of thousands: read line by line
        for line in lines:
            fields, _, source = line.partition(b" - ")
            point = _unescaped(fields.split(b" ", 5)[4])
            if point == mark or point.startswith(mark + b"/"):
                kind, name, *_ = (*source.split(b" ", 2), b"", b"")
                what = os.fsdecode(_unescaped(kind)), os.fsdecode(_unescaped(name))
                yield os.fsdecode(point), f"{what[0]} ({what[1]})" if what[1] else what[0]


def _unescaped(path: bytes) -> bytes:
    """Decode a word of mountinfo, where blanks, tabs, newlines and backslashes are three octal digits."""
    first, *rest = path.split(b"\\")
    return first + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in rest)


def uncover(folder: int, name: str, notes: list[str]) -> None:
    """Detach what is mounted on `name` of the open folder, if it exists; add a sentence for each mount to `notes`.

    Raises OSError (EBUSY) with a sentence if that is not possible.
    """
    try:
        for _ in range(MOST):
            if _mount_id(name, folder) == _mount_id("", folder):
                return
            _detach(folder, name, notes)
    except FileNotFoundError:
        pass


def retry_uncovered(call: Callable[[], None], folder: int, name: str, notes: list[str]) -> None:
    """Call `call`, which renames or removes `name` of the open folder; as often as a mount there is in the way, detach
    it and call again. Raises the OSError of `call`, and that of `uncover`."""
    for _ in range(MOST):
        try:
            return call()
        except OSError as error:
            if error.errno != errno.EBUSY or _mount_id(name, folder) == _mount_id("", folder):
                raise
        _detach(folder, name, notes)
    return call()


def unlink(name: str, folder: int, notes: list[str]) -> None:
    """Remove a file of the open folder, as os.unlink, and what is mounted on it."""
    retry_uncovered(lambda: os.unlink(name, dir_fd=folder), folder, name, notes)


def rmdir(name: str, folder: int, notes: list[str]) -> None:
    """Remove an empty folder of the open folder, as os.rmdir, and what is mounted on it."""
    retry_uncovered(lambda: os.rmdir(name, dir_fd=folder), folder, name, notes)


def open_uncovered(name: str, parent: int) -> int:
    """Return the open folder `name` of the open folder `parent`. Raises OSError if it is none or a link, and with EXDEV
    if a file system is mounted on it: that may be somebody else's, claim any owner, and never answer."""
    place = os.open(name, _PLACE | os.O_DIRECTORY, dir_fd=parent)
    try:
        if _mount_of(place) != _mount_of(parent):
            raise OSError(errno.EXDEV, "a file system is mounted there", name)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
    finally:
        os.close(place)


def _mount_id(name: str, folder: int) -> bytes:
    """Return the kernel's number of the mount that `name` of the open folder is on; "": the folder itself."""
    if not name:
        return _mount_of(folder)
    place = os.open(name, _PLACE, dir_fd=folder)
    try:
        return _mount_of(place)
    finally:
        os.close(place)


def _mount_of(fd: int) -> bytes:
    with open(f"/proc/self/fdinfo/{fd}", "rb") as lines:
        return next((line for line in lines if line.startswith(b"mnt_id:")), b"")


class _Detaching:
    """Time, names and count of the file systems that this process has detached; each hook runs in its own process."""

    until = 0.0
    """The time at which it stops, on the monotonic clock; 0: it has detached nothing."""
    named = 0
    kinds: dict[str, list[str]]
    """Path -> descriptions of what was mounted there, the uppermost one last, when the first one was detached."""


def _detach(folder: int, name: str, notes: list[str]) -> None:
    """Detach the upper mount on `name` of the open folder; add a sentence to `notes`. Raises OSError (EBUSY)."""
    path = f"{os.readlink(f'/proc/self/fd/{folder}')}/{name}"  # noqa: PTH115
    if not _Detaching.until:
        _Detaching.until = time.monotonic() + MOST_S
        _Detaching.kinds = _read_kinds()
    if time.monotonic() > _Detaching.until:
        why = f"many file systems are mounted on {path}; each hook detaches a part of them"
        raise OSError(errno.EBUSY, why)
    what = _Detaching.kinds.get(path)
    kind = what.pop() if what else "a file system"
    code = unmount(f"/proc/self/fd/{folder}/{name}", _MNT_DETACH)
    if code == 0:
        _Detaching.named += 1
        if _Detaching.named <= MOST_NAMED:
            notes.append(f"{kind} was mounted on {path} and is detached")
        elif _Detaching.named == MOST_NAMED + 1:
            notes.append("more file systems were mounted there and are detached, which are not named")
    elif code != errno.EINVAL:  # EINVAL: its user has detached it meanwhile
        why = f"{kind} is mounted on {path} and cannot be detached ({os.strerror(code)}); as root: umount -l {path}"
        raise OSError(errno.EBUSY, why)


def _read_kinds() -> dict[str, list[str]]:
    until, found = time.monotonic() + _READ_S, dict[str, list[str]]()
    for point, kind in read_points(""):
        found.setdefault(point, []).append(kind[:_KIND_MOST])
        if time.monotonic() > until:
            break
    return found
