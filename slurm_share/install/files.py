"""Changes a site's configuration files: all of them or none, whole, and so that it can be taken back.

Every file is written beside its place and renamed into it; the journal (install/journal.py) is written first
and says how far to go, or to go back, for whoever comes after a kill -9 or a power cut.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from ..core import files
from ..core.errors import StateError
from . import journal as install_journal
from .journal import Change, Journal

_PART = ".slurm-share-part"
_LOCK = ".slurm-share-lock"
_MOST_BYTES = 1024 * 1024 * 1024
_WAYS_OUT = {
    errno.EROFS: "mount it writable, or run this where the files of this host's image are kept",
    errno.EACCES: "run this as root",
    errno.EPERM: "run this as root; where root may not either, `lsattr` says whether the file is immutable",
    errno.ENOSPC: "make room there, then run this again",
}


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock the files of a folder. Raises StateError if another process holds the lock.

    By a file of root's that nobody else can open: whoever may read the folder may hold a lock on it for ever."""
    file = folder / _LOCK
    fd = _locked(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()
        os.close(fd)


def _locked(file: Path) -> int:
    while True:
        try:
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(str(file.parent), _why("written to", error)) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), file.stat()):
                return fd
        except BlockingIOError as error:
            os.close(fd)
            raise StateError(
                str(file.parent), "another slurm-share is at work there: wait for it (`lslocks` names it)"
            ) from error
        except FileNotFoundError:
            pass  # the one that had it has just ended, and took it away
        os.close(fd)


def read_journal(folder: Path, known: Collection[str]) -> Journal | None:
    """Read the journal of the files of this folder; None: nothing was done.

    Raises StateError for a journal that somebody else may have written as well, or that names a file that is not among
    the `known`: it says what is written and removed.
    """
    file = folder / install_journal.NAME
    try:
        data = files.read(file, _MOST_BYTES)
    except StateError as error:
        denied = isinstance(error.__cause__, PermissionError)
        way_out = _WAYS_OUT[errno.EACCES] if denied else install_journal.BY_HAND
        raise StateError(error.file, f"{error.why}; {way_out}") from error
    if data is None:
        return None
    journal = install_journal.decode(data, str(file))
    if why := install_journal.foreign(journal, known):
        raise StateError(str(file), why)
    return journal


def apply(folder: Path, changes: tuple[Change, ...], date: str, known: Collection[str]) -> None:
    """Make every change, and keep the journal. Raises StateError where a file cannot be written, or is no longer what
    it was when the change was thought out; all files are then as before."""
    for change in changes:
        _expect(change.file, change.before)
    earlier = read_journal(folder, known)
    whole = install_journal.merged(earlier, changes)
    kept = _copies(earlier)
    # A file that only an earlier apply changed has its content of today on both sides: nothing is done to it.
    going = tuple(_still(change, changes) for change in whole)
    _write_journal(folder, Journal("applying", date, going, earlier))
    try:
        for change in going:
            for copy in change.copies:
                if copy not in kept and change.before is not None:
                    _write_whole(Path(copy), change.before, like=_target(change.file))
            _put(change.file, change.after, change.mode)
        _write_journal(folder, Journal("applied", date, going))
    except StateError as error:
        settle(folder, known)
        raise StateError(error.file, f"{error.why}; every file is as it was before") from error


def _still(change: Change, changes: tuple[Change, ...]) -> Change:
    """Return a change of the journal as it is for this apply."""
    if any(one.file == change.file for one in changes):
        return change
    now = _read(Path(change.file))
    return msgspec.structs.replace(change, before=now, after=now)


def _copies(journal: Journal | None) -> frozenset[str]:
    return frozenset(copy for change in journal.changes for copy in change.copies) if journal else frozenset()


def undo(folder: Path, done: Journal, changes: tuple[Change, ...], known: Collection[str]) -> None:
    """Make the changes that take `done` back, then drop its copies and the journal. Raises StateError as `apply`."""
    for change in changes:
        _expect(change.file, change.before)
    copies = {change.file: change.copies for change in done.changes}
    changes = tuple(msgspec.structs.replace(change, copies=copies.get(change.file, ())) for change in changes)
    _write_journal(folder, Journal("undoing", done.date, changes))
    settle(folder, known)


def settle(folder: Path, known: Collection[str]) -> str | None:
    """Bring what was interrupted to an end: a half apply is taken back, a half undo is finished. What was done, as a
    sentence; None: nothing was interrupted. Raises StateError where somebody has changed a file since."""
    journal = read_journal(folder, known)
    _remove(_temporary(folder / install_journal.NAME))
    if journal is None or journal.state == "applied":
        return None
    back = journal.state == "applying"
    for change in journal.changes:
        if _read(Path(change.file)) not in (change.before, change.after):
            copy = change.copies[-1] if change.copies else "none, it is new"
            raise StateError(
                change.file,
                "was changed while a slurm-share install was interrupted; make it what it is to be, by hand (a copy of "
                f"the old one: {copy}), and then remove {folder / install_journal.NAME}",
            )
    # A program that a file names is there before that file names it, and as long as it does.
    for change in reversed(journal.changes) if back else journal.changes:
        _put(change.file, change.before if back else change.after, change.mode)
    kept = _copies(journal.earlier)
    for change in journal.changes:
        _remove(_temporary(_target(change.file)))
        for file in (Path(name) for name in change.copies if name not in kept):
            _remove(_temporary(file))
            _remove(file)
    if journal.earlier is not None:
        _write_journal(folder, journal.earlier)
    else:
        _remove(folder / install_journal.NAME)
        _sync(folder)
    return "an interrupted --apply was taken back" if back else "an interrupted --undo was finished"


def remove(file: Path) -> None:
    """Remove a file that nothing names any more. Raises StateError."""
    _remove(file)
    _sync(file.parent)


def _put(name: str, data: bytes | None, mode: int = 0o644) -> None:
    """Give a file this content, or none; nothing is written where it has it."""
    file = _target(name)
    if _read(file) == data:
        return
    if data is None:
        _remove(file)
        _sync(file.parent)
    else:
        _write_whole(file, data, like=file, mode=mode)


def replace(name: str, before: bytes | None, after: bytes | None) -> None:
    """Give one file other content, whole, with its owner and mode; None: there is no such file. Raises StateError where
    it cannot be written, is no longer what it was `before`, or is being written by another one."""
    with alone(_target(name).parent):
        _expect(name, before)
        _put(name, after)


def write(name: str, data: bytes) -> None:
    """Write one file, whole, that everybody may read. Raises StateError where it cannot be written, or is being written
    by another process."""
    file = _target(name)
    with alone(file.parent):
        _write_whole(file, data)


def _expect(name: str, data: bytes | None) -> None:
    if _read(Path(name)) != data:
        raise StateError(name, "was changed by somebody else at this moment; nothing was done, write this again")


def _target(name: str) -> Path:
    """Return the file behind a symbolic link, which stays a link. Raises StateError for links that lead in a circle."""
    try:
        return Path(name).resolve()
    except (OSError, RuntimeError) as error:
        raise StateError(name, f"cannot be followed to a file ({error})") from error


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(str(file), f"cannot be read ({error.strerror})") from error


def _write_journal(folder: Path, journal: Journal) -> None:
    _write_whole(folder / install_journal.NAME, install_journal.encode(journal), mode=0o600)


def _write_whole(file: Path, data: bytes, *, like: Path | None = None, mode: int = 0o644) -> None:
    """Through a neighbour and a rename, with owner, mode and security context of `like` where that is there."""
    part = _temporary(file)
    try:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as out:
            out.write(data)
            _take_after(fd, like, mode)
            out.flush()
            os.fsync(fd)
        os.replace(part, file)  # noqa: PTH105 - one name for a test to stop at
        _sync(file.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise StateError(str(file), _why("written", error)) from error


def _take_after(fd: int, like: Path | None, mode: int) -> None:
    try:
        model = like.stat() if like is not None else None
    except FileNotFoundError:
        model = None
    if model is None or like is None:
        os.fchmod(fd, mode)
        return
    os.fchown(fd, model.st_uid, model.st_gid)
    os.fchmod(fd, model.st_mode & 0o7777)
    for name in os.listxattr(like):
        if name == "security.selinux" or name.startswith("system.posix_acl"):
            os.setxattr(fd, name, os.getxattr(like, name))


def _temporary(file: Path) -> Path:
    return file.with_name(f".{file.name}{_PART}")


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise StateError(str(file), _why("removed", error)) from error


def _why(what: str, error: OSError) -> str:
    way_out = _WAYS_OUT.get(error.errno or 0)
    return f"cannot be {what} ({error.strerror})" + (f": {way_out}" if way_out else "")


def _sync(folder: Path) -> None:
    """Renames are kept by their folder; a power cut must not undo one of two. Raises StateError."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise StateError(str(folder), f"cannot be written to disk ({error.strerror})") from error
