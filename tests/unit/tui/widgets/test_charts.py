"""The charts of the row under the cursor: content, position, and the key that hides them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from dashboards import NOW, a_picture, until
from msgspec.structs import replace as changed
from rich.cells import cell_len
from shell import dashboard
from slurm_share_tui.history import FigureHistory
from slurm_share_tui.location import Location, ViewName
from slurm_share_tui.picture import SurveyPicture
from slurm_share_tui.widgets import charts, glyphs
from slurm_share_tui.widgets.charts import Chart, Shown, drawn, least_height, over_time
from slurm_share_tui.wire import Point, Subject
from view_apps import OneView, look_at, looking, put_on

ALL = tuple(
    Chart(of, "50% of all") for of in ("cpu_load_percent", "gpu_load_percent", "memory_percent", "gpu_memory_percent")
)
HEADS = ("c CPU load", "g GPU load", "m host memory", "v GPU memory")


@cache
def pictures() -> tuple[SurveyPicture, ...]:
    """Return ten minutes of the demonstration."""
    return tuple(a_picture(now=NOW - 600 + 60 * step) for step in range(11))


def pairs(some: tuple[Point, ...]) -> list[tuple[float, float | None]]:
    return [(one.taken, one.cpu_load_percent) for one in some]


def points(*values: float | None, every_s: float = 60.0) -> tuple[Point, ...]:
    """Return a figure at irregular times, the last at 600 s."""
    first = 600.0 - every_s * (len(values) - 1)
    return tuple(Point(first + every_s * at, cpu_load_percent=value) for at, value in enumerate(values))


def test_a_figure_holds_until_the_next_look_and_not_beyond_what_is_known() -> None:
    found = over_time(pairs(points(10.0, 20.0, 30.0, every_s=120.0)), 0.0, 600.0, 10)
    assert found == (*[None] * 6, 10.0, 10.0, 20.0, 30.0)
    assert over_time(pairs(points(10.0, None, 30.0, every_s=200.0)), 0.0, 600.0, 3) == (None, 10.0, 30.0)
    assert over_time((), 0.0, 600.0, 4) == (None,) * 4


def test_more_looks_than_columns_are_their_mean_and_what_is_outside_is_not_drawn() -> None:
    many = points(*[10.0, 30.0] * 30, every_s=10.0)
    assert over_time(pairs(many), 0.0, 600.0, 2) == pytest.approx((20.0, 20.0), abs=0.5)
    assert over_time(pairs(many), -300.0, 300.0, 2)[0] is None


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize(("width", "height"), [(116, 10), (116, 22), (54, 40), (198, 5), (44, 6), (30, 5)])
def test_charts_fill_their_room_exactly(
    width: int, height: int, is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glyphs, "_is_plain", is_plain)
    lines = [one.plain for one in drawn(Shown(ALL, points(*[50.0] * 11), 600.0), width, height)]
    assert len(lines) == height
    assert {cell_len(line) for line in lines} <= {width, width - 1, width - 2, width - 3}
    text = "\n".join(lines)
    assert text.isascii() == is_plain
    assert text.count("100%") == text.count("10 min ago") == sum(head in text for head in HEADS) >= 1


def test_there_is_nothing_where_there_is_no_room() -> None:
    assert drawn(Shown(ALL, (), 600.0), 100, 4) == []
    assert [least_height(4, width) for width in (60, 100, 180)] == [21, 11, 6]


@pytest.mark.parametrize("view", ["nodes", "users", "jobs", "gpus"])
@pytest.mark.parametrize(
    ("size", "is_drawn"),
    [((80, 24), False), ((100, 22), False), ((90, 40), False), ((120, 40), True), ((200, 50), True)],
)
def test_charts_stand_where_there_is_room(view: ViewName, size: tuple[int, int], is_drawn: bool) -> None:
    at = {"nodes": "h-1", "jobs": "20778"}.get(view)
    text = look_at(Location(view=view), *pictures(), size=size, at=at)
    assert ("last 10 minutes of" in text) == is_drawn
    assert ("10 min ago" in text) == is_drawn
    assert any(name in text for name in ("h-1", "alice", "h-2"))


def test_charts_are_of_the_row_under_the_cursor() -> None:
    text = look_at(Location(view="nodes"), *pictures(), at="h-1")
    assert "last 10 minutes of h-1" in text
    assert all(head in text for head in HEADS)
    text = look_at(Location(view="nodes"), *pictures(), at="c-1")
    assert "last 10 minutes of c-1" in text
    assert [head in text for head in HEADS] == [True, False, True, False]


def test_a_silent_row_has_one_sentence_and_no_charts() -> None:
    text = look_at(Location(view="nodes"), *pictures(), at="c-2")
    assert "no figures of c-2: down" in text
    assert "minutes of" not in text
    text = look_at(Location(view="gpus"), *pictures(), size=(200, 50), at="v-4/")
    assert "no figures of the GPUs of v-4: no answer within 5 s" in text
    assert "minutes of" not in text


def test_the_time_axis_begins_with_the_first_known_figure() -> None:
    short = Shown(ALL[:1], points(40.0, 50.0, 60.0, every_s=20.0), 600.0)
    text = "\n".join(one.plain for one in drawn(short, 60, 6))
    assert short.begin == 560.0
    assert "40 s ago" in text
    assert "20 s ago" in text
    area = [line[6:] for line in text.splitlines() if "│" in line]
    assert len(area[-1].rstrip()) == 54
    assert Shown(ALL, points(*[1.0] * 40, every_s=60.0), 600.0).begin == 0.0
    assert Shown(ALL, (), 600.0).begin == 590.0


def test_rates_are_drawn_on_a_scale_of_their_own() -> None:
    rates = ((0.0, 12.0), (300.0, None), (600.0, 24.0))
    shown = charts.known_charts(Shown((Chart("rate", "24/s log"), *ALL), (), 600.0, rates=rates))
    assert shown is not None
    assert [one.of for one in shown.charts] == ["rate"]
    text = "\n".join(one.plain for one in drawn(shown, 60, 9))
    assert text.startswith("r rate of tasks  24/s log")
    assert "50/s" in text
    assert "25/s" in text
    assert [charts.full_scale(most) for most in (0.0, 3.0, 20.0, 21.0)] == [1.0, 5.0, 20.0, 50.0]
    assert charts.full_scale(3 / 60) == pytest.approx(5 / 60)


def test_charts_of_a_job_have_the_rate_of_its_tasks() -> None:
    text = look_at(Location(view="jobs"), *pictures(), at="86720", size=(200, 50))
    assert "r rate of tasks  19/s log" in text


def test_charts_of_a_job_are_relative_to_what_it_holds() -> None:
    text = look_at(Location(view="jobs"), *pictures(), at="20778")
    assert "last 10 minutes of job 20778" in text
    assert "GPU load  0% of the GPUs that it holds" in text


def test_a_large_table_keeps_its_rows() -> None:
    many = tuple(a_picture(count=200, now=NOW - 5 * step) for step in (1, 0))
    text = look_at(Location(view="nodes"), *many, size=(120, 40), at="h-1")
    lines = text.splitlines()
    charts_at = next(at for at, line in enumerate(lines) if "last 10 seconds" in line)
    assert charts_at >= 16
    text = look_at(Location(view="users"), *pictures(), size=(200, 50))
    assert any("│ ── last 10 minutes" in line for line in text.splitlines())


async def test_the_key_hides_them_and_that_is_remembered() -> None:
    async with dashboard(location=Location(view="nodes")) as (pilot, app, feed):
        feed.bring(pictures()[-1])
        await until(pilot, lambda: app.picture)
        view = app.main_screen.shown
        put_on(view.grid, "h-1")

        def drawn_now() -> bool:
            return any(one.display for one in view.query(charts.Charts))

        for expected in (True, False, True):
            await until(pilot, lambda expected=expected: drawn_now() is expected)  # type: ignore[misc]
            assert app.memory.now.charts is expected
            await pilot.press("v")


def test_a_job_has_a_history_of_its_own() -> None:
    history = FigureHistory()
    for picture in pictures():
        history.take(picture)
    newest = history.points(Subject(job=20778), None)[-1]
    job = next(one for one in pictures()[-1].by_name["v-2"].node.snapshot.jobs)  # type: ignore[union-attr]
    assert job.gpu_load is not None
    assert newest.gpu_load_percent == pytest.approx(100 * job.gpu_load / 2, abs=0.01)
    assert newest.gpu_memory_percent == pytest.approx(100 * job.gpu_memory_mib / (2 * 32 * 1024), abs=0.01)  # type: ignore[operator]


@pytest.mark.parametrize("view", ["nodes", "users", "jobs"])
async def test_one_key_puts_the_most_idle_gpus_first(view: ViewName) -> None:
    firsts: list[str] = []
    # Of a user some GPUs are held by a job that is too young to be judged.
    async with looking(Location(view=view), *pictures()) as (app, pilot):
        await pilot.press("I")
        await pilot.pause()
        firsts.append(app.shown.grid._key(app.shown.grid.shown_rows[0]))
        row: Any = app.shown.grid.shown_rows[0]
        column = next(one for one in app.shown.columns if one.id == "gpus_idle")
        firsts.append(column.text(row))
    assert firsts == {"nodes": ["v-2", "2"], "users": ["alice", "2?"], "jobs": ["20778", "2"]}[view]


def test_gpus_of_a_silent_node_are_not_known_to_be_idle() -> None:
    picture = pictures()[-1]
    silent = tuple(
        changed(row, node=changed(row.node, snapshot=None, held_gpus=None)) if row.name == "v-2" else row
        for row in picture.nodes
    )
    first = picture.survey.jobs[0]
    waits = changed(first, job_id=99, states=("PENDING",), nodes="", gpu_indexes=(), start=None)
    shown = replace(picture, nodes=silent, survey=changed(picture.survey, jobs=(*picture.survey.jobs, waits)))
    app = OneView(Location(view="jobs"), shown)
    column = next(one for one in app.shown.columns if one.id == "gpus_idle")
    words = {str(row.number): column.text(row) for row in app.shown.rows(shown, Location(view="jobs"))}
    assert (words["20778"], words["99"]) == ("?", "-")
