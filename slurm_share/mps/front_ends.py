"""Ask the daemon that runs in a place, whichever protocol it has, and read its state."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ..core.errors import MpsGoneError, MpsRefusedError, MpsSilentError
from ..core.process import Deadline
from ..core.records import ProcessIdentity
from . import control, processes
from .records import MpsHealth, MpsPlace, MpsServer


class FrontEnd(Struct, frozen=True):
    """The questions and orders to a daemon that both protocols have. Each raises as `ask` does."""

    read_servers: Callable[[MpsPlace, Deadline], tuple[MpsServer, ...]]
    read_clients: Callable[[MpsPlace, int, Deadline], tuple[int, ...]]
    """Returns the process ids of the clients of the server with that process id."""
    start_server: Callable[[MpsPlace, Deadline], None]
    """Starts the server before the first client connects."""
    terminate_client: Callable[[MpsPlace, int, int, Deadline], bool]
    """Ends the work of a client, by the process ids of server and client; returns whether it did."""
    tell_quit: Callable[[MpsPlace, Deadline], None]


def of(place: MpsPlace, proc: str = "/proc") -> FrontEnd:
    """Return how to ask the daemon that runs in a place: with its own protocol, whatever a new daemon would have."""
    daemon = processes.read_daemon(place, proc)
    if daemon is not None and processes.read_protocol(daemon.pid, proc) == 3:
        from . import control_v3  # few nodes have it

        return FrontEnd(
            control_v3.read_servers,
            control_v3.read_clients,
            control_v3.start_server,
            control_v3.terminate_client,
            control_v3.tell_quit,
        )
    return FrontEnd(
        control.read_servers,
        control.read_clients,
        control.start_server,
        control.terminate_client,
        control.tell_quit,
    )


def read_health(place: MpsPlace, deadline: Deadline, proc: str = "/proc") -> MpsHealth:
    """Return the daemon's state. A dead daemon takes no time, since the kernel is asked first.

    Raises MpsMissingError and MpsFolderError, which concern this node and this caller, not the daemon.
    """
    holder = processes.lock_holder(place, proc)
    if holder is None:
        return MpsHealth("dead", None, why="no process holds its lock")
    if not processes.is_daemon(holder, place):
        return MpsHealth("foreign", holder, why=processes.describe_foreign(holder))
    try:
        servers = of(place, proc).read_servers(place, deadline)
    except (MpsSilentError, MpsRefusedError) as error:
        return MpsHealth("silent", holder, why=error.why)
    except MpsGoneError:
        # It has just died, or its sockets were removed so that no client can connect.
        return MpsHealth(
            "dead" if processes.read_daemon(place, proc) is None else "silent", holder, why="its socket is gone"
        )
    return _health_of(holder, servers)


def examine(place: MpsPlace, deadline: Deadline, proc: str = "/proc") -> MpsHealth:
    """Return the daemon's state, as `read_health` does; name the front end that keeps a silent one busy, if one is
    connected."""
    health = read_health(place, deadline, proc)
    if health.condition != "silent":
        return health
    found = processes.read_processes(proc)
    idle = [one.identity for one in found if one.role == "front end" and one.pipe == place.pipe]
    blame = f"; front end {idle[0].pid} of uid {idle[0].uid} is connected" if idle else ""
    return replace(health, why=health.why + blame)


def _health_of(daemon: ProcessIdentity, servers: tuple[MpsServer, ...]) -> MpsHealth:
    faulty = [server.pid for server in servers if server.status == "FAULT"]
    if faulty:
        why = f"server {faulty[0]} is in FAULT: a program on this GPU failed; new ones get CUDA error 807 until the"
        return MpsHealth("fault", daemon, servers, f"{why} others have ended")
    if any(server.status in ("ACTIVE", None) for server in servers):
        return MpsHealth("fine", daemon, servers)
    return MpsHealth("no server", daemon, servers, "it has no server that accepts clients")
