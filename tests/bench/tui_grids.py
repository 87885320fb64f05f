"""Draw the same 10,000 rows in three tables: python tests/bench/tui_grids.py [SECONDS] (two minutes, without root).

The tables are the dashboard's own grid, textual.widgets.DataTable and textual-fastdatatable, which is measured only
where it is installed (pip install textual-fastdatatable). Each runs in a terminal of 160 x 50, in a process of its own,
under three loads: all visible cells change twice a second; the same while a page is scrolled ten times a second; and
what the dashboard does, every cell of all rows changes every two seconds and the rows are sorted by a figure again.

The other tables get the fastest way that they have: DataTable.update_cell without measuring widths again, and for
textual-fastdatatable a new Arrow table for each survey, which is not in its documented interface.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from bench import Row, report
from rich.text import Text
from terminals import measured_by
from textual.app import App, ComposeResult
from textual.widget import Widget
from textual.widgets import DataTable
from tui_drawing import Frames

from slurm_share.load import Column

COUNT, SURVEYS = 10_000, 6
FIGURES = tuple(f"figure{number}" for number in range(9))
SORTED_BY = FIGURES[2]
KINDS = {"grid": "our grid", "datatable": "DataTable", "fast": "textual-fastdatatable"}
WARM_S, SETTLE_S = 1.0, 0.2
FILTER_ROUNDS = 9


@dataclass(frozen=True, slots=True)
class Record:
    """A row: names, and figures in percent that depend on the row and on the survey."""

    name: str
    state: str
    user: str
    figures: tuple[int, ...]


def record(number: int, survey: int) -> Record:
    """Return a row as a survey has it."""
    figures = tuple((number * 7 + at * 13 + survey * (5 + at)) % 101 for at in range(len(FIGURES)))
    return Record(f"node{number:05}", ("idle", "mixed", "alloc")[number % 3], f"user{number % 97}", figures)


def texts(one: Record) -> tuple[str, ...]:
    """Return the texts of its cells."""
    return (one.name, one.state, one.user, *(f"{figure}%" for figure in one.figures))


class Table(ABC):
    """A table under test."""

    widget: Widget

    @abstractmethod
    def fill(self, rows: Sequence[Record]) -> None:
        """Show these rows for the first time."""

    @abstractmethod
    def change(self, rows: Sequence[Record], lines: Iterable[int]) -> None:
        """Show these rows, of which only those in `lines` have changed."""

    @abstractmethod
    def replace(self, rows: Sequence[Record]) -> None:
        """Show these rows, of which all have changed, sorted by SORTED_BY, the largest first."""

    def visible(self) -> range:
        """Return the lines on the screen."""
        top = round(self.widget.scroll_offset.y)
        return range(top, min(COUNT, top + self.widget.size.height - 1))


class OurGrid(Table):
    """The dashboard's grid. It takes whole surveys and finds out itself what has changed."""

    def __init__(self) -> None:
        from slurm_share_tui.widgets.grid import Grid

        self.grid: Grid[Record] = Grid(columns(), lambda one: one.name, name="bench")
        self.widget = self.grid

    def fill(self, rows: Sequence[Record]) -> None:
        self.grid.show(rows)

    def change(self, rows: Sequence[Record], lines: Iterable[int]) -> None:
        self.grid.show(rows)

    def replace(self, rows: Sequence[Record]) -> None:
        if self.grid.sort != (SORTED_BY, True):
            self.grid.sort_by(SORTED_BY, True)
        self.grid.show(rows)


def columns() -> list[Column[Record]]:
    return [
        *(
            Column(id, id.upper(), id, text=attrgetter(id), value=attrgetter(id), least=8)
            for id in ("name", "state", "user")
        ),
        *(
            Column(id, id.upper(), id, text=_figure_text(at), value=_figure(at), right=True, unit="%")
            for at, id in enumerate(FIGURES)
        ),
    ]


def _figure(at: int) -> Any:
    return lambda one: one.figures[at]


def _figure_text(at: int) -> Any:
    return lambda one: f"{one.figures[at]}%"


class TextualTable(Table):
    """Textual's DataTable. Cells are `Text`, since a `str` is read as markup."""

    def __init__(self) -> None:
        self.table: DataTable[Text] = DataTable(cursor_type="row", fixed_columns=1)
        self.widget = self.table
        self._columns = ("name", "state", "user", *FIGURES)

    def fill(self, rows: Sequence[Record]) -> None:
        for id in self._columns:
            self.table.add_column(id.upper(), key=id)
        for one in rows:
            self.table.add_row(*map(_text, texts(one)), key=one.name)

    def change(self, rows: Sequence[Record], lines: Iterable[int]) -> None:
        for line in lines:
            for id, text in zip(self._columns, texts(rows[line]), strict=True):
                self.table.update_cell(rows[line].name, id, _text(text))

    def replace(self, rows: Sequence[Record]) -> None:
        row, _ = self.table.coordinate_to_cell_key(self.table.cursor_coordinate)
        self.change(rows, range(len(rows)))
        self.table.sort(SORTED_BY, key=lambda text: int(text.plain[:-1]), reverse=True)
        self.table.move_cursor(row=self.table.get_row_index(row), animate=False)


def _text(text: str) -> Text:
    return Text(text, justify="right" if text.endswith("%") else "left", no_wrap=True)


class FastTable(Table):
    """textual-fastdatatable. Its update_cell rewrites a whole column, so every change is a new Arrow table."""

    def __init__(self) -> None:
        from textual_fastdatatable import ArrowBackend
        from textual_fastdatatable import DataTable as FastDataTable

        self._backend = ArrowBackend
        self._labels = ("name", "state", "user", *FIGURES)
        self.table = FastDataTable(
            backend=self._made([record(0, 0)]), cursor_type="row", fixed_columns=1, render_markup=False
        )
        self.widget = self.table

    def _made(self, rows: Sequence[Record]) -> Any:
        names = {id: [getattr(one, id) for one in rows] for id in self._labels[:3]}
        return self._backend.from_pydict(
            names | {id: [one.figures[at] for one in rows] for at, id in enumerate(FIGURES)}
        )

    def _show(self, rows: Sequence[Record]) -> None:
        backend = self._made(rows)
        backend.render_markup = False
        self.table.backend = backend
        self.table._ordered_columns = None
        self.table._clear_caches()
        self.table._require_update_dimensions = True
        self.table.refresh(layout=True)

    def fill(self, rows: Sequence[Record]) -> None:
        self._show(rows)

    def change(self, rows: Sequence[Record], lines: Iterable[int]) -> None:
        self._show(rows)

    def replace(self, rows: Sequence[Record]) -> None:
        self._show(rows)
        self.table.sort([(SORTED_BY, "descending")])


TABLES: dict[str, type[Table]] = {"grid": OurGrid, "datatable": TextualTable, "fast": FastTable}


class Bench(App[None]):
    """An app with one table, which is measured from its first rows on."""

    def __init__(self, kind: str, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.found: dict[str, float] = {}
        self.surveys = [[record(number, survey) for number in range(COUNT)] for survey in range(SURVEYS)]
        """Made before anything is measured, and shown in turn."""
        self.rows = self.surveys[0]
        self._number = 0
        self._rss = psutil.Process().memory_info().rss
        self._begun = time.perf_counter()
        self.table = TABLES[kind]()

    def compose(self) -> ComposeResult:
        yield self.table.widget

    def on_mount(self) -> None:
        self.table.widget.focus()
        self._begun = time.perf_counter()
        self.table.fill(self.rows)
        self.call_after_refresh(self._painted)

    def _painted(self) -> None:
        self.found["paint_ms"] = 1000 * (time.perf_counter() - self._begun)
        self.run_worker(self.measure())

    async def measure(self) -> None:
        """Run the loads one after another."""
        frames = Frames()
        frames.watch(asyncio.get_running_loop())
        for load, rate, keys_s in (("cells", 2.0, 0.0), ("scroll", 2.0, 0.1), ("survey", 0.5, 0.0)):
            await self._play(WARM_S, load, rate, keys_s)
            frames.slowest()
            cpu, begun = time.process_time(), time.perf_counter()
            await self._play(self.seconds, load, rate, keys_s)
            await asyncio.sleep(SETTLE_S)
            self.found[f"{load}_percent"] = 100 * (time.process_time() - cpu) / (time.perf_counter() - begun)
            self.found[f"{load}_frame_ms"], _ = frames.slowest()
        self.found["memory_mib"] = (psutil.Process().memory_info().rss - self._rss) / 2**20
        self.exit()

    async def _play(self, seconds: float, load: str, rate: float, keys_s: float) -> None:
        """Change the rows and press keys. A table that is too slow gets fewer of both than `rate` and `keys_s` say."""
        now = time.perf_counter()
        end, next_change, next_key = now + seconds, now, now
        while (now := time.perf_counter()) < end:
            if now >= next_change:
                next_change = max(next_change + 1 / rate, now)
                self._change(load)
            if keys_s and now >= next_key:
                next_key = max(next_key + keys_s, now)
                self.simulate_key("pagedown")
            due = min(next_change, next_key) if keys_s else next_change
            await asyncio.sleep(max(0.001, min(due, end) - time.perf_counter()))

    def _change(self, load: str) -> None:
        self._number += 1
        survey = self.surveys[self._number % SURVEYS]
        if load == "survey":
            self.table.replace(survey)
            return
        visible = self.table.visible()
        self.rows = [*self.rows]
        self.rows[visible.start : visible.stop] = survey[visible.start : visible.stop]
        self.table.change(self.rows, visible)


def measured(kind: str, seconds: float, environ: Mapping[str, str]) -> dict[str, float]:
    """Run one table in a terminal of its own."""
    return measured_by([sys.executable, __file__, kind, str(seconds)], 6 * seconds + 120, environ)


def filtering() -> list[Row]:
    """Measure filters over all rows: the first evaluation, when no column has been read yet, as at the first key."""
    from slurm_share_tui.query import parse
    from slurm_share_tui.widgets.grid_rows import RowSet

    rows = [record(number, 0) for number in range(COUNT)]
    found = []
    for text in ("user9", f"user=user9 & {SORTED_BY}>80%", f"!(state=idle | {SORTED_BY}<50) & name~node0*"):
        times = []
        for _ in range(FILTER_ROUNDS):
            held, begun = RowSet(rows, columns(), lambda one: one.name), time.thread_time()
            query = parse(text, columns())
            assert query is not None
            assert held.order(query, None, False)
            times.append(1000 * (time.thread_time() - begun))
        found.append(Row(f"our grid: filter {text}, CPU time", median(times), "ms", 100))
    return found


def rows_of(kind: str, found: Mapping[str, float], bars: Mapping[str, float]) -> list[Row]:
    """Return the lines of the report. `bars`: what our grid is held to, the figures of DataTable."""

    def row(what: str, key: str, unit: str) -> Row:
        return Row(f"  {what}", found[key], unit, bars.get(key))

    return [
        Row(f"{KINDS[kind]}: {COUNT:,} rows, first paint", found["paint_ms"], "ms", bars.get("paint_ms")),
        row("memory", "memory_mib", "MiB"),
        row("visible cells change twice a second: of one core", "cells_percent", "%"),
        row("  longest frame, CPU time", "cells_frame_ms", "ms"),
        row("the same, and ten pages scrolled a second: of one core", "scroll_percent", "%"),
        row("  longest frame, CPU time", "scroll_frame_ms", "ms"),
        row("all rows change every 2 s and are sorted: of one core", "survey_percent", "%"),
        row("  longest frame, CPU time", "survey_frame_ms", "ms"),
    ]


def main(seconds: float) -> int:
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    filters = filtering()
    theirs = measured("datatable", seconds, environ)
    ours = measured("grid", seconds, environ)
    rows = [*rows_of("grid", ours, theirs), *filters, *rows_of("datatable", theirs, {})]
    if importlib.util.find_spec("textual_fastdatatable") is None:
        rows.append(Row(f"{KINDS['fast']}: NOT MEASURED, it is not installed", 0.0, ""))
    else:
        rows += rows_of("fast", measured("fast", seconds, environ), {})
    return 0 if report("tui_grids", None, rows) else 1


def _draw(kind: str, seconds: float, file: Path) -> int:
    app = Bench(kind, seconds)
    app.run()
    file.write_text(json.dumps(app.found))
    return app.return_code or 0


if __name__ == "__main__":
    if len(sys.argv) == 4:
        sys.exit(_draw(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])))
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0))
