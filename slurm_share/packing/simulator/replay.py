"""Decide a journal's views again: the answers must be the same, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from ..records import Action, Decision, PackView
from ..rules import place

_encode = msgspec.json.Encoder().encode


class Difference(Struct, frozen=True):
    """The first decision of a journal that is another one now."""

    index: int
    """From 0, among the decisions."""
    view: PackView
    then: tuple[Action, ...]
    now: Decision

    def __str__(self) -> str:
        then, now = _encode(self.then).decode(), _encode(self.now.actions).decode()
        return f"decision {self.index}, at {self.view.now_s:.1f} s: then {then}, now {now}"


def replay(journal: Iterable[tuple[PackView, Sequence[Action]]]) -> Difference | None:
    """Return the first decision that is not what it was; None: all are the same. `journal`: views and actions."""
    for index, (view, actions) in enumerate(journal):
        answer = place.decide(view)
        if _encode(tuple(actions)) != _encode(answer.actions):
            return Difference(index, view, tuple(actions), answer)
    return None
