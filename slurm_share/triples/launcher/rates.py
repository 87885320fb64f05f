"""Measure how fast each running task is, by the best source that it has.

About once a second the file of its progress is read, and the new part of its log. A task that is shorter than that
costs two system calls, which see that the folder of those files has not changed.

The windows of a task begin anew when another task starts, ends, is paused or goes on on one of its GPUs.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from msgspec import UNSET

from ...core.errors import StateError, UsageError, shown
from ...packing import NodeRates, Rate, RateMeter, RateSource, TaskRate
from ..rates_file import RatesFile
from ..records import Run, WorkRate
from ..rules import work_rates
from ..rules.log_counts import LogCounts, parse_pattern
from .node import Node
from .progress_files import ProgressFiles
from .running import Running
from .strategy import Strategy

EVERY_S = 0.9
"""Between two looks; ticks of the loop are a second apart, or less."""
WRITE_S = 5.0
"""Between two writes of the file for llload and the dashboard."""
LOG_BYTES = 128 * 1024
"""Of a task's new output that are read at one look. Of more, the end is searched, and its lines are not counted."""
LOGS_S = 0.2
"""After this time the rest of the logs is left for the next look."""
SEARCH_S = 0.2
"""CPU time that --progress may take at one look. Some regular expressions take for ever on some lines."""
FINISHED_S = 600.0
"""Tasks that were done within this time count as the tasks finished an hour."""
SOURCES: tuple[RateSource, ...] = ("progress", "log", "output")
"""Of a task itself, the best first."""


class _Watched:
    """One running task, as it was last seen."""

    __slots__ = ("counts", "file_s", "gpus", "looked_s", "meters", "offset", "output_per_s", "task", "told")

    def __init__(self, task: Running, gpus: tuple[str, ...], pattern: re.Pattern[str] | None) -> None:
        self.task = task
        self.gpus = gpus
        self.meters: dict[RateSource, RateMeter] = {}
        self.counts = LogCounts(pattern)
        self.offset = task.log_start
        self.looked_s = task.clock
        self.file_s = 0.0
        self.told: Rate | None = None
        self.output_per_s: float | None = None
        """The last rate of its output, where that came evenly."""

    @property
    def best(self) -> RateMeter | None:
        """Return the meter of the best source that has shown anything."""
        return next((self.meters[source] for source in SOURCES if source in self.meters), None)

    def add(self, source: RateSource, window_s: float, now_s: float, units: float) -> None:
        meter = self.meters.get(source)
        if meter is None:
            meter = self.meters[source] = RateMeter(source, window_s)
        meter.add(now_s, units)

    def restart(self, now_s: float) -> None:
        for meter in self.meters.values():
            meter.restart(now_s)


class Rates:
    """The rates of one launcher's tasks. The loop calls all of it from its one thread."""

    def __init__(self, run: Run, node: Node, say: Callable[[str], None]) -> None:
        self._node = node
        self._local = [worker.place.local for worker in node.workers]
        self._run = run
        self._say = say
        self._window_s = run.rate_window_s
        self._pattern = self._parse(run.progress) if run.progress else None
        self._watched: dict[int, _Watched] = {}
        """By pid."""
        self._changed: set[str] = set()
        """GPUs (UUIDs) on which a task has started or ended since the last look."""
        self._paused: frozenset[int] = frozenset()
        self._next_s = self._write_s = 0.0
        self._turn = 0
        """Which task's log is read first at the next look."""
        self._finished: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        """(time, tasks that were done up to then), oldest first."""
        self._is_searching = False
        self._file = RatesFile(node.tmp, node.job)
        self._is_written = False
        self._files: ProgressFiles | None = None
        try:
            self._files = ProgressFiles(node.tmp, node.job)
        except StateError as error:
            say(f"{error}; tasks of {node.name} find no LLSUB_PROGRESS, their rates come from their logs alone")

    def _parse(self, text: str) -> re.Pattern[str] | None:
        try:
            return parse_pattern(text, "--progress")
        except UsageError as error:
            self._say(f"{error}; it is left aside")  # somebody has changed run.json
            return None

    @property
    def folder(self) -> str:
        """Return the folder with a file for each worker; empty: there is none."""
        return "" if self._files is None else str(self._files.folder)

    # ---- Starts and ends ----

    def before(self, task: Running) -> None:
        """Note that an attempt is about to start."""
        if self._files is not None:
            self._files.remove(self._local[task.worker])

    def began(self, gpus: Sequence[str]) -> None:
        """Note that a task has started on these GPUs."""
        self._changed.update(gpus)

    def ended(self, task: Running, strategy: Strategy) -> None:
        """Note that a task has ended, and write into it what was measured. Call it before the strategy is told."""
        gpus = strategy.gpus(task)
        self._changed.update(gpus)
        watched = self._watched.pop(task.pid, None)
        now = time.monotonic()
        read = None if self._files is None else self._files.read(self._local[task.worker])
        if watched is None:
            if read is None and self._pattern is None:
                return  # nothing is known of it, as of most tasks that are over in a moment
            watched = _Watched(task, gpus, self._pattern)
        if read is not None:
            self._add_progress(watched, read, now)
        elif "progress" not in watched.meters and self._pattern is not None:
            self._read_log(watched, now, is_last=True)
        meter = watched.best
        if meter is None:
            return
        per_s = meter.mean_per_s
        if meter.source == "output":
            per_s = watched.output_per_s
        else:
            task.units = round(meter.units or 0.0, 6)
        if per_s is not None:
            task.rate_per_s = work_rates.rounded(per_s)
        if per_s is not None or meter.source != "output":
            task.rate_source = meter.source
        alone = strategy.rate_alone(task)
        if per_s is not None and alone is not None:  # of all its time, not only of that with its last neighbours
            ratio = Rate(per_s=per_s, error_per_s=0.0, windows=1, source=meter.source).ratio_to(alone)
            task.speed_ratio = UNSET if ratio is None else round(ratio, 4)

    # ---- Once a second ----

    def look(self, running: Mapping[int, Running], strategy: Strategy, done: int) -> None:
        """Look at all running tasks, if it is time. `done`: tasks of this node that are done so far."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + EVERY_S
        self._note_finished(now, done)
        for pid, task in running.items():
            if pid not in self._watched:
                self._watched[pid] = _Watched(task, strategy.gpus(task), self._pattern)
        paused = strategy.paused
        for one in self._watched.values():
            if (one.task.turn.task in paused) != (one.task.turn.task in self._paused):
                self._changed.update(one.gpus)
        self._paused = paused
        for one in self._watched.values():
            if not self._changed.isdisjoint(one.gpus):
                one.restart(now)
        self._changed.clear()
        self._measure(now)
        for one in self._watched.values():
            meter = one.best
            rate = None if meter is None else meter.rate()
            if rate is not None and rate.source == "output":
                one.output_per_s = rate.per_s
            if meter is not None and meter.source != "output" and meter.units is not None:
                one.task.units, one.task.rate_source = round(meter.units, 6), meter.source
            if rate != one.told:
                one.told = rate
                strategy.rated(one.task, rate)
        self._write(now, strategy)

    def _measure(self, now: float) -> None:
        in_turn = list(self._watched.values())
        first = self._turn % len(in_turn) if in_turn else 0
        in_turn = in_turn[first:] + in_turn[:first]
        is_late = False
        for number, one in enumerate(in_turn):
            if one.task.turn.task in self._paused:
                continue
            read = None if self._files is None else self._files.read(self._local[one.task.worker])
            if read is not None:
                self._add_progress(one, read, now)
            elif "progress" not in one.meters and not is_late:
                self._read_log(one, now)
                if time.monotonic() - now > LOGS_S:
                    is_late, self._turn = True, first + number + 1
            one.looked_s = now

    def _add_progress(self, watched: _Watched, read: tuple[float, float], now: float) -> None:
        number, unix_s = read
        is_new = unix_s != watched.file_s
        watched.file_s = unix_s
        watched.add("progress", self._window_s, self._when(watched, unix_s, now) if is_new else now, number)

    def _when(self, watched: _Watched, unix_s: float, now: float) -> float:
        """Return when a file was written by this launcher's clock, for which only the time since the last look is
        possible: somebody may have set the other clock, or the file's time."""
        return min(max(now - (time.time() - unix_s), watched.looked_s), now)

    # ---- Logs ----

    def _read_log(self, watched: _Watched, now: float, *, is_last: bool = False) -> None:
        """Take what a task has printed since the last look."""
        try:
            seen = os.stat(watched.task.log)  # noqa: PTH116
            if seen.st_size > watched.offset:
                data, is_whole = self._read_new(watched, seen.st_size)
            else:
                watched.offset = seen.st_size  # somebody has emptied it
                data, is_whole = b"", True
        except OSError:
            return
        if not is_whole:
            watched.counts.skip()
            watched.meters.pop("output", None)  # its lines are not known
        numbers = self._search(watched, data, is_last=is_last)
        at = self._when(watched, seen.st_mtime, now) if data else now
        since, step_s = watched.looked_s, (at - watched.looked_s) / max(len(numbers), 1)
        for turn, number in enumerate(numbers, 1):
            watched.add("log", self._window_s, since + turn * step_s, number)  # they came one after the other
        log = watched.meters.get("log")
        if log is not None:
            if not numbers:
                log.add(now, log.shown)
        elif watched.counts.lines:
            watched.add("output", self._window_s, at, watched.counts.lines)

    def _read_new(self, watched: _Watched, size: int) -> tuple[bytes, bool]:
        """Return the new output, and whether that is all of it."""
        start = max(watched.offset, size - LOG_BYTES)
        fd = os.open(watched.task.log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = os.pread(fd, size - start, start)
        finally:
            os.close(fd)
        is_whole, watched.offset = start == watched.offset, start + len(data)
        return data, is_whole

    def _search(self, watched: _Watched, data: bytes, *, is_last: bool) -> list[float]:
        """Return the numbers in new output. Leave --progress aside, and say so, where that takes too long.

        Python looks at signals while it searches, so that a timer can end a search that would never end. It counts CPU
        time: a node that is busy is no fault of the expression. The loop waits for no signal meanwhile.
        """
        if self._pattern is None:
            return watched.counts.feed(data)
        before = signal.signal(signal.SIGVTALRM, self._give_up)
        try:
            self._is_searching = True
            signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_S)
            numbers = watched.counts.feed(data)
            return numbers + watched.counts.end() if is_last else numbers
        except TimeoutError:
            self._drop_pattern(watched)
            return []
        finally:
            self._is_searching = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)

    def _give_up(self, signo: int, frame: object) -> None:
        if self._is_searching:
            self._is_searching = False
            raise TimeoutError

    def _drop_pattern(self, watched: _Watched) -> None:
        pattern, self._pattern = self._pattern, None
        for one in self._watched.values():
            one.counts = LogCounts(None)
            one.meters.pop("log", None)
        watched.counts = LogCounts(None)
        watched.meters.pop("log", None)
        text = "" if pattern is None else pattern.pattern
        self._say(
            f"--progress {shown(text)} takes more than {SEARCH_S:g} s on the output of task {watched.task.turn.task}, "
            f"and is not looked for any more on {self._node.name}; write one without repeated repetitions"
        )

    # ---- The node ----

    def _note_finished(self, now: float, done: int) -> None:
        self._finished.append((now, done))
        while len(self._finished) > 2 and self._finished[1][0] < now - FINISHED_S:
            self._finished.popleft()

    @property
    def finished_per_h(self) -> float | None:
        """Return how many tasks are done an hour, over the last minutes; None: none was done."""
        (then, before), (now, done) = self._finished[0], self._finished[-1]
        return (done - before) / (now - then) * 3600 if done > before and now > then else None

    def work_rate(self, strategy: Strategy) -> WorkRate | None:
        """Return how much all tasks do together that are measured, where they count the same; None: not known."""
        rates = [(one.told, strategy.kind_of_work(one.task)) for one in self._watched.values() if one.told is not None]
        return work_rates.together([(rate, kind) for rate, kind in rates if rate is not None])

    def _write(self, now: float, strategy: Strategy) -> None:
        if now < self._write_s:
            return
        self._write_s = now + WRITE_S
        tasks = tuple(self._task_rate(one, strategy) for one in self._watched.values())
        finished = self.finished_per_h
        if not tasks or (finished is None and not any(one.rate or one.units is not None for one in tasks)):
            if self._is_written:
                self._file.remove()
                self._is_written = False
            return
        self._is_written = True
        self._file.write(
            NodeRates(
                job=self._node.job,
                run=self._run.name,
                unix_s=round(time.time(), 3),
                source=work_rates.usual_source([one.rate.source for one in tasks if one.rate is not None]),
                tasks=tasks,
                finished_per_h=None if finished is None else round(finished, 2),
                levels=strategy.levels,
            )
        )

    def _task_rate(self, one: _Watched, strategy: Strategy) -> TaskRate:
        meter, number = one.best, one.task.turn.task
        is_counted = meter is not None and meter.source != "output"
        return TaskRate(
            task=number,
            pid=one.task.pid,
            gpus=one.gpus,
            rate=one.told,
            speed_ratio=strategy.speed_ratio(one.task),
            units=meter.units if meter is not None and is_counted else None,
            is_paused=number in self._paused,
            family=strategy.kind_of_work(one.task) or "",
        )

    def close(self) -> None:
        """Remove the files."""
        self._file.remove()
        if self._files is not None:
            self._files.close()
