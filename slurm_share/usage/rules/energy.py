"""Divide the energy of GPUs among those who had them: jobs, or the tasks of a run.

A GPU counts its energy since the driver was loaded (nvmlDeviceGetTotalEnergyConsumption, millijoules, Volta and newer).
`Meter` gets a sample now and then and divides each difference of the counter:

1. The idle part, idle power times time, in equal parts among those who had the GPU, moment by moment. The part of
   moments in which nobody had it is nobody's.
2. The rest by SM time (nvmlDeviceGetProcessUtilization). A holder whose SM time is not known gets the part that equal
   division would give; so does everybody if nobody's SM time is known, or all are 0.
3. What falls to processes that belong to no key is nobody's, too: it is never spread over the others.

All sums are whole millijoules, and the remainder of a division goes to the largest part. So the charges of a GPU and
what is nobody's add up to the differences of its counter exactly.

Where the counter cannot be used, the mean power of two samples times the time between them takes its place: the driver
has no counter, it fell (a GPU reset, a driver reload), or it rose by more than `MOST_W`. Without power either, the
interval is left out, and `GpuMeter.missing_s` says for how long.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, Literal, TypeVar

from msgspec import Struct

from ..records import EnergyRule, EnergyUse, GpuEnergy

MOST_W = 2000.0
"""More than any GPU draws (NVIDIA B300: 1,400 W), watts. A counter that rises faster was reset in between."""
COUNTER_LAG_S = 0.5
"""Longest time in which the driver does not renew the counter, with a margin: it renews it every 20 to 100 ms. Between
two samples that are nearer than this, it may rise by the energy of a longer time."""
GAP_S = 30.0
"""Longest time between two samples, in seconds, over which power times time or SM time stands for all of it."""
IDLE_QUANTILE = 0.05
"""Idle power is this quantile of the power of an empty GPU: it still draws more for seconds after its last kernel."""
IDLE_SAMPLES = 3
"""Fewest samples of an empty GPU whose power is preferred to that of `IDLE_W`."""
RULE_PART = 0.01
"""A rule that made up less than this part of a charge does not name it."""
IDLE_W: Mapping[str, float] = {"A100-SXM4-40GB": 51.0, "H100 80GB HBM3": 70.0}
"""Part of a GPU's name -> its idle power without a context, in watts, for a GPU that was never seen empty.

Medians of ten public listings of nvidia-smi each, of GPUs with 0 MiB in use: 43 to 62 W, and 68 to 74 W. V100 (20 to
47 W) and T4 (9 to 34 W) are not in it: their listings differ by more than two times.
"""

_RULES: tuple[EnergyRule, ...] = ("counter", "sm time", "equal parts", "power")
"""The most exact one first."""
_COUNTER, _SM_TIME, _EQUAL_PARTS, _POWER = range(4)
_SLICES = re.compile(r"\bMIG (?:\d+c\.)?(\d+)g\.")

K = TypeVar("K", bound=Hashable)


class Holder(Struct, Generic[K], frozen=True, gc=False):
    """A job or task that had a GPU in the time since the sample before, or a part of that time."""

    key: K | None = None
    """Whom to charge; several holders may have the same key. None: processes that belong to no key."""
    sm_percent: float | None = None
    """SM time of its processes in that time, 0 to 100; None: not known. Of a MIG instance: see `mig_holders`."""
    since_s: float | None = None
    """When it got the GPU, on the clock of `Meter.add`; None: it had it at the sample before."""
    until_s: float | None = None
    """When it gave it back; None: it still has it."""


class GpuMoment(Struct, Generic[K], frozen=True, gc=False, kw_only=True):
    """One GPU at one sample. Of a GPU with MIG: the parent, with the holders of all its instances."""

    uuid: str
    name: str = ""
    """As the driver names it; for `IDLE_W`."""
    counter_mj: int | None = None
    """Energy since the driver was loaded, millijoules; None: the driver does not tell."""
    power_w: float | None = None
    holders: Sequence[Holder[K]] = ()
    """All who had it since the sample before, also those who have given it back."""
    is_empty: bool = False
    """The driver lists processes, and there is none on it: `power_w` is idle power. False: also if it does not list
    them."""


class MigInstance(Struct, Generic[K], frozen=True, gc=False, kw_only=True):
    """One MIG instance at one sample."""

    slices: int
    """Its compute slices (`slices_of`)."""
    sm_percent: float | None = None
    """Its SM activity (GPM); None: not known."""
    holders: Sequence[Holder[K]] = ()


class Charge(Struct, frozen=True, gc=False, kw_only=True):
    """The energy of one GPU that one key is charged with, in millijoules."""

    mj: int = 0
    idle_mj: int = 0
    """The part of `mj` that is its part of the idle power."""
    by_rule_mj: tuple[int, int, int, int] = (0, 0, 0, 0)
    """`mj` by rule: counter, sm time, equal parts, power."""

    @property
    def rule(self) -> EnergyRule:
        """Return the least exact rule that made up at least `RULE_PART` of the energy."""
        for rule, part in zip(reversed(_RULES), reversed(self.by_rule_mj), strict=True):
            if part > 0 and part >= RULE_PART * self.mj:
                return rule
        return "counter"

    def plus(self, mj: int, idle_mj: int, rule: int) -> Charge:
        """Return the charge with more energy. `rule`: its place in counter, sm time, equal parts, power."""
        by = list(self.by_rule_mj)
        by[rule] += mj
        return Charge(mj=self.mj + mj, idle_mj=self.idle_mj + idle_mj, by_rule_mj=(by[0], by[1], by[2], by[3]))

    def use(self) -> EnergyUse:
        """Return it as the record that is kept."""
        return EnergyUse(joules=self.mj / 1000, idle_j=self.idle_mj / 1000, rule=self.rule)


def add_charges(charges: Iterable[Charge]) -> Charge:
    """Return the sum of charges, such as those of several GPUs or tasks."""
    mj, idle, by = 0, 0, [0, 0, 0, 0]
    for one in charges:
        mj, idle = mj + one.mj, idle + one.idle_mj
        by = [a + b for a, b in zip(by, one.by_rule_mj, strict=True)]
    return Charge(mj=mj, idle_mj=idle, by_rule_mj=(by[0], by[1], by[2], by[3]))


class MeterBase(Struct, frozen=True, gc=False, kw_only=True):
    """The last sample of one GPU, from which another meter can go on."""

    at_s: float
    name: str = ""
    counter_mj: int | None = None
    power_w: float | None = None
    idle: dict[int, int] = {}
    """Tenths of a watt -> samples of the empty GPU."""


class GpuMeter:
    """The energy of one GPU since its first sample."""

    def __init__(self, uuid: str, name: str, base: MeterBase | None = None) -> None:
        """Start with the next sample, or go on from `base`."""
        self.uuid, self.name = uuid, name
        self.total_mj = 0
        """Sum of all intervals: all charges, and `unattributed_mj`."""
        self.unattributed_mj = 0
        self.measured_s = 0.0
        """Time of the intervals in `total_mj`."""
        self.power_s = 0.0
        """Time of those that are power times time."""
        self.missing_s = 0.0
        """Time of intervals without a counter and without power: their energy is not known."""
        self.resets = 0
        """Number of times that the counter fell, or rose by more than `MOST_W`."""
        self.charged = Charge()
        """The sum of all charges, of those that were taken, too."""
        self.at_s = None if base is None else base.at_s
        self.counter_mj = None if base is None else base.counter_mj
        self.power_w = None if base is None else base.power_w
        self._idle: Counter[int] = Counter({} if base is None else base.idle)
        """Tenths of a watt -> samples of the empty GPU."""
        self._owed_mj = 0.0
        """Idle energy of earlier time that the counter had not shown yet."""

    @property
    def unit(self) -> GpuEnergy:
        """Return its sums as the record that is kept."""
        return GpuEnergy(
            uuid=self.uuid,
            unattributed_j=self.unattributed_mj / 1000,
            total_j=self.total_mj / 1000,
            measured_s=round(self.measured_s, 3),
            idle_w=self.idle_w,
            notes=tuple(self.sentences()),
        )

    @property
    def idle_source(self) -> Literal["measured", "table", "unknown"]:
        """Return where `idle_w` is from."""
        count = self._idle.total()
        if count >= IDLE_SAMPLES or (count and table_idle_w(self.name) is None):
            return "measured"
        return "table" if table_idle_w(self.name) is not None else "unknown"

    @property
    def idle_w(self) -> float | None:
        """Return the idle power; None: not known, so the idle part of its energy is taken to be 0."""
        if self.idle_source != "measured":
            return table_idle_w(self.name)
        left = IDLE_QUANTILE * self._idle.total()
        for tenths in sorted(self._idle):
            left -= self._idle[tenths]
            if left <= 0:
                return tenths / 10
        raise AssertionError  # the counts add up to more than the quantile

    @property
    def idle_samples(self) -> dict[int, int]:
        """Return tenths of a watt -> samples of the empty GPU."""
        return dict(self._idle)

    def note_idle(self, power_w: float) -> None:
        """Record the power of the empty GPU."""
        if 0 <= power_w <= MOST_W:
            self._idle[round(10 * power_w)] += 1

    def sentences(self) -> list[str]:
        """Return what a reader of its figures should know, as sentences without the GPU's name."""
        said = []
        if self.resets:
            times = "once" if self.resets == 1 else f"{self.resets} times"
            said.append(f"its energy counter went back or jumped {times} (a GPU reset, or the driver was reloaded)")
        if self.power_s:
            said.append(f"for {self.power_s:.0f} s without a usable counter its energy is power times time")
        if self.missing_s:
            said.append(f"for {self.missing_s:.0f} s the driver told neither energy nor power: they are left out")
        if self.measured_s and self.idle_source == "unknown":
            said.append("its idle power is not known, as it was never seen empty: nothing is divided as idle power")
        return said

    # ---- One interval ----

    def interval_mj(self, gpu: GpuMoment[K], seconds: float) -> tuple[int, bool] | None:
        """Return the energy since the last sample, and whether the counter told it; None: not known."""
        if self.counter_mj is not None and gpu.counter_mj is not None:
            rise = gpu.counter_mj - self.counter_mj
            if 0 <= rise <= 1000 * MOST_W * (seconds + COUNTER_LAG_S):
                return rise, True
            self.resets += 1
        powers = [power for power in (self.power_w, gpu.power_w) if power is not None and 0 <= power <= MOST_W]
        if not powers or seconds > GAP_S:
            return None
        return round(1000 * seconds * sum(powers) / len(powers)), False

    def idle_mj(self, energy_mj: int, seconds: float) -> int | None:
        """Return the idle part of an interval's energy; None: idle power is not known."""
        idle_w = self.idle_w
        if idle_w is None:
            return None
        due = 1000 * idle_w * seconds + self._owed_mj
        idle = min(energy_mj, round(due))
        self._owed_mj = min(max(due - idle, 0.0), 1000 * idle_w * COUNTER_LAG_S)
        return idle


class Meter(Generic[K]):
    """Divides the energy of a node's GPUs among keys: numbers of jobs, or of tasks with their attempt.

    `add` gets samples with rising time. The first sample of a GPU is its base; each later one charges the interval
    since the one before. A GPU that is missing from a sample is charged over the longer interval when it is back. The
    meter keeps a key's charges until `take`.
    """

    def __init__(self) -> None:
        self.gpus: dict[str, GpuMeter] = {}
        """By UUID, in the order in which they were first seen."""
        self._charges: dict[K, dict[str, Charge]] = {}

    def add(self, at_s: float, gpus: Iterable[GpuMoment[K]]) -> None:
        """Charge the intervals since the last sample of each GPU. `at_s`: a monotonic clock, seconds.

        A sample that is not newer than the last one of its GPU is ignored.
        """
        for gpu in gpus:
            meter = self.gpus.get(gpu.uuid)
            if meter is None:
                meter = self.gpus[gpu.uuid] = GpuMeter(gpu.uuid, gpu.name)
            before = meter.at_s
            if before is not None and at_s <= before:
                continue
            if gpu.is_empty and gpu.power_w is not None:
                meter.note_idle(gpu.power_w)
            if before is not None:
                self._charge(meter, gpu, before, at_s)
            meter.at_s, meter.counter_mj, meter.power_w = at_s, gpu.counter_mj, gpu.power_w

    def bases(self) -> dict[str, MeterBase]:
        """Return the last sample of each GPU by UUID, for `resume`."""
        return {
            uuid: MeterBase(
                at_s=gpu.at_s, name=gpu.name, counter_mj=gpu.counter_mj, power_w=gpu.power_w, idle=gpu.idle_samples
            )
            for uuid, gpu in self.gpus.items()
            if gpu.at_s is not None
        }

    def resume(self, bases: Mapping[str, MeterBase]) -> None:
        """Go on from another meter's last samples, whose clock must be the same: the next sample charges the time since
        then."""
        for uuid, base in bases.items():
            self.gpus[uuid] = GpuMeter(uuid, base.name, base)

    def charges(self, key: K) -> dict[str, Charge]:
        """Return UUID -> what the key has been charged with so far."""
        return dict(self._charges.get(key, {}))

    def take(self, key: K) -> dict[str, Charge]:
        """Return UUID -> what the key has been charged with, and forget it: it has ended."""
        return self._charges.pop(key, {})

    def _charge(self, meter: GpuMeter, gpu: GpuMoment[K], since_s: float, until_s: float) -> None:
        seconds = until_s - since_s
        found = meter.interval_mj(gpu, seconds)
        if found is None:
            meter.missing_s += seconds
            return
        energy, is_counted = found
        meter.total_mj += energy
        meter.measured_s += seconds
        meter.power_s += 0.0 if is_counted else seconds
        parts = divide_interval(
            energy, meter.idle_mj(energy, seconds), gpu.holders, since_s, until_s, has_sm=seconds <= GAP_S
        )
        charged = 0
        for holder, mj, idle, rule in parts:
            if holder.key is None or not mj:
                continue
            charged += mj
            its = self._charges.setdefault(holder.key, {})
            place = rule if is_counted else _POWER
            its[gpu.uuid] = its.get(gpu.uuid, Charge()).plus(mj, idle, place)
            meter.charged = meter.charged.plus(mj, idle, place)
        meter.unattributed_mj += energy - charged


def divide_interval(
    energy_mj: int,
    idle_mj: int | None,
    holders: Sequence[Holder[K]],
    since_s: float,
    until_s: float,
    *,
    has_sm: bool = True,
) -> list[tuple[Holder[K], int, int, int]]:
    """Divide the energy of one GPU in one interval.

    Return (holder, its energy, the idle part of that, place of the rule) for each holder; what is missing from
    `energy_mj` is nobody's. `idle_mj`: the idle part of the energy; None: not known. Then moments in which nobody had
    the GPU count as the others. `has_sm` False: the interval is too long for the SM time of its end.
    """
    present, free_s = _presence(holders, since_s, until_s)
    covered_s = sum(present)
    if covered_s <= 0:
        return []
    is_single = len({holder.key for holder, had_s in zip(holders, present, strict=True) if had_s > 0}) == 1
    is_idle_known, idle = idle_mj is not None, idle_mj or 0
    rest = energy_mj - idle
    idle_parts = divide(idle, [*present, free_s])[:-1]
    if not is_idle_known:
        rest -= divide(rest, [covered_s, free_s])[1]
    weights, is_by_sm = _weights(holders, present, has_sm=has_sm)
    return [
        (holder, own_idle + own, own_idle, _COUNTER if is_single else _SM_TIME if by_sm else _EQUAL_PARTS)
        for holder, own_idle, own, by_sm in zip(holders, idle_parts, divide(rest, weights), is_by_sm, strict=True)
    ]


def _presence(holders: Sequence[Holder[K]], since_s: float, until_s: float) -> tuple[list[float], float]:
    """Return each holder's part of the interval in seconds, and the seconds without anybody.

    A moment that n holders have is divided by n, so that all together is the interval.
    """
    spans = [
        (
            since_s if one.since_s is None else min(max(one.since_s, since_s), until_s),
            until_s if one.until_s is None else min(max(one.until_s, since_s), until_s),
        )
        for one in holders
    ]
    if all(a == since_s and b == until_s for a, b in spans):  # the usual case
        each_s = (until_s - since_s) / max(len(spans), 1)
        return [each_s] * len(spans), 0.0 if spans else until_s - since_s
    changes = sorted([(a, 1) for a, b in spans if b > a] + [(b, -1) for a, b in spans if b > a])
    shared: dict[float, float] = {since_s: 0.0}
    """Moment -> the seconds until then that one who had the GPU all the time would get."""
    at, count, sum_s, free_s = since_s, 0, 0.0, 0.0
    for moment, change in changes:
        if count:
            sum_s += (moment - at) / count
        else:
            free_s += moment - at
        at, count = moment, count + change
        shared[at] = sum_s
    free_s += until_s - at
    return [shared[b] - shared[a] if b > a else 0.0 for a, b in spans], free_s


def _weights(holders: Sequence[Holder[K]], present: Sequence[float], *, has_sm: bool) -> tuple[list[float], list[bool]]:
    """Return the weight of each holder for the part above idle power, and whether it is by SM time."""
    if len(holders) == 1:
        return [1.0], [False]
    sm = [max(one.sm_percent, 0.0) if one.sm_percent is not None and has_sm else None for one in holders]
    by_sm = [0.0 if one is None else one * had_s for one, had_s in zip(sm, present, strict=True)]
    sum_sm = sum(by_sm)
    if sum_sm <= 0:
        return list(present), [False] * len(holders)
    known_s = sum(had_s for one, had_s in zip(sm, present, strict=True) if one is not None)
    return [
        had_s if one is None else known_s * weight / sum_sm
        for one, had_s, weight in zip(sm, present, by_sm, strict=True)
    ], [one is not None for one in sm]


def divide(whole: int, weights: Sequence[float]) -> list[int]:
    """Divide a whole number in parts by weight, none of which is negative. The remainder goes to the largest one, so
    that they add up. All are 0 if no weight is larger than 0."""
    total = sum(weights)
    if total <= 0 or not whole:
        return [0] * len(weights)
    parts, left = [], whole
    for weight in weights:
        part = min(int(whole * (weight / total)), left)
        parts.append(part)
        left -= part
    parts[max(range(len(weights)), key=weights.__getitem__)] += left
    return parts


def mig_holders(instances: Iterable[MigInstance[K]]) -> list[Holder[K]]:
    """Return the holders of a GPU's MIG instances as holders of the GPU.

    The driver counts energy for the whole GPU, and tells no SM time of processes on an instance. An instance weighs its
    SM activity times its slices, in equal parts for its holders.
    """
    return [
        Holder(
            one.key,
            None if instance.sm_percent is None else instance.sm_percent * instance.slices / len(instance.holders),
            one.since_s,
            one.until_s,
        )
        for instance in instances
        for one in instance.holders
    ]


def slices_of(name: str) -> int:
    """Return the compute slices of a MIG instance from the driver's name for it: 3 of "NVIDIA A100-SXM4-40GB MIG
    3g.20gb". 1 if the name tells none."""
    found = _SLICES.search(name)
    return int(found[1]) if found else 1


def table_idle_w(name: str) -> float | None:
    """Return the idle power of a GPU's model in watts, from `IDLE_W`; None: the table does not have it."""
    return next((watts for part, watts in IDLE_W.items() if part in name), None)
