"""Compare the users' --gpu-mem with what their tasks used, and advise better ones."""

from __future__ import annotations

import math

from msgspec import Struct

from ...history_records import TaskRun

DOUBLED = 2.1
"""A number that was too small is mostly too small by half."""
ROOM = 1.25
RUNS = 3
"""A smaller number is advised after this many runs with less than half of the number."""


class _NumberRuns(Struct):
    """The known --gpu-mem numbers of one command on one GPU model."""

    peaks: list[int] = []
    """Peaks of runs whose number was far too large, MiB."""
    failed_mib: int = 0
    """The largest number that was too small."""


class OwnNumbers:
    """The numbers of a history, and the sentences about them."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _NumberRuns] = {}
        self._said: set[tuple[str, int, bool]] = set()
        self._notes: list[str] = []

    def take_notes(self) -> list[str]:
        """Return the sentences for the log since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def compare(self, run: TaskRun, *, is_own_memory: bool) -> None:
        """Compare a run's number with its peak. `is_own_memory`: it ran out of memory by its own need."""
        written = run.estimate_mib or run.reserved_mib  # a task that outgrows the number has more reserved at its end
        if not written or (run.cap_mib or 0) > written:  # it was the guaranteed part of a larger number
            return
        of = f"of its --gpu-mem={_gib(written)}"
        seen = self._seen.setdefault((run.exact, run.gpu_model), _NumberRuns())
        peak = run.peak_mib
        if is_own_memory:
            had = max(written, run.reserved_mib or 0, peak or 0)
            needs = ROOM * run.wanted_mib if run.wanted_mib and run.wanted_mib > had else DOUBLED * had
            seen.peaks, seen.failed_mib = [], max(seen.failed_mib, had)
            self._say(run.exact, written, True, f"a task ran out {of}: try --gpu-mem={_rounded(needs)}")
        elif peak is not None and peak > 0.95 * written:
            advice = f"--gpu-mem={_rounded(peak * ROOM)} would leave it room"
            self._say(run.exact, written, True, f"a task used {_gib(peak)} {of}: {advice}")
        elif peak is not None and run.kind == "done":
            seen.peaks = [] if peak >= 0.5 * written else [*seen.peaks[-99:], peak]
            enough = ROOM * max(seen.peaks, default=0)
            if len(seen.peaks) >= RUNS and enough > seen.failed_mib:
                used = f"in {len(seen.peaks)} runs a command used at most {_gib(max(seen.peaks))} {of}"
                self._say(run.exact, written, False, f"{used}: --gpu-mem={_rounded(enough)} would be enough")

    def _say(self, exact: str, written: int, is_small: bool, sentence: str) -> None:
        if (exact, written, is_small) not in self._said:
            self._said.add((exact, written, is_small))
            self._notes.append(sentence)


def _gib(mib: float) -> str:
    return f"{mib / 1024:.1f}G"


def _rounded(mib: float) -> str:
    """Return a size in the form of --gpu-mem, rounded up to half a GiB."""
    return f"{math.ceil(mib / 512) / 2:g}G"
