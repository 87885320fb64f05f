"""Measure the rate of each running task, from the best source it offers.

About once a second, the task's progress file and the new part of its log are read. A shorter task costs two system
calls, which show that the folder of progress files has not changed.

The windows of a task restart when another task starts, ends, is paused or continues on one of its GPUs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from msgspec import UNSET, Struct

from ...core import own_folders
from ...core.errors import StateError, UsageError, shown
from ...core.live import LiveFolder
from ...packing import Attempt, NodeRates, Rate, RateMeter, RateSource, TaskRate, WorkRate
from .. import run_folder
from ..rates_file import write_rates
from ..records import Run
from ..rules import progress
from ..rules.log_counts import LogCounts, amount_of, parse_pattern
from .node import Node, no_progress_text
from .strategy import Strategy

EVERY_S = 0.9
"""Seconds between two updates; slightly less than the second between two ticks of the loop."""
WRITE_S = 5.0
"""Seconds between two writes of the file for llload and the dashboard."""
LOG_BYTES = 128 * 1024
"""Most bytes of new output read in one update. Of longer output, only the end is searched, and lines are not
counted."""
LOGS_S = 0.2
"""Seconds of reading logs after which the remaining logs wait for the next update."""
SEARCH_S = 0.2
"""CPU seconds that --progress may take in one search. Some regular expressions never end on some lines."""
FINISHED_S = 600.0
"""Seconds over which the rate of finished tasks is computed."""
SOURCES: tuple[RateSource, ...] = ("progress", "log", "output")
"""Sources of a task's rate, the best first."""
PROGRESS_FOLDER = "progress"
PROGRESS_BYTES = 256
"""Read from the end of a file: programs may append numbers instead of writing over them."""
SETTLED_NS = 50_000_000
"""A file system's clock ticks every 4 to 10 ms: two changes within a tick look like one."""
FRESH_S = 0.001
"""For this time the folder of progress files counts as empty if it was: from an attempt's end to the next start."""
_PROGRESS_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class _Watched(Struct, eq=False):
    """The meters of one running task, and how far its files were read."""

    task: Attempt
    gpus: tuple[str, ...]
    counts: LogCounts
    offset: int
    read_s: float
    """When its files were last read, monotonic clock, seconds."""
    meters: dict[RateSource, RateMeter] = {}
    file_s: float = 0.0
    """Modification time of its progress file, Unix time, seconds."""
    rate: Rate | None = None
    """The rate last passed to the strategy."""
    output_per_s: float | None = None
    """The last rate of its output, if lines came evenly."""

    @property
    def best(self) -> RateMeter | None:
        """Return the meter of the best source with data."""
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
    """The rates of one launcher's tasks. Only the thread of the loop calls it."""

    def __init__(self, run: Run, node: Node, say: Callable[[str], None]) -> None:
        self._node = node
        self._local = [worker.place.local for worker in node.workers]
        self._run = run
        self._say = say
        self._window_s = run.rate_window_s
        self._pattern = self._parse(run.progress) if run.progress else None
        self._watched: dict[int, _Watched] = {}
        self._changed: set[str] = set()
        """GPUs (UUIDs) on which a task has started or ended since the last update."""
        self._paused: frozenset[int] = frozenset()
        self._next_s = self._write_s = 0.0
        self._first = 0
        """Position of the task whose log is read first in the next update."""
        self._finished: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        """(time, tasks done until then), oldest first."""
        self._is_searching = False
        self._is_written = False
        self._files: ProgressFiles | None = None
        try:
            self._files = None if node.live is None else ProgressFiles(node.live)
        except StateError as error:
            say(f"{error}; {no_progress_text(node.name)}")

    def _parse(self, text: str) -> re.Pattern[str] | None:
        try:
            return parse_pattern(text, "--progress")
        except UsageError as error:
            self._say(f"{error}; it is ignored")  # run.json was changed by hand
            return None

    @property
    def folder(self) -> str:
        """Return the folder of the workers' progress files; empty: there is none."""
        return "" if self._files is None else str(self._files.folder)

    # ---- Starts and ends ----

    def _watch(self, task: Attempt, gpus: tuple[str, ...]) -> _Watched:
        return _Watched(task, gpus, LogCounts(self._pattern), task.log_start, task.clock)

    def before(self, task: Attempt) -> None:
        """Remove the worker's progress file before an attempt starts."""
        if self._files is not None:
            self._files.remove(self._local[task.worker], task.clock)

    def began(self, gpus: Sequence[str]) -> None:
        """Restart the windows on these GPUs, because a task has started there."""
        self._changed.update(gpus)

    def ended(self, task: Attempt) -> None:
        """Take a last reading of an ended task, and set its rate. Call it before `Strategy.finished`."""
        gpus = task.gpus
        self._changed.update(gpus)
        watched = self._watched.pop(task.pid, None)
        now = time.monotonic()
        read = None if self._files is None else self._files.read(self._local[task.worker])
        if watched is None:
            if read is None and self._pattern is None:
                return  # nothing was measured, as with most tasks shorter than a second
            watched = self._watch(task, gpus)
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
            task.rate_per_s = progress.rounded(per_s)
        if per_s is not None or meter.source != "output":
            task.rate_source = meter.source
        alone = task.rate_alone
        if per_s is not None and alone is not None:  # over its whole run, not only with its last neighbours
            ratio = Rate(per_s=per_s, error_per_s=0.0, windows=1, source=meter.source).ratio_to(alone)
            task.speed_ratio = UNSET if ratio is None else round(ratio, 4)

    # ---- Once a second ----

    def update(self, running: Mapping[int, Attempt], strategy: Strategy, done: int) -> None:
        """Measure all running tasks if an update is due. `done`: tasks of this node that are done so far."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + EVERY_S
        self._finished.append((now, done))
        while len(self._finished) > 2 and self._finished[1][0] < now - FINISHED_S:
            self._finished.popleft()
        for pid, task in running.items():
            if pid not in self._watched:
                self._watched[pid] = self._watch(task, task.gpus)
        paused = strategy.paused
        for one in self._watched.values():
            if (one.task.task in paused) != (one.task.task in self._paused):
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
            if rate != one.rate:
                one.rate = rate
                strategy.rated(one.task, rate)
        self._write(now, strategy)

    def _measure(self, now: float) -> None:
        """Read the progress file of each task, or its log, until the time for logs is over."""
        ordered = list(self._watched.values())
        first = self._first % len(ordered) if ordered else 0
        is_late = False
        for number, one in enumerate(ordered[first:] + ordered[:first]):
            if one.task.task in self._paused:
                continue
            read = None if self._files is None else self._files.read(self._local[one.task.worker])
            if read is not None:
                self._add_progress(one, read, now)
            elif "progress" not in one.meters and not is_late:
                self._read_log(one, now)
                if time.monotonic() - now > LOGS_S:
                    is_late, self._first = True, first + number + 1
            one.read_s = now

    def _add_progress(self, watched: _Watched, read: tuple[float, float], now: float) -> None:
        number, unix_s = read
        is_new = unix_s != watched.file_s
        watched.file_s = unix_s
        watched.add("progress", self._window_s, self._when(watched, unix_s, now) if is_new else now, number)

    def _when(self, watched: _Watched, unix_s: float, now: float) -> float:
        """Return when a file was written, on the monotonic clock: since the last reading, even if a clock was set."""
        return min(max(now - (time.time() - unix_s), watched.read_s), now)

    # ---- Logs ----

    def _read_log(self, watched: _Watched, now: float, *, is_last: bool = False) -> None:
        try:
            seen = os.stat(watched.task.log)  # noqa: PTH116
            if seen.st_size > watched.offset:
                start = max(watched.offset, seen.st_size - LOG_BYTES)
                data = run_folder.read_part(watched.task.log, seen.st_size - start, start)
                is_whole, watched.offset = start == watched.offset, start + len(data)
            else:
                watched.offset = seen.st_size  # smaller, if the log was truncated
                data, is_whole = b"", True
        except OSError:
            return
        if not is_whole:
            watched.counts.skip()
            watched.meters.pop("output", None)  # the number of its lines is not known
        numbers = self._search(watched, data, is_last=is_last)
        at = self._when(watched, seen.st_mtime, now) if data else now
        since, step_s = watched.read_s, (at - watched.read_s) / max(len(numbers), 1)
        for turn, number in enumerate(numbers, 1):
            watched.add("log", self._window_s, since + turn * step_s, number)  # assumed to be evenly spaced
        log = watched.meters.get("log")
        if log is not None:
            if not numbers:
                log.add(now, log.shown)
        elif watched.counts.lines:
            watched.add("output", self._window_s, at, watched.counts.lines)

    def _search(self, watched: _Watched, data: bytes, *, is_last: bool) -> list[float]:
        """Return the numbers in new output. Drop --progress and log that if the search takes longer than SEARCH_S.

        A timer can end the search, because Python's regular expressions check for signals. The timer counts CPU time,
        so a busy node does not end it. The loop does not wait for signals in the meantime.
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
        for one in (*self._watched.values(), watched):
            one.counts = LogCounts(None)
            one.meters.pop("log", None)
        text = "" if pattern is None else pattern.pattern
        self._say(
            f"--progress {shown(text)} takes more than {SEARCH_S:g} s on the output of task {watched.task.task}, "
            f"and is ignored on {self._node.name} from now on; write an expression without nested repetitions"
        )

    # ---- The node ----

    @property
    def finished_per_h(self) -> float | None:
        """Return the tasks done per hour, over the last FINISHED_S; None: none was done."""
        (then, before), (now, done) = self._finished[0], self._finished[-1]
        return (done - before) / (now - then) * 3600 if done > before and now > then else None

    def work_rate(self, strategy: Strategy) -> WorkRate | None:
        """Return the sum of all measured rates; None: there is none, or the tasks count different units."""
        return progress.add_up(
            WorkRate(per_s=rate.per_s, tasks=1, source=rate.source, kind=strategy.kind_of_work(one.task))
            for one in self._watched.values()
            if (rate := one.rate) is not None
        )

    def _write(self, now: float, strategy: Strategy) -> None:
        if now < self._write_s:
            return
        self._write_s = now + WRITE_S
        tasks = tuple(self._task_rate(one, strategy) for one in self._watched.values())
        finished = self.finished_per_h
        if not tasks or (finished is None and not any(one.rate or one.units is not None for one in tasks)):
            if self._is_written:
                write_rates(self._node.live, None)
                self._is_written = False
            return
        self._is_written = True
        write_rates(
            self._node.live,
            NodeRates(
                job=self._node.job,
                run=self._run.name,
                unix_s=round(time.time(), 3),
                source=progress.usual_source([one.rate.source for one in tasks if one.rate is not None]),
                tasks=tasks,
                finished_per_h=None if finished is None else round(finished, 2),
                levels=strategy.levels,
            ),
        )

    def _task_rate(self, one: _Watched, strategy: Strategy) -> TaskRate:
        meter, number = one.best, one.task.task
        is_counted = meter is not None and meter.source != "output"
        return TaskRate(
            task=number,
            pid=one.task.pid,
            gpus=one.gpus,
            rate=one.rate,
            speed_ratio=one.task.relative_speed(),
            units=meter.units if meter is not None and is_counted else None,
            is_paused=number in self._paused,
            family=strategy.kind_of_work(one.task) or "",
        )

    def close(self) -> None:
        write_rates(self._node.live, None)
        if self._files is not None:
            self._files.close()


# ---- Files in which tasks write how much they have done ----


class ProgressFiles:
    """The files of one launcher's workers, in its folder (core/live.py).

    The path of a worker's file stays the same, so that its tasks' environment need not be made anew.
    """

    def __init__(self, live: LiveFolder) -> None:
        """Make the folder. Raises StateError."""
        self.folder = live.path / PROGRESS_FOLDER
        self._changed_ns = -1
        """When the folder last changed; -1: not known, or so shortly ago that it may have changed again since."""
        self._there: frozenset[str] = frozenset()
        self._seen_s = 0.0
        """When the folder was last asked whether it has changed, monotonic clock, seconds."""
        try:
            self._fd = own_folders.open_folder(live.fd, PROGRESS_FOLDER, live.path)
        except OSError as error:
            raise StateError(str(self.folder), f"cannot be made ({error.strerror})") from error

    def _has(self, worker: int) -> bool:
        """Return whether that worker has a file. A folder that has not changed costs one system call."""
        self._seen_s = time.monotonic()
        changed_ns = os.fstat(self._fd).st_mtime_ns
        if changed_ns != self._changed_ns:
            with os.scandir(self._fd) as entries:
                self._there = frozenset(entry.name for entry in entries)
            is_settled = time.time_ns() - changed_ns > SETTLED_NS
            self._changed_ns = changed_ns if is_settled else -1
        return str(worker) in self._there

    def remove(self, worker: int, now_s: float) -> None:
        """Remove what an earlier attempt in that worker has written, or what it had left behind has.

        `now_s`: of the monotonic clock. The last look at the folder, at the end of the attempt before, stands for
        FRESH_S: what is written after it may as well be written after the start.
        """
        if now_s - self._seen_s < FRESH_S and not self._there:
            return
        with contextlib.suppress(OSError):  # a folder, for example, which is never read
            if self._has(worker):
                os.unlink(str(worker), dir_fd=self._fd)

    def read(self, worker: int) -> tuple[float, float] | None:
        """Return how much the task in that worker has done, and when it wrote that (Unix time); None: nothing."""
        try:
            if not self._has(worker):
                return None
            fd = os.open(str(worker), _PROGRESS_FILE, dir_fd=self._fd)
        except OSError:
            return None
        try:
            seen = os.fstat(fd)
            if not stat.S_ISREG(seen.st_mode):
                return None
            number = parse_number(os.pread(fd, PROGRESS_BYTES, max(0, seen.st_size - PROGRESS_BYTES)))
            return None if number is None else (number, seen.st_mtime)
        except OSError:
            return None
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close the folder, which is removed with the launcher's."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def parse_number(data: bytes) -> float | None:
    """Return the number in the last whole line of a file; None: there is none. Without any line end, all of it."""
    whole, end, _ = data.rpartition(b"\n")
    words = (whole if end else data).split()
    return amount_of(words[-1]) if words else None
