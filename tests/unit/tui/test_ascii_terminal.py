"""An ASCII terminal gets only ASCII, with the same content."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import NoReturn

import pytest
from dashboards import a_survey, picture_of, screen_text, until
from hypothesis import given
from hypothesis import strategies as any_
from msgspec.structs import replace
from rich.cells import cell_len
from shell import FakeFeed, a_dashboard, dashboard
from slurm_share_tui import keymap, tables, themes
from slurm_share_tui.action_rules import SignalScope
from slurm_share_tui.app import Dashboard
from slurm_share_tui.history import FigureHistory
from slurm_share_tui.screens.confirm import SignalChoice
from slurm_share_tui.screens.jump import Jump
from slurm_share_tui.screens.log import LogScreen
from slurm_share_tui.user_config import UserConfig
from slurm_share_tui.widgets import glyphs
from slurm_share_tui.widgets.bars import bar
from slurm_share_tui.wire import Position
from test_screens_as_drawn import OVER, VIEWS, in_view, lay_over, seen, settled, way_to
from textual.scrollbar import ScrollBar

from slurm_share.core.errors import StateError
from slurm_share.triples.job_output import LogFile

UTF8 = {"LANG": "de_DE.UTF-8", "TERM": "xterm-256color"}


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the choice, which is global."""
    for name in ("_is_plain", "_table"):
        monkeypatch.setattr(glyphs, name, getattr(glyphs, name))
    monkeypatch.setattr(ScrollBar, "renderer", ScrollBar.renderer)


def chosen(environ: dict[str, str], encoding: str | None = "utf-8", wanted: bool | None = None) -> bool:
    """Return whether only ASCII is drawn then."""
    glyphs.choose(wanted, environ, encoding)
    return glyphs.is_ascii_only()


@pytest.mark.parametrize(
    ("environ", "encoding", "is_plain"),
    [
        (UTF8, "utf-8", False),
        ({"TERM": "xterm"}, "UTF-8", False),
        ({**UTF8, "LC_ALL": "", "LC_CTYPE": "C.utf8", "LANG": "C"}, "utf-8", False),
        ({**UTF8, "LANG": "C"}, "utf-8", True),
        ({**UTF8, "LC_ALL": "POSIX"}, "utf-8", True),
        ({**UTF8, "LANG": "de_DE"}, "iso8859-1", True),
        (UTF8, "iso8859-15", True),
        (UTF8, "ascii", True),
        (UTF8, "no such", True),
        (UTF8, None, True),
        ({**UTF8, "TERM": "linux"}, "utf-8", True),
        ({**UTF8, "TERM": "linux-16color"}, "utf-8", True),
        ({**UTF8, "TERM": "screen.linux"}, "utf-8", True),
        ({**UTF8, "TERM": "vt100"}, "utf-8", True),
        ({**UTF8, "TERM": "screen-256color"}, "utf-8", False),
    ],
)
def test_locale_terminal_and_encoding_decide(environ: dict[str, str], encoding: str | None, is_plain: bool) -> None:
    assert chosen(environ, encoding) is is_plain


def test_the_user_decides_otherwise_but_not_against_the_encoding() -> None:
    assert chosen(UTF8, wanted=True)
    assert not chosen({**UTF8, "TERM": "linux", "LANG": "C"}, wanted=False)
    assert chosen(UTF8, "ascii", wanted=False)


def test_bars_slots_and_keys_have_forms_of_their_own() -> None:
    before = (bar(0.5, 4), keymap.key_text("up"))
    chosen({**UTF8, "TERM": "vt100"})
    assert (bar(0.6, 4), keymap.key_text("shift+up")) == (("##", ".."), "Shift+Up")
    slots = next(column for column in tables.gpus(FigureHistory()) if column.id == "slots")
    assert "(1 to 8, ! above 95 percent), . free" in slots.doc
    chosen(UTF8)
    assert (bar(0.5, 4), keymap.key_text("up")) == before


def test_letters_of_names_stay_where_the_encoding_has_them() -> None:
    chosen({**UTF8, "LANG": "de_DE"}, "iso8859-1")
    assert glyphs.to_ascii("Jürgen… 張三 ▲") == "Jürgen~ ???? ^"
    chosen({**UTF8, "LANG": "C"})
    assert glyphs.to_ascii("Jürgen") == "J?rgen"


@given(any_.text(), any_.sampled_from(["ascii", "iso8859-1", "cp437"]))
def test_any_text_keeps_its_width_and_can_be_written(text: str, encoding: str) -> None:
    kept = (glyphs._is_plain, glyphs._table)
    try:
        glyphs.choose(None, UTF8, encoding)
        drawn = glyphs.to_ascii(text)
    finally:
        glyphs._is_plain, glyphs._table = kept
    drawn.encode(encoding)
    assert cell_len(drawn) == cell_len(text)


def no_tail(file: LogFile) -> NoReturn:
    """Raise the error of a missing file."""
    raise StateError(file.path, "cannot be read …")


def is_ascii(app: Dashboard, what: str) -> None:
    """Return whether the whole screen is ASCII."""
    for line in screen_text(app).splitlines():
        assert line.isascii(), (what, [one for one in line if not one.isascii()], line)


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
@pytest.mark.weekly
async def test_every_view_and_every_screen_is_drawn_in_ascii(size: tuple[int, int]) -> None:
    chosen({**UTF8, "LANG": "C"})
    feed = FakeFeed()
    app = a_dashboard(feed, config=UserConfig(theme=themes.MONO))
    app.animation_level = "none"
    async with app.run_test(size=size, notifications=True) as pilot:
        await in_view(pilot, app, feed, VIEWS[0])
        for view in VIEWS:
            await app.main_screen.go(way_to(view, seen()[1]))
            await settled(pilot)
            has_bars = view != "queue" and (view, size[0]) != ("jobs", 80)
            assert not has_bars or "#" in screen_text(app), view
            is_ascii(app, view)
        await app.main_screen.go(way_to("node", seen()[1]))
        position = Position(number=3, count=5, first=0.0, last=100.0, speed=1.0)
        for name in (*OVER, "log", "signal", "palette", "jump"):
            if name in OVER:
                await lay_over(pilot, app, name)
            elif name == "log":
                app.push_screen(LogScreen([LogFile("output", "/nowhere/out")], no_tail))
            elif name == "signal":
                app.push_screen(SignalChoice([SignalScope("process", "process 1 … on n1")]))
            elif name == "palette":
                app.action_command_palette()
            else:
                app.push_screen(Jump(position, 50.0))
            await settled(pilot)
            is_ascii(app, name)
            app.pop_screen()
            await settled(pilot)
        app.say("a note … in the corner")
        await until(pilot, lambda: "note ~ in" in screen_text(app), "the note")
        is_ascii(app, "a note")
        feed.post(changed(seen()[1], position=position))
        await until(pilot, lambda: "3 of 5" in screen_text(app), "the bar of a replay")
        is_ascii(app, "a replay")


async def test_a_strangers_name_moves_no_column() -> None:
    chosen({**UTF8, "LANG": "C"})
    survey = a_survey()
    jobs = tuple(replace(job, name="長い名前█") for job in survey.jobs)
    async with dashboard() as (pilot, app, feed):
        await until(pilot, lambda: feed.post is not None and app.main_screen.path, "the dashboard")
        feed.bring(picture_of(replace(survey, jobs=jobs)))
        await pilot.press("3")
        await until(pilot, lambda: "????????#" in screen_text(app), "the name")
        is_ascii(app, "jobs")
