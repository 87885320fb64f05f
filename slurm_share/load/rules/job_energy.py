"""Charge the energy of a node's GPUs to the tasks and jobs that are on them, sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from ...mps.records import MPS_NAME
from ...node.readings import DriverNow, GpuNow, HostNow
from ...usage import (
    Charge,
    GpuMoment,
    Holder,
    Meter,
    MeterBase,
    MigInstance,
    add_charges,
    mig_holders,
    slices_of,
)
from .job_totals import JobProcess, Key


class StoredNode(Struct, frozen=True, kw_only=True):
    """The counters of energy of a node, for the next agent of this boot."""

    version: int = 1
    boot_id: str = ""
    gpus: dict[str, MeterBase] = {}
    user_mj: dict[int, int] = {}
    unattributed_mj: dict[str, int] = {}


class GpuRise(NamedTuple):
    """The energy of a GPU in one interval, millijoules."""

    total_mj: int
    unattributed_mj: int


class EnergyInterval(NamedTuple):
    """The energy between two samples."""

    charges: Mapping[Key, Charge]
    rises: Mapping[str, GpuRise]
    """By UUID; a MIG instance has that of its GPU."""


class NodeEnergy:
    """The energy of a node's GPUs since the first agent of this boot."""

    def __init__(self, stored: StoredNode | None = None) -> None:
        """Start with the next sample, or go on where an earlier agent stopped."""
        stored = stored or StoredNode()
        self.user_mj = dict(stored.user_mj)
        """User -> energy of all jobs, also of ended ones."""
        self.unattributed_mj = dict(stored.unattributed_mj)
        """GPU -> energy that is charged to no job."""
        self._meter: Meter[Key] = Meter()
        self._meter.resume(stored.gpus)
        self._resumed_at = min((base.at_s for base in stored.gpus.values()), default=None)
        self._at: float | None = None
        """When the last sample was taken, on the kernel's monotonic clock; None: this agent has taken none."""
        self._on: dict[str, dict[int, Key | None]] = {}
        """GPU -> pid -> whom it belonged to at the last sample."""

    @property
    def is_measured(self) -> bool:
        """Return whether there is a GPU whose energy is known."""
        return bool(self.unattributed_mj)

    def was_on(self, uuid: str, number: int) -> bool:
        """Return whether the job with these totals had a process on the GPU at the last sample."""
        return any(key is not None and key[0] == number for key in self._on.get(uuid, {}).values())

    def stored(self, boot_id: str) -> StoredNode:
        """Return what the next agent needs."""
        return StoredNode(
            boot_id=boot_id, gpus=self._meter.bases(), user_mj=self.user_mj, unattributed_mj=self.unattributed_mj
        )

    def add_to_user(self, uid: int, mj: int) -> None:
        """Add energy of a user's job."""
        self.user_mj[uid] = self.user_mj.get(uid, 0) + mj

    def add(
        self,
        driver: DriverNow,
        host: HostNow,
        processes: Sequence[JobProcess],
        only_job: Callable[[str], Key | None],
    ) -> EnergyInterval:
        """Charge the energy since the last sample. `only_job`: whom to charge for a process on a GPU that came and went
        between two samples; None: nobody."""
        used = {
            gpu.uuid: {one.pid: one.sm_time_percent for one in gpu.process_sm}
            for gpu in driver.gpus
            if gpu.process_sm is not None
        }
        shown = {(one.read.pid, use.uuid): use.sm_time_percent for one in processes for use in one.shown.gpus}
        known = {one.read.pid: one for one in processes}
        servers = {one.pid for one in host.processes if one.name.startswith(MPS_NAME)}
        now = {
            gpu.uuid: {
                one.pid: known[one.pid].key(gpu.uuid) if one.pid in known else None
                for one in gpu.processes or ()
                if one.pid not in servers
            }
            for gpu in driver.gpus
        }
        since, before = self._at, self._on
        if since is None and self._resumed_at is not None:
            since, before = self._resumed_at, now  # who is there now was there all the time
        holders = {}
        for gpu in driver.gpus:
            was, its = before.get(gpu.uuid, {}), now[gpu.uuid]
            told = _sm_of(its, was, used.get(gpu.uuid))
            sm = {pid: shown.get((pid, gpu.uuid), percent) for pid, percent in told.items() if pid not in servers}
            holders[gpu.uuid] = _holders(was, its, sm, since, host.at, only_job(gpu.uuid))
        before_mj = {uuid: (gpu.total_mj, gpu.unattributed_mj) for uuid, gpu in self._meter.gpus.items()}
        self._meter.add(host.at, [_moment(gpu, driver, holders) for gpu in driver.gpus if gpu.mig_of is None])
        keys = {one.key for of_gpu in holders.values() for one in of_gpu if one.key is not None}
        charges = {key: add_charges(self._meter.take(key).values()) for key in keys}
        self._at, self._on = host.at, now
        return EnergyInterval(
            {key: charge for key, charge in charges.items() if charge.mj}, self._rises(driver, before_mj)
        )

    def _rises(self, driver: DriverNow, before_mj: Mapping[str, tuple[int, int]]) -> dict[str, GpuRise]:
        rises = {}
        for gpu in driver.gpus:
            meter = self._meter.gpus.get(gpu.mig_of or gpu.uuid)
            if meter is None or (meter.counter_mj is None and meter.power_w is None):
                continue
            total, unattributed = before_mj.get(meter.uuid, (0, 0))
            rise = rises[gpu.uuid] = GpuRise(meter.total_mj - total, meter.unattributed_mj - unattributed)
            if gpu.mig_of is None:
                self.unattributed_mj[gpu.uuid] = self.unattributed_mj.get(gpu.uuid, 0) + rise.unattributed_mj
        return rises


def _moment(gpu: GpuNow, driver: DriverNow, holders: Mapping[str, list[Holder[Key]]]) -> GpuMoment[Key]:
    own = holders[gpu.uuid]
    if gpu.mig_parent:
        instances = [one for one in driver.gpus if one.mig_of == gpu.uuid]
        parts = [
            MigInstance(slices=slices_of(one.name), sm_percent=one.activity.sm_percent, holders=holders[one.uuid])
            for one in instances
        ]
        own = [*own, *mig_holders(parts)]
    return GpuMoment(
        uuid=gpu.uuid,
        name=gpu.name,
        counter_mj=None if gpu.energy_j is None else round(1000 * gpu.energy_j),
        power_w=gpu.power_w,
        holders=own,
        is_empty=gpu.processes is not None and not gpu.processes and not own,
    )


def _sm_of(
    now: Mapping[int, Key | None], before: Mapping[int, Key | None], told: Mapping[int, float] | None
) -> dict[int, float | None]:
    """Return the SM time of every process that was on the GPU since the last sample; None: the driver does not tell."""
    pids = {*now, *before, *(told or ())}
    return {pid: None if told is None else told.get(pid, 0.0) for pid in pids}


def _holders(
    before: Mapping[int, Key | None],
    now: Mapping[int, Key | None],
    sm: Mapping[int, float | None],
    since: float | None,
    until: float,
    only: Key | None,
) -> list[Holder[Key]]:
    """Return who had a GPU since the last sample. Who came or went meanwhile did so in the middle, for all we know."""
    middle = until if since is None else (since + until) / 2
    found: dict[Key | None, Holder[Key]] = {}
    for pid, percent in sm.items():
        if pid in now:
            key, came, went = now[pid], None if pid in before else middle, None
        elif pid in before:
            key, came, went = before[pid], None, middle
        elif percent:
            key, came, went = only, None, middle
        else:
            continue
        have = found.get(key)
        if have is None:
            found[key] = Holder(key, percent, came, went)
            continue
        sums = None if have.sm_percent is None or percent is None else have.sm_percent + percent
        is_early = have.since_s is None or came is None
        is_late = have.until_s is None or went is None
        found[key] = Holder(key, sums, None if is_early else came, None if is_late else went)
    return list(found.values())
