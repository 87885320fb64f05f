"""MPS on this node: how a daemon is, who its clients are, what else of MPS runs here. Changes nothing.

A daemon has one connection, which a question to it occupies until the answer. What is watched for long is therefore
read from NVML, and from the kernel: `read_daemon` and `read_processes`.

Where a text below was never seen by us from a real daemon with a server and clients, its source is NVIDIA's manual
(docs.nvidia.com/deploy/mps, v2 interface), and tests/gpu/ compares.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..core.patterns import pattern
from ..core.process import Deadline
from . import control
from . import processes as mp_processes
from .processes import read_daemon as read_daemon
from .processes import read_processes as read_processes
from .records import MpsClient, MpsHealth, MpsPlace, MpsProcess

_NUMBER = pattern(r"[0-9]{1,10}")


def read_health(place: MpsPlace, deadline: Deadline, proc: str = "/proc") -> MpsHealth:
    """Return how the daemon is, as `control.read_health` does; of a silent one also who keeps it busy, where that
    shows."""
    health = control.read_health(place, deadline, proc)
    if health.condition != "silent":
        return health
    idle = mp_processes.front_ends_of(read_processes(proc), place)
    blame = f"; front end {idle[0].pid} of uid {idle[0].uid} is connected" if idle else ""
    return replace(health, why=health.why + blame)


def foreign_daemons(processes: tuple[MpsProcess, ...], root: str) -> tuple[MpsProcess, ...]:
    """Return the daemons that somebody started by other means than ours: never stopped, only named.

    A daemon whose pipe directory is hidden counts as foreign; root sees every one.
    """
    return tuple(
        one for one in processes if one.role == "daemon" and (one.pipe is None or not one.pipe.startswith(f"{root}/"))
    )


def read_client_table(place: MpsPlace, deadline: Deadline) -> tuple[MpsClient, ...]:
    """Return all clients of the daemon with their GPU and command, as its `ps` shows them. Empty in a release
    without `ps`."""
    return parse_client_table(control.ask(place, "ps", deadline))


def parse_client_table(text: str) -> tuple[MpsClient, ...]:
    """Return the clients in the answer to `ps`: PID, ID, SERVER, DEVICE, NAMESPACE, COMMAND under a line of those
    words. Other lines are no clients."""
    rows = (line.split(None, 5) for line in text.splitlines())
    return tuple(
        MpsClient(int(row[0]), int(row[2]), row[3], row[5] if len(row) > 5 else "")
        for row in rows
        if len(row) >= 4 and _NUMBER.fullmatch(row[0]) and _NUMBER.fullmatch(row[2])
    )
