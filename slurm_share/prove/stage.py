"""The things that the probes of `slurm-share prove` use: programs of a user, his MPS daemons, and cgroups with limits.

All of it is below one folder and in one set of cgroups, and a lock on a file there is held meanwhile. `clean` ends and
removes all, so the next call also removes what a kill -9 left; the doctor finds such a folder without a holder. The
programs end by themselves when this process does (cuda_program.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ..core import cgroup_paths, locks, process
from ..core.errors import DriverError, SlurmShareError, StateError
from ..core.process import Deadline
from ..core.records import DaemonGroup, Owner
from ..mps import cgroups, daemons
from ..mps.records import MpsPlace, MpsStarted, Namespace
from ..node.gpus import driver as nvml
from ..node.records import Gpu

FOLDER = Path("/run/slurm-share.prove")
LOCK = "lock"
GROUPS = "prove-"
"""How the names of the cgroups of probes begin."""
CGROUP_ROOT = "/sys/fs/cgroup"
PROGRAM = Path(__file__).with_name("cuda_program.py")
SIMULATED_PROGRAM = "simgpu-task"
STEP_S, START_S, STOP_S = 60.0, 30.0, 15.0
"""The most seconds for the steps of a program, for starting an MPS daemon, and for stopping one."""
POLL_S = 0.02
MIB = 1 << 20
_KEPT = ("LD_LIBRARY_PATH", "SIMGPU_STATE", "SIMMPS_DRIVER", "PATH")

Line = dict[str, Any]


class Client:
    """A program of the user's that does steps (cuda_program.py), and the lines that it has written."""

    def __init__(self, stream: process.Stream) -> None:
        self._stream = stream
        self.lines: list[Line] = []

    def wait_for(self, step: str, count: int = 1, seconds: float = STEP_S) -> list[Line]:
        """Return the first `count` lines of a step. Raises StateError if they do not come, with what came instead."""
        deadline = Deadline.after(seconds)
        while deadline.left() > 0:
            is_over = self._stream.code is not None
            self._read()
            found = [line for line in self.lines if line.get("step") == step]
            failed = self.failure()
            if len(found) >= count:
                return found[:count]
            if failed or is_over:
                raise StateError("the program", failed or f"ended without {step} ({self._said()})")
            time.sleep(POLL_S)
        raise StateError("the program", f"did not come to {step} within {seconds:g} s")

    def failure(self) -> str:
        """Return the error of the step that ended the program; empty: none."""
        self._read()
        return next((str(line["error"]) for line in self.lines if line.get("error")), "")

    def ending(self, seconds: float = 10.0) -> str:
        """Wait until the program has ended or `seconds` have passed; return its error, or that it ended without one;
        empty: it still runs."""
        code = self._stream.wait(seconds)
        failed = self.failure()
        return failed or ("" if code is None else f"exit code {code}")

    def kill(self) -> None:
        """Send SIGKILL to the program."""
        self._stream.kill()

    def stop(self) -> None:
        """End the program."""
        self._stream.stop(Deadline.after(3.0))

    def _said(self) -> str:
        self._read()
        return self._stream.said.strip().rpartition("\n")[2][:200] or f"exit code {self._stream.code}"

    def _read(self) -> None:
        for text in self._stream.lines():
            with contextlib.suppress(ValueError):
                self.lines.append(json.loads(text))


class Stage:
    """One GPU and one user for the time of a proof."""

    def __init__(self, gpu: Gpu, owner: Owner, mps_program: str, cap_mib: int, free_mib: int) -> None:
        self.gpu, self.owner = gpu, owner
        self.cap_mib = cap_mib
        """The cap that the probes set."""
        self.free_mib = free_mib
        """The memory of the GPU that nobody has."""
        self.limit_mib = 2 * cap_mib
        """At how much a program that gets more than its cap stops."""
        self._mps_program = mps_program
        self._clients: list[Client] = []
        self._number = 0
        self._daemon: MpsStarted | None = None

    # ---- MPS ----

    def start_daemon(self, partitions: int = 0, namespaces: tuple[Namespace, ...] = ()) -> MpsStarted:
        """Start the user's MPS daemon on the GPU; with namespaces one of protocol 3. Raises a SlurmShareError."""
        self._number += 1
        place = MpsPlace(
            self._mps_program,
            str(FOLDER / "m" / str(self._number)),
            self.gpu.uuid,
            self.owner,
            tuple((name, os.environ[name]) for name in _KEPT if name in os.environ and name != "PATH"),
            partitions=partitions,
            protocol=3 if namespaces else 2,
            namespaces=namespaces,
        )
        self._daemon = daemons.start(place, Deadline.after(START_S))
        return self._daemon

    @property
    def daemon(self) -> MpsStarted:
        """Return the daemon that runs; start one without partitions if there is none."""
        return self._daemon or self.start_daemon()

    # ---- programs ----

    def environment(self, *, mps: bool, cap_mib: int | None = None, **others: str) -> dict[str, str]:
        """Return the environment of a task: with the daemon's folder, or with an empty one."""
        (FOLDER / "empty").mkdir(mode=0o711, exist_ok=True)
        pipe = self.daemon.place.pipe if mps else str(FOLDER / "empty")
        found = {name: os.environ[name] for name in _KEPT if name in os.environ}
        found |= {"CUDA_VISIBLE_DEVICES": self.gpu.uuid, "CUDA_MPS_PIPE_DIRECTORY": pipe}
        if cap_mib is not None:
            found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={cap_mib}M"
        return found | others

    def client(self, environ: dict[str, str], *steps: str, group: str = "") -> Client:
        """Start a program as the user. `group`: the name of its cgroup, which `limit` has made."""
        program = (
            [shutil.which(SIMULATED_PROGRAM) or SIMULATED_PROGRAM, "--steps"]
            if self.gpu.simulated
            else [sys.executable, "-I", "-c", PROGRAM.read_text(encoding="utf-8")]
        )
        owned = self._group(group) if group else None
        made = Client(process.stream([*program, *steps], env=environ, owner=self.owner, group=owned))
        self._clients.append(made)
        return made

    def end_clients(self) -> None:
        """End all programs."""
        for one in self._clients:
            one.kill()
        for one in self._clients:
            one.stop()
        self._clients.clear()

    # ---- limits of the driver ----

    def limit(self, group: str, hard_mib: int, soft_mib: int = 0) -> None:
        """Make a cgroup and let the driver limit the memory of its processes. Raises DriverError, OSError."""
        owned = self._group(group)
        cgroups.make(owned, Deadline.after(5.0))
        folder = self._folder(group)
        _enable_dmem(folder)
        nvml.set_memory_limits(self.gpu.uuid, folder, soft_mib * MIB, hard_mib * MIB)
        read = nvml.read_memory_limits(self.gpu.uuid, folder)
        if read is None or read[1] != hard_mib * MIB:
            raise DriverError("memory limits", f"set to {hard_mib} MiB, and read back as {read}")

    def _group(self, name: str) -> DaemonGroup:
        return DaemonGroup(CGROUP_ROOT, self.owner.uid, f"{GROUPS}{name}")

    def _folder(self, name: str) -> str:
        return cgroup_paths.folders(self._group(name))[0][1]

    # ---- the end ----

    def reset(self) -> None:
        """End what a probe has started, so that the next one begins with nothing."""
        self.end_clients()
        if self._daemon is not None:
            place, self._daemon = self._daemon.place, None
            daemons.stop(place, Deadline.after(STOP_S))
        _end_groups({self.owner.uid})


def _enable_dmem(folder: str) -> None:
    """Enable the dmem controller from the root of the tree down to a cgroup, where the kernel has it."""
    above = Path(folder).parent
    for one in (*reversed(above.parents), above):
        if one.is_relative_to(CGROUP_ROOT):
            with contextlib.suppress(OSError):
                (one / "cgroup.subtree_control").write_text("+dmem")


def _end_groups(uids: Collection[int] | None = None) -> None:
    """End and remove the cgroups of probes, of these users or of all. Their limits go first: what a soft limit
    guarantees would stay reserved above a cgroup that is gone."""
    groups = [one for one in cgroup_paths.read_groups(CGROUP_ROOT) if one.name.startswith(GROUPS)]
    wanted = [one for one in groups if uids is None or one.uid in uids]
    uuids: list[str] = []
    if wanted:
        with contextlib.suppress(DriverError):
            uuids = [gpu.uuid for gpu in nvml.read_driver().gpus if gpu.problem is None]
    for group in wanted:
        for _, folder in cgroup_paths.folders(group):
            for uuid in uuids:
                with contextlib.suppress(DriverError):
                    nvml.set_memory_limits(uuid, folder, 0, nvml.NO_LIMIT)
        cgroups.end(group, Deadline.after(5.0))


@contextlib.contextmanager
def alone(mps_program: str) -> Iterator[None]:
    """Hold the lock of a proof on this host; remove what an earlier one left, and everything at the end.

    Raises StateError if another one runs.
    """
    FOLDER.mkdir(mode=0o711, exist_ok=True)
    fd = os.open(FOLDER / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not locks.take(fd, Deadline.after(1.0), 0.1):
            raise StateError(str(FOLDER), "is in use: another `slurm-share prove` runs on this host")
        clean(mps_program)
        try:
            yield
        finally:
            clean(mps_program)
            shutil.rmtree(FOLDER, ignore_errors=True)
    finally:
        os.close(fd)


def clean(mps_program: str) -> None:
    """End all daemons and cgroups of earlier proofs, and remove their folders. The caller holds the lock."""
    from ..mps import processes

    for one in processes.read_processes():
        if one.role == "daemon" and one.pipe is not None and one.pipe.startswith(f"{FOLDER}/"):
            with contextlib.suppress(SlurmShareError, OSError):
                owner = daemons.owner_by_name(one.identity.uid or 0)
                daemons.stop(MpsPlace(mps_program, one.pipe, "", owner), Deadline.after(STOP_S))
    _end_groups()
    shutil.rmtree(FOLDER / "m", ignore_errors=True)
    shutil.rmtree(FOLDER / "empty", ignore_errors=True)


def is_left(folder: Path | None = None) -> bool:
    """Return whether a proof was killed and has left its folder (default: FOLDER). Only root sees whether one runs."""
    place = folder or FOLDER
    try:
        fd = os.open(place / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:
        return False
    except OSError:
        return place.is_dir()
    try:
        return locks.take(fd, Deadline.after(0.0), POLL_S)
    finally:
        os.close(fd)
