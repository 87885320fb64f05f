"""End file systems in user space (FUSE) that keep a process of their user from being killed.

A process that waits for an answer of such a file system cannot be killed (request_wait_answer in the kernel's
fs/fuse/dev.c): if the user's program never answers, the process stays, with its GPU. The kernel has a folder for each
connection to such a program, which belongs to the user who mounted the file system, in whatever mount namespace
(Documentation/filesystems/fuse.rst). `abort` there ends the file system, and a process that waits for it gets an error.
"""

from __future__ import annotations

import os
import time

from ..core import mounts

TYPE_CHECKING = False  # mypy takes it for True; hooks load this module
if TYPE_CHECKING:
    from collections.abc import Collection

CONNECTIONS = "/sys/fs/fuse/connections"
LOOKS, PAUSE_S = 20, 0.025
"""How often, and with which pause in seconds, a file system is looked at before it counts as one that does not answer.
One that answers owes nothing at one of these moments, however busy it is."""


def end_waited_for(uids: Collection[int], connections: str = CONNECTIONS) -> list[str]:
    """End the FUSE file systems of these users that leave a request unanswered; return a sentence for each one.

    A file system of root's is never ended, and none that answers, such as the container image of another job of the
    user. One that cannot be ended is left out.
    """
    found = {name: files for name in _names(connections) if (files := _opened(f"{connections}/{name}", uids))}
    said = []
    try:
        silent = {name: files for name, files in found.items() if not _is_idle(files[1])}
        for _ in range(LOOKS if silent else 0):
            time.sleep(PAUSE_S)
            silent = {name: files for name, files in silent.items() if not _is_idle(files[1])}
        for name, (uid, _, abort) in silent.items():
            try:
                os.write(abort, b"1")
            except OSError:
                continue  # it has ended meanwhile
            what = f"a file system in user space (FUSE connection {name}) of uid {uid}"
            said.append(f"{what} that did not answer was ended")
    finally:
        for _, *opened in found.values():
            for fd in opened:
                os.close(fd)
    return said


def _opened(folder: str, uids: Collection[int]) -> tuple[int, int, int] | None:
    """Return the owner of a connection, its open folder and its open file `abort`; None: there is nothing to end.

    The kernel gives a connection's number to the next one, which can be another user's. What is open stays with the
    connection that it was opened for.
    """
    try:
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None  # it has ended meanwhile
    uid = os.fstat(parent).st_uid
    if uid != 0 and uid in uids:
        try:
            return uid, parent, os.open("abort", os.O_WRONLY | os.O_CLOEXEC, dir_fd=parent)
        except OSError:
            pass
    os.close(parent)
    return None


def _is_idle(folder: int) -> bool:
    """Return whether no request waits for an answer, or the connection has ended."""
    try:
        fd = os.open("waiting", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)  # the kernel's file cannot be read twice
        with open(fd) as file:
            return file.read().strip() in ("", "0")
    except OSError:
        return True


def _names(connections: str) -> list[str]:
    """Return the names of all connections. Mount their file system if nobody has, as systemd does."""
    try:
        found = os.listdir(connections)  # noqa: PTH208
        if not found and connections == CONNECTIONS:
            mounts.mount("fusectl", connections, "fusectl")
            found = os.listdir(connections)  # noqa: PTH208
    except OSError:
        return []  # this kernel has no FUSE, or has not loaded it: nobody has mounted one
    return found
