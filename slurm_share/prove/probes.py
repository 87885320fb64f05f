"""The probes: each tries to break one promise (rules/promises.py), and returns what it measured.

A probe gets a stage on which nothing runs, and leaves the clean-up to it. It raises a SlurmShareError or OSError where
it cannot be carried out. The memory probes run with the cap of MPS, and with the driver's limit where there is one.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping

from ..core import process
from ..mps.records import Namespace
from ..mps.rules import namespaces
from .rules.promises import Value
from .stage import Client, Stage

TASK, OTHER = "task", "other"
"""The names of the cgroups of a probe's tasks."""
FAULT_S = 15.0
"""How long a neighbour is watched after a fault, or after the end of its daemon."""
SETTLE_S = 2.0
"""How long a neighbour is watched that is to go on: a fault reaches the clients of a server within a second."""
PERCENT = 25
MISSING = "/nonexistent/slurm-share-prove"
"""A pipe folder without a daemon."""
Found = dict[str, Value]


class Probes:
    """The probes on one stage. `has_limits`: the driver limits the memory of cgroups here."""

    def __init__(self, stage: Stage, *, has_limits: bool, has_mps: bool) -> None:
        self._stage = stage
        self._has_limits = has_limits
        self._has_mps = has_mps

    def run(self, name: str) -> Found:
        """Run a probe by its name in the table of promises."""
        probe: Callable[[], Found] = getattr(self, name)
        return probe()

    # ---- memory ----

    def device_under_mps(self) -> Found:
        return self._most("device", mps=True, limited=False)

    def device_without_mps(self) -> Found:
        return self._most("device", mps=False)

    def unset(self) -> Found:
        kept = {name: value for name, value in self._task().items() if not name.startswith("CUDA_MPS")}
        return self._most_in(kept | {"CUDA_MPS_PIPE_DIRECTORY": MISSING}, "device")

    def mangled(self) -> Found:
        mangled = self._task() | {
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=9999G",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        }
        return self._most_in(mangled, "device")

    def wrong_pipe(self) -> Found:
        return self._most_in(self._task() | {"CUDA_MPS_PIPE_DIRECTORY": MISSING}, "device")

    def unseen_gpu(self) -> Found:
        limit = f"0={self._stage.cap_mib}M,7=1G"
        return self._most_in(self._task() | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit}, "device")

    def forked(self) -> Found:
        client = self._start(self._task(), "fork", "context", f"most:device:{self._stage.limit_mib}", "hold")
        lines = client.wait_for("most", 2)
        return self._bounds(sum(int(line["got_mib"]) for line in lines))

    def second_context(self) -> Found:
        half = f"most:device:{self._stage.cap_mib * 3 // 4}"
        client = self._start(self._task(), "context", half, "second", f"most:device:{self._stage.limit_mib}")
        return self._bounds(sum(int(line["got_mib"]) for line in client.wait_for("most", 2)))

    def asynchronous(self) -> Found:
        return self._most("async")

    def created(self) -> Found:
        return self._most("vmm")

    def managed(self) -> Found:
        return self._most("managed")

    def total(self) -> Found:
        line = self._start(self._task(), "context").wait_for("context")[0]
        return {"total_mib": line["total_mib"], "cap_mib": self._stage.cap_mib}

    def elastic(self) -> Found:
        stage, least = self._stage, self._stage.cap_mib
        most = stage.free_mib - least // 2  # what is left is less than what the other task is sure of
        for group in (TASK, OTHER):
            stage.limit(group, most, least)
        environ = stage.environment(mps=self._has_mps)
        greedy = stage.client(environ, "context", f"most:device:{most}", "hold", group=OTHER)
        above = int(greedy.wait_for("most")[0]["got_mib"])
        asked = least * 3 // 4
        modest = stage.client(environ, "context", f"most:device:{asked}", "hold", group=TASK)
        got = int(modest.wait_for("most")[0]["got_mib"])
        within = modest.ending(SETTLE_S) or ("" if got == asked else f"{got} of {asked} MiB")
        return {"is_above": above > least, "above_mib": above, "got_mib": got, "within": within}

    # ---- parts of the multiprocessors ----

    def percentage(self) -> Found:
        stage = self._stage
        whole = stage.client(stage.environment(mps=True), "context").wait_for("context")[0]["sms"]
        part = stage.environment(mps=True, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(PERCENT))
        line = stage.client(part, "context").wait_for("context")[0]
        return {"sms": line["sms"], "all_sms": whole, "percent": PERCENT}

    def without_partition(self) -> Found:
        self._stage.start_daemon(partitions=2)
        return self._is_refused(self._stage.environment(mps=True))

    def wrong_partition(self) -> Found:
        self._stage.start_daemon(partitions=2)
        wrong = f"{self._stage.gpu.uuid}/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
        return self._is_refused(self._stage.environment(mps=True, CUDA_MPS_SM_PARTITION=wrong))

    def fault_in_partition(self) -> Found:
        found = self._stage.start_daemon(partitions=2).partitions
        assert found is not None, "a daemon with partitions names them"
        one, other = (self._stage.environment(mps=True, CUDA_MPS_SM_PARTITION=name) for name in found.names[:2])
        return self._beside(one, other, lambda client: client.ending(FAULT_S), "fault")

    # ---- protocol 3 ----

    def namespace_memory(self) -> Found:
        return self._most_in(self._in_namespace(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=9999G"), "device", limited=False)

    def namespace_percentage(self) -> Found:
        stage = self._stage
        whole = stage.client(stage.environment(mps=False), "context").wait_for("context")[0]["sms"]
        environ = self._in_namespace(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100")
        line = stage.client(environ, "context").wait_for("context")[0]
        return {"sms": line["sms"], "all_sms": whole, "percent": PERCENT}

    def _in_namespace(self, **others: str) -> dict[str, str]:
        """Start a daemon with one namespace; return the environment of a task in it that lies about its caps."""
        name = namespaces.slot_name(0)
        pipe = self._stage.start_daemon(namespaces=(Namespace(name, self._stage.cap_mib, PERCENT),)).place.pipe
        return self._stage.environment(mps=True) | {
            "CUDA_MPS_PIPE_DIRECTORY": f"{pipe}/{namespaces.SERVER}/{name}",
            **others,
        }

    # ---- faults and ends ----

    def fault_without_mps(self) -> Found:
        environ = self._stage.environment(mps=False)
        return self._beside(environ, environ, lambda client: client.ending(FAULT_S), "fault")

    def killed_in_kernel(self) -> Found:
        def kill(client: Client) -> str:
            client.wait_for("holds")
            client.kill()
            return client.ending(FAULT_S)

        environ = self._stage.environment(mps=True)
        return self._beside(environ, environ, kill, "spin", "hold")

    def daemon_killed(self) -> Found:
        daemon = self._stage.daemon
        client = self._stage.client(self._task(), "context", "most:device:64", "hold")
        client.wait_for("holds")
        for pid in (daemon.daemon.pid, *(one.pid for one in daemon.servers)):
            known = process.identify(pid)
            if known is not None:
                process.end(known, signal.SIGKILL)
        ending = client.ending(FAULT_S)
        return {"ended": ending != "", "with": ending}

    # ---- parts ----

    def _task(self) -> dict[str, str]:
        """Return the environment of a task with its cap, as the plugin sets it."""
        return self._stage.environment(mps=self._has_mps, cap_mib=self._stage.cap_mib if self._has_mps else None)

    def _start(self, environ: Mapping[str, str], *steps: str) -> Client:
        group = ""
        if self._has_limits:
            self._stage.limit(TASK, self._stage.cap_mib)
            group = TASK
        return self._stage.client(dict(environ), *steps, group=group)

    def _most(self, kind: str, *, mps: bool | None = None, limited: bool = True) -> Found:
        has_mps = self._has_mps if mps is None else mps
        environ = self._stage.environment(mps=has_mps, cap_mib=self._stage.cap_mib if has_mps else None)
        return self._most_in(environ, kind, limited=limited)

    def _most_in(self, environ: Mapping[str, str], kind: str, *, limited: bool = True) -> Found:
        steps = ("context", f"most:{kind}:{self._stage.limit_mib}")
        client = self._start(environ, *steps) if limited else self._stage.client(dict(environ), *steps)
        return self._bounds(int(client.wait_for("most")[0]["got_mib"]))

    def _bounds(self, got_mib: int) -> Found:
        return {"got_mib": got_mib, "cap_mib": self._stage.cap_mib}

    def _is_refused(self, environ: dict[str, str]) -> Found:
        client = self._stage.client(environ, "context", "hold")
        end = time.monotonic() + FAULT_S
        while time.monotonic() < end:
            if error := client.failure():
                return {"refused": error}
            if any(line["step"] == "holds" for line in client.lines):
                return {"refused": ""}
            time.sleep(0.05)
        return {"refused": "", "error": "the program neither began nor failed"}

    def _beside(self, one: dict[str, str], other: dict[str, str], end: Callable[[Client], str], *steps: str) -> Found:
        """Start two tasks, let the first one come to its end, and return how both are then."""
        neighbour = self._stage.client(other, "context", "most:device:64", "hold")
        neighbour.wait_for("holds")
        failing = self._stage.client(one, "context", *steps)
        ended = end(failing)
        return {"ended": ended != "", "with": ended, "neighbour": neighbour.ending(SETTLE_S)}
