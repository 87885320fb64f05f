"""From a key in a table to an action and back, in the whole dashboard."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from dashboards import a_survey, picture_of, screen_text, until
from msgspec.structs import replace
from shell import dashboard, notes_of, shown
from slurm_share_tui.action_rules import Me
from slurm_share_tui.actions import Commands
from slurm_share_tui.location import Location
from slurm_share_tui.screens.confirm import Confirm
from slurm_share_tui.screens.log import LogScreen
from slurm_share_tui.screens.signal import SignalChoice
from slurm_share_tui.screens.trend import Trend
from slurm_share_tui.wire import Position, ReadNow, ReadRecorded

from slurm_share.slurm import cancel, signals
from slurm_share.slurm import jobs as slurm_jobs
from slurm_share.triples import job_output
from slurm_share.triples.job_output import JobFiles

ALICE = Me("alice", 2001)
SURVEY = replace(a_survey(), source="srun", user="alice", everybody=True)
"""The simulated cluster, as if it were none."""


def without(job_id: int):
    """Return the next survey, without that job."""
    nodes = []
    for node in SURVEY.nodes:
        seen = node.snapshot
        if seen is not None:
            left = {
                "jobs": tuple(one for one in seen.jobs if one.job != job_id),
                "processes": tuple(one for one in seen.processes if one.job != job_id),
            }
            node = replace(node, snapshot=replace(seen, **left))
        nodes.append(node)
    jobs = tuple(job for job in SURVEY.jobs if job.job_id != job_id)
    return replace(SURVEY, nodes=tuple(nodes), jobs=jobs, taken=SURVEY.taken + 5)


@pytest.fixture
def done(monkeypatch):
    """The commands that Slurm got; its queue is the survey's."""
    told: list = []

    def read_queue(*, jobs=(), **_):
        return None, tuple(job for job in SURVEY.jobs if job.job_id in jobs)

    monkeypatch.setattr(slurm_jobs, "read_queue", read_queue)
    monkeypatch.setattr(cancel, "cancel", lambda ids: told.append(("cancel", *ids)) or {})
    monkeypatch.setattr(signals, "through_srun", lambda argv, env: told.append(tuple(argv)))
    monkeypatch.setattr(signals, "through_scancel", lambda argv: told.append(tuple(argv)))
    return told


@asynccontextmanager
async def acting(monkeypatch, view="jobs", survey=SURVEY):
    """Run alice's dashboard in a view of the survey; yield it with its notes."""
    async with dashboard(commands=Commands(me=ALICE), location=Location(view=view)) as (pilot, app, feed):
        notes = notes_of(app, monkeypatch)
        await shown(pilot, feed, picture_of(survey))
        await until(pilot, lambda: app.main_screen.grid is not None and app.main_screen.grid.count)
        yield app, pilot, feed, notes


def the_job(app):
    """Return the job under the cursor."""
    return app.main_screen.shown.targets()[0]


async def read_it(pilot, app) -> None:
    """Wait until a yes counts."""
    await until(pilot, lambda: isinstance(app.screen, Confirm) and app.screen._since is not None)
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
            await until(pilot, lambda: isinstance(app.screen, Confirm))
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
        await until(pilot, lambda: isinstance(app.screen, Confirm))
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
        await until(pilot, lambda: isinstance(app.screen, SignalChoice))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.main_screen)
        await pilot.pause()
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, SignalChoice))
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
        await until(pilot, lambda: isinstance(app.screen, LogScreen))
        await until(pilot, lambda: "so far so good" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.main_screen)


async def test_a_demonstration_is_not_touched(done, monkeypatch) -> None:
    async with acting(monkeypatch, survey=a_survey()) as (app, pilot, _, notes):
        await pilot.press("x", "s", "o")
        await pilot.pause()
        assert app.screen is app.main_screen
    assert sum("demonstration" in note for note in notes) == 3
    assert done == []


async def test_the_plot_of_a_recording_asks_for_its_past(done, monkeypatch) -> None:
    position = Position(number=1, count=2, first=SURVEY.taken, last=SURVEY.taken + 60, speed=1.0)
    async with acting(monkeypatch, view="nodes") as (app, pilot, feed, _):
        await pilot.press("t")
        await until(pilot, lambda: isinstance(app.screen, Trend))
        assert not any(isinstance(told, ReadRecorded) for told in feed.told)
        await pilot.press("escape")
        feed.bring(picture_of(replace(SURVEY, source="replay"), position=position))
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
