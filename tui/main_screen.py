"""The dashboard's main screen: the current location, the path to it, the views, and the actions of the keys."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

from msgspec.structs import replace as replace_location
from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.css.query import NoMatches
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from slurm_share.core.text import counted

from . import action_keys, keymap
from .action_rules import Action
from .history import FigureHistory
from .location import TITLES, Location, ViewName
from .program import MainScreen
from .user_config import TableChoice
from .views.table import TableView, subject_text
from .widgets.filter_line import FilterLine
from .widgets.grid import Grid
from .widgets.lines import TABS, AlertLine, Banner, Crumbs, Keys, Line, Tabs
from .widgets.replay_bar import ReplayBar
from .widgets.status import StatusLine
from .wire import Position, ReadRecorded, Seek, SetInterval, SetSpeed, ShowDetails, ShowQueue, StepReplay

INTERVALS_S = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)


def make_view(name: ViewName, history: FigureHistory) -> TableView[Any]:
    """Return a new view. Its module is imported when the view is first shown."""
    view = getattr(import_module(f".views.{name}", __package__), f"{name.capitalize()}View")(history)
    assert isinstance(view, TableView)
    return view


class DashboardScreen(MainScreen, inherit_bindings=False):
    """Keeps one view of each kind and shows one of them. While another screen covers it, it does not draw; it catches
    up afterwards."""

    BINDINGS: ClassVar[list[BindingType]] = [*keymap.bindings("screen")]
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (8, "-low"), (14, "-tall")]  # noqa: RUF012  (Textual's own has no ClassVar)
    AUTO_FOCUS = ""  # focus neither the filter line nor, before there is a view, anything else

    def __init__(self, location: Location | None = None) -> None:
        """`location`: where to start; None: where the user left off."""
        super().__init__()
        self.path: tuple[Location, ...] = () if location is None else (location,)
        self._focus_of: dict[ViewName, Widget] = {}
        self._needs_draw = False
        self._details_requested: bool | None = None
        self._queue_requested = False
        self._last_node = ""
        self._going = asyncio.Lock()

    def compose(self) -> ComposeResult:
        keys = self.dashboard.keys
        yield Banner()
        yield Tabs({view: keymap.key_text(keymap.keys_of(f"view.{view}", keys)[0]) for view in TABS})
        yield Crumbs()
        yield FilterLine()
        yield ContentSwitcher(id="views")
        yield AlertLine()
        yield ReplayBar()
        yield StatusLine(self.dashboard.clock)
        yield Keys(keys, self.is_available)

    async def on_mount(self) -> None:
        """Show the first view, then handle the keys typed ahead."""
        left = self.dashboard.memory.now.view
        start = self.path or (Location(view=next((view for view in TABS if view == left), "nodes")),)
        await self.go(start)
        self.dashboard.typed.begin()

    # --- The current location -----------------------------------------------------------------------------------------

    @property
    def location(self) -> Location:
        return self.path[-1]

    @property
    def shown(self) -> TableView[Any] | None:
        try:
            return self.query_one(f"#view-{self.location.view}", TableView) if self.path else None
        except NoMatches:
            return None

    async def go(self, path: tuple[Location, ...]) -> None:
        """Show the last location of the path. Concurrent calls run one after the other."""
        async with self._going:
            if not self.dashboard.is_ending:
                await self._go(path)

    async def _go(self, path: tuple[Location, ...]) -> None:
        if (before := self.shown) is not None and self.focused is not None and before in self.focused.ancestors:
            self._focus_of[before.view] = self.focused
        view = await self._view(path[-1].view)
        # After Ctrl-C during the import, the view may be gone before `is_ending` is set.
        if self.dashboard.is_ending or view.parent is None or view not in view.parent.children:
            return
        self.path = path
        if self.location.node:
            self._last_node = self.location.node
        self.query_one("#views", ContentSwitcher).current = view.id
        self.draw()
        self._focus(view)
        self.query_one(FilterLine).show_for(self.grid)
        if len(path) == 1:
            self.dashboard.memory.choose(view=self.location.view)

    async def _view(self, name: ViewName) -> TableView[Any]:
        """Return a view; create it on first use, with the remembered choices for its table. Unknown columns in them are
        ignored."""
        switcher = self.query_one("#views", ContentSwitcher)
        for view in switcher.query(f"#view-{name}").results(TableView):
            return view
        view = make_view(name, self.dashboard.feed.history)
        view.id, view.display = f"view-{name}", False
        view.tell = self.dashboard.feed.tell
        await switcher.mount(view)
        choice = self.dashboard.memory.now.tables.get(name)
        if choice is not None:
            view.grid.chosen = choice.columns
            if choice.sort:
                view.grid.sort_by(choice.sort, choice.down)
        return view

    async def forget(self) -> None:
        self.query_one(FilterLine).forget()
        switcher = self.query_one("#views", ContentSwitcher)
        switcher.current = None  # else a new view with the same id would not be shown
        await switcher.remove_children()
        self._focus_of.clear()
        self._details_requested, self._queue_requested, self._last_node = None, False, ""
        await self.go((Location(view=self.path[0].view if self.path[0].view in TABS else "nodes"),))

    def _focus(self, view: TableView[Any]) -> None:
        wanted = self._focus_of.get(view.view)
        if wanted is None or not wanted.is_attached or not wanted.display:
            wanted = next((one for one in view.query("*") if one.focusable), None)
        self.set_focus(wanted)

    def draw(self) -> None:
        if self.dashboard.is_ending:
            return
        picture, view = self.dashboard.picture, self.shown
        if self.app.screen is not self or not self.path:
            self._needs_draw = True
            return
        self._needs_draw = False
        if self.location.view == "node" and not self.location.node and picture is not None and picture.nodes:
            # The view was opened before any node was known.
            node = self._last_node or picture.nodes[0].name
            self.path = (*self.path[:-1], replace_location(self.location, node=node))
        self._ask_details()
        self._ask_queue()
        self.query_one(Tabs).show(self.location.view, picture)
        if picture is not None:
            self.query_one(Banner).show(picture)
            if view is not None:
                view.draw(picture, self.location)
        self.show_status()

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        if self._needs_draw:
            self.draw()

    def show_status(self) -> None:
        if self.dashboard.is_ending or self.app.screen is not self or not self.is_mounted:
            return
        marks = () if self.grid is None else self.grid.marks
        hint = f"{counted(len(marks), 'row')} marked" if marks else ""
        self.query_one(Crumbs).show(self.path)
        if self.dashboard.picture is not None:
            self.query_one(ReplayBar).show(self.dashboard.picture, held=self.dashboard.status.held)
        self.query_one(StatusLine).show(replace(self.dashboard.status, hint=hint))
        self.show_alerts()
        self.query_one(Keys).refresh()

    def show_alerts(self) -> None:
        if not self.dashboard.is_ending and self.is_mounted:
            key = keymap.key_text(keymap.keys_of("alerts", self.dashboard.keys)[0])
            self.query_one(AlertLine).show(tuple(one.said for one in self.dashboard.alerts.shown), key)

    @property
    def grid(self) -> Grid[Any] | None:
        """Return the table that has the focus, else the view's first one."""
        shown, focused = self.shown, self.focused
        if shown is not None and isinstance(focused, Grid) and shown in focused.ancestors:
            return focused
        return None if shown is None else shown.grid

    def _ask_details(self) -> None:
        """Ask the feed for details of a large cluster once a view needs more than a line for each node."""
        picture = self.dashboard.picture
        is_asked = self.grid is not None and self.grid.asks_details
        wanted = self.location.view not in ("nodes", "queue") or len(self.path) > 1 or is_asked
        if wanted and picture is not None and not picture.details and not self._details_requested:
            self._details_requested = True
            self.dashboard.feed.tell(ShowDetails(True))
        elif not wanted and self._details_requested:
            self._details_requested = False
            self.dashboard.feed.tell(ShowDetails(False))

    def _ask_queue(self) -> None:
        """Let the feed read the queue of the whole cluster while a view shows it."""
        wanted = self.location.view == "queue"
        if wanted != self._queue_requested:
            self._queue_requested = wanted
            self.dashboard.feed.tell(ShowQueue(wanted))

    # --- Views and the path -------------------------------------------------------------------------------------------

    async def action_view(self, name: ViewName) -> None:
        """Show one of the views, for everything; `node`: the node under the cursor, else the one seen last, else the
        first one."""
        if name != "node":
            await self.go((Location(view=name),))
            return
        view, picture = self.shown, self.dashboard.picture
        node = self.location.node or ("" if view is None else view.node_name()) or self._last_node
        if picture is not None and node not in picture.by_name:
            node = picture.nodes[0].name if picture.nodes else node
        if self.location.view != "node":
            await self.go((Location(view="nodes"), Location(view="node", node=node)))

    async def action_describe(self) -> None:
        """Show the page of the job under the cursor."""
        view = self.shown
        found = [] if view is None else [one for one in view.targets() if one.job_id is not None]
        jobs = {one.job_id: one for one in found}
        if self.location.view == "job":
            return
        if len(jobs) != 1:
            self.dashboard.say("put the cursor on one job: this row has none, or several")
            return
        one = next(iter(jobs.values()))
        name = f"{one.job} {self._job_name(one.job_id)}".strip()
        await self.go_down(Location(view="job", user=one.owner, job=one.job_id, job_name=name))

    def _job_name(self, number: int | None) -> str:
        picture = self.dashboard.picture
        jobs = () if picture is None else picture.survey.jobs
        return next((job.name for job in jobs if job.job_id == number), "")

    async def action_go_down(self) -> None:
        if self.shown is not None and (below := self.shown.enter_location()) is not None:
            await self.go_down(below)

    async def go_down(self, location: Location) -> None:
        """Go to a location; if it is already on the path, go back to it."""
        if location in self.path:
            await self.go(self.path[: self.path.index(location) + 1])
        else:
            await self.go((*self.path, location))

    @on(TableView.Down)
    async def on_down(self, event: TableView.Down) -> None:
        event.stop()
        await self.go_down(event.location)

    async def action_go_back(self) -> None:
        grid = self.grid
        if grid is not None and grid.query_text:
            grid.query_text = ""
            self.query_one(FilterLine).show_for(grid)
        elif len(self.path) > 1:
            await self.go(self.path[:-1])

    def action_pane(self, by: int) -> None:
        if panes := [] if self.shown is None else [one for one in self.shown.query("*") if one.focusable]:
            at = panes.index(self.focused) + by if self.focused in panes else 0
            self.set_focus(panes[at % len(panes)])

    @on(Line.Clicked)
    async def open_target(self, event: Line.Clicked) -> None:
        """Act on a click on a tab, a part of the path, or a key."""
        event.stop()
        if isinstance(event.line, Tabs):
            await self.action_view(event.target)  # type: ignore[arg-type]
        elif isinstance(event.line, Crumbs):
            await self.go(self.path[: int(event.target) + 1])
        elif isinstance(event.line, Keys | StatusLine | AlertLine):
            await self.dashboard.press(keymap.BY_ID[event.target])

    # --- Tables -------------------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        if (grid := self.grid) is not None:
            self.query_one(FilterLine).open(grid)

    def action_columns(self) -> None:
        from .screens.columns import ColumnsScreen

        grid = self.grid
        if grid is None:
            return

        def choose(chosen: tuple[str, ...] | None) -> None:
            if chosen is not None:
                grid.chosen = chosen

        self.app.push_screen(ColumnsScreen(grid.columns, grid.chosen, grid.without_room), choose)

    def action_flagged(self) -> None:
        if self.shown is not None:
            self.shown.flag()
            self.show_status()

    # --- Other screens ------------------------------------------------------------------------------------------------

    def action_trend(self) -> None:
        from .screens.trend import Trend

        picture = self.dashboard.picture
        subject = None if self.shown is None else self.shown.subject()
        if subject is None or picture is None:
            self.dashboard.say("there is nothing here to plot: put the cursor on a node, a GPU or a user")
            return
        feed = self.dashboard.feed
        ask = (lambda wanted: feed.tell(ReadRecorded(wanted))) if picture.is_replay else None
        label = subject_text(subject, picture) + (" (SIMULATED)" if picture.is_simulated else "")
        closes = keymap.keys_of("trend", self.dashboard.keys)
        self.app.push_screen(Trend(feed.history, subject, label, ask_recorded=ask, closes=closes))

    def action_charts(self) -> None:
        shown = not self.dashboard.shows_charts
        self.dashboard.memory.choose(charts=shown)
        if self.shown is not None:
            self.shown.draw_summary()
            self.shown.draw_details()
            if not self.shown.has_charts:
                self.dashboard.say(f"charts are {'shown' if shown else 'hidden'} in all views but this one")

    def action_alerts(self) -> None:
        from .screens.alerts import AlertsScreen

        def go(location: Location | None) -> None:
            self.show_alerts()
            if location is not None:
                self.run_worker(self.go_down(location), name="go to an alert")

        self.app.push_screen(AlertsScreen(self.dashboard.alerts), go)

    def action_export(self) -> None:
        from . import export_keys

        export_keys.begin(self.dashboard)

    def action_source(self) -> None:
        from . import source_keys

        source_keys.begin(self.dashboard)

    def action_help(self) -> None:
        from .screens.help import Help

        columns = () if self.grid is None else self.grid.columns
        now = self.query_one(StatusLine).texts()
        self.app.push_screen(Help(self.dashboard.keys, TITLES[self.location.view], columns, now))

    # --- Actions ------------------------------------------------------------------------------------------------------

    def action_act(self, action: Action) -> None:
        action_keys.begin(self.dashboard, action)

    def action_copy(self) -> None:
        action_keys.copy(self.dashboard)

    # --- Status -------------------------------------------------------------------------------------------------------

    def is_available(self, key: keymap.Key) -> bool:
        if key.id in ("filter", "columns"):
            return self.grid is not None
        if key.id in ("cancel", "signal"):
            return not self.dashboard.readonly
        return True

    def on_descendant_focus(self) -> None:
        """Show the filter and the marks of the table that gets the focus."""
        if isinstance(self.focused, Grid):
            self.query_one(FilterLine).show_for(self.focused)
            self.show_status()

    @on(Grid.Moved)
    @on(Grid.Changed)
    def on_grid(self, event: Grid.GridMessage) -> None:
        """Remember the choices for the table; ask for details if it needs them."""
        if isinstance(event, Grid.Changed):
            self._ask_details()
            column, down = event.grid.sort
            choice = TableChoice(columns=event.grid.chosen, sort=column, down=down)
            self.dashboard.memory.choose_table(event.grid.name or "", choice)
        self.show_status()

    # --- Time ---------------------------------------------------------------------------------------------------------

    def action_pause(self) -> None:
        self.dashboard.hold(not self.dashboard.status.held)

    def action_read_now(self) -> None:
        self.dashboard.read_now()

    def action_interval(self, by: int) -> None:
        """Set the next longer interval (`by` > 0) or the next shorter one."""
        now = self.dashboard.status.interval_s
        others = [one for one in INTERVALS_S if (one > now if by > 0 else one < now)]
        wanted = (min if by > 0 else max)(others, default=now)
        self.dashboard.status = replace(self.dashboard.status, interval_s=wanted)
        self.dashboard.feed.tell(SetInterval(wanted))
        self.show_status()

    def _replayed(self) -> Position | None:
        """Return the position in the recording; None, with a note: no recording is shown."""
        picture = self.dashboard.picture
        if picture is None or picture.position is None:
            self.dashboard.say("this key is for a recording: llload-tui --replay FILE")
            return None
        return picture.position

    def action_step(self, count: int) -> None:
        """Pause the replay and move by `count` surveys."""
        if self._replayed():
            self.dashboard.hold(True)
            self.dashboard.feed.tell(StepReplay(count))

    def action_speed(self, factor: float) -> None:
        if position := self._replayed():
            self.dashboard.feed.tell(SetSpeed(position.speed * factor))

    def action_jump(self) -> None:
        from .screens.jump import Jump

        if (position := self._replayed()) and self.dashboard.picture is not None:
            self.app.push_screen(Jump(position, self.dashboard.picture.survey.taken), self._seek)

    @on(ReplayBar.Sought)
    def on_sought(self, event: ReplayBar.Sought) -> None:
        event.stop()
        self._seek(event.taken)

    def _seek(self, taken: float | None) -> None:
        if taken is not None:
            self.dashboard.feed.tell(Seek(taken))
