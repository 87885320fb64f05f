"""Decide a journal's views again: the answers must be the same, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from .. import journal
from ..decision_records import Action, Decision
from ..records import PackView


class Difference(Struct, frozen=True):
    """The first decision of a journal that is another one now."""

    index: int
    """From 0, among the decisions."""
    view: PackView
    then: tuple[Action, ...]
    now: Decision

    def __str__(self) -> str:
        then, now = (msgspec.json.encode(actions).decode() for actions in (self.then, self.now.actions))
        return f"decision {self.index}, at {self.view.now_s:.1f} s: then {then}, now {now}"


def replay(entries: Iterable[journal.Entry]) -> Difference | None:
    """Return the first decision that is not what it was; None: all are the same."""
    for index, (entry, decision) in enumerate(journal.replay(entries)):
        if not journal.is_same(entry, decision):
            return Difference(index, entry.view, entry.actions, decision)
    return None
