"""The whole dashboard: status of the data, locations, remembered choices, and unusual input."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dashboards import a_survey, picture_of, screen_text, until
from msgspec.structs import replace as changed
from rich.segment import Segment
from shell import a_dashboard, arrived_picture, dashboard, shown, shown_dashboard
from slurm_share_tui import themes
from slurm_share_tui.location import Location, Process
from slurm_share_tui.picture import SurveyPicture
from slurm_share_tui.screens.help import Help
from slurm_share_tui.user_config import RememberedChoices, TableChoice, UserChoices, UserConfig, read_remembered
from slurm_share_tui.widgets.lines import Crumbs, Keys, Tabs
from slurm_share_tui.widgets.lines import crumb_text as crumb
from slurm_share_tui.wire import (
    FeedFailure,
    PauseFeed,
    Position,
    ReadNow,
    Seek,
    SetInterval,
    SetSpeed,
    ShowDetails,
    StepReplay,
)
from textual.widget import Widget
from textual.widgets import Static

from slurm_share.core.errors import UsageError
from slurm_share.load.snapshot import Survey

WAY_DOWN = ("users", "jobs", "nodes", "node", "gpu", "process")


def replayed(number: int = 2, *, taken: float = 1_795_271_308.0, **more: Any) -> SurveyPicture:
    """Return a survey of a recording of four."""
    survey = changed(a_survey(now=taken), source="replay")
    at = Position(number=number, count=4, first=taken - 30.0, last=taken + 60.0, speed=1.0)
    return picture_of(survey, number=number, arrived=98.0, position=at, **more)


def text_of(widget: Widget) -> str:
    """Return the text of a widget with one line."""
    return "".join(piece.text for piece in widget.pieces())  # type: ignore[attr-defined]


# --- Truth ------------------------------------------------------------------------------------------------------------


async def test_before_the_first_look_it_says_that_it_looks() -> None:
    async with dashboard() as (pilot, app, _):
        assert "looking ..." in screen_text(app)
        keys = (
            "2",
            "enter",
            *"xoyt",
            "slash",
            "escape",
            "c",
            "escape",
            "5",
            "escape",
            "f",
            "ctrl+p",
            "v",
            "escape",
            "1",
        )
        for key in keys:
            await pilot.press(key)
        await until(pilot, lambda: app.main_screen.location.view == "nodes")


async def test_the_status_says_who_answered_how_old_it_is_and_where_from() -> None:
    async with shown_dashboard() as (_, app, _):
        assert "10 of 12 nodes answered  2 s ago  demo  every 5 s" in screen_text(app)
        assert "SIMULATED CLUSTER" in screen_text(app)
        assert "llload-tui  demo  all users" in screen_text(app)


async def test_slow_looks_come_as_often_as_they_can_and_the_status_says_that() -> None:
    async with shown_dashboard(replace(arrived_picture(), took_s=4.0)) as (_, app, _):
        assert "every 12 s" in screen_text(app)


async def test_figures_of_real_hardware_have_no_banner() -> None:
    async with dashboard() as (pilot, app, feed):
        await shown(
            pilot, feed, picture_of(changed(a_survey(), nodes=(), source="srun", slurm_version="26.05.5"), arrived=98.0)
        )
        assert "SIMULATED" not in screen_text(app)
        await shown(pilot, feed)
        assert "SIMULATED" in screen_text(app)


async def test_age_grows_while_nothing_comes_and_is_marked_when_it_is_too_old() -> None:
    now = [100.0]
    async with shown_dashboard(clock=lambda: now[0]) as (pilot, app, _):
        now[0] = 110.0
        await until(pilot, lambda: "12 s ago" in screen_text(app), "a second")
        assert "(OLD)" not in screen_text(app)
        now[0] = 130.0
        await until(pilot, lambda: "32 s ago (OLD)" in screen_text(app), "a second")


async def test_trouble_is_said_and_goes_with_the_next_look() -> None:
    async with shown_dashboard() as (pilot, app, feed):
        feed.bring(FeedFailure("slurmctld [red]does not\x1b[31m answer"))
        await until(pilot, lambda: "! slurmctld [red]does not" in screen_text(app))
        assert "\x1b" not in screen_text(app)
        assert "h-1" in screen_text(app)
        await shown(pilot, feed, arrived_picture(now=1_795_271_313.0))
        assert "slurmctld" not in screen_text(app)


@pytest.mark.parametrize(("has_picture", "is_over"), [(False, False), (False, True), (True, True)])
async def test_a_final_failure_ends_a_dashboard_that_has_shown_nothing(has_picture: bool, is_over: bool) -> None:
    async with dashboard() as (pilot, app, feed):
        if has_picture:
            await shown(pilot, feed)
        feed.bring(FeedFailure("squeue is not there", is_over=is_over))
        await until(pilot, lambda: app.is_ending or "! squeue is not there" in screen_text(app))
        assert app.is_ending is (is_over and not has_picture)
        assert has_picture or app.is_ending or "looking ..." in screen_text(app)


@pytest.mark.parametrize("count", [0, 1, 3000])
@pytest.mark.weekly
async def test_any_number_of_nodes_is_drawn_in_every_view(count: int) -> None:
    survey = a_survey(count=max(1, count)) if count else changed(a_survey(), nodes=(), jobs=())
    async with shown_dashboard(picture_of(survey, arrived=98.0)) as (pilot, app, _):
        assert f"of {count} node" in screen_text(app)
        for key in "123456":
            await pilot.press(key, "down", "up")
        for view in ("gpu", "process", "node"):
            await app.main_screen.go((Location(view=view, node="nowhere", gpu="GPU-none"),))
            await pilot.pause()


# --- Where one is -----------------------------------------------------------------------------------------------------


def test_a_gpu_is_named_with_its_node_where_the_way_does_not_say_it() -> None:
    gpu = Location(view="gpu", node="n1", gpu="GPU-1", gpu_name="GPU 0")
    one = changed(gpu, view="process", process=Process(7))
    assert crumb(gpu, Location(view="gpus")) == "n1 GPU 0"
    assert crumb(gpu, Location(view="node", node="n1")) == "GPU 0"
    assert crumb(one, gpu) == "process 7"
    assert crumb(one) == "n1 process 7"


async def test_the_line_above_a_table_is_about_the_rows_that_the_filter_leaves() -> None:
    async with shown_dashboard() as (pilot, app, _):
        for key, what in (("1", "node"), ("3", "job"), ("4", "GPU")):
            await pilot.press(key)
            await pilot.pause()
            view = app.main_screen.shown
            before = view.head.text
            view.grid.query_text = view.grid.shown_rows[0].name if what == "node" else "alice"
            await pilot.pause()
            assert 0 < view.grid.count < view.grid.total
            assert re.match(rf"\d+ of \d+ {what}s", view.head.text)
            assert view.head.text != before


async def test_enter_goes_from_user_to_process_and_esc_comes_back() -> None:
    async with shown_dashboard() as (pilot, app, _):
        await pilot.press("2")
        for depth, view in enumerate(WAY_DOWN):
            await until(pilot, lambda view=view: app.main_screen.location.view == view, view)  # type: ignore[misc]
            assert len(app.main_screen.path) == depth + 1
            if view != WAY_DOWN[-1]:
                await pilot.press("enter")
        assert text_of(app.main_screen.query_one(Crumbs)).startswith(" Users > alice > ")
        assert " > GPU 0 > process " in text_of(app.main_screen.query_one(Crumbs))
        for view in reversed(WAY_DOWN[:-1]):
            await pilot.press("escape")
            await until(pilot, lambda view=view: app.main_screen.location.view == view, view)  # type: ignore[misc]
        await pilot.press("escape")
        await pilot.pause()
        assert app.main_screen.path == (Location(view="users"),)


async def test_each_view_keeps_its_cursor_while_one_is_elsewhere() -> None:
    async with shown_dashboard() as (pilot, app, _):
        await pilot.press("down", "down")
        there = app.main_screen.grid.row.name
        assert there != app.main_screen.grid.shown_rows[0].name
        await pilot.press("3", "1")
        await until(pilot, lambda: app.main_screen.location.view == "nodes")
        grid = app.main_screen.grid
        assert grid.row.name == there
        assert app.focused is grid


async def test_tabs_crumbs_and_keys_can_be_clicked() -> None:
    async with shown_dashboard() as (pilot, app, _):
        for line, word, view in ((Tabs, "Users", "users"), (Keys, "Enter", "jobs"), (Crumbs, "Users", "users")):
            assert await pilot.click(line, offset=(text_of(app.main_screen.query_one(line)).index(word), 0))
            await until(pilot, lambda view=view: app.main_screen.location.view == view)  # type: ignore[misc]
        assert await pilot.click(Keys, offset=(text_of(app.main_screen.query_one(Keys)).index("?"), 0))
        await until(pilot, lambda: isinstance(app.screen, Help))


async def test_details_are_asked_for_where_a_line_for_each_node_is_not_enough() -> None:
    slim = picture_of(a_survey(), arrived=98.0, details=False)
    async with shown_dashboard(slim) as (pilot, _, feed):
        assert feed.told == []
        await pilot.press("3")
        await until(pilot, lambda: feed.told == [ShowDetails(True)])
        await pilot.press("4")
        await shown(pilot, feed)
        await pilot.press("1")
        await until(pilot, lambda: feed.told == [ShowDetails(True), ShowDetails(False)])


async def test_a_view_that_is_open_when_a_slim_look_comes_asks_for_details() -> None:
    slim = picture_of(a_survey(), arrived=98.0, details=False)
    async with shown_dashboard(slim, location=Location(view="jobs")) as (pilot, _, feed):
        await until(pilot, lambda: feed.told == [ShowDetails(True)])


@pytest.mark.parametrize("asked", ["user=alice", "alice", "jobs=1", "the sort"])
async def test_a_filter_or_a_sort_by_what_is_not_fetched_says_so_and_asks_for_it(asked: str) -> None:
    survey = a_survey()
    nodes = tuple(
        changed(node, snapshot=changed(node.snapshot, users=(), jobs=(), processes=()))
        if node.snapshot is not None
        else node
        for node in survey.nodes
    )
    slim = picture_of(changed(survey, nodes=nodes, jobs=()), arrived=98.0, details=False)
    async with shown_dashboard(slim) as (pilot, app, feed):
        assert feed.told == []
        grid = app.main_screen.grid
        if asked == "the sort":
            grid.sort_by("user")
        else:
            await pilot.press("slash", *asked)
        await until(pilot, lambda: feed.told == [ShowDetails(True)])
        assert grid.mistake == ""
        text = screen_text(app)
        assert "users and processes of 12 nodes are being fetched" in text
        if asked != "the sort":
            assert "not fetched yet: " in text
        await shown(pilot, feed)
        assert "fetched" not in screen_text(app)
        if asked.endswith("alice"):
            assert sorted(row.name for row in grid.shown_rows) == ["h-1", "h-2", "v-1", "v-2"]
        await pilot.press("escape")
        grid.sort_by("", False)
        await until(pilot, lambda: feed.told == [ShowDetails(True), ShowDetails(False)])


# --- Time -------------------------------------------------------------------------------------------------------------


async def test_paused_it_stands_still_and_goes_on_with_the_newest() -> None:
    first, second, third = (arrived_picture(now=1_795_271_308.0 + 5 * number) for number in range(3))
    async with shown_dashboard(first) as (pilot, app, feed):
        await pilot.press("p")
        await until(pilot, lambda: "PAUSED" in screen_text(app))
        assert feed.told == [PauseFeed(True)]
        feed.bring(second)
        await pilot.pause(0.05)
        assert app.picture is first
        await pilot.press("f5")
        assert feed.told == [PauseFeed(True), ReadNow()]
        await shown(pilot, feed, third)
        feed.bring(second)
        await pilot.pause(0.05)
        assert app.picture is third
        await pilot.press("p")
        await until(pilot, lambda: app.picture is second)
        assert feed.told[-1] == PauseFeed(False)
        assert "PAUSED" not in screen_text(app)


async def test_the_interval_goes_up_and_down_and_stays_within_bounds() -> None:
    async with shown_dashboard() as (pilot, app, feed):
        await pilot.press("plus", "plus", "minus", "minus", "minus")
        assert feed.told == [SetInterval(wanted) for wanted in (10.0, 15.0, 10.0, 5.0, 3.0)]
        assert "every 3 s" in screen_text(app)
        await pilot.press(*["minus"] * 10)
        assert feed.told[-1] == SetInterval(0.5)
        await pilot.press(*["plus"] * 20)
        assert feed.told[-1] == SetInterval(600.0)


async def test_a_replay_is_stepped_sped_up_and_jumped_in() -> None:
    async with shown_dashboard(replayed()) as (pilot, app, feed):
        assert "2 of 4" in screen_text(app)
        await pilot.press("right_square_bracket")
        assert feed.told == [PauseFeed(True), StepReplay(1)]
        await shown(pilot, feed, replayed(3))
        assert "3 of 4" in screen_text(app)
        await pilot.press("left_square_bracket", "right_curly_bracket", "left_curly_bracket")
        assert feed.told[2:] == [StepReplay(-1), SetSpeed(2.0), SetSpeed(0.5)]
        await pilot.press("colon", "5", "0", "%", "enter")
        await until(pilot, lambda: feed.told[-1] == Seek(1_795_271_308.0 + 15.0))


# --- Over the dashboard -----------------------------------------------------------------------------------------------


async def test_looks_that_come_while_a_screen_is_over_it_do_not_disturb_it() -> None:
    async with shown_dashboard() as (pilot, app, feed):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, Help))
        await pilot.press("down", "down", "pagedown")
        await pilot.pause()
        before = app.screen.query_one("#help-page").scroll_y
        text = str(app.screen.query_one("#help-text", Static).render())
        assert before > 2
        drawn = list[object]()
        view = app.main_screen.shown
        original = view.draw
        view.draw = lambda picture, location: (drawn.append(picture), original(picture, location))[1]  # type: ignore[method-assign]
        for number in range(1, 4):
            await shown(pilot, feed, arrived_picture(now=1_795_271_308.0 + 5 * number))
        assert drawn == []
        assert app.screen.query_one("#help-page").scroll_y == before
        assert str(app.screen.query_one("#help-text", Static).render()) == text
        await pilot.press("escape")
        await until(pilot, lambda: drawn == [app.picture])


@pytest.mark.weekly
async def test_a_terminal_may_become_tiny_and_large_again_in_every_view() -> None:
    async with shown_dashboard() as (pilot, app, _):
        for view in "123456":
            await pilot.press(view, "down")
            grid = app.main_screen.grid
            row = grid.marks, grid.cursor, grid.count
            for size in ((20, 5), (1, 1), (300, 100), (120, 40)):
                await pilot.resize_terminal(*size)
                await pilot.pause()
                assert (grid.marks, grid.cursor, grid.count) == row
            assert "10 of 12 nodes answered" in screen_text(app)


async def test_in_a_tiny_terminal_the_banner_the_table_and_the_status_stay() -> None:
    async with shown_dashboard(size=(20, 5)) as (_, app, _):
        lines = screen_text(app).splitlines()
        assert lines[0].startswith("SIMULATED CLUSTER")
        assert lines[-1].startswith(" 10 of 12 nodes")
        assert any(line.startswith(" c-2") for line in lines)


@pytest.mark.parametrize("size", [(20, 5), (40, 12), (80, 24)])
async def test_every_screen_opens_at_any_size(size: tuple[int, int]) -> None:
    async with shown_dashboard(size=size) as (pilot, app, _):
        for key in ("question_mark", "c", "ctrl+p", "t"):
            await pilot.press(key)
            await until(pilot, lambda: len(app.screen_stack) == 2, key)
            await pilot.pause()
            await pilot.press("escape")
            await until(pilot, lambda: len(app.screen_stack) == 1, key)
        await pilot.press("slash", "h", "1", "escape")
        await pilot.pause()


# --- Strangers --------------------------------------------------------------------------------------------------------

STRANGE = (
    "[red]boo[/red]",
    "\x1b[31m\x07\n\r\t\u202eabc",
    "用户名字" * 8 + "x" * 1000,
    "[@click=app.quit]y\\[ a[",
)


def strange(name: str) -> Survey:
    """Return the cluster with a user and a job of this name wherever a name can be."""
    survey = a_survey()

    def renamed(user: str) -> str:
        return name if user == "alice" else user

    nodes = tuple(
        node
        if node.snapshot is None
        else changed(
            node,
            snapshot=changed(
                node.snapshot,
                users=tuple(changed(one, user=renamed(one.user)) for one in node.snapshot.users),
                jobs=tuple(changed(one, user=renamed(one.user)) for one in node.snapshot.jobs),
                processes=tuple(changed(one, user=renamed(one.user), name=name) for one in node.snapshot.processes),
                gpus=tuple(changed(one, name=name, problem=name) for one in node.snapshot.gpus),
                problems=(name,),
            ),
            slurm=node.slurm and changed(node.slurm, reason=name),
            why=name,
        )
        for node in survey.nodes
    )
    jobs = tuple(changed(job, user=renamed(job.user), name=name, reason=name) for job in survey.jobs)
    return changed(survey, user=name, cluster=name, nodes=nodes, jobs=jobs, notes=(name,))


@pytest.mark.parametrize("name", STRANGE, ids=range(len(STRANGE)))
async def test_no_name_is_markup_or_moves_the_cursor_anywhere(name: str) -> None:
    async with dashboard() as (pilot, app, feed):

        def check() -> None:
            text = screen_text(app)
            assert not any(one in text for one in "\x1b\x07\r\t\u202e")
            assert len(text.splitlines()) == app.size.height

        feed.bring(FeedFailure(name))
        await shown(pilot, feed, picture_of(strange(name), arrived=98.0))
        seen = ""
        for key in ("1", "4", "6", "3", "2", *["enter"] * 5):
            await pilot.press(key)
            await pilot.pause()
            check()
            seen += screen_text(app)
        if name.isprintable():
            assert name[:8] in seen
        await pilot.press("y", "t")
        await pilot.pause()
        check()
        await pilot.press("escape", "ctrl+p", name[:1] if name[:1].isprintable() else "a")
        await pilot.pause(0.2)
        check()


# --- What is chosen ---------------------------------------------------------------------------------------------------


async def test_theme_view_columns_and_sort_come_back(tmp_path: Path) -> None:
    file = tmp_path / "tui.json"
    memory = RememberedChoices(file, UserChoices(theme="dark"))
    async with shown_dashboard(config=UserConfig(), memory=memory) as (pilot, app, _):
        await pilot.press("ctrl+t", "greater_than_sign", "greater_than_sign", "r")
        await pilot.press("c", "down", "down", "space", "enter")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await pilot.press("3")
        await until(pilot, lambda: app.main_screen.location.view == "jobs")
    kept, problem = read_remembered(file)
    assert problem == ""
    assert (kept.theme, kept.view) == ("light", "jobs")
    choice = kept.tables["nodes"]
    async with shown_dashboard(config=UserConfig(), memory=RememberedChoices(file, kept)) as (pilot, app, _):
        assert app.theme == "light"
        assert app.main_screen.location.view == "jobs"
        await pilot.press("1")
        await until(pilot, lambda: app.main_screen.location.view == "nodes")
        grid = app.main_screen.grid
        assert (grid.chosen, grid.sort) == (choice.columns, (choice.sort, choice.down))
        assert choice.sort != ""


async def test_choices_of_columns_that_are_no_more_are_left_aside() -> None:
    tables = {"nodes": TableChoice(columns=("gone", "node", "gpu"), sort="gone too", down=True)}
    async with shown_dashboard(memory=RememberedChoices(None, UserChoices(view="nowhere", tables=tables))) as (
        _,
        app,
        _,
    ):
        grid = app.main_screen.grid
        assert "gone" not in grid.chosen
        assert "gpu" in grid.chosen


async def test_keys_of_the_configuration_are_what_works_and_what_is_shown() -> None:
    keys = {"view.users": "f2", "go.down": "b", "grid.down": "n", "help": "f3"}
    async with shown_dashboard(config=UserConfig(theme="dark", keys=keys)) as (pilot, app, _):
        assert "F2 Users" in screen_text(app)
        assert " b down" in screen_text(app)
        await pilot.press("2", "question_mark")
        await pilot.pause()
        assert app.main_screen.location.view == "nodes"
        second = app.main_screen.grid.shown_rows[1].name
        await pilot.press("n", "b")
        await until(pilot, lambda: app.main_screen.location.node == second)
        await pilot.press("f2")
        await until(pilot, lambda: app.main_screen.location.view == "users")
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(app.screen, Help))
        assert "F2  Users" in str(app.screen.query_one("#help-text", Static).render())
        await pilot.press("f3")
        await until(pilot, lambda: not isinstance(app.screen, Help))


def test_what_the_configuration_cannot_mean_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no theme pink; there are dark, light"):
        a_dashboard(config=UserConfig(theme="pink"))
    with pytest.raises(UsageError, match="there is no id nothing"):
        a_dashboard(config=UserConfig(keys={"nothing": "d"}))


def test_readonly_is_what_either_of_them_says() -> None:
    assert a_dashboard(readonly=True).readonly
    assert a_dashboard(config=UserConfig(readonly=True)).readonly
    assert not a_dashboard().readonly


# --- Colours ----------------------------------------------------------------------------------------------------------


def segments(app: Any) -> list[Segment]:
    """Return all segments that a terminal would get."""
    strips = app.screen._compositor.render_strips()
    found = itertools.chain.from_iterable(strips)
    for one in (each for each in app._filters if each.enabled):
        found = itertools.chain.from_iterable([one.apply(list(found), app.screen.background_colors[1])])
    return list(found)


@pytest.mark.parametrize("how", ["NO_COLOR", "mono"])
async def test_without_colours_nothing_is_coloured_and_the_cursor_is_seen(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    async with shown_dashboard(config=UserConfig(theme="mono" if how == "mono" else "")) as (pilot, app, _):
        for view in "123456":
            await pilot.press(view)
            await pilot.pause()
            coloured = {
                (segment.text, str(segment.style))
                for segment in segments(app)
                if segment.style is not None
                and any(
                    colour is not None and not colour.is_default
                    for colour in (segment.style.color, segment.style.bgcolor)
                )
            }
            assert coloured == set()
        await pilot.press("1")
        await pilot.pause()
        reverse = [one.text for one in segments(app) if one.style is not None and one.style.reverse]
        assert any("c-2" in text for text in reverse)
        assert any("1 Nodes" in text for text in reverse)
        await pilot.press("ctrl+p", "j", "o", "b")
        await until(pilot, lambda: "Views: Jobs" in screen_text(app))
        await until(
            pilot, lambda: any(one.style and one.style.underline and "Views" in one.text for one in segments(app))
        )


def test_an_empty_no_color_is_as_if_it_were_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    app = a_dashboard(config=UserConfig(theme="light"))
    assert app.theme == themes.LIGHT
    assert not app.no_color


async def test_every_theme_is_drawn_one_after_another() -> None:
    async with shown_dashboard() as (pilot, app, _):
        seen = []
        for _ in themes.NAMES:
            await pilot.press("ctrl+t", "6", "1")
            await pilot.pause()
            seen.append(app.theme)
            assert "h-1" in screen_text(app)
        assert sorted(seen) == sorted(themes.NAMES)


async def test_a_note_that_looks_like_markup_is_a_note() -> None:
    async with shown_dashboard(notifications=True) as (pilot, app, _):
        app.say("[red]job[/red] \x1b[31m")
        await until(pilot, lambda: "[red]job[/red] \\x1b[31m" in screen_text(app))


async def test_pictures_are_drawn_as_they_are_whatever_their_number() -> None:
    async with dashboard() as (pilot, app, feed):
        look = arrived_picture()
        for number in range(100):
            feed.bring(replace(look, number=number))
        await until(pilot, lambda: app.picture is not None and app.picture.number == 99)


async def test_choices_are_written_in_another_thread(tmp_path: Path) -> None:
    writing, hangs = threading.Event(), threading.Event()

    class Slow(RememberedChoices):
        def keep(self) -> str:
            if threading.current_thread() is threading.main_thread():
                return ""
            writing.set()
            hangs.wait(120)
            return "choices cannot be kept"

    memory = Slow(tmp_path / "tui.json")
    try:
        async with dashboard(memory=memory) as (pilot, app, _):
            memory.choose(theme="light")
            app.keep()
            await until(pilot, writing.is_set)
            await pilot.press("2")
            await until(pilot, lambda: app.main_screen.location.view == "users")
            hangs.set()
            await until(pilot, lambda: any("cannot be kept" in one.message for one in app._notifications))
    finally:
        hangs.set()


async def test_ctrl_c_while_the_first_view_is_made_ends_without_an_error() -> None:
    """Before Textual has the terminal, Ctrl-C cancels the program's task and no key reports the end."""
    for turns in range(0, 60, 2):
        app = a_dashboard()
        task = asyncio.create_task(app.run_async(headless=True, size=(80, 24)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert app._exception is None, turns
