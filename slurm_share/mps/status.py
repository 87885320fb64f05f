"""Read the state of MPS on this node: a daemon's state, its clients, and other MPS processes.

A daemon serves one connection at a time. So figures that are read often come from NVML and from the kernel
(`read_daemon`, `read_processes`).

The source of formats that were not seen from a real daemon is NVIDIA's manual (docs.nvidia.com/deploy/mps, v2
interface); tests/gpu/ compares them.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..core.patterns import pattern
from ..core.process import Deadline
from . import control
from .processes import read_daemon as read_daemon
from .processes import read_processes as read_processes
from .records import MpsClient, MpsHealth, MpsPlace, MpsProcess

_NUMBER = pattern(r"[0-9]{1,10}")


def read_health(place: MpsPlace, deadline: Deadline, proc: str = "/proc") -> MpsHealth:
    """Return the daemon's state, as `control.read_health` does; name the front end that keeps a silent one busy, if
    one is connected."""
    health = control.read_health(place, deadline, proc)
    if health.condition != "silent":
        return health
    idle = [one.identity for one in read_processes(proc) if one.role == "front end" and one.pipe == place.pipe]
    blame = f"; front end {idle[0].pid} of uid {idle[0].uid} is connected" if idle else ""
    return replace(health, why=health.why + blame)


def foreign_daemons(processes: tuple[MpsProcess, ...], root: str) -> tuple[MpsProcess, ...]:
    """Return the daemons that are not ours, i.e. whose pipe directory is not below `root`. They are never stopped.

    A daemon whose pipe directory the caller may not read counts as foreign; root can read all.
    """
    return tuple(
        one for one in processes if one.role == "daemon" and (one.pipe is None or not one.pipe.startswith(f"{root}/"))
    )


def read_client_table(place: MpsPlace, deadline: Deadline) -> tuple[MpsClient, ...]:
    """Return all clients of the daemon with GPU and command, from its `ps`; empty in a release without `ps`."""
    return parse_client_table(control.ask(place, "ps", deadline))


def parse_client_table(text: str) -> tuple[MpsClient, ...]:
    """Return the clients in the answer to `ps`, whose columns are PID, ID, SERVER, DEVICE, NAMESPACE, COMMAND; skip
    other lines, such as the header."""
    rows = (line.split(None, 5) for line in text.splitlines())
    return tuple(
        MpsClient(int(row[0]), int(row[2]), row[3], row[5] if len(row) > 5 else "")
        for row in rows
        if len(row) >= 4 and _NUMBER.fullmatch(row[0]) and _NUMBER.fullmatch(row[2])
    )
