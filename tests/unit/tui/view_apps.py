"""An app with one view, for the tests of the views."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dashboards import running, screen_text
from slurm_share_tui.history import FigureHistory
from slurm_share_tui.location import Location
from slurm_share_tui.main_screen import make_view
from slurm_share_tui.picture import SurveyPicture
from slurm_share_tui.views.table import TableView
from slurm_share_tui.widgets.grid import Grid
from textual.app import App, ComposeResult
from textual.pilot import Pilot


class OneView(App[None]):
    """A view, with the locations that it asked for."""

    CSS = "TableView { height: 1fr; }"

    def __init__(self, location: Location, *pictures: SurveyPicture) -> None:
        super().__init__()
        self.history = FigureHistory()
        for picture in pictures:
            self.history.take(picture)
        self.location, self.picture = location, pictures[-1]
        self.shown = make_view(location.view, self.history)
        self.went: list[Location] = []

    def compose(self) -> ComposeResult:
        yield self.shown

    def on_mount(self) -> None:
        self.shown.draw(self.picture, self.location)
        self.shown.grid.focus()

    def on_table_view_down(self, event: TableView.Down) -> None:
        self.went.append(event.location)

    @property
    def text(self) -> str:
        """The text of the screen."""
        return screen_text(self)


def put_on(grid: Grid[Any], key: str) -> None:
    """Move the cursor to this row."""
    assert grid.put([grid._key(row) for row in grid.shown_rows].index(key))


@asynccontextmanager
async def looking(
    location: Location, *pictures: SurveyPicture, size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[OneView, Pilot[Any]]]:
    """Run an app with that view."""
    app = OneView(location, *pictures)
    async with running(app, size) as pilot:
        yield app, pilot


def look_at(
    location: Location,
    *pictures: SurveyPicture,
    at: str | None = None,
    play: Any = None,
    size: tuple[int, int] = (120, 40),
) -> str:
    """Return the screen of that view with the cursor on the row `at`, after `play(app, pilot)`."""

    async def main() -> str:
        async with looking(location, *pictures, size=size) as (app, pilot):
            if at is not None:
                put_on(app.shown.grid, at)
                await pilot.pause()
            if play is not None:
                await play(app, pilot)
                await pilot.pause()
            return app.text

    return asyncio.run(main())
