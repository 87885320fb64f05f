"""The events of a run on one node, `events.jsonl` in the node's folder: records, writer and reader of its lines.

Each line is a JSON object whose `event` says what it is:

- `progress`: what the launcher has done, every second at first, for `llsub --watch` and the other launchers;
- `decision`: the view and the actions of a decision of the board. There is one for every decision with actions, and
  from time to time one for waiting tasks. The view is stored as the changes to the view before (rules/view_changes.py);
- `repeat`: a task took the place of an ended one of the same command and size, without a decision;
- `group`: the measured speeds of tasks that shared a GPU;
- `size`: the memory of a running task, for the other nodes of the run, and for the next job if this one is killed.

A launcher's first decision has its whole view, since the file may hold lines of earlier jobs. The ends of attempts are
in `results.jsonl`, which is documented for users.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from ..core import files, text_files
from ..core.append_file import AppendFile
from .decision_records import Action, Decision, Start
from .records import PackView, TaskKey
from .rules.fingerprint import tag
from .rules.speed_account import GroupResult
from .rules.view_changes import NOT_MATCHING, ViewChanges, ViewDifference, rebuild
from .speed_records import RateSource

EVENTS = "events.jsonl"
"""Name of the file, in a node's folder of a run."""
NODE_FOLDERS = "p*_*"
"""Folders of nodes in the run's folder of logs, for example p0-p23_n1."""
MOST_BYTES = 64 << 20
"""A larger file gets progress only, so that events cannot fill a disk. 100,000 short tasks take less than a tenth of
it."""
LINES_MOST = 64
"""Repeats are buffered up to this number, so that short tasks do not wait for the disk."""
WAIT_S, WAIT_MOST_S = 5.0, 60.0
"""First and longest time between two decisions without actions. The time doubles until a task starts."""
PROGRESS_MOST_S = 15.0
"""Longest time between two lines of progress. A run of minutes has one every second, a run of days 6,000 a day."""
PROGRESS_PART = 1 / 600
"""Part of the run's time so far between two lines of progress."""
SIZES_EVERY_S = 30.0
"""Time between two reads of the sizes on other nodes."""
READ_BYTES = 1 << 20
READS_MOST = 8
"""Most reads of one file at a time, so that a long file does not delay a launcher."""
END_BYTES = 1 << 16
"""This much of the end of a file is searched for a line of progress, and four times as much until it is found..."""
END_MOST_BYTES = 8 << 20
"""...or this much."""

# ---- Records ----


class WorkRate(Struct, frozen=True, kw_only=True):
    """The sum of the rates of running tasks that count the same units."""

    per_s: float
    """Units of work per second; lines per second for the source `output`."""
    tasks: int
    """Number of measured tasks."""
    source: RateSource
    kind: str | None = None
    """Name shared by tasks that count the same units; None: not known."""


class RankWait(Struct, frozen=True):
    """A rank that waits for a message or in a collective call."""

    rank: int
    what: str
    """Text after "waits ": `in recv for (3, 'x')`, `in barrier`."""
    since: float
    """Unix time, seconds."""


class Progress(Struct, frozen=True, kw_only=True, tag_field="event", tag="progress"):
    """The progress of one launcher."""

    node: str
    job: str
    processes: int
    running: int
    done: int
    failed: int
    """Failed tasks without attempts left."""
    saved: int = 0
    """Tasks that have saved their state and ended."""
    given_up: int = 0
    """Tasks with the outcome `given up`."""
    left: int | None
    """Tasks that this node has still to start; None: nodes share a queue."""
    at: float
    """Time of this record, Unix time, seconds."""
    began: float = 0.0
    """When the launcher began to start tasks, Unix time, seconds; 0: not known."""
    ended: bool = False
    work: WorkRate | None = None
    """None: no running task is measured, or they count different units."""
    waits: tuple[RankWait, ...] = ()
    """Ranks of this node that wait for messages."""
    exit_code: int = 0
    """Ranks: the exit code of a run that has to end; 0: it need not, or another node says so."""
    tasks: int = 0
    """Tasks of the run that the launcher knows, with those added to it; 0: not known."""

    @property
    def tasks_ended(self) -> int:
        """Return the number of tasks that ran and do not run again in this job."""
        return self.done + self.failed + self.saved


class NodeSize(Struct, frozen=True, omit_defaults=True, tag_field="event", tag="size"):
    """The memory of a running task, and the age at which it became flat."""

    task: int | None = None
    """The task, if its memory is not flat yet, but above its booking: its next attempt needs no less."""
    key: TaskKey = TaskKey("", "")
    """The names of its numbers are hashed."""
    gpu_model: str = ""
    peak_mib: int = 0
    age_s: float = 0.0


class Begin(Struct, frozen=True):
    """The launcher of the decisions that follow."""

    job: str
    unix_s: float
    """Unix time of its second 0."""


class DecisionEvent(Struct, omit_defaults=True, tag_field="event", tag="decision"):
    """A decision of the board."""

    view: ViewChanges
    begin: Begin | None = None
    """None: the view is stored as changes to the decision before."""
    actions: tuple[Action, ...] = ()


class Repeat(Struct, frozen=True, tag_field="event", tag="repeat"):
    """A task that took the place of an ended one with the same GPU, reservation and cap."""

    t: float
    """Seconds since the launcher began."""
    ended: int
    started: int


class MadeDecision(Struct, frozen=True, kw_only=True):
    """One decision or repeat, rebuilt from its line."""

    view: PackView
    """For a repeat, the view of the decision before it."""
    actions: tuple[Action, ...]
    unix_s: float
    """Unix time, seconds."""
    job: str
    repeats: int | None = None
    """The task whose place was taken; None: a decision."""


Event = Progress | DecisionEvent | Repeat | GroupResult | NodeSize
_E = TypeVar("_E", Progress, DecisionEvent, Repeat, GroupResult, NodeSize)
_encode = msgspec.json.Encoder().encode
_of_packer = msgspec.json.Decoder(DecisionEvent | Repeat).decode
_of_group = msgspec.json.Decoder(GroupResult).decode

# ---- Writing ----


class EventLog:
    """Writes the events of one launcher, the only writer of its file. Only one process may use it.

    The file is opened at the first event. A full disk loses events, but ends neither the run nor later events.
    """

    def __init__(self, folder: Path | None, job: str, unix_s: float = 0.0) -> None:
        """Write to the file in a node's `folder`; None: write nothing, for a simulation. `unix_s`: as in `Begin`."""
        self._folder = folder
        self.job, self.unix_s = job, unix_s
        self.problem = ""
        """Why events were lost; empty: none were."""
        self._file: AppendFile | None = None
        self._size = 0
        self._lines: list[bytes] = []
        self._views = ViewDifference()
        self._waiting: tuple[tuple[int, str, int | None], ...] = ()
        self._wait_s = WAIT_S
        self._waited_s = 0.0
        self._shown: Progress | None = None
        self._sizes: dict[tuple[str, str, str, int | None], int] = {}
        """(exact, family, GPU model, task) -> largest peak in the file: a thousand equal tasks need one line."""

    def decide(self, view: PackView, decision: Decision) -> None:
        """Write a decision with actions, or from time to time one with new refusals."""
        if self._folder is None:
            return
        if not decision.actions:
            if view.now_s - self._waited_s < self._wait_s or not decision.refused:
                return
            waiting = tuple((one.task, one.gpu, one.needs_mib) for one in decision.refused)
            if waiting == self._waiting:
                return
            self._waiting, self._waited_s = waiting, view.now_s
            self._wait_s = min(2 * self._wait_s, WAIT_MOST_S)
        else:
            self._wait_s = WAIT_S
        begin = Begin(self.job, self.unix_s) if self._views.before is None else None
        self._write(DecisionEvent(self._views.next(view), begin, decision.actions))

    def repeat(self, now_s: float, ended: int, started: int) -> None:
        """Write that a task took the place of an ended one with the same GPU, reservation and cap."""
        if self._folder is not None and self._views.before is not None:
            self._lines.append(_encode(Repeat(round(now_s, 3), ended, started)) + b"\n")
            if len(self._lines) >= LINES_MOST:
                self.flush()

    def groups(self, groups: Iterable[GroupResult]) -> None:
        """Write the measured speeds of groups of tasks."""
        self._write(*groups)

    def size(self, key: TaskKey, gpu_model: str, peak_mib: int, age_s: float, task: int | None = None) -> None:
        """Write the size of a task, unless the file has it. `task`: as in `NodeSize`."""
        what = (key.exact, key.family, gpu_model, task)
        if self._sizes.get(what, -1) < peak_mib:
            self._sizes[what] = peak_mib
            stored = msgspec.structs.replace(key, numbers=tuple((tag(name), x) for name, x in key.numbers))
            self._write(NodeSize(task, stored, gpu_model, peak_mib, age_s))

    def progress(self, progress: Progress) -> None:
        """Write the progress if it is due, is the last, or tells of a failure. Call it about once a second."""
        before = self._shown
        is_news = before is None or (progress.failed, progress.exit_code) != (before.failed, before.exit_code)
        if before is not None and not (is_news or progress.ended):
            pause_s = min(PROGRESS_MOST_S, PROGRESS_PART * (progress.at - progress.began))
            if 0 <= progress.at - before.at < pause_s:
                return
        self._shown = progress
        self._write(progress)

    def _write(self, *events: Event) -> None:
        if events and self._folder is not None:
            self._lines += [_encode(event) + b"\n" for event in events]
            self.flush(is_progress=isinstance(events[0], Progress))

    def flush(self, *, is_progress: bool = False) -> None:
        """Write the buffered lines. Call it about once a second. `is_progress`: the last line is one of progress."""
        lines, self._lines = self._lines, []
        if not lines or self._folder is None:
            return
        try:
            if self._file is None:
                self._file = AppendFile(self._folder / EVENTS, mode=0o666, is_held=True)
                self._size = os.fstat(self._file.fd).st_size
            if self._size + sum(map(len, lines)) > MOST_BYTES:
                self.problem = f"it has reached {MOST_BYTES >> 20} MiB"
                self._views.forget()
                lines = lines[-1:] if is_progress else []
            if data := b"".join(lines):
                self._file.append(data)
                self._size += len(data)
        except OSError as error:
            self.problem = str(error.strerror)
            self._views.forget()  # the next decision is stored whole, without those that are lost

    def close(self) -> None:
        """Write the buffered lines, and close the file."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None


# ---- Reading ----


class EventReader(Generic[_E]):
    """Reads the events of one kind of all nodes of a run, each once."""

    def __init__(self, logs: Path, kind: type[_E], *, uid: int | None = None, is_latest: bool = False) -> None:
        """Read nothing yet. `logs`: the run's folder with the nodes' folders, which nodes make when they begin.

        `uid`: files of other owners are ignored; None: they are read. `is_latest`: of what is there already, read only
        the latest event of each node.
        """
        self._logs, self._uid = logs, uid
        self.leave: Path | None = None
        """The folder of a node that is not read."""
        tagged = msgspec.json.encode(str(kind.__struct_config__.tag))
        self._begin = b'{"event":%s' % tagged
        self._decode: Callable[[bytes], _E] = msgspec.json.Decoder(kind).decode
        self._is_latest = is_latest
        self._offsets: dict[Path, int] = {}
        """File -> number of bytes that were read."""

    def read(self) -> Iterator[tuple[Path, _E]]:
        """Yield (file, event) of what is new. A file that cannot be read is tried again the next time."""
        for folder in sorted(self._logs.glob(NODE_FOLDERS)):
            if folder != self.leave:
                file = folder / EVENTS
                try:
                    for event in self._read_file(file):
                        yield file, event
                except OSError:
                    continue

    def _read_file(self, file: Path) -> Iterator[_E]:
        if file not in self._offsets:
            self._offsets[file] = self._find_latest(file) if self._is_latest else 0
        for _ in range(READS_MOST):
            offset = self._offsets[file]
            data = files.read_regular(file, READ_BYTES, start=offset, uid=self._uid) or b""
            end = data.rfind(b"\n") + 1
            if end == 0 and len(data) == READ_BYTES:
                end = len(data)  # a part of a long line, such as a decision about many tasks
            self._offsets[file] = offset + end
            for line in data[:end].split(b"\n"):
                if line.startswith(self._begin):
                    try:
                        yield self._decode(line)
                    except text_files.NOT_JSON:
                        continue
            if len(data) < READ_BYTES:
                return

    def _find_latest(self, file: Path) -> int:
        """Return the offset of the last event of the kind; without one near the end, the end of the file."""
        size, most = file.stat().st_size, END_BYTES
        while True:
            start = max(0, size - most)
            data = files.read_regular(file, size - start, start=start, uid=self._uid) or b""
            last = data.rfind(b"\n") + 1
            found = data.rfind(b"\n" + self._begin, 0, max(0, last - 1)) + 1
            if found or (start == 0 and data.startswith(self._begin)):
                return start + found
            if start == 0 or most >= END_MOST_BYTES:
                return start + last
            most *= 4


class ProgressReader:
    """The latest progress of each node of a run."""

    def __init__(self, logs: Path) -> None:
        """Read nothing yet. `logs`: as in `EventReader`."""
        self._events = EventReader(logs, Progress, is_latest=True)
        self._latest: dict[Path, Progress] = {}

    def read(self) -> list[Progress]:
        """Return the latest progress of each node that has begun, without files that cannot be read."""
        self._latest.update(self._events.read())
        return [one for _, one in sorted(self._latest.items())]


class SizeReader:
    """The sizes of running tasks on the nodes of a run: of earlier jobs, and then of the other nodes."""

    def __init__(self, own: Path) -> None:
        """Read nothing yet. `own`: this node's folder; those of the other nodes are beside it."""
        self._own = own
        self._events = EventReader(own.parent, NodeSize, uid=os.geteuid())
        self._due_s = 0.0
        self.seen_mib: dict[int, int] = {}
        """Task -> the largest memory of its attempts that was above their bookings."""

    def read(self, now_s: float) -> list[NodeSize]:
        """Return the new sizes of flat tasks, at most every SIZES_EVERY_S. `now_s`: of a monotonic clock."""
        if now_s < self._due_s:
            return []
        self._due_s = now_s + SIZES_EVERY_S
        found = [one for _, one in self._events.read() if 0 < one.peak_mib < 1 << 24 and one.age_s >= 0]
        self._events.leave = self._own  # this launcher is the only one that writes there from now on
        for one in found:
            if one.task is not None:
                self.seen_mib[one.task] = max(self.seen_mib.get(one.task, 0), one.peak_mib)
        return [one for one in found if one.task is None]


def read_decisions(data: bytes) -> Iterator[MadeDecision]:
    """Yield the decisions in the content of a file, with their views.

    A damaged line ends the decisions of its launcher, up to the next one with a whole view.
    """
    begin: Begin | None = None
    view: PackView | None = None
    starts: dict[int, Start] = {}
    for text in data.split(b"\n"):
        if text.startswith((b'{"event":"progress"', b'{"event":"group"', b'{"event":"size"')) or not text:
            continue
        try:
            event = _of_packer(text)
            if isinstance(event, Repeat):
                if begin is None or view is None or (start := starts.pop(event.ended, None)) is None:
                    continue
                start = starts[event.started] = msgspec.structs.replace(start, task=event.started)
                unix_s = begin.unix_s + event.t
                yield MadeDecision(view=view, actions=(start,), unix_s=unix_s, job=begin.job, repeats=event.ended)
                continue
            if event.begin is not None:
                begin, view, starts = event.begin, None, {}
            if begin is None:
                continue
            view = rebuild(view, event.view)
        except (*text_files.NOT_JSON, *NOT_MATCHING):
            begin = None
            continue
        running = {one.ask.task for one in view.running}
        starts = {task: start for task, start in starts.items() if task in running}
        starts.update((one.task, one) for one in event.actions if isinstance(one, Start))
        yield MadeDecision(view=view, actions=event.actions, unix_s=begin.unix_s + event.view.t, job=begin.job)


def read_groups(data: bytes) -> Iterator[GroupResult]:
    """Yield the measured groups in the content of a file."""
    for text in data.split(b"\n"):
        if text.startswith(b'{"event":"group"'):
            try:
                yield _of_group(text)
            except text_files.NOT_JSON:
                continue
