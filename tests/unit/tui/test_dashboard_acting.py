"""From a key to an action: nothing is done without a yes or with --readonly, and a slow Slurm blocks no key."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from dashboards import a_survey, picture_of, screen_text, until
from msgspec.structs import replace as changed
from shell import dashboard, notes_of, shown
from slurm_share_tui import action_keys, typed_ahead
from slurm_share_tui.action_rules import Cancel, DashboardUser, PlannedAction
from slurm_share_tui.actions import JobActions
from slurm_share_tui.app import Dashboard
from slurm_share_tui.location import JobPlace, Location
from slurm_share_tui.picture import nodes_of
from slurm_share_tui.screens.confirm import Confirm, SignalChoice
from slurm_share_tui.screens.log import LogScreen
from slurm_share_tui.screens.trend import Trend
from slurm_share_tui.wire import Position, ReadNow, ReadRecorded
from textual import events
from textual.pilot import Pilot

from slurm_share.core.errors import CommandError
from slurm_share.load.snapshot import Survey
from slurm_share.slurm import jobs as slurm_jobs
from slurm_share.slurm import signals
from slurm_share.triples import job_output
from slurm_share.triples.job_output import JobFiles, LogFile

ALICE = DashboardUser("alice", 2001)
PLANNED = PlannedAction(
    title="Cancel job 11239?", lines=("11239",), command="scancel -- 11239", yes="cancel", act=Cancel(())
)


class Recorded(JobActions):
    """Keeps the actions instead of carrying them out."""

    def __init__(self, *, readonly: bool = False) -> None:
        super().__init__(readonly=readonly, me=ALICE)
        self.done: list[Any] = []
        self.fails = ""
        self.waits = threading.Event()
        self.waits.set()

    def ask_cancel(self, targets: Sequence[JobPlace], survey: Survey) -> PlannedAction:
        self.waits.wait(300)
        if self.fails:
            raise CommandError(("squeue",), 1, self.fails)
        self.done.append(("asked", tuple(target.job for target in targets)))
        return PLANNED

    def ask_output(self, target: JobPlace, survey: Survey) -> tuple[LogFile, ...]:
        self.done.append(("output", target.job))
        return (LogFile("output", "/nowhere/[red]x.log"),)

    def carry_out(self, planned: PlannedAction) -> tuple[str, ...]:
        self.done.append("done")
        return ("cancelled 11239",)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a yes count at once."""
    monkeypatch.setitem(Confirm.__init__.__kwdefaults__, "guard_s", 0.0)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, quick: None) -> Any:
    """Run alice's dashboard of a cluster that is not simulated, in the view of her jobs."""

    @asynccontextmanager
    async def run(*, readonly: bool = False, user: str = "alice") -> AsyncIterator[tuple[Any, ...]]:
        commands = Recorded()
        picture = picture_of(changed(a_survey(everybody=user != "alice", user=user), source="srun"), arrived=98.0)
        words: Any = {"commands": commands, "readonly": readonly, "location": Location(view="jobs")}
        async with dashboard(**words) as (pilot, app, feed):
            notes = notes_of(app, monkeypatch)
            await shown(pilot, feed, picture)
            yield pilot, app, commands, notes, feed

    return run


async def opened(pilot: Pilot[Any], app: Dashboard, screen: type[Any]) -> None:
    """Wait until this screen is drawn over the dashboard."""
    await until(pilot, lambda: isinstance(app.screen, screen), screen.__name__)
    await until(pilot, lambda: getattr(app.screen, "_since", 0) is not None)


@pytest.mark.parametrize("key", ["1", "2", "4"])
async def test_x_acts_on_a_row_with_one_own_job_and_on_no_row_with_several(bench: Any, key: str) -> None:
    async with bench() as (pilot, app, commands, notes, feed):
        survey = app.picture.survey
        job = survey.jobs[0]
        others = {name for one in survey.jobs[1:] for name in nodes_of(one)}
        only = next(node for node in survey.nodes if node.name in nodes_of(job) and node.name not in others)
        await pilot.press(key)
        await until(pilot, lambda: app.main_screen.location.view != "jobs")
        feed.bring(picture_of(changed(survey, nodes=(only,), jobs=(job,)), arrived=98.0))
        await until(pilot, lambda: len(app.picture.survey.jobs) == 1)
        await pilot.pause()
        await pilot.press("x")
        await opened(pilot, app, Confirm)
        assert commands.done == [("asked", (job.id,))]
        await pilot.press("n")
        await until(pilot, lambda: notes == ["nothing was done"])
        second = changed(job, job_id=99, name="second")
        load = changed(only.snapshot.jobs[0], job=99)
        processes = tuple(changed(one, pid=one.pid + 50000, job=99) for one in only.snapshot.processes)
        snapshot = changed(
            only.snapshot,
            jobs=(*only.snapshot.jobs, load),
            processes=(*only.snapshot.processes, *processes),
        )
        two = changed(survey, nodes=(changed(only, snapshot=snapshot),), jobs=(job, second))
        feed.bring(picture_of(two, arrived=98.0))
        await until(pilot, lambda: len(app.picture.survey.jobs) == 2)
        await pilot.press("x")
        await until(pilot, lambda: len(notes) == 2)
        assert notes[1].startswith("no single job of yours to cancel here")


@pytest.mark.parametrize("key", ["enter", "escape", "n", "q"])
async def test_nothing_is_done_after_anything_else(bench: Any, key: str) -> None:
    async with bench() as (pilot, app, commands, notes, feed):
        await pilot.press("x")
        await opened(pilot, app, Confirm)
        await pilot.press(key)
        await until(pilot, lambda: notes == ["nothing was done"])
        assert "done" not in commands.done
        assert feed.told == []


async def test_the_marked_jobs_are_meant_where_there_are_some(bench: Any) -> None:
    async with bench() as (pilot, app, commands, _, _):
        jobs = tuple(row.id for row in app.main_screen.grid.shown_rows[:2])
        await pilot.press("space", "space", "x")
        await opened(pilot, app, Confirm)
        assert commands.done == [("asked", jobs)]


async def test_readonly_leaves_the_hand_at_home(bench: Any) -> None:
    async with bench(readonly=True) as (pilot, app, commands, notes, _):
        assert commands.readonly
        await pilot.press("x", "s")
        assert ["read-only" in note for note in notes] == [True, True]
        assert len(app.screen_stack) == 1
        keys = "".join(piece.text for piece in app.main_screen.query_one("Keys").pieces())
        assert "cancel" not in keys
        assert "signal" not in keys
        assert commands.done == []


async def test_what_slurm_says_no_to_is_said(bench: Any) -> None:
    async with bench() as (pilot, app, commands, notes, _):
        commands.fails = "slurm_load_jobs error: [red]Unable"
        await pilot.press("x")
        await until(pilot, lambda: notes and "[red]Unable" in notes[0])
        assert len(app.screen_stack) == 1


async def test_a_slurm_that_does_not_answer_holds_up_nothing(bench: Any) -> None:
    async with bench() as (pilot, app, commands, notes, _):
        commands.waits.clear()
        await pilot.press("x")
        await until(pilot, lambda: notes == ["this takes a moment ..."])
        await pilot.press("x")
        assert "one action at a time" in notes[1]
        await pilot.press("1")
        await until(pilot, lambda: app.main_screen.location.view == "nodes")
        commands.waits.set()
        await opened(pilot, app, Confirm)


async def test_what_never_answers_is_given_up(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_keys, "PATIENCE_S", 0.01)
    monkeypatch.setattr(action_keys, "LIMIT_S", 0.05)
    async with bench() as (pilot, app, commands, notes, _):
        commands.waits.clear()
        await pilot.press("x")
        await until(pilot, lambda: any("the result is unknown" in note for note in notes))
        commands.waits.set()
        monkeypatch.setattr(action_keys, "LIMIT_S", 120.0)
        await pilot.pause()
        assert len(app.screen_stack) == 1
        await pilot.press("x")
        await opened(pilot, app, Confirm)


async def test_an_output_that_hangs_holds_up_no_deed(bench: Any) -> None:
    hangs = threading.Event()
    async with bench() as (pilot, app, commands, notes, _):
        ask, begun = commands.ask_output, threading.Event()

        def slowly(target: JobPlace, survey: Survey) -> tuple[LogFile, ...]:
            begun.set()
            hangs.wait(120)
            return ask(target, survey)

        commands.ask_output = slowly  # type: ignore[method-assign]
        await pilot.press("o")
        await until(pilot, begun.is_set)
        await pilot.press("o")
        await until(pilot, lambda: any("one action at a time" in note for note in notes))
        await pilot.press("x")
        await opened(pilot, app, Confirm)
        hangs.set()


async def test_the_lines_to_submit_are_copied_safely(bench: Any) -> None:
    async with bench(user="bob") as (pilot, app, _, notes, _):
        await pilot.press("6")
        await until(pilot, lambda: app.main_screen.location.view == "advice")
        for _ in app.main_screen.shown.grid.rows:
            if app.main_screen.shown.copy_lines():
                break
            await pilot.press("down")  # a job that is well as it is has no line
        lines = app.main_screen.shown.copy_lines()
        assert lines
        await pilot.press("y")
        assert app.clipboard == "\n".join(lines)
        assert notes[0].startswith("copied")
        app.main_screen.shown.copy_lines = lambda: ("a\rrm -rf\x1b[31m",)
        await pilot.press("y")
        assert app.clipboard == "a\\rrm -rf\\x1b[31m"


async def test_keys_typed_ahead_of_the_question_are_for_it_and_do_not_count(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Confirm.__init__.__kwdefaults__, "guard_s", 0.8)
    monkeypatch.setattr(typed_ahead, "PATIENCE_S", 30.0)
    async with bench() as (pilot, app, commands, notes, _):
        for typed in ("xyy", "xyq", "xq"):
            commands.waits.clear()
            for key in typed:
                app.post_message(events.Key(key, key))
            await pilot.pause()
            assert app.screen is app.main_screen
            commands.waits.set()
            await opened(pilot, app, Confirm)
            if "q" in typed:
                await until(pilot, lambda: app.screen is app.main_screen)
            else:
                await pilot.pause()
                await pilot.press("escape")
            assert not app.is_ending
            await until(pilot, lambda: notes and notes[-1] == "nothing was done")
        assert not [one for one in notes if "copied" in one]
        assert "done" not in commands.done


async def test_a_slow_slurm_holds_up_keys_no_longer_than_a_moment(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_ahead, "PATIENCE_S", 0.05)
    async with bench() as (pilot, app, commands, _, _):
        commands.waits.clear()
        for key in "xp":
            app.post_message(events.Key(key, key))
        await until(pilot, lambda: app.status.held)
        assert app.screen is app.main_screen
        commands.waits.set()
        await opened(pilot, app, Confirm)


# --- With a Slurm that keeps its commands -----------------------------------------------------------------------------

SURVEY = changed(a_survey(), source="srun", user="alice", everybody=True)
"""The simulated cluster, as if it were none."""


def without(job_id: int) -> Survey:
    """Return the next survey, without that job."""
    nodes = []
    for node in SURVEY.nodes:
        seen = node.snapshot
        if seen is not None:
            left = {
                "jobs": tuple(one for one in seen.jobs if one.job != job_id),
                "processes": tuple(one for one in seen.processes if one.job != job_id),
            }
            node = changed(node, snapshot=changed(seen, **left))
        nodes.append(node)
    jobs = tuple(job for job in SURVEY.jobs if job.job_id != job_id)
    return changed(SURVEY, nodes=tuple(nodes), jobs=jobs, taken=SURVEY.taken + 5)


@pytest.fixture
def done(monkeypatch):
    """The commands that Slurm got; its queue is the survey's."""
    told: list = []

    def read_queue(*, jobs=(), **_):
        return None, tuple(job for job in SURVEY.jobs if job.job_id in jobs)

    monkeypatch.setattr(slurm_jobs, "read_queue", read_queue)
    monkeypatch.setattr(signals, "cancel", lambda ids: told.append(("cancel", *ids)) or {})
    monkeypatch.setattr(signals, "through_srun", lambda argv, env: told.append(tuple(argv)))
    monkeypatch.setattr(signals, "through_scancel", lambda argv: told.append(tuple(argv)))
    return told


@asynccontextmanager
async def acting(monkeypatch, view="jobs", survey=SURVEY):
    """Run alice's dashboard in a view of the survey; yield it with its notes."""
    async with dashboard(commands=JobActions(me=ALICE), location=Location(view=view)) as (pilot, app, feed):
        notes = notes_of(app, monkeypatch)
        await shown(pilot, feed, picture_of(survey))
        await until(pilot, lambda: app.main_screen.grid is not None and app.main_screen.grid.count)
        yield app, pilot, feed, notes


def the_job(app):
    """Return the job under the cursor."""
    return app.main_screen.shown.targets()[0]


async def read_it(pilot, app) -> None:
    """Wait until a yes counts."""
    await opened(pilot, app, Confirm)
    app.screen._since -= 10


async def test_a_job_is_cancelled_after_a_yes(done, monkeypatch) -> None:
    async with acting(monkeypatch) as (app, pilot, feed, notes):
        job = the_job(app)
        await pilot.press("x")
        await read_it(pilot, app)
        assert f"Cancel job {job.job}?" in screen_text(app)
        assert f"scancel -- {job.job}" in screen_text(app)
        assert done == []
        await pilot.press("y")
        await until(pilot, lambda: done == [("cancel", job.job)])
        await until(pilot, lambda: ReadNow() in feed.told)
    assert any(note.startswith("cancelled ") for note in notes)


@pytest.mark.parametrize("keys", [("enter",), ("n",), ("escape",), ("y",), ("y", "enter"), ("tab", "enter")])
async def test_what_was_typed_without_reading_cancels_nothing(done, monkeypatch, keys) -> None:
    monkeypatch.setattr(Confirm.__init__, "__kwdefaults__", {"guard_s": 3600.0})
    async with acting(monkeypatch) as (app, pilot, _, _):
        await pilot.press("x", *keys)
        if keys == ("y",):
            await opened(pilot, app, Confirm)
            await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.main_screen)
        await pilot.pause()
    assert done == []


async def test_the_row_that_comes_under_the_cursor_by_itself_is_not_touched(done, monkeypatch) -> None:
    async with acting(monkeypatch) as (app, pilot, feed, notes):
        await pilot.press("down")
        job = the_job(app)
        feed.bring(picture_of(without(job.job_id)))
        await until(pilot, lambda: app.picture is not None and app.picture.survey.taken > SURVEY.taken)
        await until(pilot, lambda: the_job(app) != job)
        await pilot.press("x")
        await pilot.press("s")
        await pilot.pause()
        assert app.screen is app.main_screen
        await pilot.press("down", "x")
        await opened(pilot, app, Confirm)
    assert sum("the row that you chose is gone" in note for note in notes) == 2
    assert done == []


async def test_the_question_stays_what_it_was_while_looks_arrive(done, monkeypatch) -> None:
    async with acting(monkeypatch) as (app, pilot, feed, _):
        await pilot.press("down")
        job = the_job(app)
        await pilot.press("x")
        await read_it(pilot, app)
        feed.bring(picture_of(without(job.job_id)))
        await pilot.pause()
        await pilot.press("y")
        await until(pilot, lambda: done == [("cancel", job.job)])


async def test_a_process_gets_a_signal_after_choice_and_yes(done, monkeypatch) -> None:
    async with acting(monkeypatch) as (app, pilot, _, _):
        await pilot.press("enter", "enter", "down")
        for _ in range(30):
            if the_targets := app.main_screen.shown.targets():
                break
            await pilot.press("down")
        (target,) = the_targets
        assert target.process is not None
        await pilot.press("s")
        await opened(pilot, app, SignalChoice)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.main_screen)
        await pilot.pause()
        await pilot.press("s")
        await opened(pilot, app, SignalChoice)
        await pilot.press("down", "enter")
        await read_it(pilot, app)
        assert "Send SIGINT?" in screen_text(app)
        await pilot.press("y")
        await until(pilot, lambda: len(done) == 1)
        one = target.process
        assert done[0][-4:] == (f"--pid={one.pid}", f"--start={one.start_ticks}", f"--job={target.job_id}", "INT")
        assert f"--nodelist={target.node}" in done[0]


async def test_the_output_is_shown_and_left(done, monkeypatch, tmp_path) -> None:
    file = tmp_path / "out"
    file.write_text("so far so good\n")
    said = JobFiles(user="alice", uid=ALICE.uid, stdout=str(file), stderr="", script="", folder="/")
    monkeypatch.setattr(job_output, "read_files", lambda number: said)
    monkeypatch.setattr("slurm_share_tui.actions.os.geteuid", lambda: ALICE.uid)
    async with acting(monkeypatch) as (app, pilot, _, _):
        assert the_job(app).owner == "alice"
        await pilot.press("o")
        await opened(pilot, app, LogScreen)
        await until(pilot, lambda: "so far so good" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.main_screen)


async def test_the_plot_of_a_recording_asks_for_its_past(done, monkeypatch) -> None:
    position = Position(number=1, count=2, first=SURVEY.taken, last=SURVEY.taken + 60, speed=1.0)
    async with acting(monkeypatch, view="nodes") as (app, pilot, feed, _):
        await pilot.press("t")
        await opened(pilot, app, Trend)
        assert not any(isinstance(told, ReadRecorded) for told in feed.told)
        await pilot.press("escape")
        feed.bring(picture_of(changed(SURVEY, source="replay"), position=position))
        await until(pilot, lambda: app.picture.is_replay)
        await pilot.press("t")
        await until(pilot, lambda: any(isinstance(told, ReadRecorded) for told in feed.told))


async def test_a_fault_of_ours_is_said_and_the_next_question_can_be_asked(done, monkeypatch) -> None:
    def broken(**_):
        raise ZeroDivisionError("oh [red]")

    monkeypatch.setattr(slurm_jobs, "read_queue", broken)
    async with acting(monkeypatch) as (_, pilot, _, notes):
        for count in (1, 2):
            await pilot.press("x")
            await until(pilot, lambda count=count: len(notes) == count)
            await pilot.pause()
    assert notes == ["internal error of slurm-share: ZeroDivisionError('oh [red]')"] * 2
