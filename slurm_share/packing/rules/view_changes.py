"""Store the view of each decision as its changes to the view before, and rebuild it.

Every view can be rebuilt and decided again, with the same result byte for byte. So refusals need not be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ..records import GpuView, PackView, RunningView, TaskKey, WaitingView

NOT_MATCHING = (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError)
_SIMPLE = frozenset({int, float, str, bool, type(None)})
"""Types whose values are the same for JSON."""
SHARED_MOST = 256
"""Most keys and estimates whose values for JSON are kept."""
_Record = TypeVar("_Record", bound=Struct)


class ViewChanges(Struct, omit_defaults=True):
    """The changes of a view."""

    t: float
    """Seconds since the launcher began."""
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


class ViewDifference:
    """Makes the changes of one view after the other. What a view has in common with the one before is not looked at."""

    def __init__(self) -> None:
        """Begin: the first changes are a whole view."""
        self.before: PackView | None = None
        self._parts = _parts(None)
        """Those of `before`."""
        self._plain: dict[int, tuple[object, Any]] = {}
        """id -> a key or estimates, which many tasks share, and its value for JSON."""

    def forget(self) -> None:
        """Make the next changes a whole view again."""
        self.before, self._parts = None, _parts(None)

    def next(self, view: PackView) -> ViewChanges:
        """Return the changes from the view before."""
        changes = ViewChanges(
            t=view.now_s, v=_changes(self.before, view, leave=("gpus", "running", "waiting", "now_s"))
        )
        old_gpus, old_running, old_waiting = self._parts
        gpus, running, waiting = parts = _parts(view)
        shared = self._shared
        for index, gpu in gpus.items():
            if gpu is not (old := old_gpus.get(index)) and (changed := _changes(old, gpu)):
                changes.g[index] = changed
        for task, run in running.items():
            if run is (ran := old_running.get(task)):
                continue
            waited = None if ran is not None else old_waiting.get(task)
            is_known = waited is not None and waited.ask == run.ask
            if changed := _changes(ran, run, leave=("ask",) if is_known else (), shared=shared):
                changes.r[task] = changed
        for task, waits in waiting.items():
            if waits is not (old_waits := old_waiting.get(task)) and (
                changed := _changes(old_waits, waits, shared=shared)
            ):
                changes.w[task] = changed
        changes.gone = tuple([task for task in old_running if task not in running])
        changes.out = tuple([task for task in old_waiting if task not in waiting])
        order = [task for task in old_waiting if task in waiting]
        order += [task for task in waiting if task not in old_waiting]
        if order != list(waiting):
            changes.order = tuple(waiting)
        self.before, self._parts = view, parts
        return changes

    def _shared(self, value: object) -> Any:
        """Return a value for JSON. The same key or tuple of estimates is converted once."""
        if not isinstance(value, TaskKey | tuple):
            return _plain(value, self._shared)
        found = self._plain.get(id(value))
        if found is None or found[0] is not value:
            if len(self._plain) >= SHARED_MOST:
                self._plain.clear()
            found = self._plain[id(value)] = value, _plain(value)
        return found[1]


def difference(before: PackView | None, view: PackView) -> ViewChanges:
    """Return the changes from the view before (None: the whole view)."""
    made = ViewDifference()
    if before is not None:
        made.next(before)
    return made.next(view)


def _parts(view: PackView | None) -> tuple[dict[int, GpuView], dict[int, RunningView], dict[int, WaitingView]]:
    """Return the GPUs of a view by index, its running and its waiting tasks by number."""
    if view is None:
        return {}, {}, {}
    return (
        {one.facts.index: one for one in view.gpus},
        {one.ask.task: one for one in view.running},
        {one.ask.task: one for one in view.waiting},
    )


def _changes(
    before: Struct | None, now: Struct, leave: Sequence[str] = (), shared: Callable[[object], Any] | None = None
) -> dict[str, Any]:
    """Return the changed fields of a record; for a new record, those that differ from their defaults."""
    if before is now:
        return {}
    found = {}
    for name, (written, default) in _defaults(type(now)).items():
        value = getattr(now, name)
        was = default if before is None else getattr(before, name)
        if value is not was and value != was and name not in leave:
            found[written] = value if type(value) in _SIMPLE else (shared or _plain)(value)
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


def _plain(value: object, shared: Callable[[object], Any] | None = None) -> Any:
    """Return a value for JSON; records leave out fields with their default."""
    if isinstance(value, Struct):
        return _changes(None, value, shared=shared)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value


def rebuild(before: PackView | None, changes: ViewChanges) -> PackView:
    """Return the view after these changes. Raises one of NOT_MATCHING if they do not match `before`."""
    gpus, running, waiting = _parts(before)
    for index, fields in changes.g.items():
        gpus[index] = _changed(gpus.get(index), fields, GpuView)
    for task, fields in changes.r.items():
        if task not in running and "ask" not in fields:
            fields = {**fields, "ask": msgspec.to_builtins(waiting[task].ask)}
        running[task] = _changed(running.get(task), fields, RunningView)
    for task in changes.gone:
        del running[task]
    for task, fields in changes.w.items():
        waiting[task] = _changed(waiting.get(task), fields, WaitingView)
    for task in changes.out:
        del waiting[task]
    rest = {
        written: msgspec.to_builtins(getattr(before, name))
        for name, (written, _) in _defaults(PackView).items()
        if before is not None and name not in ("gpus", "running", "waiting", "now_s")
    }
    whole = msgspec.convert({**rest, **changes.v, "gpus": [], "now_s": changes.t}, type=PackView)
    return msgspec.structs.replace(
        whole,
        gpus=tuple(gpus[index] for index in sorted(gpus)),
        running=tuple(running[task] for task in sorted(running)),
        waiting=tuple(waiting[task] for task in changes.order) if changes.order else tuple(waiting.values()),
    )


def _changed(before: _Record | None, fields: Mapping[str, Any], kind: type[_Record]) -> _Record:
    if before is None:
        return msgspec.convert(dict(fields), type=kind)
    types = _types(kind)
    return msgspec.structs.replace(
        before, **{name: msgspec.convert(value, type=types[name]) for name, value in fields.items()}
    )
