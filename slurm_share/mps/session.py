"""MPS for users' own programs: an object that starts, asks, sets and stops one control daemon.

    from slurm_share.mps import ControlDaemon

    with ControlDaemon("/tmp/anna/mps/0", gpu="GPU-5131194a-af6f-47c0-8619-4e91f42a6279") as mps:
        mps.set_percent(25)                                     # of every client that connects from now on
        subprocess.run(["python", "train.py"], env={**os.environ, **mps.client_environment(memory_mib=8192)})

This needs no root: a daemon in a folder of one's own serves one's own programs. One process can use several daemons,
for several GPUs. What takes effect when:

=====================================  =========================================  ====================================
what                                   who gets it                                where it is lost
=====================================  =========================================  ====================================
`defaults=`, `set_default_priority`    servers that start later                   when the daemon ends
`set_percent`, `set_memory_mib`        clients that connect later                 when the server ends
`client_environment(...)`              the program started with it; it can only   with the program
                                       tighten what its server gives
=====================================  =========================================  ====================================

Only `terminate_client` affects a client that is connected. The daemon starts its server at once, so give the defaults
for its first clients to the constructor.

A program with the environment of a dead daemon runs without MPS and does not report it: check `health` first.
"""

from __future__ import annotations

import os
from types import TracebackType

from ..core.errors import MpsServerError
from ..core.process import Deadline
from ..core.records import Owner
from . import control, daemons
from .records import MpsDefaults, MpsHealth, MpsPlace, MpsServer, MpsStarted, MpsStopped

PROGRAM = "/usr/bin/nvidia-cuda-mps-control"


class ControlDaemon:
    """One MPS control daemon, which `start` or the `with` statement starts.

    Every method can raise an MpsError of `slurm_share.core.errors`, whose text is a sentence for users.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        gpu: str,
        *,
        program: str = PROGRAM,
        owner: Owner | None = None,
        defaults: MpsDefaults = daemons.NO_DEFAULTS,
        environment: tuple[tuple[str, str], ...] = (),
        options: tuple[str, ...] = (),
        timeout_s: float = 20.0,
    ) -> None:
        """Describe a daemon. `folder` becomes the pipe directory: absolute, at most 87 bytes, in a folder of the
        caller's own, on a local file system. `gpu` is a UUID (of a GPU or a MIG instance) or several joined by commas;
        MPS would renumber device numbers for the clients. `timeout_s` limits each method.
        """
        own = daemons.owner(os.getuid(), os.getgid()) if owner is None else owner
        self.place = MpsPlace(program, os.fspath(folder), gpu, own, environment, options)
        self._defaults = defaults
        self._timeout_s = timeout_s

    def __enter__(self) -> ControlDaemon:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # ---- Life ----

    def start(self, *, replace: bool = False) -> MpsStarted:
        """Start the daemon with a server that accepts clients, or join it if it runs, as mps.daemons.start does."""
        return daemons.start(self.place, self._deadline(), self._defaults, replace=replace)

    def stop(self) -> MpsStopped:
        """End clients' work, servers and daemon, and remove the folder, as mps.daemons.stop does."""
        return daemons.stop(self.place, self._deadline())

    def health(self) -> MpsHealth:
        """Return the daemon's condition (fine, no server, fault, silent, foreign or dead) and the reason."""
        return control.examine(self.place, self._deadline())

    # ---- Clients ----

    def client_environment(self, *, percent: float | None = None, memory_mib: int | None = None) -> dict[str, str]:
        """Return the variables that make a program a client of this daemon, on its first GPU, with its own limits.

        The memory limit applies to each process and includes its context; beyond it an allocation fails as if the GPU
        were full. It is for device 0 only: an entry for a GPU that the program does not see would void every limit in
        the variable (NVIDIA's Dynamo guide to MPS limits).
        """
        found = {
            "CUDA_MPS_PIPE_DIRECTORY": self.place.pipe,
            "CUDA_MPS_LOG_DIRECTORY": self.place.logs,
            "CUDA_VISIBLE_DEVICES": self.place.gpu,
        }
        if percent is not None:
            found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{percent:g}"
        if memory_mib is not None:
            found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={memory_mib}M"
        return found

    def servers(self) -> tuple[MpsServer, ...]:
        """Return the pids and states of the servers. There are two only while one replaces the other."""
        return control.read_servers(self.place, self._deadline())

    def clients(self) -> tuple[int, ...]:
        """Return the pids of the connected clients."""
        deadline = self._deadline()
        servers = control.read_servers(self.place, deadline)
        return tuple(pid for one in servers for pid in control.read_clients(self.place, one.pid, deadline))

    def terminate_client(self, pid: int) -> bool:
        """End one client's work on the GPU, before it is killed; return False if it is not a client of this daemon."""
        deadline = self._deadline()
        for one in control.read_servers(self.place, deadline):
            if pid in control.read_clients(self.place, one.pid, deadline):
                return daemons.terminate_client(self.place, one.pid, pid, deadline)
        return False

    # ---- Values ----

    def set_default_priority(self, priority: int) -> None:
        """Set the priority of clients that connect later: 0 normal, 1 below normal."""
        daemons.set_default_priority(self.place, priority, self._deadline())

    def percent(self) -> float:
        """Return the active thread percentage of the running server's next clients."""
        deadline = self._deadline()
        return control.read_percent(self.place, self._server(deadline), deadline)

    def set_percent(self, percent: float) -> None:
        """Set the active thread percentage of clients that connect later."""
        deadline = self._deadline()
        daemons.set_percent(self.place, self._server(deadline), percent, deadline)

    def memory_mib(self, device: int = 0) -> int | None:
        """Return the pinned memory, MiB, of the running server's next clients; None: no limit."""
        deadline = self._deadline()
        return control.read_memory_mib(self.place, self._server(deadline), device, deadline)

    def set_memory_mib(self, mib: int, device: int = 0) -> None:
        """Set the pinned memory, MiB, of clients that connect later."""
        deadline = self._deadline()
        daemons.set_memory_mib(self.place, self._server(deadline), device, mib, deadline)

    def ask(self, command: str) -> str:
        """Return the answer to any other command of the control program, such as `lspart` or `device_query`."""
        return control.ask(self.place, command, self._deadline())

    def _server(self, deadline: Deadline) -> int:
        servers = control.read_servers(self.place, deadline)
        if not servers:
            raise MpsServerError(self.place.pipe, "it has no server")
        return servers[0].pid

    def _deadline(self) -> Deadline:
        return Deadline.after(self._timeout_s)
