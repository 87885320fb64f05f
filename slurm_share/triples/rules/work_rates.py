"""Add up the rates of a run's tasks that count the same units, and format them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import UNSET

from ...core.text import amount, counted
from ...packing import RateSource, WorkRate
from ..records import Ended

SOURCE_TEXTS: Mapping[str, str] = {
    "progress": "LLSUB_PROGRESS",
    "log": "--progress",
    "output": "lines of output",
    "finished": "finished tasks",
}


def add_up(parts: Iterable[WorkRate]) -> WorkRate | None:
    """Return the sum of the rates of tasks or nodes; None: there is none, or they differ in source or kind."""
    found = list(parts)
    if len({(one.source, one.kind) for one in found}) != 1 or (len(found) > 1 and found[0].kind is None):
        return None
    return WorkRate(
        per_s=rounded(sum(one.per_s for one in found)),
        tasks=sum(one.tasks for one in found),
        source=found[0].source,
        kind=found[0].kind,
    )


def as_text(work: WorkRate) -> str:
    """Return a work rate as text, such as: 412 units/s, 8 tasks 51.5 each (LLSUB_PROGRESS)."""
    each = "" if work.tasks == 1 else f", {work.tasks} tasks {amount(work.per_s / work.tasks)} each"
    return f"{amount(work.per_s)} {unit(work.source)}/s{each} ({SOURCE_TEXTS[work.source]})"


def usual_source(sources: Sequence[RateSource]) -> RateSource | None:
    """Return the most frequent source; None: there is none."""
    return Counter(sources).most_common(1)[0][0] if sources else None


def rounded(value: float) -> float:
    """Return a rate with six significant digits."""
    return float(f"{value:.6g}")


def unit(source: str) -> str:
    """Return the unit of a source's rates: lines or units."""
    return "lines" if source == "output" else "units"


class _Sum:
    """The units of work of one slot, GPU or node, and their time span."""

    def __init__(self) -> None:
        self.units = 0.0
        self.since, self.until = float("inf"), 0.0

    def add(self, units: float, started: float, seconds: float) -> None:
        self.units += units
        self.since = min(self.since, started)
        self.until = max(self.until, started + seconds)

    @property
    def per_s(self) -> float:
        return self.units / (self.until - self.since) if self.until > self.since else 0.0


class WorkTally:
    """Adds up the work of a run's measured attempts, for each slot, GPU and node.

    The rate of a slot, GPU or node is the work of all its attempts, over the time from the start of the first to the
    end of the last one, including idle time.
    """

    def __init__(self, *, is_alike: bool = True) -> None:
        """`is_alike` False: tasks are different commands, and their units are not added up."""
        self._is_alike = is_alike
        self._attempts = 0
        self._measured = 0
        self._sources: set[str] = set()
        self._least, self._most = float("inf"), 0.0
        self._units = self._seconds = 0.0
        self._ratio = self._ratio_s = 0.0
        self._slots: dict[tuple[str, int], _Sum] = {}
        self._gpus: dict[str, _Sum] = {}
        self._nodes: dict[str, _Sum] = {}

    def passed_on(self, attempts: Iterable[tuple[int, Ended]]) -> Iterator[tuple[int, Ended]]:
        """Yield attempts with their places unchanged, and add each of them."""
        for place, ended in attempts:
            self.add(ended)
            yield place, ended

    def add(self, ended: Ended) -> None:
        self._attempts += 1
        rate, source = ended.rate_per_s, ended.rate_source
        if rate is UNSET or source is UNSET or ended.seconds <= 0:
            return
        self._measured += 1
        self._sources.add(source)
        self._least, self._most = min(self._least, rate), max(self._most, rate)
        units = rate * ended.seconds
        self._units += units
        self._seconds += ended.seconds
        if ended.speed_ratio is not UNSET:
            self._ratio += ended.speed_ratio * ended.seconds
            self._ratio_s += ended.seconds
        if ended.slot is not None:
            self._slots.setdefault((ended.node, ended.slot), _Sum()).add(units, ended.started, ended.seconds)
        if ended.gpu_uuid is not None:
            self._gpus.setdefault(ended.gpu_uuid, _Sum()).add(units, ended.started, ended.seconds)
        self._nodes.setdefault(ended.node, _Sum()).add(units, ended.started, ended.seconds)

    def sentence(self) -> str:
        """Return the rates as a sentence; empty: nothing was measured. Rates of different sources are not added up."""
        if not self._measured:
            return ""
        of = "" if self._measured == self._attempts else f" ({self._measured} of {counted(self._attempts, 'attempt')})"
        if len(self._sources) > 1:
            return f"work was measured from different sources{of}; the rate of each attempt is in results.jsonl"
        [source] = self._sources
        by = f"{unit(source)}/s, by {SOURCE_TEXTS.get(source, source)}{of}"
        speed = f"; {self._ratio / self._ratio_s:.2f} of the speed without neighbours" if self._ratio_s else ""
        least, most = amount(self._least), amount(self._most)
        spread = least if least == most else f"{least} to {most}"
        if not self._is_alike:
            return f"{by}: tasks {spread} each{speed}"
        parts = [f"a task {amount(self._units / self._seconds)}{'' if least == most else f' ({spread})'}"]
        for what, sums in (("slot", self._slots), ("GPU", self._gpus), ("node", self._nodes)):
            if sums:
                parts.append(f"a {what} {amount(sum(one.per_s for one in sums.values()) / len(sums))}")
        if len(self._nodes) > 1:
            parts.append(f"{len(self._nodes)} nodes {amount(sum(one.per_s for one in self._nodes.values()))}")
        return f"{by}: {', '.join(parts)}{speed}"
