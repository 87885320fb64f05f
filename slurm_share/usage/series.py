"""Keep a job's figures over time in a bounded number of points (`records.UseSeries`).

`Recorder` is pure: it gets samples with their time and gives the series. A point is the mean of its samples, except
memory and processes, where it is the largest: a plot that hides the peak would be of no use. When `POINTS` are used up,
two neighbours become one, and new points stand for twice the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ..core.records import Amount, Level, Moment
from .records import POINTS, GpuSeries, UseSeries

EVERY_S = 5.0
"""Seconds between two points at first: 720 points are an hour."""


class GpuSample(Struct, frozen=True, gc=False, kw_only=True):
    """One GPU of a job at one moment; the fields are those of `GpuSeries`. None: not known."""

    load_percent: float | None = None
    memory_mib: int | None = None
    power_w: float | None = None
    tasks: int | None = None


_NOTHING = GpuSample()
_MEANS, _PEAKS = ("load_percent", "power_w"), ("memory_mib", "tasks")
_ALL_MEANS, _ALL_PEAKS = ("cpu_cores", "rate_per_s"), ("memory_mib",)


class _Mean:
    """A mean over the samples of a point that knew the figure."""

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.sum, self.count = self.sum + value, self.count + 1

    def take(self) -> float | None:
        found = round(self.sum / self.count, 3) if self.count else None
        self.sum, self.count = 0.0, 0
        return found


class _Peak:
    """The largest value of a point's samples."""

    def __init__(self) -> None:
        self.value: int | None = None

    def add(self, value: int | None) -> None:
        if value is not None:
            self.value = value if self.value is None else max(value, self.value)

    def take(self) -> int | None:
        found, self.value = self.value, None
        return found


class Recorder:
    """The series of one job on one node, while it grows."""

    def __init__(
        self,
        *,
        job: int,
        uid: int,
        node: str,
        restarts: int | None = None,
        every_s: float = EVERY_S,
        points: int = POINTS,
        before: UseSeries | None = None,
    ) -> None:
        """Start without points, or continue `before`: the same job's, read from its file. `points`: the most, even."""
        self._job, self._uid, self._node, self._restarts = job, uid, node, restarts
        self._points = max(points - points % 2, 2)
        known = before or UseSeries(job=job, uid=uid, node=node, every_s=every_s)
        self._every_s = known.every_s
        self._at = list(known.at)
        self._lists: dict[str, list[float | None] | list[int | None]] = {
            "cpu_cores": list(known.cpu_cores),
            "rate_per_s": list(known.rate_per_s),
            "memory_mib": list(known.memory_mib),
        }
        self._gpus = {one.uuid: {name: list(getattr(one, name)) for name in (*_MEANS, *_PEAKS)} for one in known.gpus}
        self._now = self._open(_ALL_MEANS, _ALL_PEAKS)
        self._gpus_now = {uuid: self._open(_MEANS, _PEAKS) for uuid in self._gpus}
        self._began: float | None = self._at[-1] if self._at else None
        self._newest: float | None = None
        """The newest sample of the open point; None: it has none."""
        while len(self._at) > self._points:
            self._halve()

    @staticmethod
    def _open(means: Sequence[str], peaks: Sequence[str]) -> dict[str, _Mean | _Peak]:
        return {**{name: _Mean() for name in means}, **{name: _Peak() for name in peaks}}

    def add(
        self,
        at: Moment,
        *,
        cpu_cores: Level | None = None,
        memory_mib: Amount | None = None,
        rate_per_s: Level | None = None,
        gpus: Mapping[str, GpuSample] = {},
    ) -> None:
        """Add a sample. `at`: Unix time, seconds; a time before the newest point is ignored (the clock was set back).

        `cpu_cores`: CPU time per second since the sample before. `gpus`: UUID -> its figures.
        """
        if self._began is None:
            self._began = at - self._every_s if not self._at else self._at[-1]
        if at < self._began or (self._newest is not None and at < self._newest):
            return
        if at - self._began > 2 * self._every_s and self._newest is None:
            self._began = at - self._every_s  # nothing was sampled in between: no point stands for that time
        self._newest = at
        for name, value in (("cpu_cores", cpu_cores), ("memory_mib", memory_mib), ("rate_per_s", rate_per_s)):
            self._now[name].add(value)  # type: ignore[arg-type]
        for uuid, gpu in gpus.items():
            if uuid not in self._gpus:
                self._gpus[uuid] = {name: [None] * len(self._at) for name in (*_MEANS, *_PEAKS)}
                self._gpus_now[uuid] = self._open(_MEANS, _PEAKS)
            for name, its in self._gpus_now[uuid].items():
                its.add(getattr(gpu, name))
        if at - self._began >= self._every_s - 1e-6:
            self._close()

    def _close(self) -> None:
        """End the open point."""
        if self._newest is None:
            return
        self._at.append(self._newest)
        for name, its in self._now.items():
            self._lists[name].append(its.take())  # type: ignore[arg-type]
        for uuid, figures in self._gpus_now.items():
            for name, its in figures.items():
                self._gpus[uuid][name].append(its.take())
        self._began, self._newest = self._newest, None
        if len(self._at) >= self._points:
            self._halve()

    def _halve(self) -> None:
        """Make one point of two neighbours each."""
        self._every_s *= 2
        self._at = self._at[1::2] + (self._at[-1:] if len(self._at) % 2 else [])
        for name in _ALL_MEANS:
            self._lists[name] = _means(self._lists[name])
        for name in _ALL_PEAKS:
            self._lists[name] = _peaks(self._lists[name])
        for lists in self._gpus.values():
            for name in _MEANS:
                lists[name] = _means(lists[name])
            for name in _PEAKS:
                lists[name] = _peaks(lists[name])

    def series(self) -> UseSeries:
        """Return the closed points so far."""
        return UseSeries(
            job=self._job,
            restarts=self._restarts,
            uid=self._uid,
            node=self._node,
            every_s=self._every_s,
            at=list(self._at),
            cpu_cores=list(self._lists["cpu_cores"]),
            memory_mib=[None if one is None else int(one) for one in self._lists["memory_mib"]],
            rate_per_s=list(self._lists["rate_per_s"]),
            gpus=[
                GpuSeries(uuid=uuid, **{name: list(one) for name, one in its.items()})
                for uuid, its in self._gpus.items()
            ],
        )

    def finish(self) -> UseSeries:
        """End the open point, if it has a sample, and return the whole series."""
        self._close()
        return self.series()


def _pairs(values: Sequence[float | None]) -> list[list[float]]:
    return [[one for one in values[at : at + 2] if one is not None] for at in range(0, len(values), 2)]


def _means(values: Sequence[float | None]) -> list[float | None]:
    return [round(sum(pair) / len(pair), 3) if pair else None for pair in _pairs(values)]


def _peaks(values: Sequence[float | None]) -> list[int | None]:
    return [int(max(pair)) if pair else None for pair in _pairs(values)]
