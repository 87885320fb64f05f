"""The dashboard's main screen: the current location, the path to it, the views, and the actions of the keys."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

from msgspec.structs import replace as replace_location
from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.css.query import NoMatches
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from slurm_share.core.text import counted

from . import action_keys, keymap, view_list
from .location import TITLES, Location, ViewName
from .time_keys import TimeKeys
from .user_config import choice_of, choose_again
from .view import View
from .views.table import TableView, subject_text
from .widgets.banner import Banner
from .widgets.crumbs import Crumbs
from .widgets.filter_line import FilterLine
from .widgets.grid import Grid
from .widgets.keys import Keys
from .widgets.line import Line
from .widgets.replay_bar import ReplayBar
from .widgets.status import Status
from .widgets.tabs import TABS, Tabs
from .wire import ReadRecorded, ShowDetails


class DashboardScreen(TimeKeys, inherit_bindings=False):
    """Keeps one view of each kind and shows one of them. While another screen covers it, it does not draw; it catches
    up afterwards."""

    BINDINGS: ClassVar[list[BindingType]] = [*keymap.bindings("screen")]
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (8, "-low"), (14, "-tall")]  # noqa: RUF012  (Textual's own has no ClassVar)
    AUTO_FOCUS = ""  # not the filter line, and nothing before there is a view

    def __init__(self, location: Location | None = None) -> None:
        """`location`: where to start; None: where the user left off."""
        super().__init__()
        self.path: tuple[Location, ...] = () if location is None else (location,)
        self._focus_of: dict[ViewName, Widget] = {}
        self._is_late = False
        self._told_details: bool | None = None
        self._last_node = ""
        self._going = asyncio.Lock()

    def compose(self) -> ComposeResult:
        keys = self.dashboard.keys
        yield Banner()
        yield Tabs({view: keymap.key_text(keymap.keys_of(f"view.{view}", keys)[0]) for view in TABS})
        yield Crumbs()
        yield FilterLine()
        yield ContentSwitcher(id="views")
        yield ReplayBar()
        yield Status(self.dashboard.clock)
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
    def shown(self) -> View | None:
        try:
            return self.query_one(f"#view-{self.location.view}", View) if self.path else None
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

    async def _view(self, name: ViewName) -> View:
        """Return a view; create it on first use, with the remembered choices for its tables."""
        id = f"view-{name}"
        switcher = self.query_one("#views", ContentSwitcher)
        try:
            return switcher.query_one(f"#{id}", View)
        except NoMatches:
            pass
        view = view_list.make(name, self.dashboard.feed.history)
        view.id = id
        view.display = False
        await switcher.mount(view)
        for grid in view.query(Grid):
            choice = self.dashboard.memory.now.tables.get(grid.name or "")
            if choice is not None:
                choose_again(grid, choice)
        return view

    def _focus(self, view: View) -> None:
        wanted = self._focus_of.get(view.view)
        if wanted is None or not wanted.is_attached or not wanted.display:
            wanted = next((one for one in view.query("*") if one.focusable), None)
        self.set_focus(wanted)

    def draw(self) -> None:
        if self.dashboard.is_ending:
            return
        picture, view = self.dashboard.picture, self.shown
        if self.app.screen is not self or not self.path:
            self._is_late = True
            return
        self._is_late = False
        if self.location.view == "node" and not self.location.node and picture is not None and picture.nodes:
            # The view was opened before any node was known.
            self.path = (
                *self.path[:-1],
                replace_location(self.location, node=self._last_node or picture.nodes[0].name),
            )
        self._ask_details()
        self.query_one(Tabs).show(self.location.view, picture)
        if picture is not None:
            self.query_one(Banner).show(picture)
            if view is not None:
                view.draw(picture, self.location)
        self.show_status()

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        if self._is_late:
            self.draw()

    def show_status(self) -> None:
        if self.dashboard.is_ending or self.app.screen is not self or not self.is_mounted:
            return
        grid = self.grid
        hint = "" if grid is None or not grid.marks else f"{counted(len(grid.marks), 'row')} marked"
        self.query_one(Crumbs).show(self.path)
        if self.dashboard.picture is not None:
            self.query_one(ReplayBar).show(self.dashboard.picture, held=self.dashboard.status.held)
        self.query_one(Status).show(replace(self.dashboard.status, hint=hint))
        self.query_one(Keys).refresh()

    @property
    def grid(self) -> Grid[Any] | None:
        if isinstance(self.focused, Grid):
            return self.focused
        view = self.shown
        return None if view is None else next((grid for grid in view.query(Grid) if grid.display), None)

    def _ask_details(self) -> None:
        """Ask the feed for details of a large cluster once a view needs more than a line for each node."""
        picture = self.dashboard.picture
        wanted = self.location.view != "nodes" or len(self.path) > 1 or self._asks_details
        if wanted and picture is not None and not picture.details and not self._told_details:
            self._told_details = True
            self.dashboard.feed.tell(ShowDetails(True))
        elif not wanted and self._told_details:
            self._told_details = False
            self.dashboard.feed.tell(ShowDetails(False))

    @property
    def _asks_details(self) -> bool:
        """Return whether the table is filtered or sorted by a column that needs details."""
        grid = self.grid
        return grid is not None and grid.asks_details

    # --- Views and the path -------------------------------------------------------------------------------------------

    async def action_view(self, name: ViewName) -> None:
        """Show one of the views, for everything."""
        if name == "node":
            await self._go_to_node()
            return
        await self.go((Location(view=name),))

    async def _go_to_node(self) -> None:
        """Show the node under the cursor, else the node seen last, else the first one."""
        view, picture = self.shown, self.dashboard.picture
        node = self.location.node or ("" if view is None else view.node_name()) or self._last_node
        if picture is not None and node not in picture.by_name:
            node = picture.nodes[0].name if picture.nodes else node
        if self.location.view != "node":
            await self.go((Location(view="nodes"), Location(view="node", node=node)))

    async def action_go_down(self) -> None:
        """Go to what the cursor is on."""
        if self.shown is not None and (below := self.shown.enter_location()) is not None:
            await self.go_down(below)

    async def go_down(self, location: Location) -> None:
        """Go to a location; one that is on the path already is gone back to."""
        if location in self.path:
            await self.go(self.path[: self.path.index(location) + 1])
        else:
            await self.go((*self.path, location))

    @on(View.Down)
    async def on_down(self, event: View.Down) -> None:
        event.stop()
        await self.go_down(event.location)

    async def action_go_back(self) -> None:
        """Clear the filter; without one, go back to the location before."""
        grid = self.grid
        if grid is not None and grid.query_text:
            grid.query_text = ""
            self.query_one(FilterLine).show_for(grid)
        elif len(self.path) > 1:
            await self.go(self.path[:-1])

    def action_pane(self, by: int) -> None:
        """Move the focus to the next table of the view, or to the previous one."""
        view = self.shown
        panes = [] if view is None else [one for one in view.query("*") if one.focusable]
        if panes:
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
        elif isinstance(event.line, Keys | Status):
            await self.dashboard.press(keymap.BY_ID[event.target])

    # --- Tables -------------------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        """Open the filter line for the table."""
        if (grid := self.grid) is not None:
            self.query_one(FilterLine).open(grid)

    def action_columns(self) -> None:
        """Let the user choose the table's columns."""
        from .screens.columns import ColumnsScreen

        grid = self.grid
        if grid is None:
            return

        def choose(chosen: tuple[str, ...] | None) -> None:
            if chosen is not None:
                grid.chosen = chosen

        self.app.push_screen(ColumnsScreen(grid.columns, grid.chosen), choose)

    def action_flagged(self) -> None:
        """Show only flagged rows, or all rows again."""
        flag = getattr(self.shown, "flag", None)
        if flag is None:
            self.dashboard.say("nothing is flagged in this view")
        else:
            flag()
            self.show_status()

    # --- Other screens ------------------------------------------------------------------------------------------------

    def action_trend(self) -> None:
        """Show a large plot of what the cursor is on."""
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
        """Show or hide the charts of the row under the cursor, and remember it."""
        shown = not self.dashboard.shows_charts
        self.dashboard.memory.choose(charts=shown)
        if isinstance(view := self.shown, TableView):
            view.draw_details()
            if not view.has_charts:
                self.dashboard.say(f"charts are {'shown' if shown else 'hidden'} in Nodes, Users, Jobs and GPUs")

    def action_help(self) -> None:
        """Show all keys, and the columns of the table."""
        from .screens.help import Help

        grid = self.grid
        columns = () if grid is None else grid.columns
        self.app.push_screen(
            Help(self.dashboard.keys, TITLES[self.location.view], columns, self.query_one(Status).texts())
        )

    # --- Actions ------------------------------------------------------------------------------------------------------

    def action_cancel(self) -> None:
        """Cancel the job or the marked jobs after a confirmation."""
        action_keys.cancel(self)

    def action_signal(self) -> None:
        """Send a signal to the task or process after a confirmation."""
        action_keys.signal(self)

    def action_output(self) -> None:
        """Show the end of the job's output, and follow it."""
        action_keys.output(self)

    def action_copy(self) -> None:
        """Copy the row's lines to the terminal's clipboard."""
        action_keys.copy(self)

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
        """Remember what was chosen for the table; fetch details if it needs them."""
        if isinstance(event, Grid.Changed):
            self._ask_details()
        if isinstance(event, Grid.Changed) and event.grid.name:
            self.dashboard.memory.choose_table(event.grid.name, choice_of(event.grid))
        self.show_status()
