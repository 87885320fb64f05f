"""Store the view of each decision as its changes to the view before, and rebuild it.

Every view can be rebuilt and decided again, with the same result byte for byte. So refusals need not be stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ..records import GpuView, PackView, RunningView, WaitingView

NOT_MATCHING = (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError)
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


def difference(before: PackView | None, view: PackView) -> ViewChanges:
    """Return the changes from the view before (None: the whole view)."""
    changes = ViewChanges(t=view.now_s, v=_changes(before, view, leave=("gpus", "running", "waiting", "now_s")))
    old_gpus, old_running, old_waiting = _parts(before)
    gpus, running, waiting = _parts(view)
    for index, gpu in gpus.items():
        if changed := _changes(old_gpus.get(index), gpu):
            changes.g[index] = changed
    for task, run in running.items():
        waited = None if task in old_running else old_waiting.get(task)
        is_known = waited is not None and waited.ask == run.ask
        if changed := _changes(old_running.get(task), run, leave=("ask",) if is_known else ()):
            changes.r[task] = changed
    for task, waits in waiting.items():
        if changed := _changes(old_waiting.get(task), waits):
            changes.w[task] = changed
    changes.gone = tuple(task for task in old_running if task not in running)
    changes.out = tuple(task for task in old_waiting if task not in waiting)
    kept = [task for task in old_waiting if task in waiting]
    if kept + [task for task in waiting if task not in old_waiting] != list(waiting):
        changes.order = tuple(waiting)
    return changes


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
