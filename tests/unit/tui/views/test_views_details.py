"""The views of a node, a GPU and a process, and the advice with its arithmetic."""

from __future__ import annotations

import dataclasses

import pytest
from dashboards import NOW, a_picture, picture_of
from msgspec.structs import replace
from rich.cells import cell_len
from slurm_share_tui.location import Location, Process
from slurm_share_tui.picture import Picture
from slurm_share_tui.views.advice import arithmetic
from slurm_share_tui.wire import Subject
from view_apps import OneView, look_at, looking, put_on

from slurm_share.load.snapshot import Advice, Bound, JobProgress

NODE = Location(view="node", node="h-2")
GPU = Location(view="gpu", node="h-2", gpu="GPU-demo-h-2-1", gpu_name="GPU 1")
ADVICE = Location(view="advice")
SIZES = ((80, 24), (120, 40), (200, 50), (20, 5), (300, 100))


def the_process(found: Picture, at: int = 0) -> Location:
    """Return the location of a process of h-2."""
    snapshot = found.by_name["h-2"].node.snapshot
    one = snapshot.processes[at]
    return Location(
        view="process", node="h-2", gpu=one.gpus[0].uuid, gpu_name="GPU 0", process=Process(one.pid, one.start_ticks)
    )


def changed(found: Picture, **words) -> Picture:
    """Return the picture with another snapshot of h-2."""
    nodes = tuple(
        replace(node, snapshot=replace(node.snapshot, **words)) if node.name == "h-2" and node.snapshot else node
        for node in found.survey.nodes
    )
    return picture_of(replace(found.survey, nodes=nodes))


def ten_minutes() -> list[Picture]:
    """Return surveys twenty seconds apart."""
    return [a_picture(now=NOW - 600 + 20 * step) for step in range(31)]


# --- Whatever comes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["node", "gpu", "process", "advice"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_view_of_one_thing_is_drawn_at_every_size(name, size):
    found = a_picture()
    location = {"node": NODE, "gpu": GPU, "process": the_process(found), "advice": ADVICE}[name]
    text = look_at(location, found, size=size)

    assert len(text.splitlines()) == size[1]
    assert all(cell_len(line) <= size[0] for line in text.splitlines())
    assert {"node": "h-2", "gpu": "h-2", "process": "python", "advice": "advice"}[name] in text


@pytest.mark.parametrize("name", ["node", "gpu", "process", "advice"])
def test_what_is_gone_is_said_to_be_gone(name):
    found = a_picture()
    places = {
        "node": (Location(view="node", node="x-1"), "no longer in the survey"),
        "gpu": (replace(GPU, gpu="GPU-gone"), "it is not shown any more"),
        "process": (replace(the_process(found), process=Process(1, 1)), "it has ended, or is not shown any more"),
        "advice": (Location(view="advice", user="nobody"), "no job here to give advice on"),
    }
    location, said = places[name]

    async def play(app: OneView, pilot):
        if name != "process":
            assert app.shown.enter_location() is None
        assert app.shown.targets() == ()

    assert said in look_at(location, found, play=play)


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
    for size, height in (((80, 24), 1), ((120, 45), 3)):
        lines = look_at(NODE, *ten_minutes(), size=size).splitlines()
        at = [number for number, line in enumerate(lines) if line.startswith((" CPU ", " MEM "))]
        assert at[1] - at[0] == height
        assert "GPU    76% 3.03/4 sm" in lines[at[0]]
        assert "GMEM   26% 84/320GB" in lines[at[1]]
        assert any(sign in "".join(lines[at[0] : at[1]]) for sign in "▅▆▇█")


def test_a_node_without_gpus_has_its_jobs_instead():
    text = look_at(Location(view="node", node="c-1"), a_picture())

    assert "this node has no GPU" in text
    assert "job 50750  cpu-pipeline  of dave" in text
    assert "GMEM" not in text


def test_a_silent_node_says_why_and_which_jobs_slurm_has_there():
    text = look_at(Location(view="node", node="v-4"), a_picture())

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
    assert sum("alice 86720" in line for line in text.splitlines()) >= 2


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


def test_a_silent_node_is_said_to_be_whose_the_queue_has_there():
    assert "of bob" in look_at(Location(view="node", node="v-4"), a_picture()).splitlines()[0]


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
    assert "LOAD   76% sm" in text
    assert "MEM    26% 21.0/80.0GB" in text


def test_a_gpu_without_sm_activity_says_so_and_why():
    text = look_at(Location(view="gpu", node="v-1", gpu="GPU-demo-v-1-0", gpu_name="GPU 0"), a_picture())

    assert "LOAD   75% util" in text
    assert "no SM activity: the driver has no GPM for this GPU" in text


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


def test_a_later_process_of_the_same_number_is_another_one():
    found = a_picture()
    location = the_process(found)
    later = replace(location, process=Process(location.process.pid, 1))

    assert "it has ended" in look_at(later, found)


def test_a_process_without_a_cap_is_measured_against_its_gpu_and_reasons_are_told():
    found = a_picture()
    snapshot = found.by_name["h-2"].node.snapshot
    first = replace(snapshot.processes[0], cap_mib=None, job=None, unknown={"cap_mib": "its environment is closed"})
    text = look_at(the_process(found), changed(found, processes=(first, *snapshot.processes[1:])))

    assert "of 80.0GB, without a cap" in text
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


def a_picture_of_more() -> Picture:
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


def test_the_arithmetic_stands_beside_the_table_where_the_terminal_is_wide():
    wide = look_at(ADVICE, a_picture_of_more(), size=(200, 50)).splitlines()
    narrow = look_at(ADVICE, a_picture_of_more(), size=(120, 40)).splitlines()

    assert "VERDICT" in wide[1]
    assert "job 72504" in wide[1]
    assert "job 72504" not in narrow[1]
    assert any("job 72504" in line for line in narrow)


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
    if size[1] < 30:
        assert any(step in work for step in "▅▆▇")
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
