"""The driver's limits of the tasks' device memory: whether a node has them, and the keeper that sets them.

The keeper (prolog/limits.c) is a program of root's. The plugin starts it in a job's first step, each task asks it, and
an Epilog ends it. plugins/limits_client.h documents its requests.
"""

from __future__ import annotations

import os

from ..core import cgroup_paths, names, process
from ..core.errors import CommandError
from ..core.paths import Paths
from ..core.process import Deadline
from ..node.gpus import driver

TYPE_CHECKING = False  # hooks load this module, and importing `typing` takes time
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..node.records import Gpu

ANSWER_S = 10.0
"""How long a launcher waits for the keeper's answer: SS_LIMITS_ANSWER_MS of plugins/limits_client.h."""
END_S = 8.0
"""How long an Epilog waits for the end of the keeper and of the cgroups that it made."""
_MOST_BYTES = 2048
_DONE, _NOT = "ok", "no "
_DMEM = "dmem"


def read_problems(gpus: Iterable[Gpu], root: str) -> dict[str, str]:
    """Return why the driver cannot limit the memory of cgroups on which of the GPUs. root: the mount of cgroup v2.

    It is tried on our own folder, which is never limited. Raises OSError, DriverError.
    """
    folder = f"{root}/{cgroup_paths.FOLDER}"
    try:
        os.mkdir(folder, 0o755)  # noqa: PTH102  (pathlib: see hook.py)
    except FileExistsError:
        pass
    if uses_dmem(root):
        cgroup_paths.write(f"{root}/cgroup.subtree_control", f"+{_DMEM}")
    return driver.why_no_memory_limits([gpu.uuid for gpu in gpus], folder)


def uses_dmem(root: str) -> bool:
    """Return whether the driver counts device memory through the kernel's controller dmem (Linux 6.14)."""
    if _DMEM not in cgroup_paths.read_controllers(root):
        return False
    try:
        with open(f"{root}/dmem.capacity", encoding="ascii") as file:
            return "nvidia/" in file.read()
    except OSError:
        return False


def ask(path: str, request: str) -> str:
    """Ask the keeper whose socket that is; return why it does not do what is asked, empty: it did."""
    import socket  # hooks do not ask
    import struct

    most = struct.pack("@ll", int(ANSWER_S), 0)  # struct timeval
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            # settimeout() would make connect(2) fail at once while many others wait for the keeper.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, most)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, most)
            one.connect(path)
            one.send(request.encode())
            answer = one.recv(_MOST_BYTES).decode("utf-8", "replace")
    except BlockingIOError:
        return f"the keeper of memory limits did not answer within {ANSWER_S:g} s"
    except OSError as error:
        return f"the keeper of memory limits does not run: {error.strerror}"
    if answer == _DONE:
        return ""
    return answer.removeprefix(_NOT) or "the keeper of memory limits has ended"


def end(paths: Paths, job_id: int, deadline: Deadline) -> str:
    """End a job's keeper, and remove the limits and cgroups that it or a killed one has left. Return the reason if that
    is not possible; empty: nothing is left."""
    folder = paths.job(job_id)
    if not any(os.access(f"{folder}/{name}", os.F_OK) for name in (names.LIMITS_LOCK, names.LIMITS_RECORD)):
        return ""
    try:
        process.run((names.LIMITS_PROGRAM, "end", str(folder)), timeout_s=deadline.at_most(END_S).left())
    except CommandError as error:
        return str(error)
    return ""
