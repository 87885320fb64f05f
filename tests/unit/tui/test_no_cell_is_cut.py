"""Every table of every view, and of llload, with long values: no identifier is cut, and nothing else is cut while its
line has room."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from typing import Any

import pytest
from dashboards import Asks, picture_of, running
from long_values import long_survey
from rich.cells import cell_len
from slurm_share_tui import tables
from slurm_share_tui.location import Location, Process
from slurm_share_tui.picture import SurveyPicture
from slurm_share_tui.screens.columns import Choices, ColumnsScreen
from slurm_share_tui.widgets.grid import Grid
from slurm_share_tui.widgets.grid_cells import filled
from view_apps import looking

from slurm_share.load.output import table as llload
from slurm_share.load.output.notes import View

SIZES = ((80, 24), (120, 40), (200, 50))
VIEWS = ("nodes", "users", "jobs", "elements", "gpus", "node", "gpu", "process", "advice")
IDENTIFIERS = ("job", "hostname", "user", "gpu", "pid", "triple", "state", "nppn")
ID = re.compile(r"\d{7}(?:_\d+|_\[[^\]]*\]|\+\d)?")


@cache
def seen() -> SurveyPicture:
    """The picture with long values; constant."""
    return picture_of(long_survey())


def place(view: str) -> Location:
    """Return where the view is, for one thing that of a busy node."""
    node = "rack17-node-h-2"
    snapshot = seen().by_name[node].node.snapshot
    assert snapshot is not None
    process = snapshot.processes[0]
    gpu = process.gpus[0].uuid
    places = {
        "elements": Location(view="jobs", job=1_234_520, job_name="1234520 hyper"),
        "node": Location(view="node", node=node),
        "gpu": Location(view="gpu", node=node, gpu=gpu, gpu_name="GPU 0"),
        "process": Location(view="process", node=node, gpu=gpu, process=Process(process.pid, process.start_ticks)),
    }
    return places.get(view) or Location(view=view)  # type: ignore[arg-type]


def cells(grid: Grid[Any]) -> list[tuple[Any, int, str, str]]:
    """Return (column, width, text, text as drawn) of every cell that is drawn as text."""
    found = []
    for at in grid._layout_now.placed:
        column = grid._by_id[grid._chosen[at.column]]
        for line in range(grid._top, min(grid.count, grid._top + grid._seen)):
            text = grid._texts[grid._order[line]][at.column]
            if column.spark is None:
                found.append((column, at.width, text, filled(text, at.width, where=column.cut).strip()))
    return found


def check(grid: Grid[Any]) -> None:
    """Check the table's lines as they are laid out."""
    layout = grid._layout_now
    assert layout.placed
    end = layout.placed[-1].x + layout.placed[-1].width
    gaps = {after.x - one.x - one.width for one, after in zip(layout.placed, layout.placed[1:], strict=False)}
    shown = [grid._by_id[grid._chosen[at.column]] for at in layout.placed]
    for column, width, text, drawn in cells(grid):
        is_cut = cell_len(text) > width
        if column.id in IDENTIFIERS and len(text) <= 32:
            whole = {part.strip("▸ ") for part in text.split(",")} | {text.strip("▸ ")}
            assert {part.strip("▸ ") for part in drawn.split(",")} <= whole | {"…"} or drawn.strip("▸ ") in whole, text
        if is_cut:
            assert not column.right, (column.id, text)
            assert end >= layout.width - 1, (column.id, text, layout)
            assert gaps <= {1}, (column.id, text)
            bars = [at.width for at, one in zip(layout.placed, shown, strict=True) if one.bar is not None]
            assert all(wide < 18 for wide in bars), (column.id, text)


def check_lines(texts: list[str], width: int) -> None:
    """Check lines outside tables: cut only where they are full."""
    for text in texts:
        assert "…" not in text or cell_len(text) >= width - 2, text


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_cuts_nothing_while_there_is_room(view: str, size: tuple[int, int]) -> None:
    async def main() -> None:
        async with looking(place(view), seen(), size=size) as (app, pilot):
            grid = app.shown.grid
            for _ in range(1 + grid.count // 4):
                check(grid)
                check_lines(app.shown.head.text.splitlines(), size[0])
                check_lines(app.shown.pane.text.splitlines(), app.shown.pane.size.width)
                await pilot.press("pagedown")
                await pilot.pause()

    asyncio.run(main())


def test_the_choice_of_columns_cuts_no_name() -> None:
    async def main() -> None:
        screen = ColumnsScreen(tables.JOBS, [one.id for one in tables.JOBS])
        async with running(Asks(screen), (80, 24)):
            check(screen.query_one(Choices))

    asyncio.run(main())


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize(
    "view",
    [
        View(),
        View(gpus=True),
        View(gpus=True, detail=True, jobs=True),
        View(gpus=True, jobs=True),
        View(gpus=True, processes=True),
    ],
    ids=["default", "gpus", "detail", "jobs", "processes"],
)
def test_llload_cuts_nothing_while_there_is_room(view: View, width: int) -> None:
    survey = long_survey()
    lines = llload.as_lines(survey, view, width)
    assert max(map(cell_len, lines)) <= width
    text = "\n".join(lines)
    for node in survey.nodes:
        assert node.name in text
    if view.jobs or view.processes:
        on_nodes = {str(load.job) for node in survey.nodes if node.snapshot for load in node.snapshot.jobs}
        found = set(re.findall(r"(?<![\w.])(?<!job )\d+(?=…)", text))
        assert not {one for one in found if any(job.startswith(one) for job in on_nodes)}
        assert not view.jobs or on_nodes <= set(re.findall(r"\d{7}", text))
    for block in text.split("\n\n"):
        if "…" in block:
            assert max(map(cell_len, block.splitlines())) == width, block


def jobs_screen(width: int, height: int) -> list[str]:
    """Return the lines of the view of the user's own jobs."""
    picture = picture_of(long_survey(everybody=False))

    async def main() -> list[str]:
        async with looking(Location(view="jobs"), picture, size=(width, height)) as (app, _):
            return app.text.splitlines()

    return asyncio.run(main())


def test_waiting_jobs_have_their_state_reason_and_start_at_80_columns() -> None:
    screen = jobs_screen(80, 50)
    head = next(line for line in screen if " JOB " in line)
    assert {"JOB", "ST", "START"} <= set(head.replace("›", "").split())
    assert "NODELIST(REASON)" in head
    lines = {found[0]: line for line in screen if (found := ID.findall(line[:40]))}
    assert "(Resources)" in lines["1234500"]
    assert "PD" in lines["1234500"].split()
    assert "15:58" in lines["1234500"] or ":" in lines["1234500"]
    assert "(QOSMaxJobsPerUserLimit)" in lines["1234502"]
    assert "(DependencyNeverSatisfied)" in lines["1234507"]
    assert re.search(r" \d\d-\d\d \d\d:\d\d ", lines["1234501"])
    assert "(no reason yet)" in lines["1234506"]
    assert "█" not in "".join(lines.values())


def test_reasons_are_whole_at_120_columns() -> None:
    async def main() -> None:
        async with looking(Location(view="jobs"), seen(), size=(120, 40)) as (app, pilot):
            drawn = set()
            for _ in range(4):
                drawn |= {shown for column, _, _, shown in cells(app.shown.grid) if column.id == "nodelist"}
                await pilot.press("pagedown")
                await pilot.pause()
            reasons = {job.reason for job in seen().survey.jobs if job.reason and len(job.reason) <= 46}
            reasons -= {"JobArrayTaskLimit"}  # of an element; the array's line has that of the others
            assert len(reasons) == 8
            assert {f"({reason})" for reason in reasons} <= drawn

    asyncio.run(main())
