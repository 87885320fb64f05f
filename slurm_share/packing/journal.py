"""The journal of a node's decisions, `decisions.jsonl`: the view and the actions of each decision.

There is a line for every decision with actions, and from time to time one for waiting tasks. A line stores the view as
the difference to the line before, so that each view can be rebuilt and decided again, with the same result byte for
byte. Refusals are not stored, because deciding again gives them. If a task takes the place of an ended one of the same
command and size without a decision, the line has the field `again`.

A launcher begins with a whole view, since the file may hold lines of earlier jobs, the last of them incomplete.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ..core import text_files
from ..core.errors import UsageError
from .decision_records import Action, Decision, Start
from .lab_parts import policy_of
from .records import GpuView, PackView, RunningView, WaitingView
from .rules import explain
from .rules.speed_account import GroupResult

DECISIONS = "decisions.jsonl"
"""Name of the file, in a node's folder of a run."""
VERSION = 1
MOST_BYTES = 64 << 20
"""Size limit, so that a journal cannot fill a disk. 100,000 short tasks take less than a tenth of it."""
GROUPS = "groups.jsonl"
"""Name of the file with the measured groups of tasks, in the same folder, for `pack explain`."""
GROUPS_MOST_BYTES = 16 << 20
LINES_MOST = 64
"""Lines with `again` are buffered up to this number, so that short tasks do not wait for the disk."""
WAIT_S, WAIT_MOST_S = 5.0, 60.0
"""First and longest time between two lines about waiting tasks. The time doubles until a task starts."""

_encode = msgspec.json.Encoder().encode
_actions = msgspec.json.Decoder(tuple[Action, ...])
_decode_group = msgspec.json.Decoder(GroupResult).decode
_Record = TypeVar("_Record", bound=Struct)
_NOT_A_LINE = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError, KeyError, TypeError)


class Entry(Struct, frozen=True, kw_only=True):
    """One decision or repeat, rebuilt from a line of a journal."""

    view: PackView
    """For a repeat, the view of the decision before it."""
    actions: tuple[Action, ...]
    unix_s: float
    """Unix time, seconds."""
    job: str
    repeats: int | None = None
    """The task whose place was taken; None: a decision."""


class Line(Struct, omit_defaults=True):
    """One line of the file."""

    t: float
    """Seconds since the launcher began."""
    begin: Begin | None = None
    v: dict[str, Any] = {}
    """Changed fields of the view, except `gpus`, `running` and `waiting`."""
    g: dict[int, dict[str, Any]] = {}
    """GPU index -> changed fields."""
    r: dict[int, dict[str, Any]] = {}
    """Running task -> changed fields; for a new task, the fields that differ from their defaults."""
    w: dict[int, dict[str, Any]] = {}
    """The same for waiting tasks; new ones are appended."""
    gone: tuple[int, ...] = ()
    """Tasks that have stopped running."""
    out: tuple[int, ...] = ()
    """Tasks that have stopped waiting."""
    order: tuple[int, ...] = ()
    """All waiting tasks, if their order has changed."""
    a: msgspec.Raw = msgspec.Raw(b"[]")
    """The actions."""
    again: tuple[int, int] | None = None
    """(ended task, task that took its place)"""


class Begin(Struct, frozen=True):
    """The part of a launcher's first line that identifies it."""

    version: int
    job: str
    unix_s: float
    """Unix time of its second 0."""


# ---- Writing ----


class Journal:
    """The journal of one launcher. A full disk ends the journal, but not the run."""

    def __init__(self, folder: Path | None, job: str, unix_s: float) -> None:
        """Append to the file in a node's `folder`; None: write nothing, for a simulation. `unix_s`: Unix time of the
        launcher's second 0."""
        self._begin: Begin | None = Begin(VERSION, job, unix_s)
        self._last: PackView | None = None
        self._waiting: tuple[tuple[int, str, int | None], ...] = ()
        self._wait_s = WAIT_S
        self._waited_s = 0.0
        self._size = 0
        self._lines: list[bytes] = []
        self.problem = ""
        """Why the journal has ended; empty: it has not."""
        self._fd = -1
        if folder is None:
            self.problem = "it is not kept"
            return
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
            self._fd = os.open(folder / DECISIONS, flags, 0o644)
            self._size = os.fstat(self._fd).st_size
            if self._size and os.pread(self._fd, 1, self._size - 1) != b"\n":
                self._put(b"\n")
        except OSError as error:
            self.problem = str(error.strerror)

    def note(self, view: PackView, decision: Decision) -> None:
        """Write a decision with actions, or from time to time one with new refusals."""
        if self.problem:
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
        line = difference(self._last, view)
        line.a = msgspec.Raw(_encode(decision.actions))
        self._write(line)
        self._last = view

    def repeat(self, now_s: float, ended: int, started: int) -> None:
        """Write that a task took the place of an ended one with the same GPU, reservation and cap."""
        if not self.problem:
            self._write(Line(t=round(now_s, 3), again=(ended, started)))

    def _write(self, line: Line) -> None:
        if self._begin is not None:
            line.begin, self._begin = self._begin, None
        self._lines.append(_encode(line) + b"\n")
        if line.again is None or len(self._lines) >= LINES_MOST:
            self.flush()

    def flush(self) -> None:
        """Write the buffered lines. Call it about once a second."""
        if self._lines:
            lines, self._lines = b"".join(self._lines), []
            self._put(lines)

    def _put(self, data: bytes) -> None:
        if self._size + len(data) > MOST_BYTES:
            self.problem = f"it has reached {MOST_BYTES >> 20} MiB"
            return
        try:
            if os.write(self._fd, data) != len(data):
                self.problem = "the disk is full"
        except OSError as error:
            self.problem = str(error.strerror)
        self._size += len(data)

    def close(self) -> None:
        self.flush()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def difference(before: PackView | None, view: PackView) -> Line:
    """Return the difference of a view to the view before it (None: the whole view)."""
    line = Line(t=view.now_s, v=_changes(before, view, leave=("gpus", "running", "waiting", "now_s")))
    old_gpus, old_running, old_waiting = _parts(before)
    gpus, running, waiting = _parts(view)
    for index, gpu in gpus.items():
        if changed := _changes(old_gpus.get(index), gpu):
            line.g[index] = changed
    for task, run in running.items():
        waited = None if task in old_running else old_waiting.get(task)
        is_known = waited is not None and waited.ask == run.ask
        if changed := _changes(old_running.get(task), run, leave=("ask",) if is_known else ()):
            line.r[task] = changed
    for task, waits in waiting.items():
        if changed := _changes(old_waiting.get(task), waits):
            line.w[task] = changed
    line.gone = tuple(task for task in old_running if task not in running)
    line.out = tuple(task for task in old_waiting if task not in waiting)
    kept = [task for task in old_waiting if task in waiting]
    if kept + [task for task in waiting if task not in old_waiting] != list(waiting):
        line.order = tuple(waiting)
    return line


def _parts(view: PackView | None) -> tuple[dict[int, GpuView], dict[int, RunningView], dict[int, WaitingView]]:
    """Return the GPUs of a view by index, its running and its waiting tasks by number."""
    if view is None:
        return {}, {}, {}
    return (
        {one.facts.index: one for one in view.gpus},
        {one.ask.task: one for one in view.running},
        {one.ask.task: one for one in view.waiting},
    )


def _changes(before: Struct | None, now: Struct, leave: Sequence[str] = ()) -> dict[str, Any]:
    """Return the changed fields of a record; for a new record, those that differ from their defaults."""
    if before is now:
        return {}
    found = {}
    for name, (written, default) in _defaults(type(now)).items():
        value = getattr(now, name)
        was = default if before is None else getattr(before, name)
        if value is not was and value != was and name not in leave:
            found[written] = _plain(value)
    return found


@cache
def _defaults(kind: type[Struct]) -> dict[str, tuple[str, Any]]:
    """Return field -> (name in the file, default) of a record; without a default, a value that no field has."""
    found = {}
    for field in msgspec.structs.fields(kind):
        made = field.default_factory
        default = field.default if made is msgspec.NODEFAULT else made()
        found[field.name] = (field.encode_name, default)
    return found


@cache
def _types(kind: type[Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def _plain(value: object) -> Any:
    """Return a value for JSON; records leave out fields with their default."""
    if isinstance(value, Struct):
        return _changes(None, value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value


# ---- Reading ----


def read_journal(data: bytes) -> Iterator[Entry]:
    """Yield the decisions of a journal with their views. A line that cannot be read ends the part of its launcher."""
    begin: Begin | None = None
    view: PackView | None = None
    starts: dict[int, Start] = {}
    for text in data.split(b"\n"):
        if not text:
            continue
        try:
            line = msgspec.json.decode(text, type=Line)
            if line.begin is not None:
                begin, view, starts = line.begin, None, {}
            if begin is None or begin.version != VERSION:
                continue
            unix_s = begin.unix_s + line.t
            if line.again is not None:
                if view is not None and (start := starts.pop(line.again[0], None)) is not None:
                    start = msgspec.structs.replace(start, task=line.again[1])
                    starts[line.again[1]] = start
                    yield Entry(view=view, actions=(start,), unix_s=unix_s, job=begin.job, repeats=line.again[0])
                continue
            view = rebuild(view, line)
            actions = _actions.decode(line.a)
        except _NOT_A_LINE:
            begin = None
            continue
        running = {one.ask.task for one in view.running}
        starts = {task: start for task, start in starts.items() if task in running}
        starts.update((one.task, one) for one in actions if isinstance(one, Start))
        yield Entry(view=view, actions=actions, unix_s=unix_s, job=begin.job)


def rebuild(before: PackView | None, line: Line) -> PackView:
    """Return the view of a line. Raises msgspec.ValidationError or KeyError if the line does not match `before`."""
    gpus, running, waiting = _parts(before)
    for index, fields in line.g.items():
        gpus[index] = _changed(gpus.get(index), fields, GpuView)
    for task, fields in line.r.items():
        if task not in running and "ask" not in fields:
            fields = {**fields, "ask": msgspec.to_builtins(waiting[task].ask)}
        running[task] = _changed(running.get(task), fields, RunningView)
    for task in line.gone:
        del running[task]
    for task, fields in line.w.items():
        waiting[task] = _changed(waiting.get(task), fields, WaitingView)
    for task in line.out:
        del waiting[task]
    rest = {
        written: msgspec.to_builtins(getattr(before, name))
        for name, (written, _) in _defaults(PackView).items()
        if before is not None and name not in ("gpus", "running", "waiting", "now_s")
    }
    whole = msgspec.convert({**rest, **line.v, "gpus": [], "now_s": line.t}, type=PackView)
    return msgspec.structs.replace(
        whole,
        gpus=tuple(gpus[index] for index in sorted(gpus)),
        running=tuple(running[task] for task in sorted(running)),
        waiting=tuple(waiting[task] for task in line.order) if line.order else tuple(waiting.values()),
    )


def _changed(before: _Record | None, fields: Mapping[str, Any], kind: type[_Record]) -> _Record:
    if before is None:
        return msgspec.convert(dict(fields), type=kind)
    types = _types(kind)
    known = {name: value for name, value in fields.items() if name in types}  # an earlier version had other fields
    return msgspec.structs.replace(
        before, **{name: msgspec.convert(value, type=types[name]) for name, value in known.items()}
    )


def explain_task(entries: Iterable[Entry], task: int) -> Iterator[tuple[float, tuple[str, ...]]]:
    """Yield the Unix time and the sentences of each decision about a task, unless they equal those before."""
    before: tuple[str, ...] = ()
    for entry in entries:
        if entry.repeats is not None:
            if entry.actions[0].task == task:
                yield entry.unix_s, explain.of_task(task, entry.view, Decision(actions=entry.actions))
            continue
        waits = any(one.ask.task == task for one in entry.view.waiting)
        if not waits and not any(action.task == task for action in entry.actions):
            continue
        try:
            refused = policy_of(entry.view.settings)(entry.view).refused if waits else ()
            lines = explain.of_task(task, entry.view, Decision(actions=entry.actions, refused=refused))
        except (ArithmeticError, UsageError):  # impossible figures, or a policy of a laboratory that is not here
            continue
        if lines and lines != before:
            yield entry.unix_s, lines
        before = lines


# ---- Measured groups ----


def append_groups(folder: Path, groups: Sequence[GroupResult]) -> str:
    """Append groups to the file in a node's folder. Return the reason of a failure; empty: success."""
    if not groups:
        return ""
    try:
        with open(folder / GROUPS, "ab") as opened:
            if opened.tell() < GROUPS_MOST_BYTES:
                opened.write(b"".join(_encode(one) + b"\n" for one in groups))
    except OSError as error:
        return str(error.strerror)
    return ""


def read_groups(file: Path) -> Iterator[GroupResult]:
    """Yield the groups of a file; lines that cannot be decoded are skipped. Raises OSError."""
    with open(file, "rb") as opened:
        for line in opened.read(2 * GROUPS_MOST_BYTES).splitlines():
            try:
                yield _decode_group(line)
            except text_files.NOT_JSON:
                continue
