"""The dashboard's own screen: the place where one is and the way to it, the views, and what every key does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

from msgspec.structs import replace as replace_place
from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.css.query import NoMatches
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from slurm_share.load import text

from . import action_keys, keymap, view_list
from .place import TITLES, Place, ViewName
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
from .wire import AskRecorded, Details


class Board(TimeKeys, inherit_bindings=False):
    """One of each view, of which one is shown. Under another screen it stands still, and catches up afterwards."""

    BINDINGS: ClassVar[list[BindingType]] = [*keymap.bindings("board")]
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (8, "-low"), (14, "-tall")]  # noqa: RUF012  (Textual's own has no ClassVar)
    AUTO_FOCUS = ""  # not the line of the filter, and not before there is a view

    def __init__(self, place: Place | None = None) -> None:
        """`place`: where it begins; None: where it was left."""
        super().__init__()
        self.way: tuple[Place, ...] = () if place is None else (place,)
        self._focus_of: dict[ViewName, Widget] = {}
        self._is_late = False
        self._told_details: bool | None = None
        self._last_node = ""
        self._going = asyncio.Lock()

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        keys = self.dashboard.keys
        yield Banner()
        yield Tabs({view: keymap.sign(keymap.keys_of(f"view.{view}", keys)[0]) for view in TABS})
        yield Crumbs()
        yield FilterLine()
        yield ContentSwitcher(id="views")
        yield ReplayBar()
        yield Status(self.dashboard.clock)
        yield Keys(keys, self.does)

    async def on_mount(self) -> None:
        """Where it begins."""
        left = self.dashboard.memory.now.view
        start = self.way or (Place(view=next((view for view in TABS if view == left), "nodes")),)
        await self.go(start)
        self.dashboard.typed.begin()

    # --- Where one is -------------------------------------------------------------------------------------------------

    @property
    def place(self) -> Place:
        """Where one is."""
        return self.way[-1]

    @property
    def shown(self) -> View | None:
        """The view on the screen; None: none yet."""
        try:
            return self.query_one(f"#view-{self.place.view}", View) if self.way else None
        except NoMatches:
            return None

    async def go(self, way: tuple[Place, ...]) -> None:
        """Show the last of these places. A key and a click at once come one after the other."""
        async with self._going:
            if not self.dashboard.is_ending:
                await self._go(way)

    async def _go(self, way: tuple[Place, ...]) -> None:
        if (before := self.shown) is not None and self.focused is not None and before in self.focused.ancestors:
            self._focus_of[before.view] = self.focused
        view = await self._view(way[-1].view)
        # Whoever presses Ctrl-C while this loads: the view may be gone before the dashboard says that it ends.
        if self.dashboard.is_ending or view.parent is None or view not in view.parent.children:
            return
        self.way = way
        if self.place.node:
            self._last_node = self.place.node
        self.query_one("#views", ContentSwitcher).current = view.id
        self.draw()
        self._focus(view)
        self.query_one(FilterLine).show_for(self.grid)
        if len(way) == 1:
            self.dashboard.memory.choose(view=self.place.view)

    async def _view(self, name: ViewName) -> View:
        """Made when it is wanted first, with what is remembered of its tables."""
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
        """The newest picture, in the view that is shown."""
        if self.dashboard.is_ending:
            return
        picture, view = self.dashboard.picture, self.shown
        if self.app.screen is not self or not self.way:
            self._is_late = True
            return
        self._is_late = False
        if self.place.view == "node" and not self.place.node and picture is not None and picture.nodes:
            # Somebody came here before there was a node to choose.
            self.way = (*self.way[:-1], replace_place(self.place, node=self._last_node or picture.nodes[0].name))
        self._ask_details()
        self.query_one(Tabs).show(self.place.view, picture)
        if picture is not None:
            self.query_one(Banner).show(picture)
            if view is not None:
                view.draw(picture, self.place)
        self.show_status()

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """Nothing is over it any more."""
        if self._is_late:
            self.draw()

    def show_status(self) -> None:
        """The lines above and below the view."""
        if self.dashboard.is_ending or self.app.screen is not self or not self.is_mounted:
            return
        grid = self.grid
        hint = "" if grid is None or not grid.marks else f"{text.count_text(len(grid.marks), 'row')} marked"
        self.query_one(Crumbs).show(self.way)
        if self.dashboard.picture is not None:
            self.query_one(ReplayBar).show(self.dashboard.picture, held=self.dashboard.status.held)
        self.query_one(Status).show(replace(self.dashboard.status, hint=hint))
        self.query_one(Keys).refresh()

    @property
    def grid(self) -> Grid[Any] | None:
        """The table that has the focus, else the first of the view."""
        if isinstance(self.focused, Grid):
            return self.focused
        view = self.shown
        return None if view is None else next((grid for grid in view.query(Grid) if grid.display), None)

    def _ask_details(self) -> None:
        """Ask the feed for details of a large cluster once a view needs more than a line for each node."""
        picture = self.dashboard.picture
        wanted = self.place.view != "nodes" or len(self.way) > 1 or self._asks_details
        if wanted and picture is not None and not picture.details and not self._told_details:
            self._told_details = True
            self.dashboard.feed.tell(Details(True))
        elif not wanted and self._told_details:
            self._told_details = False
            self.dashboard.feed.tell(Details(False))

    @property
    def _asks_details(self) -> bool:
        """Whether the table is filtered or sorted by something that a line for each node does not have."""
        grid = self.grid
        return grid is not None and grid.asks_details

    # --- Views and the way --------------------------------------------------------------------------------------------

    async def action_view(self, name: ViewName) -> None:
        """One of the views, from its beginning."""
        if name == "node":
            await self._go_to_node()
            return
        await self.go((Place(view=name),))

    async def _go_to_node(self) -> None:
        """The node under the cursor, else the one seen last, else the first there is."""
        view, picture = self.shown, self.dashboard.picture
        node = self.place.node or ("" if view is None else view.node_name()) or self._last_node
        if picture is not None and node not in picture.by_name:
            node = picture.nodes[0].name if picture.nodes else node
        if self.place.view != "node":
            await self.go((Place(view="nodes"), Place(view="node", node=node)))

    async def action_go_down(self) -> None:
        """Into what the cursor is on."""
        if self.shown is not None and (below := self.shown.below()) is not None:
            await self.go_down(below)

    async def go_down(self, place: Place) -> None:
        """One step further; a place that was passed on the way here is gone back to."""
        if place in self.way:
            await self.go(self.way[: self.way.index(place) + 1])
        else:
            await self.go((*self.way, place))

    @on(View.Down)
    async def on_down(self, event: View.Down) -> None:
        """Enter in a table, or a double click."""
        event.stop()
        await self.go_down(event.place)

    async def action_go_back(self) -> None:
        """Clear the filter; without one, back to where one came from."""
        grid = self.grid
        if grid is not None and grid.query_text:
            grid.query_text = ""
            self.query_one(FilterLine).show_for(grid)
        elif len(self.way) > 1:
            await self.go(self.way[:-1])

    def action_pane(self, by: int) -> None:
        """The next table of the view, or the one before."""
        view = self.shown
        panes = [] if view is None else [one for one in view.query("*") if one.focusable]
        if panes:
            at = panes.index(self.focused) + by if self.focused in panes else 0
            self.set_focus(panes[at % len(panes)])

    @on(Line.Hit)
    async def on_hit(self, event: Line.Hit) -> None:
        """A click on a tab, on a part of the way, on a key."""
        event.stop()
        if isinstance(event.line, Tabs):
            await self.action_view(event.hit)  # type: ignore[arg-type]
        elif isinstance(event.line, Crumbs):
            await self.go(self.way[: int(event.hit) + 1])
        elif isinstance(event.line, Keys | Status):
            await self.dashboard.press(keymap.BY_ID[event.hit])

    # --- Tables -------------------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        """Write a filter for the table."""
        if (grid := self.grid) is not None:
            self.query_one(FilterLine).open(grid)

    def action_columns(self) -> None:
        """Choose its columns."""
        from .screens.columns import ColumnsScreen

        grid = self.grid
        if grid is None:
            return

        def choose(chosen: tuple[str, ...] | None) -> None:
            if chosen is not None:
                grid.chosen = chosen

        self.app.push_screen(ColumnsScreen(grid.columns, grid.chosen), choose)

    def action_flagged(self) -> None:
        """Only rows that deserve a look, or all again."""
        flag = getattr(self.shown, "flag", None)
        if flag is None:
            self.dashboard.say("nothing is flagged in this view")
        else:
            flag()
            self.show_status()

    # --- Over the view ------------------------------------------------------------------------------------------------

    def action_trend(self) -> None:
        """One large plot of what the cursor is on."""
        from .screens.trend import Trend

        picture = self.dashboard.picture
        subject = None if self.shown is None else self.shown.subject()
        if subject is None or picture is None:
            self.dashboard.say("there is nothing here to plot: put the cursor on a node, a GPU or a user")
            return
        feed = self.dashboard.feed
        ask = (lambda wanted: feed.tell(AskRecorded(wanted))) if picture.is_replay else None
        label = subject_text(subject, picture) + (" (SIMULATED)" if picture.is_simulated else "")
        closes = keymap.keys_of("trend", self.dashboard.keys)
        self.app.push_screen(Trend(feed.history, subject, label, ask_recorded=ask, closes=closes))

    def action_charts(self) -> None:
        """Show the charts of the row under the cursor, or hide them; remembered."""
        shown = not self.dashboard.shows_charts
        self.dashboard.memory.choose(charts=shown)
        if isinstance(view := self.shown, TableView):
            view.say_about()
            if not view.has_charts:
                self.dashboard.say(f"charts are {'shown' if shown else 'hidden'} in Nodes, Users, Jobs and GPUs")

    def action_help(self) -> None:
        """Every key, and the columns of this table."""
        from .screens.help import Help

        grid = self.grid
        columns = () if grid is None else grid.columns
        self.app.push_screen(
            Help(self.dashboard.keys, TITLES[self.place.view], columns, self.query_one(Status).texts())
        )

    # --- Acting -------------------------------------------------------------------------------------------------------

    def action_cancel(self) -> None:
        """Cancel the job, or the marked ones, after a question."""
        action_keys.cancel(self)

    def action_signal(self) -> None:
        """Send a signal to the task or process, after a question."""
        action_keys.signal(self)

    def action_output(self) -> None:
        """The end of the job's output, as it grows."""
        action_keys.output(self)

    def action_copy(self) -> None:
        """Into the terminal's clipboard."""
        action_keys.copy(self)

    # --- What the last line shows -------------------------------------------------------------------------------------

    def does(self, key: keymap.Key) -> bool:
        """Whether it does something here."""
        if key.id in ("filter", "columns"):
            return self.grid is not None
        if key.id in ("cancel", "signal"):
            return not self.dashboard.readonly
        return True

    def on_descendant_focus(self) -> None:
        """Another table: its filter, its marks."""
        if isinstance(self.focused, Grid):
            self.query_one(FilterLine).show_for(self.focused)
            self.show_status()

    @on(Grid.Moved)
    @on(Grid.Changed)
    def on_grid(self, event: Grid.Said) -> None:
        """The cursor, or a choice."""
        if isinstance(event, Grid.Changed):
            self._ask_details()
        if isinstance(event, Grid.Changed) and event.grid.name:
            self.dashboard.memory.choose_table(event.grid.name, choice_of(event.grid))
        self.show_status()
