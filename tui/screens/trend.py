"""The screen with a large plot of one subject: ten minutes, an hour, or all that is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from slurm_share.core import terminal
from slurm_share.core.text import span_text
from slurm_share.load import text

from ..history import FigureHistory
from ..keymap import TREND, close_with
from ..widgets.charts import SERIES, SPAN_LEAST_S, PlotSeries, observed_s
from ..widgets.plot import Plot
from ..wire import Point, Subject

SPANS: tuple[tuple[str, float | None], ...] = (("10 min", 600.0), ("1 h", 3600.0), ("all", None))
CHECK_S = 0.5
LOW, NARROW = 8, 45
"""Below this height there is no plot; below this width the figures have letters without names."""


def latest(points: Sequence[Point], series: PlotSeries) -> str:
    """Return the newest figure as text; `?`: unknown."""
    value: float | None = getattr(points[-1], series.of) if points else None
    return "?" if value is None else f"{value:.0f}%"


class Trend(Screen[None]):
    """The plot, which is updated as surveys arrive."""

    DEFAULT_CSS = """
    Trend { background: $background; color: $foreground; }
    #trend-title, #trend-keys { height: 1; width: 100%; background: $panel; }
    #trend-title { text-style: bold; }
    #trend-keys { color: $text-muted; }
    #trend-legend { height: auto; max-height: 3; width: 100%; }
    #trend-empty { height: 1fr; width: 100%; content-align: center middle; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*TREND]

    def __init__(
        self,
        history: FigureHistory,
        subject: Subject,
        title: str,
        *,
        ask_recorded: Callable[[Subject], object] | None = None,
        closes: Iterable[str] = (),
    ) -> None:
        """`title`: name of the subject. `ask_recorded`: asks for all recorded points of a subject; None: not a replay.
        `closes`: further keys that close the screen."""
        super().__init__()
        close_with(self._bindings, closes)
        self.history, self.subject, self.label = history, subject, title
        self._ask_recorded = ask_recorded
        self.at = 0
        self.hidden: frozenset[int] = frozenset()
        self._drawn: object = None

    def compose(self) -> ComposeResult:
        yield Static(id="trend-title", markup=False)
        yield Plot()
        yield Static("nothing has been seen of it yet", id="trend-empty", markup=False)
        yield Static(id="trend-legend", markup=False)
        yield Static(id="trend-keys", markup=False)

    def on_mount(self) -> None:
        if self._ask_recorded is not None and not self.history.has_recorded(self.subject):
            self._ask_recorded(self.subject)
        self.draw()
        self.set_interval(CHECK_S, self.follow)

    def on_resize(self) -> None:
        self.draw()

    def follow(self) -> None:
        """Draw again if there is something new."""
        if (self.history.newest, self.history.has_recorded(self.subject)) != self._drawn:
            self.draw()

    def draw(self) -> None:
        self._drawn = (self.history.newest, self.history.has_recorded(self.subject))
        name, span_s = SPANS[self.at]
        points = self.history.points(self.subject, span_s)
        is_known = any(getattr(point, one.of) is not None for point in points for one in SERIES)
        now = self.history.newest
        plot, empty = self.query_one(Plot), self.query_one("#trend-empty", Static)
        plot.display, empty.display = is_known and self.size.height >= LOW, not is_known
        if is_known:
            end = points[-1].taken if span_s is None or now is None else now
            begin = points[0].taken
            if span_s is not None and end - begin > 0.9 * span_s:
                begin = end - span_s
            elif span_s is not None:  # at first, and in a short recording
                begin = min(begin, end - SPAN_LEAST_S)
            here = now if span_s is None and self.history.has_recorded(self.subject) else None
            shown = [series for at, series in enumerate(SERIES) if at not in self.hidden]
            plot.draw(points, begin, end, shown=shown, here=here)
        self._write(name, points)

    def _write(self, name: str, points: Sequence[Point]) -> None:
        width = max(1, self.size.width)
        covered_s = observed_s(points)
        seen = f", {span_text(covered_s)} seen" if covered_s > 0 else ""
        self.query_one("#trend-title", Static).update(text.cut(f" {terminal.safe(self.label)}: {name}{seen}", width))
        self.query_one("#trend-legend", Static).update(self._legend(points))
        spans = "  ".join(
            ("[{} {}]" if at == self.at else "{} {}").format(at + 1, SPANS[at][0]) for at in range(len(SPANS))
        )
        self.query_one("#trend-keys", Static).update(text.cut(f" {spans}   c g s m v lines   Esc back", width))

    def _legend(self, points: Sequence[Point]) -> Content:
        plot = self.query_one(Plot)
        parts: list[Content | tuple[str, str]] = []
        for at, series in enumerate(SERIES):
            label = f" {series.label}" if self.size.width >= NARROW else ""
            if at in self.hidden:
                parts.append((f" {series.letter}{label} (hidden) ", "dim"))
                continue
            colour = plot.colour_of(series.role)
            style = f"bold rgb({colour[0]},{colour[1]},{colour[2]})" if isinstance(colour, tuple) else "bold"
            parts += [(f" {series.letter}", style), (f"{label} {latest(points, series)} ", "")]
        return Content.assemble(*parts)

    def action_span(self, at: int) -> None:
        self.at = at
        self.draw()

    def action_next_span(self, by: int) -> None:
        self.action_span(min(len(SPANS) - 1, max(0, self.at + by)))

    def action_line(self, at: int) -> None:
        self.hidden = self.hidden ^ {at}
        self.draw()
