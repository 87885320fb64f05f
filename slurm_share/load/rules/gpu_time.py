"""Compute the part of the GPUs' load that a job or a user has, from the same figure that the GPU's line shows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ...mps.records import MPS_NAME
from ...node import windows
from ...node.readings import GpuNow
from ..snapshot import OnGpu, ProcessLoad
from .history import GpuHistory


class GpuTime:
    """The load of each GPU over the last five minutes (SM activity, else utilisation; without windows, the present
    load), divided among its processes as the driver divides SM time."""

    def __init__(
        self,
        gpus: Mapping[str, GpuNow],
        histories: Mapping[str, GpuHistory],
        processes: Sequence[ProcessLoad],
        hidden: Collection[int],
        now: float,
    ) -> None:
        """`hidden`: pids of processes on GPUs that cannot be read."""
        self._gpus, self._histories, self._hidden, self._now = gpus, histories, hidden, now
        self._there: dict[str, list[tuple[int, OnGpu]]] = {}
        for process in processes:
            if not process.name.startswith(MPS_NAME):
                for on in process.gpus:
                    self._there.setdefault(on.uuid, []).append((process.pid, on))

    def of(self, processes: Sequence[ProcessLoad], since: float) -> float | None:
        """Return the load of these processes: 2.0 is two GPUs fully busy, 0.0 if they are on none. None: not known.
        `since`: start of the time that counts, on the kernel's monotonic clock."""
        return self._sum(processes, lambda uuid: since)

    def of_user(self, uid: int, processes: Sequence[ProcessLoad]) -> float | None:
        """Return the load of all processes of a user, on each GPU since the user came to it."""

        def since(uuid: str) -> float | None:
            stay = self._histories[uuid].stays.get(uid) if uuid in self._histories else None
            return None if stay is None else stay.since

        return self._sum(processes, since)

    def _sum(self, processes: Sequence[ProcessLoad], since: Callable[[str], float | None]) -> float | None:
        pids = {process.pid for process in processes}
        total = 0.0
        for uuid in dict.fromkeys(on.uuid for process in processes for on in process.gpus):
            load, part = self._load(uuid, since(uuid)), self._part(uuid, pids)
            if load is None or part is None:
                return None
            total += load * part
        return total / 100

    def _load(self, uuid: str, since: float | None) -> float | None:
        history, gpu = self._histories.get(uuid), self._gpus.get(uuid)
        if history is not None:
            begin = float("-inf") if since is None else since
            for series in (history.sm_percent_windows, history.utilization_percent_windows):
                found = None if series is None else windows.means(series, self._now, begin)
                if found is not None:
                    return found.m5
        return None if gpu is None else gpu.load_percent

    def _part(self, uuid: str, pids: Collection[int]) -> float | None:
        """Return the processes' part of the GPU's load, 0.0 to 1.0; None: others are on it, and the driver does not
        divide SM time."""
        there = self._there.get(uuid, [])
        gpu = self._gpus.get(uuid)
        hidden = [one.pid for one in (gpu.processes if gpu is not None else None) or () if one.pid in self._hidden]
        mine = [on for pid, on in there if pid in pids]
        if len(mine) == len(there) and not hidden:
            return 1.0
        percents = [on.sm_time_percent for _, on in there]
        if any(percent is None for percent in percents):
            return None
        used = {one.pid: one.sm_time_percent for one in (gpu.process_sm if gpu is not None else None) or ()}
        whole = sum(percent or 0.0 for percent in percents) + sum(used.get(pid, 0.0) for pid in hidden)
        if whole <= 0:
            return len(mine) / (len(there) + len(hidden))  # all of them are idle: equal parts
        return sum(on.sm_time_percent or 0.0 for on in mine) / whole
