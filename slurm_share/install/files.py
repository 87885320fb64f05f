"""Atomic, reversible changes of a site's configuration files: all of them or none.

Each file is written under a temporary name and renamed. The journal (install/journal.py) is written first, so that the
next call can roll back or finish the change after a kill -9 or a power cut.
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
from .journal import FileChange, InstallJournal

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
def locked(folder: Path) -> Iterator[None]:
    """Lock the files of a folder. Raises StateError if another process holds the lock.

    The lock is on a file that only root can open: any user who can read the folder could lock the folder itself.
    """
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
                str(file.parent), "another slurm-share is changing files there: wait for it (`lslocks` names it)"
            ) from error
        except FileNotFoundError:
            pass  # the previous holder ended meanwhile and removed the file
        os.close(fd)


def read_journal(folder: Path, known: Collection[str]) -> InstallJournal | None:
    """Read the journal of a folder; None: there is none.

    The journal decides what root writes and removes. Raises StateError if other users can write it, or if it names a
    file that is not in `known`.
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


def apply(folder: Path, changes: tuple[FileChange, ...], date: str, known: Collection[str]) -> None:
    """Make all changes and write the journal. Raises StateError if a file cannot be written or has changed since it was
    read; all files then have their old content."""
    for change in changes:
        _expect(change.file, change.before)
    earlier = read_journal(folder, known)
    whole = install_journal.merged(earlier, changes)
    kept = _copies(earlier)
    # a file that only an earlier apply changed has its present content before and after, so nothing is written
    going = tuple(_for_this_apply(change, changes) for change in whole)
    _write_journal(folder, InstallJournal("applying", date, going, earlier))
    try:
        for change in going:
            for copy in change.copies:
                if copy not in kept and change.before is not None:
                    _write_whole(Path(copy), change.before, like=_target(change.file))
            _put(change.file, change.after, change.mode)
        _write_journal(folder, InstallJournal("applied", date, going))
    except StateError as error:
        settle(folder, known)
        raise StateError(error.file, f"{error.why}; every file is as it was before") from error


def _for_this_apply(change: FileChange, changes: tuple[FileChange, ...]) -> FileChange:
    """Return a change of the journal; for a file that this apply does not touch, with the present content before and
    after."""
    if any(one.file == change.file for one in changes):
        return change
    now = read(Path(change.file))
    return msgspec.structs.replace(change, before=now, after=now)


def _copies(journal: InstallJournal | None) -> frozenset[str]:
    return frozenset(copy for change in journal.changes for copy in change.copies) if journal else frozenset()


def undo(folder: Path, done: InstallJournal, changes: tuple[FileChange, ...], known: Collection[str]) -> None:
    """Make the changes that revert `done`, then remove its copies and the journal. Raises StateError as `apply`
    does."""
    for change in changes:
        _expect(change.file, change.before)
    copies = {change.file: change.copies for change in done.changes}
    changes = tuple(msgspec.structs.replace(change, copies=copies.get(change.file, ())) for change in changes)
    _write_journal(folder, InstallJournal("undoing", done.date, changes))
    settle(folder, known)


def settle(folder: Path, known: Collection[str]) -> str | None:
    """Roll back an interrupted apply, or finish an interrupted undo, and return a sentence about it; None: nothing was
    interrupted. Raises StateError if a file has changed since."""
    journal = read_journal(folder, known)
    _remove(_temporary(folder / install_journal.NAME))
    if journal is None or journal.state == "applied":
        return None
    back = journal.state == "applying"
    for change in journal.changes:
        if read(Path(change.file)) not in (change.before, change.after):
            copy = change.copies[-1] if change.copies else "none, the file is new"
            raise StateError(
                change.file,
                "was changed while a slurm-share install was interrupted; correct it by hand (copy of "
                f"the old file: {copy}), then remove {folder / install_journal.NAME}",
            )
    # a hook script must exist as long as slurm.conf names it
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
    """Remove a file that no other file names. Raises StateError."""
    _remove(file)
    _sync(file.parent)


def _put(name: str, data: bytes | None, mode: int = 0o644) -> None:
    """Write or, for None, remove a file; do nothing if it has this content already."""
    file = _target(name)
    if read(file) == data:
        return
    if data is None:
        _remove(file)
        _sync(file.parent)
    else:
        _write_whole(file, data, like=file, mode=mode)


def replace(name: str, before: bytes | None, after: bytes | None) -> None:
    """Replace the content of one file atomically and keep its owner and mode; None stands for a missing file. Raises
    StateError if it cannot be written, differs from `before`, or is locked by another process."""
    with locked(_target(name).parent):
        _expect(name, before)
        _put(name, after)


def write(name: str, data: bytes) -> None:
    """Write one world-readable file atomically. Raises StateError if it cannot be written or is locked by another
    process."""
    file = _target(name)
    with locked(file.parent):
        _write_whole(file, data)


def _expect(name: str, data: bytes | None) -> None:
    if read(Path(name)) != data:
        raise StateError(name, "was changed by another process meanwhile; nothing was done; run this again")


def _target(name: str) -> Path:
    """Return the target of a symbolic link, so that the link itself stays. Raises StateError for a loop of links."""
    try:
        return Path(name).resolve()
    except (OSError, RuntimeError) as error:
        raise StateError(name, f"cannot be followed to a file ({error})") from error


def read(file: Path) -> bytes | None:
    """Return the content; None: there is no file. Raises StateError if it cannot be read."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(str(file), f"cannot be read ({error.strerror})") from error


def _write_journal(folder: Path, journal: InstallJournal) -> None:
    _write_whole(folder / install_journal.NAME, install_journal.encode(journal), mode=0o600)


def _write_whole(file: Path, data: bytes, *, like: Path | None = None, mode: int = 0o644) -> None:
    """Write a temporary file in the same folder and rename it, with owner, mode and security context of `like` if that
    exists."""
    try:
        files.write(file, data, new=_temporary(file), finish=lambda fd: _copy_attributes(fd, like, mode), flush=True)
    except OSError as error:
        raise StateError(str(file), _why("written", error)) from error
    _sync(file.parent)


def _copy_attributes(fd: int, like: Path | None, mode: int) -> None:
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
    """Flush a folder, so that a power cut does not revert some of several renames. Raises StateError."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise StateError(str(folder), f"cannot be written to disk ({error.strerror})") from error
