"""SIMULATED work: how much a process is slowed down by its neighbours on the GPU.

A process that works states what it would use alone (`want_sm`, `want_dram`, `want_util` of its client file). Each
process computes its own speed from its own and its neighbours' demand, and adds up its own progress; there is no
coordinator.

The capacity model: if the processes together want U of one GPU's resource (SMs, DRAM), their time on the GPU is
stretched by soft(U) = (1 + U^p)^(1/p), relative to that of a process alone. Only the time that a process spends on the
GPU is stretched. Without MPS the kernels of two processes never run together: they take turns. Against N copies of
ResNet-18 on a V100 (Pan 2021, Table 4) the model is within 3 % of the measured slowdown.
"""

from __future__ import annotations

import binascii
import time

from simgpu import CLASH, Client, Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

SOFTNESS = 2.5
"""p of the capacity model."""
BUSY_FACTOR = 1.3
"""Not all of the host's work overlaps with the GPU's, so a little more than the time on the GPU is stretched."""

LOOK_INTERVAL_S = 0.1
"""Interval at which a process checks whether neighbours have come, changed or gone."""
LOOK_CLOSELY_INTERVAL_S = 1.0
"""Interval at which it reads its neighbours in any case: a killed or stopped process leaves no trace in the folder."""


class Demand:
    """Resource use of a process alone, as ratios of the GPU (SMs, DRAM) and of its own time (busy)."""

    __slots__ = ("busy", "dram", "server", "sm")

    def __init__(self, sm: float, dram: float, busy: float, server: int) -> None:
        self.sm = sm
        self.dram = dram
        self.busy = busy
        self.server = server
        """PID of its MPS server; 0: none, the process takes turns with all others."""


def demand_of(client: Client) -> Demand:
    return Demand(client.want_sm / 100, client.want_dram / 100, client.want_util / 100, client.mps_server)


def soft(use: float) -> float:
    return float((1 + use**SOFTNESS) ** (1 / SOFTNESS))


def stretch(own: Demand, others: Iterable[Demand]) -> float:
    """Return the factor by which a process's time on the GPU grows: that from other clients
    of its MPS server, times that from taking turns with all others."""
    sm, dram, alone = own.sm, own.dram, 0.0
    turns: dict[int, float] = {own.server: own.busy} if own.server else {}
    if not own.server:
        alone = own.busy
    for other in others:
        if other.server and other.server == own.server:
            sm += other.sm
            dram += other.dram
        if other.server:
            turns[other.server] = min(1.0, turns.get(other.server, 0.0) + other.busy)
        else:
            alone += other.busy
    together = max(soft(sm) / soft(own.sm), soft(dram) / soft(own.dram))
    return together * max(1.0, alone + sum(turns.values()))


def slowdown(own: Demand, others: Iterable[Demand], cap_ratio: float = 1.0) -> float:
    """Return time with the neighbours / time alone, at least 1. `cap_ratio`: SMs that MPS allows / SMs wanted;
    `own.sm` is what MPS allows."""
    busy = min(1.0, BUSY_FACTOR * own.busy)
    return (1 - busy) + busy * stretch(own, others) / cap_ratio


class Clash:
    """SIMULATED interference that the capacity model omits, such as in caches: next to at least one process
    with the same tag, the work takes `factor` times as long."""

    __slots__ = ("factor", "number")

    def __init__(self, tag: str, factor: float) -> None:
        self.number = binascii.crc32(tag.encode()) or 1
        """Number of the tag in the client file."""
        self.factor = factor

    def slower(self, others: Iterable[int]) -> float:
        """Return the factor by which the work slows down next to processes with these numbers."""
        return self.factor if self.number in others else 1.0


class Work:
    """Work on a shared GPU, measured in the seconds that it takes alone."""

    def __init__(
        self, context: Context, load: int, util: int, counters: Mapping[str, int], memory_load: int,
        clash: Clash | None = None,
    ) -> None:  # fmt: skip
        self._context = context
        self._clash = clash
        allowed = context.allowed_load(load)
        self._cap_ratio = allowed / load if load else 1.0
        self._load = {"sm": allowed, "mem": memory_load, "util": util, **counters}
        server = 0 if context.mps is None else context.mps.server_pid
        # a stated memory load without DRAM activity is treated as for every other client
        mine = Client(0, {"used": 0, "mps": server, **self._load}, stopped=False)
        self._demand = demand_of(mine)
        self._wants = {"want_sm": mine.want_sm, "want_dram": mine.want_dram, "want_util": mine.want_util}
        if clash is not None:
            self._wants[CLASH] = clash.number
        self.done_s = 0.0
        """Work done, in the seconds that it takes alone."""
        self.speed = 1.0
        """Ratio to the speed alone; 1: as fast as alone."""
        self._changed_ns = -1
        self._read_s = 0.0
        self._stated: tuple[int, ...] = ()
        self._was_stopped = False

    def note_stop(self) -> None:
        """Forget the time since the last check: the process was stopped and has just been continued (SIGCONT)."""
        self._was_stopped = True

    def until(self, done_s: float, said: Callable[[], None] | None = None) -> None:
        """Work until `done_s` is reached; call `said` about every LOOK_INTERVAL_S."""
        self._look()
        last = time.monotonic()
        while (left := done_s - self.done_s) > 1e-9:
            self._context.wait(min(LOOK_INTERVAL_S, left / self.speed))
            now = time.monotonic()
            speed = self.speed
            if self._was_stopped:
                self._was_stopped = False
            else:
                self._look()
                # a neighbour may have changed at any time since `last`: use the mean of both speeds
                self.done_s = min(done_s, self.done_s + (now - last) * (speed + self.speed) / 2)
            last = now
            if said is not None:
                said()

    def _look(self) -> None:
        """Read the neighbours if something may have changed, and state the load at the present speed."""
        changed_ns, now = self._context.clients_changed_ns(), time.monotonic()
        if changed_ns == self._changed_ns and now - self._read_s < LOOK_CLOSELY_INTERVAL_S:
            return
        neighbours = self._context.neighbours()
        others = [demand_of(client) for client in neighbours]
        clash = 1.0 if self._clash is None else self._clash.slower([client.clash for client in neighbours])
        stretched = stretch(self._demand, others) / self._cap_ratio * clash
        slower = slowdown(self._demand, others, self._cap_ratio) * clash
        self.speed = 1 / slower
        load = {name: round(value * self.speed) for name, value in self._load.items()}
        load["util"] = min(100, round(self._load["util"] * stretched / slower))
        if tuple(load.values()) != self._stated:
            self._stated = tuple(load.values())
            self._context.state_load({**load, **self._wants})
        # Our own line changes the folder too. A neighbour's change in between is noticed a second later.
        self._changed_ns, self._read_s = self._context.clients_changed_ns(), now
