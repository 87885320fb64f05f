"""The tables of nodes, users, jobs and GPUs: rows, where Enter leads, targets of actions."""

from __future__ import annotations

import dataclasses

import pytest
from dashboards import a_picture, a_survey, picture_of
from msgspec.structs import replace
from rich.cells import cell_len
from slurm_share_tui import tables
from slurm_share_tui.history import History
from slurm_share_tui.location import Location
from slurm_share_tui.picture import Picture
from slurm_share_tui.wire import Subject
from view_apps import OneView, look_at, looking, put_on

from slurm_share.load.rules.job_rows import user_rows

NAMES = ("nodes", "users", "jobs", "gpus")
SIZES = ((80, 24), (120, 40), (200, 50), (20, 5), (300, 100))


def without_details(picture: Picture) -> Picture:
    """Return a picture with one line for each node only."""
    nodes = tuple(
        replace(node, snapshot=replace(node.snapshot, users=(), jobs=(), processes=())) if node.snapshot else node
        for node in picture.survey.nodes
    )
    return picture_of(replace(picture.survey, nodes=nodes, jobs=()), details=False)


# --- Whatever comes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_view_is_drawn_at_every_size_and_no_line_is_longer_than_the_terminal(name, size):
    text = look_at(Location(view=name), a_picture(), size=size)

    assert all(cell_len(line) <= size[0] for line in text.splitlines())
    assert len(text.splitlines()) == size[1]
    assert "alice" in text or "h-1" in text or size[1] < 10


@pytest.mark.parametrize("name", NAMES)
def test_a_view_of_nothing_says_so_and_what_to_do(name):
    empty = picture_of(replace(a_survey(everybody=False), nodes=(), jobs=()))
    text = look_at(Location(view=name), empty, size=(120, 24))

    assert "llsub ./task.sh [1,4]" in text or "there is no GPU to show" in text


@pytest.mark.parametrize("name", ["users", "jobs", "gpus"])
def test_where_there_is_a_line_for_each_node_alone_it_says_that_the_rest_is_being_fetched(name):
    text = look_at(Location(view=name), without_details(a_picture()), size=(100, 24))

    assert "of 12 nodes are being fetched" in text
    assert "nobody" not in text


@pytest.mark.parametrize("name", NAMES)
async def test_only_flagged_rows_are_shown_where_that_is_wanted_and_all_again_after(name):
    seen = []
    async with looking(Location(view=name), a_picture()) as (app, pilot):
        before = app.shown.grid.total
        app.shown.flag()
        seen.append((before, app.shown.grid.total, [app.shown.codes(row) for row in app.shown.grid.rows]))
        await pilot.pause()
        assert "only what is flagged" in app.text
        app.shown.flag()
        seen.append(app.shown.grid.total)
    (before, flagged, codes), after = seen
    assert 0 < flagged < before == after
    assert all(codes)


@pytest.mark.parametrize("name", NAMES)
async def test_a_double_click_goes_where_enter_goes(name):
    async with looking(Location(view=name), a_picture()) as (app, pilot):
        await pilot.click(app.shown.grid, offset=(4, 2), times=2)
        await pilot.pause()
        assert app.went == [app.shown.enter_location()]
        assert app.shown.grid.cursor == 1


@pytest.mark.parametrize("name", NAMES)
async def test_the_cursor_stays_on_its_row_when_a_picture_comes(name):
    async with looking(Location(view=name), a_picture()) as (app, pilot):
        await pilot.press("down", "down")
        row = app.shown.key(app.shown.grid.row)
        app.shown.draw(a_picture(now=app.picture.survey.taken + 5), app.location)
        await pilot.pause()
        assert app.shown.key(app.shown.grid.row) == row


@pytest.mark.parametrize("name", NAMES)
def test_the_columns_of_a_narrow_terminal_are_all_seen_whole(name):
    seen = []

    async def play(app: OneView, pilot):
        seen.append(app.text.splitlines())

    look_at(Location(view=name), a_picture(), play=play, size=(80, 24))
    head = next(line for line in seen[0] if "GPU" in line and ("MEM" in line or "SLOTS" in line))
    assert "…" not in head


# --- Nodes ------------------------------------------------------------------------------------------------------------


def test_the_nodes_have_a_line_that_says_how_full_all_of_them_are():
    text = look_at(Location(view="nodes"), a_picture()).splitlines()[0]

    assert text.strip() == (
        "12 nodes  2 silent  5 flagged (f)  11 in use, 0 idle  4 GPUs left idle  CPU 83% of 520  GPU 11.13 of 22 (51%)"
    )


def test_below_the_nodes_stands_why_the_one_under_the_cursor_is_flagged():
    async def play(app: OneView, pilot):
        put_on(app.shown.grid, "c-2")

    text = look_at(Location(view="nodes"), a_picture(), play=play)
    assert "n!  down" in text
    assert "c-2  down+not_responding" in text


def test_the_nodes_of_a_job_are_those_that_slurm_has_and_those_that_carry_it():
    found = a_picture()
    job = next(job for job in found.survey.jobs if job.node_count == 3)
    location = Location(view="nodes", job=job.job_id, job_name=f"{job.id} {job.name}")

    async def play(app: OneView, pilot):
        assert [row.name for row in app.shown.grid.rows] == ["v-3", "v-4", "v-5"]
        (target,) = app.shown.targets()
        assert (target.job, target.owner) == (str(job.job_id), job.user)
        assert app.shown.enter_location() == replace(location, view="node", node="v-3")
        assert app.shown.subject() == Subject(node="v-3")

    assert f"job {job.id}  {job.name}  of {job.user}" in look_at(location, found, play=play)


def test_the_nodes_of_a_job_that_has_ended_say_that_it_has():
    text = look_at(Location(view="nodes", job=1, job_name="1 gone"), a_picture())

    assert "job 1 gone is not there any more" in text


async def test_no_command_acts_on_a_node():
    async with looking(Location(view="nodes"), a_picture()) as (app, pilot):
        assert app.shown.targets() == ()
        assert app.shown.copy_lines() == ("c-1",)
        await pilot.press("space", "space")
        assert app.shown.copy_lines() == ("c-1", "c-2")


async def test_of_thousands_of_nodes_the_line_above_is_not_made_at_every_look():
    few = a_survey(count=6)
    nodes = tuple(replace(few.nodes[at % 6], name=f"n{at}") for at in range(2100))

    def at(second: float) -> Picture:
        survey = replace(few, nodes=nodes, taken=few.taken + second, jobs=())
        return picture_of(survey)

    first, second, third = at(0), at(1), at(9)
    async with looking(Location(view="nodes"), first) as (app, _):
        line = app.shown.head.lines[0]
        app.shown.draw(second, app.location)
        assert app.shown.head.lines[0] is line
        app.shown.draw(third, app.location)
        assert app.shown.head.lines[0] is not line


@pytest.mark.parametrize("width", [80, 120])
def test_why_a_node_is_silent_can_be_read_at_any_usual_width(width):
    lines = look_at(Location(view="nodes"), a_picture(), size=(width, 24)).splitlines()

    line = next(line for line in lines if line.startswith(" v-4 "))
    assert "n! no answer within" in line
    assert " bob " in line


@pytest.mark.parametrize("name", ["nodes", "node", "jobs"])
def test_of_a_job_without_gpus_no_number_of_tasks_is_told(name):
    found = a_picture()
    job = next(job for job in found.survey.jobs if job.nodes.startswith("c-"))
    places = (
        {"nodes": Location(view="nodes"), "node": Location(view="node", node="c-1"), "jobs": Location(view="jobs")}[
            name
        ],
        Location(view="nodes", job=job.job_id, job_name="x"),
    )
    for location in places:

        async def play(app: OneView, pilot):
            if app.location.view != "node":
                put_on(app.shown.grid, "c-1" if app.location.view == "nodes" else str(job.job_id))

        lines = look_at(location, found, play=play, size=(160, 40)).splitlines()
        said = [line for line in lines if f"job {job.job_id}" in line]
        assert said
        assert not [line for line in said if "tasks" in line and "task on" not in line and "advice" not in line]


# --- Users ------------------------------------------------------------------------------------------------------------


def test_the_users_jobs_stand_below_the_user_under_the_cursor():
    async def play(app: OneView, pilot):
        await pilot.press("down", "down")
        assert app.shown.grid.row.user == "carol"
        assert app.shown.enter_location() == Location(view="jobs", user="carol")
        assert app.shown.subject() == Subject(user="carol")
        assert app.shown.copy_lines() == ("carol",)
        assert app.shown.targets() == ()

    text = look_at(Location(view="users"), a_picture(), play=play)
    assert "63598  gnn-leak" in text
    assert "86720" not in text


def test_a_user_without_a_name_is_unknown_and_not_blank():
    survey = a_survey()
    found = picture_of(replace(survey, jobs=tuple(replace(job, user="") for job in survey.jobs)))

    async def play(app: OneView, pilot):
        put_on(app.shown.grid, "")
        assert app.shown.enter_location() is None

    text = look_at(Location(view="users"), found, play=play)
    assert "── jobs of ? ──" in text
    assert any(line.startswith(" ? ") for line in text.splitlines())


def test_an_own_look_has_the_own_line():
    text = look_at(Location(view="users"), a_picture(everybody=False))

    assert "alice, your own jobs and nodes" in text
    assert "bob" not in text


# --- Jobs -------------------------------------------------------------------------------------------------------------


def with_an_array() -> Picture:
    """Return a picture in which alice's jobs on v-1 and v-2 are elements of one array, and ten more wait."""
    survey = a_survey()
    jobs = []
    for job in survey.jobs:
        if job.nodes in ("v-1", "v-2"):
            job = replace(job, array=77, element=int(job.nodes[-1]), name="sweep")
        jobs.append(job)
    jobs.append(
        replace(jobs[0], job_id=77, array=77, element=None, waiting="3-12%2", nodes="", states=("PENDING",), start=None)
    )
    return picture_of(replace(survey, jobs=tuple(jobs)))


def test_an_array_is_one_line_and_enter_goes_to_its_elements():
    async def play(app: OneView, pilot):
        put_on(app.shown.grid, "77*")
        (target,) = app.shown.targets()
        assert (target.job, target.owner) == ("77", "alice")
        assert app.shown.enter_location() == Location(view="jobs", job=77, job_name="77 x12 sweep")

    text = look_at(Location(view="jobs"), with_an_array(), play=play, size=(200, 40))
    assert "77 x12" in text
    assert "2R 10PD" in text
    assert "19 jobs  9 R, 10 PD" in text  # 8 lines


def test_below_an_array_are_its_elements_and_their_nodes_below_these():
    async def play(app: OneView, pilot):
        assert [row.id for row in app.shown.grid.rows] == ["77_1", "77_2", "77_[3-12%2]"]
        below = app.shown.enter_location()
        assert (below.view, below.job_name) == ("nodes", "77_1 sweep")

    text = look_at(Location(view="jobs", job=77, job_name="77 x12 sweep"), with_an_array(), play=play)
    assert "12 elements of array 77  2 R, 10 PD" in text


def test_the_jobs_of_one_user_or_one_node_are_those_alone():
    async def of_bob(app: OneView, pilot):
        assert {row.user for row in app.shown.grid.rows} == {"bob"}

    async def on_v4(app: OneView, pilot):
        assert [row.node_names for row in app.shown.grid.rows] == [("v-3", "v-4", "v-5")]

    assert "3 jobs of bob" in look_at(Location(view="jobs", user="bob"), a_picture(), play=of_bob)
    assert "1 job on v-4" in look_at(Location(view="jobs", node="v-4"), a_picture(), play=on_v4)


def test_below_the_jobs_stands_the_advice_and_what_each_node_has_of_the_job():
    async def play(app: OneView, pilot):
        put_on(app.shown.grid, "48367")

    text = look_at(Location(view="jobs"), a_picture(), play=play)
    assert "v-3  CPU 59.05  memory 42.9GB" in text
    assert "... and 1 more node, 1 of them silent" in text


async def test_commands_act_on_the_marked_jobs_and_else_on_the_one_under_the_cursor():
    async with looking(Location(view="jobs"), a_picture()) as (app, pilot):
        await pilot.press("space", "space")
        assert [target.job for target in app.shown.targets()] == ["11239", "20778"]
        assert app.shown.copy_lines() == ("11239", "20778")
        await pilot.press("u")
        assert [target.job for target in app.shown.targets()] == ["36942"]
        assert (app.shown.subject(), app.shown.node_name()) == (Subject(job=36942), "h-1")


def test_the_history_of_a_job_is_its_own_and_of_an_array_its_users():
    async def play(app: OneView, pilot):
        put_on(app.shown.grid, "48367")
        assert (app.shown.subject(), app.shown.node_name()) == (Subject(job=48367), "")

    async def of_an_array(app: OneView, pilot):
        put_on(app.shown.grid, "77*")
        assert app.shown.subject() == Subject(user="alice")

    look_at(Location(view="jobs"), a_picture(), play=play)
    look_at(Location(view="jobs"), with_an_array(), play=of_an_array)


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_below_the_gpus_stand_the_slots_of_the_one_under_the_cursor():
    async def play(app: OneView, pilot):
        put_on(app.shown.grid, "h-2/GPU-demo-h-2-1")
        below = app.shown.enter_location()
        assert below == Location(view="gpu", node="h-2", gpu="GPU-demo-h-2-1", gpu_name="GPU 1")
        assert app.shown.subject() == Subject(node="h-2", gpu="GPU-demo-h-2-1")
        assert app.shown.copy_lines() == ("GPU-demo-h-2-1",)

    lines = look_at(Location(view="gpus"), a_picture(), play=play).splitlines()
    at = next(number for number, line in enumerate(lines) if "h-2 GPU 1  Simulated H100" in line)
    assert lines[at + 1].split()[:4] == ["SLOT", "USER", "TASK", "NOW"]
    assert lines[at + 2].split()[:3] == ["1", "alice", "1"]
    assert "10.3GB  39.2GB" in lines[at + 2]
    assert lines[at + 3].split()[:3] == ["5", "alice", "5"]


def test_what_load_rests_on_is_said_of_every_gpu_and_explained():
    for width in (80, 120, 200):
        text = look_at(Location(view="gpus"), a_picture(), size=(width, 40))
        assert " util " in text
        assert " sm " in text
    assert "util: utilisation, an upper bound of it" in text


def test_a_silent_nodes_gpus_are_one_line_that_leads_to_the_node():
    async def play(app: OneView, pilot):
        put_on(app.shown.grid, "v-4/")
        assert app.shown.enter_location() == Location(view="node", node="v-4")
        assert app.shown.subject() == Subject(node="v-4")
        assert app.shown.copy_lines() == ()

    assert "n! no answer within 5 s" in look_at(Location(view="gpus"), a_picture(), play=play, size=(200, 40))


def test_the_gpus_of_a_node_a_user_or_a_job_are_those_alone():
    found = a_picture()
    carol = next(job for job in found.survey.jobs if job.user == "carol")
    for location in (
        Location(view="gpus", node="v-6"),
        Location(view="gpus", user="carol"),
        Location(view="gpus", job=carol.job_id),
    ):
        seen = []

        async def play(app: OneView, pilot, seen=seen):
            seen += [row.key for row in app.shown.grid.rows]

        look_at(location, found, play=play)
        assert seen == ["v-6/GPU-demo-v-6-0", "v-6/GPU-demo-v-6-1"]


# --- Without Slurm ----------------------------------------------------------------------------------------------------


def test_without_slurm_nobody_says_that_there_is_no_job():
    survey = a_survey(everybody=False)
    nodes = tuple(
        replace(node, slurm=None, snapshot=node.snapshot and replace(node.snapshot, users=(), jobs=(), processes=()))
        for node in survey.nodes
    )
    picture = picture_of(replace(survey, jobs=(), jobs_taken=None, nodes=nodes))
    for name in ("users", "jobs", "advice"):
        text = look_at(Location(view=name), picture)
        assert "which jobs there are is not known" in text, name
        assert "no job" not in text, name
    cell = next(column for column in tables.users(History()) if column.id == "jobs")
    assert (cell.text(user_rows(picture)[0]), cell.value(user_rows(picture)[0])) == ("?", None)
    assert "no user" not in look_at(Location(view="node", node=survey.nodes[0].name), picture)


def test_advice_for_no_node_names_none():
    picture = a_picture()
    advice = (replace(picture.advice[0], nodes=()),)
    text = look_at(Location(view="advice"), dataclasses.replace(picture, advice=advice))
    assert f"of {advice[0].user}  " in text
    assert " on  " not in text
