"""A number beside a phrase is the number of the rows that its key or its filter shows, in every view."""

from __future__ import annotations

import re
from functools import cache

import pytest
from dashboards import a_picture, a_survey, picture_of
from msgspec.structs import replace
from slurm_share_tui.location import Location
from slurm_share_tui.picture import SurveyPicture
from slurm_share_tui.views.table import TableView
from slurm_share_tui.widgets.filter_line import FilterLine
from view_apps import looking, put_on

from slurm_share.load import gpu_columns
from slurm_share.load.snapshot import Survey

COUNT = 60


@cache
def picture() -> SurveyPicture:
    """A cluster with a GPU whose memory is full, silent nodes, idle GPUs, and every verdict that it has."""
    found = a_survey(count=COUNT)
    return picture_of(with_full_gpu(found))


def with_full_gpu(survey: Survey) -> Survey:
    nodes = list(survey.nodes)
    at = next(at for at, node in enumerate(nodes) if node.snapshot is not None and node.snapshot.gpus)
    snapshot = nodes[at].snapshot
    first, *others = snapshot.gpus
    full = replace(first, memory_used_mib=first.memory_total_mib)
    nodes[at] = replace(nodes[at], snapshot=replace(snapshot, gpus=(full, *others)))
    return replace(survey, nodes=tuple(nodes))


def number(text: str, phrase: str) -> int:
    """Return the number before a phrase; 0: the phrase is not there."""
    found = re.search(rf"([\d,]+) {phrase}", text)
    return 0 if found is None else int(found[1].replace(",", ""))


def head(view: TableView) -> str:
    return view.head.text


def fit(view: TableView, query: str) -> int:
    """Return the number of rows that a filter shows."""
    view.grid.query_text = query
    assert not view.grid.mistake
    count = view.grid.count
    view.grid.query_text = ""
    return count


@pytest.mark.parametrize("name", ["nodes", "users", "jobs", "gpus"])
async def test_what_needs_attention_is_what_f_shows(name):
    async with looking(Location(view=name), picture(), size=(300, 60)) as (app, pilot):
        needed = number(head(app.shown), "needs? attention")
        assert needed > 0
        if name in ("nodes", "gpus"):
            of_severities = [number(head(app.shown), severity) for severity in ("dead", "full", "waste")]
            assert sum(of_severities) == needed
        app.shown.flag()
        await pilot.pause()
        shown_rows = app.shown.grid.count
        assert shown_rows - number(app.shown.count_text(), "nodes? not read") == needed
        assert number(head(app.shown), "needs? attention") == needed


async def test_the_numbers_above_the_nodes_are_those_of_filters():
    async with looking(Location(view="nodes"), picture(), size=(300, 60)) as (app, _):
        view, said = app.shown, head(app.shown)
        for phrase, query in (
            ("dead", "severity=dead"),
            ("full", "severity=full"),
            ("waste", "severity=waste"),
            ("in use", "cores>0"),
            ("free", "corefree>0 & cores=0"),
            ("out of service", "corefree=- & cores=0"),
        ):
            assert number(said, phrase) == fit(view, query), phrase
        idle = number(said, "GPUs left idle")
    async with looking(Location(view="gpus"), picture(), size=(300, 60)) as (app, _):
        assert number(head(app.shown), "GPUs left idle") == idle == fit(app.shown, "note~iL") > 0


async def test_a_job_counts_once_behind_every_phrase_of_advice_in_every_view():
    seen = {}
    for name in ("jobs", "advice", "users"):
        async with looking(Location(view=name), picture(), size=(300, 60)) as (app, _):
            seen[name] = head(app.shown)
            if name == "advice":
                fitting = {
                    verdict: fit(app.shown, f"verdict~{verdict}") for verdict in ("fewer", "change", "look", "more")
                }
    phrases = {
        "fewer": "should run fewer tasks", "change": "should change something else",
        "look": "hardly uses? what", "more": "could run more tasks",
    }  # fmt: skip
    for verdict, phrase in phrases.items():
        assert {number(text, phrase) for text in seen.values()} == {fitting[verdict]}, phrase
    assert sum(fitting.values()) > 0


@pytest.mark.parametrize("name", ["nodes", "users", "jobs", "gpus", "advice"])
async def test_a_filter_has_one_total_with_f_and_without(name):
    """The line of the filter and the line above the table have the same text."""
    async with looking(Location(view=name), picture(), size=(300, 60)) as (app, pilot):
        view = app.shown
        line, totals = FilterLine(), set()
        await app.mount(line)
        for _ in range(2):
            view.grid.query_text = "alice"
            line.show_for(view.grid)
            view.draw(app.picture, app.location)
            await pilot.pause()
            text = view.count_text()
            assert " of " in text
            assert text in head(view)
            assert str(line.query_one(".filter-line--note").render()) == text
            totals.add(re.search(r" of ([\d,]+)", text)[1])
            view.flag()
        assert len(totals) == 1


async def test_rows_of_nodes_keep_their_places_under_the_cursor_until_the_user_goes_home():
    before = a_survey(count=COUNT)
    worse = replace(
        before,
        taken=before.taken + 5,
        nodes=(*before.nodes[:-1], replace(before.nodes[-1], snapshot=None, why="no answer")),
    )
    async with looking(Location(view="nodes"), picture_of(before)) as (app, pilot):
        grid = app.shown.grid
        first = [row.name for row in grid.shown_rows]
        assert first[0] == next(row.name for row in grid.shown_rows if row.severity == "dead")
        put_on(grid, first[3])
        app.shown.draw(picture_of(worse), app.location)
        assert [row.name for row in grid.shown_rows] == first
        await pilot.press("home")
        app.shown.draw(picture_of(worse), app.location)
        assert before.nodes[-1].name in [row.name for row in grid.shown_rows][:5]


async def test_a_gpu_that_a_job_holds_without_a_process_names_its_user_and_its_job():
    """GPU 1 of v-2 in the demonstration."""
    async with looking(Location(view="gpus"), a_picture(), size=(80, 24)) as (app, pilot):
        row = next(row for row in app.shown.grid.rows if row.node.name == "v-2" and row.name == "1")
        (holder,) = row.holders
        assert not row.tasks
        put_on(app.shown.grid, row.key)
        await pilot.pause()
        line = next(line for line in app.text.splitlines() if line.split()[:2] == ["v-2", "1"])
        assert "alice" in line
        assert f"held by {holder.job}" in line
        assert "no process" in app.text
        assert (app.shown.targets()[0].job_id, app.shown.targets()[0].owner) == (holder.job, "alice")
        silent = next(row for row in app.shown.grid.rows if row.gpu is None and row.node.queued_users)
        assert gpu_columns.users(silent) == ",".join(silent.node.queued_users)
        assert gpu_columns.jobs(silent) == ",".join(silent.node.queued_jobs)
        free = next(row for row in app.shown.grid.rows if row.gpu is not None and not row.holders and not row.tasks)
        assert (gpu_columns.users(free), gpu_columns.jobs(free), gpu_columns.held_idle(free)) == ("-", "-", "")


@pytest.mark.parametrize("width", [80, 100, 120, 160])
@pytest.mark.parametrize("name", ["nodes", "gpus"])
async def test_the_reason_of_a_silent_node_stands_in_its_own_row_and_costs_no_column(name, width):
    found = a_survey()
    why = "nothing for 25 s, and its slurmd does not answer either"
    nodes = tuple(replace(node, why=why) if node.name == "v-4" else node for node in found.nodes)
    headings, rows = {}, {}
    for case, survey in (
        ("silent", replace(found, nodes=nodes)),
        ("short", replace(found, nodes=tuple(replace(one, why="x" if one.why else "") for one in found.nodes))),
    ):
        async with looking(Location(view=name), picture_of(survey), size=(width, 40)) as (app, _):
            lines = app.text.splitlines()
            headings[case] = next(line.split() for line in lines if "HOSTNAME" in line)
            rows[case] = next(line for line in lines if line.startswith(" v-4"))
    assert headings["silent"] == headings["short"]
    assert "n! nothing for 25 s" in rows["silent"]
