"""A screen that is removed while it opens does nothing; Textual has given it no widgets."""

from __future__ import annotations

from typing import Any

import pytest
from shell import shown_dashboard
from slurm_share_tui.history import FigureHistory
from slurm_share_tui.screens.help import Help
from slurm_share_tui.screens.log import LogScreen
from slurm_share_tui.screens.trend import Trend
from slurm_share_tui.wire import Subject

from slurm_share.triples.job_output import LogFile


@pytest.mark.parametrize(
    "make",
    [
        lambda: Help({}, "Nodes", ()),
        lambda: Trend(FigureHistory(), Subject(node="n1"), "n1"),
        lambda: LogScreen([LogFile("output", "/nowhere")], lambda file: None),
    ],
)
async def test_it_goes_without_an_error(make: Any) -> None:
    async with shown_dashboard() as (pilot, app, _):
        screen = make()
        compose = screen.compose

        def compose_while_closing() -> Any:
            screen._pruning = True  # as Textual sets it when a key ends the dashboard at this moment
            return compose()

        screen.compose = compose_while_closing
        await app.push_screen(screen)
        await pilot.pause()
        assert len(screen.children) == 0
        assert app.is_running
