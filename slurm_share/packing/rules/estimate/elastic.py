"""Size elastic tasks: those that take all memory they are given, as JAX, TensorFlow, RAPIDS pools and vLLM do.

The memory of such a task does not show its need, which is learned from the sizes with which runs succeeded or failed.
"""

from __future__ import annotations

from msgspec import Struct

from ...records import Source

WHOLE_RATIO = 0.70
"""Part of the whole GPU. JAX takes 75 % of it at its start, vLLM 90 %, TensorFlow nearly all."""
START_RATIO = 0.95
CONTEXT_MIB = 1024
"""CUDA context that a program takes on top of the size it was told."""
AT_ONCE_S = 20.0
AT_CAP_RATIO = 0.95
DOWN = 0.8
"""A trial gets this part of the smallest size that was enough."""
ABOVE_DEAD = 1.25
"""A trial stays this factor above the largest size that was too small."""
TRY_EVERY = 5
"""One run in five is a trial with less than is known to be enough."""


def takes_everything(
    *,
    source: Source,
    memory_mib: int,
    start_mib: int,
    total_mib: int | None,
    age_s: float,
    peak_mib: int,
    cap_mib: int | None,
    is_flat: bool,
    floor_mib: int = 0,
) -> bool:
    """Return whether a running task is elastic. Call it at each sample until it returns True.

    A task is elastic if it reaches, within AT_ONCE_S, the size that JAX and TensorFlow are told (`start_mib`, its
    reservation at the start) or most of the whole GPU, or if its memory is flat at its cap.

    Only a task of unknown size is judged: the reservation of any other task is close to its memory in any case. So is
    that of a task with a known least need (`floor_mib`).
    """
    if source != "unknown":
        return False
    if age_s <= AT_ONCE_S:
        if total_mib is not None and memory_mib >= WHOLE_RATIO * total_mib:
            return True
        if not floor_mib and START_RATIO * start_mib <= memory_mib <= start_mib + CONTEXT_MIB:
            return True
    return is_flat and cap_mib is not None and peak_mib >= AT_CAP_RATIO * cap_mib


class Sizes(Struct):
    """Sizes that one elastic command was given, in MiB."""

    done_mib: int | None = None
    """The smallest size that was enough."""
    dead_mib: int = 0
    """The largest size that was too small."""
    since_try: int = TRY_EVERY
    """Runs since the last trial."""

    def note(self, given_mib: int, *, is_done: bool) -> None:
        is_try = self.done_mib is not None and given_mib < self.done_mib
        self.since_try = 0 if is_try else self.since_try + 1
        if is_done:
            self.done_mib = given_mib if self.done_mib is None else min(self.done_mib, given_mib)
            self.dead_mib = min(self.dead_mib, self.done_mib - 1)  # the program has changed
        else:
            self.dead_mib = max(self.dead_mib, given_mib)
            if self.done_mib is not None and self.done_mib <= given_mib:
                self.done_mib = None  # a size that was enough before is now too small

    def next_mib(self, task: int) -> int | None:
        """Return the size for the next run; None: no size is known to be enough.

        `task` selects the trials: a waiting task is asked about many times, so its answer has to stay the same.
        """
        if self.done_mib is None:
            return None
        if self.since_try < TRY_EVERY - 1 or task % TRY_EVERY:
            return self.done_mib
        return min(self.done_mib, max(round(self.done_mib * DOWN), round(self.dead_mib * ABOVE_DEAD)))
