"""End file systems in user space (FUSE) that keep a process of their user from being killed.

A process that waits for an answer of such a file system cannot be killed (request_wait_answer in the kernel's
fs/fuse/dev.c): if the user's program never answers, the process stays, with its GPU. The kernel has a folder for each
connection to such a program, which belongs to the user who mounted the file system, in whatever mount namespace
(Documentation/filesystems/fuse.rst). `abort` there ends the file system, and a process that waits for it gets an error.
"""

from __future__ import annotations

import os

from ..core import mounts

TYPE_CHECKING = False  # mypy takes it for True; hooks load this module
if TYPE_CHECKING:
    from collections.abc import Collection

CONNECTIONS = "/sys/fs/fuse/connections"


def end_waited_for(uids: Collection[int], connections: str = CONNECTIONS) -> list[str]:
    """End the FUSE file systems of these users that have not answered a request; return a sentence for each one.

    A file system of root's is never ended. One that cannot be ended is left out.
    """
    said = []
    for name in _names(connections):
        folder = f"{connections}/{name}"
        try:
            uid = os.stat(folder).st_uid  # noqa: PTH116  (pathlib: see hook.py)
            if uid == 0 or uid not in uids or _is_idle(folder):
                continue
            with open(f"{folder}/abort", "w") as file:
                file.write("1")
        except OSError:
            continue  # it has ended meanwhile
        said.append(f"a file system in user space (FUSE connection {name}) of uid {uid} that did not answer was ended")
    return said


def _is_idle(folder: str) -> bool:
    with open(f"{folder}/waiting") as file:
        return file.read().strip() == "0"


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
