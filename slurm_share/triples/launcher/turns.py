"""Tell tasks that their turn is over (--slot). The decision is in rules/turns.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from ...core.text import fold, span_text
from ...packing import Attempt
from ..rules import turns


class Turns:
    """The turns of a node's tasks. Only the thread of the loop calls it, about once a second."""

    def __init__(self, slot_s: float, tell: Callable[[Attempt], None], say: Callable[[str], None]) -> None:
        """`tell`: sends the signal of --checkpoint-signal to a task, and nothing else."""
        self._slot_s = slot_s
        self._tell = tell
        self._say = say
        self._late: set[int] = set()
        """Pids of tasks that have not ended in time; they keep their place."""

    def check(self, running: Mapping[int, Attempt], waiting: int, paused: Collection[int]) -> None:
        """Tell the tasks whose turn is over. `waiting`: how many tasks wait that fit nowhere on this node."""
        now, clock = time.time(), time.monotonic()
        self._late &= running.keys()
        for pid, task in running.items():
            if task.turn_over and pid not in self._late and now - task.turn_over > turns.GRACE_S:
                self._late.add(pid)
                self._say(
                    f"task {task.task} has not ended {span_text(turns.GRACE_S)} after it was told to save its state "
                    "(--slot); it is left running, and keeps its place"
                )
        asked = {task.task: task for task in running.values()}
        found = turns.choose(
            [
                turns.RunningTask(
                    task.task,
                    clock - task.clock - task.paused_s,
                    is_told=bool(task.turn_over) and pid not in self._late,
                    is_exempt=self._is_exempt(pid, task, paused),
                )
                for pid, task in running.items()
            ],
            waiting,
            self._slot_s,
        )
        for number in found:
            asked[number].turn_over = now
            self._tell(asked[number])
        if found:
            self._say(f"told to save their state and to go to the end of the queue (--slot): {fold(sorted(found))}")

    def _is_exempt(self, pid: int, task: Attempt, paused: Collection[int]) -> bool:
        is_ending = task.is_moving or task.is_told_to_save or task.over_time_s is not None
        return pid in self._late or task.keeps_turn or is_ending or task.task in paused
