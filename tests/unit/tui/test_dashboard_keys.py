"""Every key has its documented effect, in every view."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dashboards import until
from shell import FakeFeed, arrived_picture, dashboard, notes_of, shown_dashboard
from slurm_share_tui import keymap, themes
from slurm_share_tui.actions import JobActions
from slurm_share_tui.app import Dashboard
from slurm_share_tui.location import Location, Process, ViewName
from slurm_share_tui.picture import SurveyPicture
from slurm_share_tui.screens.alerts import AlertsScreen
from slurm_share_tui.screens.columns import ColumnsScreen
from slurm_share_tui.screens.export import ExportScreen
from slurm_share_tui.screens.help import Help
from slurm_share_tui.screens.trend import Trend
from slurm_share_tui.user_config import UserConfig
from slurm_share_tui.widgets.filter_line import FilterLine
from slurm_share_tui.widgets.grid import Grid
from slurm_share_tui.wire import PauseFeed, ReadNow, SetInterval
from textual.command import CommandPalette
from textual.pilot import Pilot

VIEWS: tuple[ViewName, ...] = ("nodes", "users", "jobs", "gpus", "node", "gpu", "process", "advice", "queue", "job")
REPLAY = ("replay.back", "replay.on", "replay.slower", "replay.faster", "replay.jump")
QUITS = ("quit", "quit.now")


async def test_the_letter_that_the_manual_names_sorts_by_idle_gpus() -> None:
    manual = (Path(__file__).parents[3] / "packaging/docs/tui.md").read_text()
    assert re.findall(r"`([A-Z])` sorts by it", manual) == ["I"]
    async with shown_dashboard() as (pilot, app, _):
        for view in ("1", "2", "3"):
            await pilot.press(view, "I")
            await until(pilot, lambda: app.main_screen.grid.sort[0] == "gpus_idle", f"IDLE in view {view}")
            await pilot.press("N")
            await until(pilot, lambda: app.main_screen.grid.sort[0] != "gpus_idle", f"another sort in view {view}")


async def test_a_capital_letter_of_the_configuration_goes_before_the_sort() -> None:
    async with shown_dashboard(config=UserConfig(theme="dark", keys={"pause": "C", "sort.left": "H"})) as (
        pilot,
        app,
        feed,
    ):
        grid = app.main_screen.grid
        assert not {"C", "H"} & {*grid.letters.values()}
        assert len({*grid.letters.values()}) == len(grid.letters)
        await pilot.press("C")
        await until(pilot, lambda: feed.told == [PauseFeed(True)])
        assert grid.sort == ("", False)
        await pilot.press("H")
        await until(pilot, lambda: grid.sort[0] != "")
        assert grid.sort[0] != "hostname"


class Bench:
    """A dashboard in one view, with what is needed to see the effect of a key."""

    def __init__(self, pilot: Pilot[Any], app: Dashboard, feed: FakeFeed, notes: list[str], path: tuple[Location, ...]):
        self.pilot, self.app, self.feed, self.notes, self.path = pilot, app, feed, notes, path
        self.key = ""

    @property
    def grid(self) -> Grid[Any]:
        """The view's table."""
        grid = self.app.main_screen.grid
        assert grid is not None
        return grid

    async def begin(self) -> None:
        """Restore the initial state of the view."""
        while len(self.app.screen_stack) > 1:
            self.app.pop_screen()
            await self.pilot.pause()
        if self.app.main_screen.path != self.path:
            await self.app.main_screen.go(self.path)
        grid = self.grid
        grid.query_text, grid.marks = "", frozenset()
        grid.sort_by("", False)
        grid.action_first()
        if getattr(self.app.main_screen.shown, "only_flagged", False):
            self.app.main_screen.action_flagged()
        self.app.hold(False)
        self.feed.told.clear()
        self.notes.clear()

    async def press(self) -> None:
        """Press the key under test."""
        await self.pilot.press(self.key)

    async def holds(self, what: Callable[[], object]) -> None:
        """Wait until the condition holds."""
        await until(self.pilot, what, f"what {self.key} does")


Try = Callable[[Bench], Awaitable[None]]


def goes_to(view: ViewName) -> Try:
    """The key opens a view."""

    async def run(bench: Bench) -> None:
        await bench.press()
        await bench.holds(lambda: bench.app.main_screen.location.view == view)

    return run


async def goes_down(bench: Bench) -> None:
    """The key goes to what the view names, or nowhere."""
    below = bench.app.main_screen.shown.enter_location()
    await bench.press()
    await bench.holds(lambda: bench.app.main_screen.path == (bench.path if below is None else (*bench.path, below)))


async def goes_back(bench: Bench) -> None:
    """The key clears the filter, then goes back; in the first view it does nothing."""
    bench.grid.query_text = "a"
    await bench.press()
    assert bench.grid.query_text == ""
    assert bench.app.main_screen.path == bench.path
    await bench.press()
    await bench.holds(lambda: bench.app.main_screen.path == (bench.path[:-1] or bench.path))


def moves(begin: int, by: Callable[[Bench], int]) -> Try:
    """The key moves the cursor from line `begin` (negative: from the end) by `by`."""

    async def run(bench: Bench) -> None:
        last = bench.grid.count - 1
        bench.grid.put(max(0, min(last, begin if begin >= 0 else last + 1 + begin)))
        await bench.press()
        assert bench.grid.cursor == max(0, min(last, by(bench)))

    return run


async def pages_down(bench: Bench) -> None:
    """The key moves from the first row to the last visible one."""
    page = await low(bench)
    await bench.press()
    assert bench.grid.cursor == min(bench.grid.count - 1, page)
    await high(bench)


async def pages_up(bench: Bench) -> None:
    """The key moves as far up from the end."""
    page = await low(bench)
    bench.grid.action_last()
    await bench.press()
    assert bench.grid.cursor == max(0, bench.grid.count - 1 - page)
    await high(bench)


async def low(bench: Bench) -> int:
    """Shrink the terminal to a few rows of the table; return how far a page goes."""
    await bench.pilot.resize_terminal(120, 15)
    await bench.pilot.pause()
    bench.grid.action_first()
    await bench.pilot.pause()
    page = bench.grid.size.height - 2  # a line is the headings', and one row stays in sight
    if bench.grid.count > 10:
        assert 1 < page < bench.grid.count - 1
    return max(1, page)


async def high(bench: Bench) -> None:
    """Restore the height of the terminal."""
    await bench.pilot.resize_terminal(120, 40)
    await bench.pilot.pause()


async def scrolls(bench: Bench) -> None:
    """The key scrolls sideways in a narrow terminal; the view stays."""
    await bench.pilot.resize_terminal(50, 40)
    await bench.pilot.pause()
    first = heading(bench)
    bench.grid.action_sideways(1)
    await bench.pilot.pause()
    second = heading(bench)
    assert second != first or bench.grid.total == 0
    if bench.key == "left":
        await bench.press()
        assert heading(bench) == first
    else:
        bench.grid.action_sideways(-1)
        await bench.pilot.pause()
        await bench.press()
        assert heading(bench) == second
    assert bench.app.main_screen.path == bench.path
    await bench.pilot.resize_terminal(120, 40)
    await bench.pilot.pause()


def heading(bench: Bench) -> str:
    """Return the first line of the table."""
    return bench.grid.render_line(0).text


async def next_pane(bench: Bench) -> None:
    """The key moves the focus from part to part, and back to the first."""
    view = bench.app.main_screen.shown
    parts = [one for one in view.query("*") if one.focusable]
    assert len(parts) == (2 if view.view in ("advice", "queue") else 1)
    assert bench.app.focused is parts[0]
    await bench.press()
    assert bench.app.focused is parts[-1]
    await bench.press()
    assert bench.app.focused is parts[0]


async def filters(bench: Bench) -> None:
    """The typed text filters the table and no key acts meanwhile; Esc shows all rows again."""
    grid, total = bench.grid, bench.grid.total
    assert total > 0
    row = grid.shown_rows[-1]
    texts = [column.text(row) for column in grid.columns if isinstance(column.value(row), str)]
    word = next(word for text in texts for word in text.split() if word.isalnum())
    await bench.press()
    assert bench.app.main_screen.query_one(FilterLine).display
    await bench.pilot.press(*word)
    await bench.holds(lambda: grid.query_text == word)
    assert 0 < grid.count <= total
    await bench.pilot.press("q", "2")
    await bench.pilot.pause()
    assert bench.app.main_screen.path == bench.path
    await bench.pilot.press("escape")
    await bench.holds(lambda: grid.query_text == "")
    assert grid.count == total
    assert bench.app.focused is grid


async def stops(bench: Bench) -> None:
    """Without a terminal no shell can resume the process."""
    await bench.press()
    await bench.holds(lambda: bench.notes == ["there is no shell here that could resume it"])


async def flags(bench: Bench) -> None:
    """The key shows only rows that need attention; again: all rows."""
    view, rows = bench.app.main_screen.shown, list(bench.grid.rows)
    flagged = [row for row in rows if view.needs_attention(row)]
    if view.view == "nodes":
        assert 0 < len(flagged) < len(rows)
    await bench.press()
    assert list(bench.grid.rows) == flagged
    await bench.press()
    assert list(bench.grid.rows) == rows


def sorts(by: int) -> Try:
    """The key sorts by the neighbouring column."""

    async def run(bench: Bench) -> None:
        grid = bench.grid
        columns = [grid.chosen[one.column] for one in grid._layout_now.placed]  # some have given way
        assert len(columns) > 3
        grid.sort_by(columns[2], False)
        await bench.press()
        assert grid.sort[0] == columns[2 + by]

    return run


async def reverses(bench: Bench) -> None:
    """The key reverses the sort, twice."""
    await bench.press()
    first = bench.grid.sort
    await bench.press()
    assert bench.grid.sort == (first[0], not first[1])


async def marks(bench: Bench) -> None:
    """The key marks the row under the cursor; the status counts it."""
    await bench.press()
    assert len(bench.grid.marks) == min(1, bench.grid.count)


async def unmarks(bench: Bench) -> None:
    """The key unmarks all rows."""
    bench.grid.action_mark()
    bench.grid.action_mark()
    await bench.press()
    assert bench.grid.marks == frozenset()


def opens(screen: type[Any]) -> Try:
    """The key opens a screen, which Esc closes."""

    async def run(bench: Bench) -> None:
        await bench.press()
        await bench.holds(lambda: isinstance(bench.app.screen, screen))
        await bench.pilot.press("escape")
        await bench.holds(lambda: len(bench.app.screen_stack) == 1)
        assert bench.app.main_screen.path == bench.path

    return run


async def hides_charts(bench: Bench) -> None:
    """The key hides the charts in every view, and shows them again."""
    for expected in (False, True):
        await bench.press()
        await until(bench.pilot, lambda expected=expected: bench.app.memory.now.charts is expected)  # type: ignore[misc]


async def plots(bench: Bench) -> None:
    """The key opens the plot, or says that there is nothing to plot."""
    if bench.app.main_screen.shown.subject() is None:
        await bench.press()
        assert "nothing here to plot" in bench.notes[0]
    else:
        await opens(Trend)(bench)


async def pauses(bench: Bench) -> None:
    """The key pauses and resumes."""
    await bench.press()
    await bench.press()
    assert bench.feed.told == [PauseFeed(True), PauseFeed(False)]


async def looks(bench: Bench) -> None:
    """The key asks for a survey."""
    await bench.press()
    assert bench.feed.told == [ReadNow()]


def changes_interval(wanted: float) -> Try:
    """The key changes the interval of 5 s and sends it to the feed."""

    async def run(bench: Bench) -> None:
        bench.app.status = replace(bench.app.status, interval_s=5.0)
        await bench.press()
        assert bench.feed.told == [SetInterval(wanted)]
        assert bench.app.status.interval_s == wanted

    return run


async def is_for_replays(bench: Bench) -> None:
    """The key says that it is for replays, and sends nothing."""
    await bench.press()
    assert "for a recording" in bench.notes[0]
    assert bench.feed.told == []


async def is_refused_in_a_demonstration(bench: Bench) -> None:
    """The key is refused with a sentence, and no screen opens."""
    await bench.press()
    assert len(bench.notes) == 1
    assert "in a demonstration" in bench.notes[0]
    assert len(bench.app.screen_stack) == 1


async def describes(bench: Bench) -> None:
    """The key goes to the page of the one job under the cursor, or says that there is none or several."""
    screen = bench.app.main_screen
    jobs = {one.job_id for one in screen.shown.targets() if one.job_id is not None}
    await bench.press()
    if len(jobs) == 1 or screen.location.view == "job":
        await bench.holds(lambda: screen.location.view == "job")
    else:
        assert "put the cursor on one job" in bench.notes[0]
        assert screen.path == bench.path


async def has_one_source(bench: Bench) -> None:
    """The key says that there is no other source, where none can be opened."""
    await bench.press()
    assert "one source only" in bench.notes[0]


async def copies(bench: Bench) -> None:
    """The key copies the view's lines and says so, or that there is nothing."""
    lines = bench.app.main_screen.shown.copy_lines()
    assert lines or bench.app.main_screen.location.view == "advice"
    bench.app.copy_to_clipboard("what was there before")
    await bench.press()
    (note,) = bench.notes
    assert note.startswith("copied" if lines else "there is nothing here to copy")
    assert bench.app.clipboard == ("\n".join(lines) or "what was there before")


async def changes_theme(bench: Bench) -> None:
    """The key chooses the next theme."""
    before = bench.app.theme
    await bench.press()
    assert bench.app.theme == themes.after(before)
    bench.app.theme = before


TRIES: dict[str, Try] = {
    **{f"view.{view}": goes_to(view) for view in ("nodes", "users", "jobs", "gpus", "node", "advice", "queue")},  # type: ignore[arg-type]
    "go.down": goes_down,
    "go.back": goes_back,
    "grid.up": moves(3, lambda bench: min(3, bench.grid.count - 1) - 1),
    "grid.down": moves(1, lambda bench: 2),
    "grid.page_up": pages_up,
    "grid.page_down": pages_down,
    "grid.first": moves(-1, lambda bench: 0),
    "grid.last": moves(0, lambda bench: bench.grid.count - 1),
    "grid.left": scrolls,
    "grid.right": scrolls,
    "pane.next": next_pane,
    "pane.previous": next_pane,
    "filter": filters,
    "flagged": flags,
    "sort.left": sorts(-1),
    "sort.right": sorts(1),
    "sort.reverse": reverses,
    "mark": marks,
    "unmark.all": unmarks,
    "columns": opens(ColumnsScreen),
    "pause": pauses,
    "look.now": looks,
    "interval.longer": changes_interval(10.0),
    "interval.shorter": changes_interval(3.0),
    "trend": plots,
    "charts": hides_charts,
    **dict.fromkeys(REPLAY, is_for_replays),
    **dict.fromkeys(("cancel", "signal", "output"), is_refused_in_a_demonstration),
    "copy": copies,
    "describe": describes,
    "export": opens(ExportScreen),
    "alerts": opens(AlertsScreen),
    "source": has_one_source,
    "theme": changes_theme,
    "help": opens(Help),
    "palette": opens(CommandPalette),
    "suspend": stops,
}


def way_to(view: ViewName, picture: SurveyPicture) -> tuple[Location, ...]:
    """Return the path to a location with content: the node with the most GPUs, a process on it."""
    row = next(row for row in picture.nodes if row.name == "h-1")
    process = row.node.snapshot.processes[0]
    node = Location(view="node", node="h-1")
    gpu = Location(view="gpu", node="h-1", gpu=process.gpus[0].uuid, gpu_name="GPU 0")
    if view == "node":
        return (Location(view="nodes"), node)
    if view == "gpu":
        return (Location(view="nodes"), node, gpu)
    if view == "process":
        one = Process(process.pid, process.start_ticks)
        return (
            Location(view="nodes"),
            node,
            gpu,
            Location(view=view, node="h-1", gpu=gpu.gpu, gpu_name="GPU 0", process=one),
        )
    if view == "job":
        return (Location(view="jobs"), Location(view="job", user="alice", job=row.node.snapshot.jobs[0].job))
    return (Location(view=view),)


def test_every_key_is_tried() -> None:
    assert set(TRIES) | set(QUITS) == set(keymap.BY_ID)


@pytest.mark.parametrize(
    "view", [view if view == "nodes" else pytest.param(view, marks=pytest.mark.weekly) for view in VIEWS]
)
async def test_every_key_does_what_it_says(view: ViewName, monkeypatch: pytest.MonkeyPatch) -> None:
    async with dashboard(commands=JobActions()) as (pilot, app, feed):
        notes = notes_of(app, monkeypatch)
        picture = arrived_picture()
        feed.bring(picture)
        await until(pilot, lambda: app.picture is picture)
        bench = Bench(pilot, app, feed, notes, way_to(view, picture))
        for id, run in TRIES.items():
            # Further keys of the same binding are tried once.
            for bench.key in keymap.keys_of(id, {})[: None if view == "nodes" else 1]:
                await bench.begin()
                try:
                    await run(bench)
                except AssertionError as error:
                    raise AssertionError(f"{bench.key} ({id}) in {view}: {error}") from error


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_the_keys_to_leave_leave(key: str) -> None:
    left = []
    async with dashboard() as (pilot, app, _):
        app.exit = lambda *args, **words: left.append(key)  # type: ignore[method-assign]
        for view in "1234567":
            await pilot.press(view, key)
        assert len(left) == 7


async def test_ctrl_c_leaves_whatever_is_open() -> None:
    left = []
    async with dashboard() as (pilot, app, _):
        app.exit = lambda *args, **words: left.append(1)  # type: ignore[method-assign]
        for number, opens in enumerate(("slash", "question_mark", "ctrl+p"), 1):
            await pilot.press(opens)
            await pilot.pause()
            await pilot.press("ctrl+c")
            await until(pilot, lambda number=number: len(left) == number)  # type: ignore[misc]
            await pilot.press("escape")
