"""An app with one view, for the tests of the views."""

from __future__ import annotations

from typing import Any

from dashboards import drive
from slurm_share_tui import view_list
from slurm_share_tui.history import History
from slurm_share_tui.location import Location
from slurm_share_tui.picture import Picture
from slurm_share_tui.view import View
from slurm_share_tui.views.table import TableView
from slurm_share_tui.widgets.grid import Grid
from textual.app import App, ComposeResult
from textual.pilot import Pilot


class OneView(App[None]):
    """A view, with the locations that it asked for."""

    CSS = "View { height: 1fr; }"

    def __init__(self, location: Location, *pictures: Picture) -> None:
        super().__init__()
        self.history = History()
        for picture in pictures:
            self.history.take(picture)
        self.location, self.picture = location, pictures[-1]
        made = view_list.make(location.view, self.history)
        assert isinstance(made, TableView)
        self.shown: TableView[Any] = made
        self.went: list[Location] = []

    def compose(self) -> ComposeResult:
        yield self.shown

    def on_mount(self) -> None:
        self.shown.draw(self.picture, self.location)
        self.shown.grid.focus()

    def on_view_down(self, event: View.Down) -> None:
        self.went.append(event.location)

    @property
    def text(self) -> str:
        """The text of the screen."""
        return "\n".join("".join(segment.text for segment in line) for line in self.screen._compositor.render_strips())


def put_on(grid: Grid[Any], key: str) -> None:
    """Move the cursor to this row."""
    assert grid.put([grid._key(row) for row in grid.shown_rows].index(key))


def look_at(location: Location, *pictures: Picture, play: Any = None, size: tuple[int, int] = (120, 40)) -> str:
    """Return the screen of that view after `play(app, pilot)`."""
    app = OneView(location, *pictures)
    seen: list[str] = []

    async def main(pilot: Pilot[Any]) -> None:
        await pilot.pause()
        if play is not None:
            await play(app, pilot)
            await pilot.pause()
        seen.append(app.text)

    drive(app, main, size)
    return seen[0]
