"""The status line: how many nodes answered, the age of the figures, their source, and what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slurm_share.core.text import counted, span_text

from ..feed_sources import REST
from ..picture import SurveyPicture
from .lines import Line, TextPiece, joined, width_of

OLD_INTERVALS = 3
"""Number of intervals without a survey after which the age is marked."""
OLD_S = 60.0
"""Age from which a node's figures are called old, seconds, as in llload."""


@dataclass(frozen=True)
class StatusState:
    picture: SurveyPicture | None = None
    interval_s: float = 5.0
    held: bool = False
    problem: str = ""
    hint: str = ""
    """Note of the dashboard about marked rows."""


class StatusLine(Line):
    """The status line. A click on it shows all of it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.clock = clock
        self.status = StatusState()
        self._oldest_s = 0.0

    def on_mount(self) -> None:
        self.set_interval(1.0, self.grow)

    def grow(self) -> None:
        """Redraw every second, unless another screen covers this one."""
        if self.app.screen is self.screen:
            self.refresh()

    def show(self, status: StatusState) -> None:
        picture = status.picture
        if picture is not self.status.picture and picture is not None:
            self._oldest_s = oldest_s(picture)
        self.status = status
        self.refresh()

    def lay_out(self, width: int) -> Sequence[TextPiece]:
        """Return the pieces, the most important first. If they do not fit, a problem goes before everything."""
        found = said(self.status, self.clock(), self._oldest_s)
        between = TextPiece("  ")
        if found[-1].kind == "problem" and 1 + width_of(joined(found, between)) > width:
            found = [found[-1], *found[:-1]]
        return [replace(piece, target="help") for piece in (TextPiece(" "), *joined(found, between))]

    def texts(self) -> list[str]:
        """Return all parts of the status as lines."""
        return [piece.text.strip(" |") for piece in said(self.status, self.clock(), self._oldest_s)]


def said(status: StatusState, now: float, oldest: float = 0.0) -> list[TextPiece]:
    """Return the pieces. `now`: on the clock of `Picture.arrived`; `oldest`: seconds, as `oldest_s`."""
    picture = status.picture
    found: list[TextPiece] = []
    if status.held:
        found.append(TextPiece(" PAUSED ", "on"))
    found += [TextPiece("looking ...", "strong")] if picture is None else _seen(picture, status, now, oldest)
    if status.hint:
        found.append(TextPiece(status.hint))
    if status.problem:
        found.append(TextPiece(f"! {status.problem}", "problem"))
    elif picture is not None and picture.survey.notes:
        found.append(TextPiece("| " + "; ".join(picture.survey.notes), "dim"))
    return found


def _seen(picture: SurveyPicture, status: StatusState, now: float, oldest: float) -> list[TextPiece]:
    survey = picture.survey
    answered = survey.answered
    whole = answered == len(survey.nodes)
    found = [TextPiece(f"{answered} of {counted(len(survey.nodes), 'node')} answered", "" if whole else "strong")]
    if picture.is_replay:
        return [*found, TextPiece(survey.source)]  # its time is on the bar above
    age = max(0.0, now - picture.arrived)
    pace_s = max(status.interval_s, REST * picture.took_s)
    late = age > OLD_INTERVALS * pace_s and not status.held
    found.append(TextPiece(f"{span_text(int(age))} ago{' (OLD)' if late else ''}", "strong" if late else ""))
    if oldest > OLD_S:
        found.append(TextPiece(f"figures up to {span_text(oldest)} old (OLD)", "strong"))
    found.append(TextPiece(survey.source))
    found.append(TextPiece(f"every {pace_s:.3g} s"))
    if not picture.details:
        found.append(TextPiece("a line for each node only", "dim"))
    return found


def oldest_s(picture: SurveyPicture) -> float:
    """Return by how many seconds the oldest figures are older than the survey."""
    taken = [snapshot.taken for snapshot in picture.snapshots]
    return max(0.0, picture.survey.taken - min(taken)) if taken else 0.0
