"""Tasks that take what they are given, as JAX, TensorFlow, RAPIDS pools and vLLM do: their memory does not say what
they need. What they need is learned from the sizes with which they ended well and those with which they did not.
"""

from __future__ import annotations

from msgspec import Struct

from ...records import Source

WHOLE_RATIO = 0.70
"""Of the whole GPU. JAX takes 75 % of it at its start, vLLM 90 %, TensorFlow nearly all."""
TOLD_RATIO = 0.95
CONTEXT_MIB = 1024
"""A program that was told a size takes it, and the context of its process besides."""
AT_ONCE_S = 20.0
AT_CAP_RATIO = 0.95
DOWN = 0.8
"""The part of the smallest size that was enough which the next try is given."""
ABOVE_DEAD = 1.25
"""A try stays this factor above the largest size that was too small."""
TRY_EVERY = 5
"""One run in five is given less than is known to be enough."""


def takes_everything(
    *,
    source: Source,
    memory_mib: int,
    told_mib: int,
    total_mib: int | None,
    age_s: float,
    peak_mib: int,
    cap_mib: int | None,
    is_flat: bool,
) -> bool:
    """Return whether a running task is elastic. Call it at each sample until it is True.

    It is if it has, within AT_ONCE_S, what JAX and TensorFlow are told to take (`told_mib`, the reservation of its
    start) or most of the whole GPU, or if its memory is flat at its cap.

    Only a task of unknown size can show it: what others reserve rests on what they take, so they are near it anyway.
    """
    if source != "unknown":
        return False
    if age_s <= AT_ONCE_S:
        if total_mib is not None and memory_mib >= WHOLE_RATIO * total_mib:
            return True
        if TOLD_RATIO * told_mib <= memory_mib <= told_mib + CONTEXT_MIB:
            return True
    return is_flat and cap_mib is not None and peak_mib >= AT_CAP_RATIO * cap_mib


class Sizes(Struct):
    """The sizes that one elastic command was given, in MiB."""

    done_mib: int | None = None
    """The smallest that was enough."""
    dead_mib: int = 0
    """The largest that was too small."""
    since_try: int = TRY_EVERY
    """Runs since one was given less than was known to be enough."""

    def note(self, given_mib: int, *, is_done: bool) -> None:
        """Learn from one end."""
        is_try = self.done_mib is not None and given_mib < self.done_mib
        self.since_try = 0 if is_try else self.since_try + 1
        if is_done:
            self.done_mib = given_mib if self.done_mib is None else min(self.done_mib, given_mib)
            self.dead_mib = min(self.dead_mib, self.done_mib - 1)  # the program has changed
        else:
            self.dead_mib = max(self.dead_mib, given_mib)
            if self.done_mib is not None and self.done_mib <= given_mib:
                self.done_mib = None  # what was enough once is not any more

    def next_mib(self, task: int) -> int | None:
        """Return the size for the next run; None: none is known to be enough.

        `task`: waiting tasks are asked about many times before one starts, so a fixed one in TRY_EVERY is given less.
        """
        if self.done_mib is None:
            return None
        if self.since_try < TRY_EVERY - 1 or task % TRY_EVERY:
            return self.done_mib
        return min(self.done_mib, max(round(self.done_mib * DOWN), round(self.dead_mib * ABOVE_DEAD)))
