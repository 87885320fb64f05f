"""How far a run is, and how that is said."""

from __future__ import annotations

from msgspec import Struct


class Standing(Struct, frozen=True):
    """How far a run is."""

    tasks: int
    done: int
    failed: int
    running: int

    @property
    def left(self) -> int:
        """Tasks that have not begun, or were ended before they were through."""
        return max(0, self.tasks - self.done - self.failed - self.running)


def in_words(standing: Standing, per_second: float | None) -> str:
    """For a line on a terminal, such as: 40 of 100 done, 1 failed, 8 running, 51 left, 2.0/s, 0:30 to go."""
    words = [f"{standing.done} of {standing.tasks} done", f"{standing.failed} failed", f"{standing.running} running"]
    words.append(f"{standing.left} left")
    if per_second:
        words.append(f"{per_second:.1f}/s" if per_second >= 1 else f"{per_second * 60:.1f}/min")
        to_go = standing.left + standing.running
        seconds = int(to_go / per_second)
        if to_go:
            words.append(f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} to go")
    return ", ".join(words)
