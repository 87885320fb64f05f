"""The views: rows, summaries, where Enter leads, targets of actions, and the advice with its arithmetic."""

from __future__ import annotations

import dataclasses
import re

import pytest
from dashboards import NOW, a_picture, a_survey, picture_of
from msgspec.structs import replace
from rich.cells import cell_len
from slurm_share_tui import tables
from slurm_share_tui.history import FigureHistory
from slurm_share_tui.location import Location, Process
from slurm_share_tui.picture import SurveyPicture
from slurm_share_tui.views.advice import arithmetic
from slurm_share_tui.wire import Subject
from view_apps import OneView, look_at, looking, put_on

from slurm_share.load.rules.job_rows import user_rows
from slurm_share.load.rules.own_figures import NO_REPORT
from slurm_share.load.snapshot import Advice, Bound, JobProgress

NAMES = ("nodes", "users", "jobs", "gpus")
SAID = {
    "nodes": "h-1", "users": "alice", "jobs": "alice", "gpus": "h-1",
    "node": "h-2", "gpu": "h-2", "process": "python", "advice": "advice",
}  # fmt: skip
"""A part of every view of the simulated cluster."""
SIZES = ((80, 24), (120, 40), (200, 50), (20, 5), (300, 100))


NODE = Location(view="node", node="h-2")
GPU = Location(view="gpu", node="h-2", gpu="GPU-demo-h-2-1", gpu_name="GPU 1")
ADVICE = Location(view="advice")


def the_process(found: SurveyPicture, at: int = 0) -> Location:
    """Return the location of a process of h-2."""
    snapshot = found.by_name["h-2"].node.snapshot
    one = snapshot.processes[at]
    return Location(
        view="process", node="h-2", gpu=one.gpus[0].uuid, gpu_name="GPU 0", process=Process(one.pid, one.start_ticks)
    )


def changed(found: SurveyPicture, **words) -> SurveyPicture:
    """Return the picture with another snapshot of h-2."""
    nodes = tuple(
        replace(node, snapshot=replace(node.snapshot, **words)) if node.name == "h-2" and node.snapshot else node
        for node in found.survey.nodes
    )
    return picture_of(replace(found.survey, nodes=nodes))


def ten_minutes() -> list[SurveyPicture]:
    """Return surveys twenty seconds apart."""
    return [a_picture(now=NOW - 600 + 20 * step) for step in range(31)]


def without_details(picture: SurveyPicture) -> SurveyPicture:
    """Return a picture with one line for each node only."""
    nodes = tuple(
        replace(node, snapshot=replace(node.snapshot, users=(), jobs=(), processes=())) if node.snapshot else node
        for node in picture.survey.nodes
    )
    return picture_of(replace(picture.survey, nodes=nodes, jobs=()), details=False)


# --- Whatever comes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_view_is_drawn_at_every_size_and_no_line_is_longer_than_the_terminal(name, size):
    found = a_picture()
    location = {"node": NODE, "gpu": GPU, "process": the_process(found)}.get(name, Location(view=name))
    text = look_at(location, found, size=size)

    assert all(cell_len(line) <= size[0] for line in text.splitlines())
    assert len(text.splitlines()) == size[1]
    assert SAID[name] in text or (name in NAMES and size[1] < 10)


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
        seen.append((before, app.shown.grid.total, [app.shown.needs_attention(row) for row in app.shown.grid.rows]))
        await pilot.pause()
        assert "only what needs attention" in app.text
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


@pytest.mark.parametrize("name", ["node", "gpu", "process", "advice"])
def test_what_is_gone_is_said_to_be_gone(name):
    found = a_picture()
    process = the_process(found)
    later = Process(process.process.pid, 1)
    places = {
        "node": (Location(view="node", node="x-1"), "no longer in the survey"),
        "gpu": (replace(GPU, gpu="GPU-gone"), "it is not shown any more"),
        "process": (replace(process, process=later), "it has ended, or is not shown any more"),
        "advice": (Location(view="advice", user="nobody"), "no job here to give advice on"),
    }
    location, said = places[name]

    async def play(app: OneView, pilot):
        if name != "process":
            assert app.shown.enter_location() is None
        assert app.shown.targets() == ()

    assert said in look_at(location, found, play=play)


# --- Nodes ------------------------------------------------------------------------------------------------------------


def test_the_nodes_have_a_line_that_says_how_full_all_of_them_are():
    text = look_at(Location(view="nodes"), a_picture()).splitlines()[0]

    assert text.strip() == (
        "12 nodes  4 need attention (f)  2 dead  2 waste  4 GPUs left idle  11 in use, 0 free, 1 out of service  "
        "CPU 83% of 520"
    )


def test_below_the_nodes_stands_why_the_one_under_the_cursor_is_flagged():
    text = look_at(Location(view="nodes"), a_picture(), at="c-2")
    assert "n!  no figures of c-2: down (Not responding)" in text
    assert "c-2  down+not_responding" in text


def test_the_nodes_of_a_job_are_those_that_slurm_has_and_those_that_carry_it():
    found = a_picture()
    job = next(job for job in found.survey.jobs if job.node_count == 3)
    location = Location(view="nodes", job=job.job_id, job_name=f"{job.id} {job.name}")

    async def play(app: OneView, pilot):
        assert [row.name for row in app.shown.grid.rows] == ["v-4", "v-5", "v-3"]
        (target,) = app.shown.targets()
        assert (target.job, target.owner) == (str(job.job_id), job.user)
        assert app.shown.enter_location() == replace(location, view="node", node="v-4")
        assert app.shown.subject() == Subject(node="v-4")

    assert f"job {job.id}  {job.name}  of {job.user}" in look_at(location, found, play=play)


def test_the_nodes_of_a_job_that_has_ended_say_that_it_has():
    text = look_at(Location(view="nodes", job=1, job_name="1 gone"), a_picture())

    assert "job 1 gone is not there any more" in text


async def test_no_command_acts_on_a_node():
    async with looking(Location(view="nodes"), a_picture()) as (app, pilot):
        assert app.shown.targets() == ()
        assert app.shown.copy_lines() == ("c-2",)
        await pilot.press("space", "space")
        assert app.shown.copy_lines() == ("c-2", "v-4")


async def test_of_thousands_of_nodes_the_line_above_is_not_made_at_every_look():
    few = a_survey(count=6)
    nodes = tuple(replace(few.nodes[at % 6], name=f"n{at}") for at in range(2100))

    def at(second: float) -> SurveyPicture:
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
    assert "63598 gnn-leak" in " ".join(text.split())
    assert "86720" not in text


def test_a_user_without_a_name_is_unknown_and_not_blank():
    survey = a_survey()
    found = picture_of(replace(survey, jobs=tuple(replace(job, user="") for job in survey.jobs)))

    async def play(app: OneView, pilot):
        assert app.shown.enter_location() is None

    text = look_at(Location(view="users"), found, at="", play=play)
    assert "── jobs of ? ──" in text
    assert any(line.startswith(" ? ") for line in text.splitlines())


def test_an_own_look_has_the_own_line():
    text = look_at(Location(view="users"), a_picture(everybody=False))

    assert "alice, your own jobs and nodes" in text
    assert "bob" not in text


# --- Jobs -------------------------------------------------------------------------------------------------------------


def with_an_array() -> SurveyPicture:
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
        (target,) = app.shown.targets()
        assert (target.job, target.owner) == ("77", "alice")
        assert app.shown.enter_location() == Location(view="jobs", job=77, job_name="77 x12 sweep")

    text = look_at(Location(view="jobs"), with_an_array(), at="77*", play=play, size=(200, 40))
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
    text = look_at(Location(view="jobs"), a_picture(), at="48367")
    assert "v-3  CPU 39.20  memory 42.9GB" in text
    assert "... and 1 more node, 1 of them silent" in text


@pytest.mark.parametrize(("view", "at"), [("nodes", "v-1"), ("users", None), ("jobs", None), ("gpus", None)])
def test_a_terminal_without_room_for_charts_has_a_plot_in_one_line(view, at):
    """The plot is of the row under the cursor; the key v hides it, as it hides charts."""

    async def hide(app: OneView, pilot):
        app.shows_charts = False
        app.shown.draw_details()

    text = look_at(Location(view=view), a_picture(), at=at, size=(80, 24))
    lines = [one for one in text.splitlines() if "10 min" in one]
    assert len([one for one in lines if re.match(r" [GC]PU +[0-9?]+%?, last 10 min +[▁▂▃▄▅▆▇█]", one)]) == 1
    assert "last 10 min" not in look_at(Location(view=view), a_picture(), at=at, play=hide, size=(80, 24))
    assert "last 10 min" not in look_at(Location(view="nodes"), a_picture(), at="c-2", size=(80, 24))  # silent


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
        assert (app.shown.subject(), app.shown.node_name()) == (Subject(job=48367), "")

    async def of_an_array(app: OneView, pilot):
        put_on(app.shown.grid, "77*")
        assert app.shown.subject() == Subject(user="alice")

    look_at(Location(view="jobs"), a_picture(), at="48367", play=play)
    look_at(Location(view="jobs"), with_an_array(), play=of_an_array)


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_below_the_gpus_stand_the_slots_of_the_one_under_the_cursor():
    async def play(app: OneView, pilot):
        below = app.shown.enter_location()
        assert below == Location(view="gpu", node="h-2", gpu="GPU-demo-h-2-1", gpu_name="GPU 1")
        assert app.shown.subject() == Subject(node="h-2", gpu="GPU-demo-h-2-1")
        assert app.shown.copy_lines() == ("GPU-demo-h-2-1",)

    lines = look_at(Location(view="gpus"), a_picture(), at="h-2/GPU-demo-h-2-1", play=play).splitlines()
    at = next(number for number, line in enumerate(lines) if "h-2 GPU 1  Simulated H100" in line)
    assert lines[at + 1].split()[:4] == ["SLOT", "USER", "TASK", "SMTIME"]
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
        assert app.shown.enter_location() == Location(view="node", node="v-4")
        assert app.shown.subject() == Subject(node="v-4")
        assert app.shown.copy_lines() == ()

    text = look_at(Location(view="gpus"), a_picture(), at="v-4/", play=play, size=(200, 40))
    assert "n! no answer within 5 s" in text


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
    cell = next(column for column in tables.users(FigureHistory()) if column.id == "jobs")
    assert (cell.text(user_rows(picture)[0]), cell.value(user_rows(picture)[0])) == ("?", None)
    assert "no user" not in look_at(Location(view="node", node=survey.nodes[0].name), picture)


def test_advice_for_no_node_names_none():
    picture = a_picture()
    advice = (replace(picture.advice[0], nodes=()),)
    text = look_at(Location(view="advice"), dataclasses.replace(picture, advice=advice))
    assert f"of {advice[0].user}  " in text
    assert " on  " not in text


# --- A node -----------------------------------------------------------------------------------------------------------


def test_a_node_shows_every_gpu_with_its_slots_below_it():
    async def play(app: OneView, pilot):
        rows = app.shown.grid.rows
        assert [(row.on.name, row.kind, row.number) for row in rows[:6]] == [
            ("0", "gpu", None), ("0", "slot", 0), ("0", "slot", 4),
            ("1", "gpu", None), ("1", "slot", 1), ("1", "slot", 5),
        ]  # fmt: skip

    text = look_at(NODE, a_picture(), play=play)
    assert "▸0" in text
    assert "10.3GB 39.2GB" in text or "10.3GB  39.2GB" in text


def test_a_free_slot_is_a_line_of_its_own():
    found = a_picture()
    snapshot = found.by_name["h-2"].node.snapshot
    text = look_at(NODE, changed(found, processes=snapshot.processes[1:]))

    line = next(line for line in text.splitlines() if line.rstrip().endswith("free"))
    assert line.split()[:2] == ["0", "0"]


def test_a_nodes_history_has_a_line_for_each_kind_of_load_with_its_figure():
    lines = look_at(NODE, *ten_minutes(), size=(80, 24)).splitlines()
    at = [number for number, line in enumerate(lines) if line.startswith((" CPU ", " MEM "))]
    assert at[1] - at[0] == 1
    assert "GPU    76% 3.03/4 sm" in lines[at[0]]
    assert "GMEM   26% 84/320GB" in lines[at[1]]
    assert any(sign in "".join(lines[at[0] : at[1]]) for sign in "▅▆▇█")
    charts = (
        "g GPU load  76% of 4 GPUs, sm",
        "v GPU memory  26%, 84/320GB",
        "c CPU load  95% of 96",
        "m host memory  7%",
    )
    text = look_at(NODE, *ten_minutes(), size=(120, 45))
    assert all(chart in text for chart in charts)
    assert "GMEM   26%" not in text


def test_a_node_without_gpus_has_its_jobs_instead():
    text = look_at(Location(view="node", node="c-1"), a_picture())

    assert "this node has no GPU" in text
    assert "job 50750  cpu-pipeline  of dave" in text
    assert "GMEM" not in text


def test_a_silent_node_says_why_and_which_jobs_slurm_has_there():
    text = look_at(Location(view="node", node="v-4"), a_picture())

    assert "of bob" in text.splitlines()[0]
    assert "silent  no answer within 5 s" in text
    assert "job 48367" in text
    assert "what is on it is unknown" in text
    assert "n!" in text


def test_the_letters_of_a_node_stand_there_with_their_reasons():
    text = look_at(Location(view="node", node="v-8"), a_picture())

    assert "cL  CPU load 0.84 is 2 % of what is in use" in text
    assert "gL  GPU load 0.07 is 4 % of what is in use" in text


def test_very_many_letters_and_jobs_leave_room_for_the_table():
    found = a_picture()
    snapshot = found.by_name["h-2"].node.snapshot
    jobs = tuple(replace(snapshot.jobs[0], job=number, slots=None, memory_kills=3) for number in range(1, 90))
    text = look_at(NODE, changed(found, jobs=jobs, problems=tuple(map(str, range(50)))), size=(80, 24))

    assert "... and" in text
    assert "SLOT" in text
    assert sum(" 86720 " in line for line in text.splitlines()) >= 2


async def test_from_a_node_enter_goes_to_the_gpu_and_on_a_slot_to_its_process():
    found = a_picture()
    async with looking(NODE, found) as (app, pilot):
        assert app.shown.enter_location() == replace(GPU, gpu="GPU-demo-h-2-0", gpu_name="GPU 0")
        assert app.shown.targets() == ()
        assert app.shown.subject() == Subject(node="h-2")
        assert app.shown.copy_lines() == ("GPU-demo-h-2-0",)
        await pilot.press("down")
        assert app.shown.enter_location() == the_process(found)
        (target,) = app.shown.targets()
        assert (target.owner, target.job, target.node) == ("alice", "86720", "h-2")
        assert (target.step, target.task, target.process) == ("0", 0, the_process(found).process)
        assert app.shown.copy_lines() == (str(the_process(found).process.pid),)


@pytest.mark.parametrize("name", ["node", "gpu"])
async def test_a_free_slot_stands_for_the_job_that_has_it(name):
    found = a_picture()
    snapshot = found.by_name["h-2"].node.snapshot
    location = NODE if name == "node" else replace(GPU, gpu="GPU-demo-h-2-0", gpu_name="GPU 0")
    async with looking(location, changed(found, processes=snapshot.processes[1:])) as (app, _):
        row = next(row for row in app.shown.grid.rows if row.kind == "slot" and row.process is None)
        put_on(app.shown.grid, app.shown.key(row))
        (target,) = app.shown.targets()
        assert (target.owner, target.job, target.process) == ("alice", "86720", None)


# --- A GPU ------------------------------------------------------------------------------------------------------------


def test_a_gpu_shows_its_counters_its_history_and_its_slots():
    async def play(app: OneView, pilot):
        assert [row.number for row in app.shown.grid.rows] == [1, 5]
        assert app.shown.subject() == Subject(node="h-2", gpu="GPU-demo-h-2-1")
        below = app.shown.enter_location()
        assert (below.view, below.gpu_name) == ("process", "GPU 1")

    text = look_at(GPU, *ten_minutes(), play=play)
    assert "h-2 GPU 1  Simulated H100-80GB  of alice" in text
    assert "SM 73%  occupancy 33%  tensor 22%  DRAM 38%" in text
    assert "g GPU load  76%, sm" in text
    assert "v GPU memory  26%, 21.0/80.0GB" in text
    assert "LOAD   76% sm" in look_at(GPU, *ten_minutes(), size=(28, 24))


def test_a_gpu_without_sm_activity_says_so_and_why():
    text = look_at(Location(view="gpu", node="v-1", gpu="GPU-demo-v-1-0", gpu_name="GPU 0"), a_picture())

    assert "g GPU load  75%, util" in text
    assert "no SM activity: the driver has no GPM for this GPU" in text


def test_the_page_of_a_gpu_that_is_held_and_idle_says_who_holds_it():
    held = Location(view="gpu", node="v-2", gpu="GPU-demo-v-2-1", gpu_name="GPU 1")
    head = look_at(held, a_picture()).splitlines()[0]
    assert "held by alice, job 20778" in head
    assert "no user" not in head


def test_the_page_of_a_running_job_has_its_times_its_whole_advice_and_charts():
    pictures = ten_minutes()
    last = pictures[-1]
    long = "run it with llsub './train.sh' [1,16,4]: " + "because it has room " * 12 + "and the end"
    advice = tuple(replace(one, sentence=long) if one.job == 86720 else one for one in last.advice)
    pictures[-1] = dataclasses.replace(last, advice=advice)
    location = Location(view="nodes", job=86720, job_name="86720 resnet18")
    for size in ((80, 24), (120, 40), (200, 50)):
        text = look_at(location, *pictures, size=size)
        assert "and the end" in text
        assert "running for 15:35  time limit 2-00:00:00  time left 1-23:44:25" in text
        assert size[1] < 40 or "last 10 minutes of job 86720" in text
        assert size[1] < 40 or "r rate of tasks" in text


def test_the_page_of_a_waiting_job_has_no_headings():
    picture = a_picture()
    first = picture.survey.jobs[0]
    waits = replace(first, job_id=99, states=("PENDING",), nodes="", gpu_indexes=(), start=None)
    shown = dataclasses.replace(picture, survey=replace(picture.survey, jobs=(*picture.survey.jobs, waits)))
    text = look_at(Location(view="nodes", job=99), shown, size=(80, 24))
    assert "has no nodes yet" in text
    assert "HOSTNAME" not in text


def test_the_heading_of_nodes_and_reasons_is_whole_at_200_columns():
    assert "NODELIST(REASON)" in look_at(Location(view="jobs"), a_picture(), size=(200, 50))


def test_a_gpus_problem_stands_on_its_page():
    found = a_picture()
    snapshot = found.by_name["h-2"].node.snapshot
    gpus = tuple(replace(gpu, problem="GPU is lost", others_mib=512) for gpu in snapshot.gpus)
    text = look_at(GPU, changed(found, gpus=gpus))

    assert "n!  GPU 1: GPU is lost" in text
    assert "others have 512MB" in text


# --- A process --------------------------------------------------------------------------------------------------------


def test_a_process_shows_whose_it_is_which_task_and_its_memory_against_its_cap():
    found = a_picture()

    async def play(app: OneView, pilot):
        assert [row.number for row in app.shown.grid.rows] == [0, 4]
        assert app.shown.enter_location() is None
        (target,) = app.shown.targets()
        assert target.process == the_process(found).process
        await pilot.press("down")
        assert app.shown.enter_location() == the_process(found, 4)
        assert app.shown.targets() == (target,)
        assert app.shown.copy_lines() == (str(the_process(found).process.pid),)

    text = look_at(the_process(found), found, play=play)
    assert "job 86720  step 0  task 0  slot 0" in text
    assert "10.3GB (26%) of its cap of 39.2GB  peak 10.3GB" in text
    assert "on the same GPU:" in text


def test_a_process_without_a_cap_is_measured_against_its_gpu_and_reasons_are_told():
    found = a_picture()
    snapshot = found.by_name["h-2"].node.snapshot
    first, *others = snapshot.processes
    first = replace(first, cap_mib=None, job=None, unknown={})
    assert "of 80.0GB, without a cap" in look_at(the_process(found), changed(found, processes=(first, *others)))

    first = replace(first, unknown={"cap_mib": "its environment is closed"})
    text = look_at(the_process(found), changed(found, processes=(first, *others)))
    assert "(?) of its cap, which is not known, on a GPU of 80.0GB" in text
    assert "? cap_mib: its environment is closed" in text
    assert "in no job" in text


# --- Advice -----------------------------------------------------------------------------------------------------------


async def test_advice_that_something_should_be_changed_comes_first():
    picture = a_picture()
    first, *others = picture.advice
    unknown, fewer = replace(first, verdict="unknown"), replace(others[0], verdict="fewer")
    async with looking(ADVICE, dataclasses.replace(picture, advice=(unknown, *others[1:], fewer))) as (app, _):
        verdicts = [row.verdict for row in app.shown.grid.rows]
        assert verdicts == sorted(verdicts, key=["fewer", "change", "look", "more", "stay", "unknown"].index)
        assert {"more", "stay", "unknown", "fewer"} <= set(verdicts)


def a_picture_of_more() -> SurveyPicture:
    """Return a picture with only the jobs that could run more tasks, one of them with its submission."""
    picture = a_picture()
    more = [one for one in picture.advice if one.verdict == "more"]
    line = "cd /home/bob && llsub ./train.sh '[1,8,5]' -T 2:00:00"
    return dataclasses.replace(picture, advice=(replace(more[0], resubmit=(line,)), *more[1:]))


def test_advice_shows_the_lines_to_submit_and_the_bounds_with_what_decides():
    for size in ((80, 24), (120, 40), (200, 50)):

        async def play(app: OneView, pilot):
            await pilot.press("home")
            assert app.shown.copy_lines() == app.shown.grid.row.resubmit
            assert app.shown.grid.row.resubmit

        text = look_at(ADVICE, a_picture_of_more(), play=play, size=size)
        assert "cd /home/bob && llsub ./train.sh '[1,8,5]' -T 2:00:00" in text
        assert "GPU memory   █" in text
        if size[1] >= 40:
            assert "<- decides" in text
            assert "confidence: low" in text


def test_advice_for_one_user_one_node_or_one_job_is_that_alone():
    async def of_carol(app: OneView, pilot):
        assert [row.user for row in app.shown.grid.rows] == ["carol"]
        (target,) = app.shown.targets()
        assert target.job == "63598"
        assert app.shown.enter_location() == Location(view="nodes", user="carol", job=63598, job_name="63598 gnn-leak")
        assert app.shown.subject() == Subject(node="v-6")

    async def on_v8(app: OneView, pilot):
        assert [row.nodes for row in app.shown.grid.rows] == [("v-8",)]

    look_at(Location(view="advice", user="carol"), a_picture(), play=of_carol)
    look_at(Location(view="advice", node="v-8"), a_picture(), play=on_v8)


def plain(advice: Advice, width: int = 100, most: int = 99) -> list[str]:
    """Return the arithmetic without styles."""
    return [line.plain for line in arithmetic(advice, width, most, "train")]


def an_advice(**words) -> Advice:
    """Return the advice for one job."""
    known = {
        "job": 1, "user": "alice", "nodes": ("n1",), "verdict": "more", "work": "under-used", "now": 4, "next": 8,
        "decided_by": "growth", "sentence": "next 8", "resubmit": ("llsub ... [1,8]",),
        "bounds": (
            Bound(resource="GPU memory", nppn=26, hard=True, why="2 x 13"),
            Bound(resource="MPS clients", nppn=96, hard=True, why="2 x 48 clients"),
            Bound(resource="CPU load", nppn=None, hard=False, why="not known"),
            Bound(resource="growth", nppn=8, hard=False, why="twice the 4 of now"),
        ),
    }  # fmt: skip
    return Advice(**{**known, **words})


def test_all_bars_are_on_one_scale_and_what_is_beyond_it_has_a_sign():
    lines = {line.split("  ")[0].strip(): line for line in plain(an_advice())}

    assert lines["GPU memory"].count("█") == 20
    assert lines["growth"].count("█") == lines["next"].count("█") == 6
    assert "»   96 2 x 48 clients" in lines["MPS clients"]
    assert "- not known" in lines["CPU load"]
    assert "█" not in lines["CPU load"]
    assert "<- decides; twice the 4 of now (stops a rise)" in lines["growth"]


def test_a_bound_that_does_not_stop_the_rise_does_not_say_so():
    lines = plain(an_advice(next=26, decided_by="GPU memory"))
    assert not any("stops a rise" in line for line in lines if line.startswith("growth"))
    assert any("stops a rise" in line for line in plain(an_advice(verdict="stay", next=4)))


def test_what_is_below_of_the_arithmetic_has_a_mark():
    async def to_the_end(app: OneView, pilot):
        await pilot.press("tab", "end")
        for _ in range(200):
            if "end of the arithmetic" in app.text:
                return
            await pilot.pause()

    assert "more lines of this: Tab, then" in look_at(ADVICE, a_picture_of_more(), size=(80, 20))
    text = look_at(ADVICE, a_picture_of_more(), play=to_the_end, size=(80, 20))
    assert "end of the arithmetic" in text
    assert "peaks may grow" in text
    assert "more lines of this" not in look_at(ADVICE, a_picture_of_more(), size=(120, 60))


def test_advice_not_to_change_anything_has_no_bar_for_the_next():
    lines = plain(an_advice(verdict="stay", next=4, resubmit=(), sentence="stay"))

    assert not any(line.startswith("next") for line in lines)
    assert not any("copies" in line for line in lines)


def test_advice_on_a_job_that_was_submitted_nobody_knows_how_says_what_to_change():
    lines = plain(an_advice(resubmit=(), change=("--share-gpu=4", "llsub [1,8,5]")), width=200)

    assert any(line.startswith("submit it as before, but with --share-gpu=4, or llsub [1,8,5]") for line in lines)
    assert not any("$" in line for line in lines)


def test_advice_without_evidence_is_its_sentence():
    lines = plain(an_advice(verdict="unknown", now=None, next=None, bounds=(), resubmit=(), sentence="run it first"))

    assert "run it first" in lines
    assert not any("now" in line for line in lines)


def test_where_there_is_no_room_the_arithmetic_is_shorter_and_the_line_to_submit_stays():
    long = plain(an_advice(), width=70)
    short = plain(an_advice(), width=70, most=8)

    assert len(short) < len(long)
    assert any("llsub ... [1,8]" in line and "y copies" in line for line in short)


def test_a_hostile_advice_is_text():
    lines = plain(an_advice(user="[red]\x1b[31m", sentence="[b]x[/b]\n用户" * 300))

    assert any("[red]\\x1b[31m" in line for line in lines)
    assert all("\n" not in line and cell_len(line) <= 100 for line in lines)


# --- Work -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
def test_a_process_shows_what_its_task_gets_done(size):
    pictures = ten_minutes()
    location = the_process(pictures[-1], 3)
    text = look_at(location, *pictures, size=size)
    (work,) = [line for line in text.splitlines() if line.lstrip().startswith("WORK")]
    assert "/s log" in work
    (said,) = [line for line in text.splitlines() if "of its speed alone" in line]
    assert "task 3 of LLSUB." in said
    assert "r rate of tasks  " in text
    snapshot = pictures[-1].by_name["h-2"].node.snapshot
    progress = replace(snapshot.processes[3].progress, is_paused=True)
    paused = tuple(replace(one, progress=progress) if at == 3 else one for at, one in enumerate(snapshot.processes))
    text = look_at(location, changed(pictures[-1], processes=paused), size=size)
    assert "WORK paused" in text
    assert "its launcher has stopped it for its neighbours" in text


def test_a_process_without_progress_says_so_and_how_it_could():
    found = a_picture()
    snapshot = found.by_name["h-2"].node.snapshot
    silent = tuple(replace(one, progress=None) for one in snapshot.processes)
    text = look_at(the_process(found), changed(found, processes=silent), size=(80, 24))
    assert "WORK  no progress reported  LLSUB_PROGRESS or llsub --progress tells" in text
    assert "RATE" not in text
    unread = tuple(replace(one, unknown={"progress": NO_REPORT}) for one in silent)
    text = look_at(the_process(found), changed(found, processes=unread), size=(80, 24))
    assert "WORK  not known  only its user" in text
    assert "LLSUB_PROGRESS" not in text


def test_a_nodes_tasks_have_rate_and_trend_at_80_columns():
    text = look_at(NODE, *ten_minutes(), size=(80, 24))
    (head,) = [line for line in text.splitlines() if "SLOT" in line]
    assert head.index("RATE") < head.index("SPEED") < head.index("WORK") < head.index("GPUMEM")
    assert "work 19/s log" in text


def test_a_job_without_a_rate_says_how_many_tasks_are_done_an_hour():
    found = a_picture()
    (load,) = found.by_name["h-2"].node.snapshot.jobs
    done = replace(load, progress=JobProgress(tasks=8, finished_per_h=6.25))
    assert "6.25 tasks done an hour" in look_at(NODE, changed(found, jobs=(done,)), size=(120, 40))
