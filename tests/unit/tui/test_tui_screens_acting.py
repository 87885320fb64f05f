"""The confirmation, the choice of a signal, the output: the effect of every key and of accidents."""

from __future__ import annotations

import os
import shlex
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from dashboards import Asks, running, screen_text, until
from slurm_share_tui import clipboard
from slurm_share_tui.action_rules import Cancel, PlannedAction, SignalScope
from slurm_share_tui.screens.confirm import Answers, Confirm, SignalChoice
from slurm_share_tui.screens.log import LINE_MOST, LINES_MOST, LogLines, LogScreen, clean
from textual import events
from textual.app import App

from slurm_share.core.errors import SlurmShareError
from slurm_share.triples.job_output import LogFile, Tail

HOSTILE = '4711  OF bob  running, on n1  "[red]y\\x1b[31m[/red] [@click=app.bell]' + "長" * 20 + '"'


@asynccontextmanager
async def asking(*lines: str, guard_s: float = 0.0, size: tuple[int, int] = (120, 40)):
    """Run a question that can be read."""
    planned = PlannedAction(
        title="Cancel job 4711?", lines=lines or (HOSTILE,), command="scancel -- 4711", yes="cancel", act=Cancel(())
    )
    app = Asks(Confirm(planned, guard_s=guard_s))
    async with running(app, size) as pilot:
        await until(pilot, lambda: app.asked._since is not None)
        yield app, pilot


# ---- The question ----


@pytest.mark.parametrize(
    ("keys", "guard_s", "answers"),
    [
        *[(key, 0.0, [False]) for key in ("enter", "n", "escape", "q", "backspace")],
        *[(keys, 0.0, [True]) for keys in ("y", "Y", "tab enter", "x y", "tab tab tab enter")],
        *[(key, 0.0, []) for key in ("space", "x", "l", "left", "right", "1", "c", "down")],
        *[(keys, 0.0, [False]) for keys in ("tab tab enter", "right enter", "space enter", "l enter")],
        *[(keys, 3600.0, []) for keys in ("y", "y y y", "tab y", "Y")],
        ("tab enter", 3600.0, [False]),
    ],
)
async def test_only_a_yes_of_its_own_after_the_guard_time_confirms(keys, guard_s, answers) -> None:
    async with asking(guard_s=guard_s) as (app, pilot):
        for key in keys.split():
            await pilot.press(key)
        await pilot.pause()
        assert app.answers == answers


async def test_a_key_from_before_the_question_does_not_count_however_late_it_arrives() -> None:
    async with asking(guard_s=0.5) as (app, pilot):
        app.asked._since = time.monotonic() - 10
        early, late = events.Key("y", "y"), events.Key("y", "y")
        early.time = app.asked._since + 0.1
        app.asked.post_message(early)
        await pilot.pause()
        assert app.answers == []
        late.time = early.time + 0.6
        app.asked.post_message(late)
        await until(pilot, lambda: app.answers == [True])


async def test_a_key_that_is_held_down_never_confirms() -> None:
    async with asking(guard_s=0.5) as (app, pilot):
        begin = app.asked._since
        for number in range(100):
            again = events.Key("y", "y")
            again.time = begin + 0.03 * number
            app.asked.post_message(again)
        await pilot.pause()
        assert app.answers == []


async def test_the_question_shows_what_would_be_done_as_plain_text() -> None:
    async with asking() as (app, _):
        shown = screen_text(app)
        assert '"[red]y\\x1b[31m[/red]' in shown
        assert "[@click=app.bell]長" in shown
        assert "runs: scancel -- 4711" in shown
        assert "[no]" in shown


@pytest.mark.parametrize(
    ("guard_s", "at", "answers"), [(0.0, 1, [False]), (0.0, 10, [True]), (3600.0, 10, []), (0.0, 60, [])]
)
async def test_a_click_answers_only_on_an_answer(guard_s, at, answers) -> None:
    async with asking(guard_s=guard_s) as (app, pilot):
        await pilot.click(Answers, offset=(at, 0))
        await pilot.click(offset=(0, 0))
        await pilot.pause()
        assert app.answers == answers


@pytest.mark.parametrize("size", [(80, 24), (20, 5)])
async def test_a_long_list_is_scrolled_and_the_answers_stay_in_sight(size) -> None:
    lines = [f"{number}  your own  running, on n1" for number in range(500)]
    async with asking(*lines, size=size) as (app, pilot):
        await pilot.pause()
        assert "[no]" in screen_text(app)
        assert "0  your own" in screen_text(app)
        for key in ("pagedown", "pagedown", "pagedown", "down"):
            await pilot.press(key)
        await pilot.pause()
        assert "0  your own" not in screen_text(app).splitlines()[1]
        assert "[no]" in screen_text(app)
        await pilot.resize_terminal(5, 2)
        await pilot.resize_terminal(80, 24)
        await pilot.press("y")
        await pilot.pause()
        assert app.answers == [True]


# ---- Which signal ----

SCOPES = (
    SignalScope("process", 'process 900 on n1, task 3 of step 0 of job 4711  "[red]python"'),
    SignalScope("job", "every task of every step of job 4711, not its script"),
)


CHOICES = [
    ("enter", (SCOPES[0], "TERM"), 'Signal to process 900 on n1, task 3 of step 0 of job 4711  "[red]python"'),
    ("down enter", (SCOPES[0], "INT"), "> INT"),
    ("j j k enter", (SCOPES[0], "INT"), "> INT"),
    ("end enter", (SCOPES[0], "KILL"), "> KILL"),
    ("tab end enter", (SCOPES[1], "CONT"), "Signal to every task of every step"),
    ("tab tab enter", (SCOPES[0], "TERM"), "> TERM"),
    *[(f"down {key}", None, "> INT") for key in ("escape", "q", "backspace")],
]


@pytest.mark.parametrize(
    ("keys", "answer", "drawn", "size"), [*((*one, (120, 40)) for one in CHOICES), (*CHOICES[1], (20, 5))]
)
async def test_arrows_choose_the_signal_and_tab_to_whom(keys, answer, drawn, size) -> None:
    app = Asks(SignalChoice(SCOPES))
    async with running(app, size) as pilot:
        *first, last = keys.split()
        await pilot.press(*first)
        await pilot.pause()
        assert drawn in screen_text(app)
        assert screen_text(app).count("> ") == 1
        assert "Signal to" in screen_text(app)
        await pilot.press(last)
        await pilot.pause()
        assert app.answers == [answer]


# ---- The end of a log ----


@pytest.mark.parametrize(
    ("line", "drawn"),
    [
        ("plain", "plain"),
        ("\x1b[1;31mred\x1b[0m and \x1b]0;title\x07done", "red and done"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("10%\r50%\r100%", "100%"),
        ("dos\r", "dos"),
        ("a\tb", "a       b"),
        ("\x07\x00\x9b2J", "\\x07\\x00\\x9b2J"),
        ("\u202eevil", "\\u202eevil"),
        ("[red]markup[/red]", "[red]markup[/red]"),
        ("長い", "長い"),
    ],
)
def test_a_line_is_drawn_as_what_it_says_and_does_nothing(line, drawn) -> None:
    assert clean(line) == drawn


def test_a_line_without_end_is_cut_with_a_sign() -> None:
    assert len(clean("x" * 10_000_000)) == LINE_MOST + 1
    assert clean("x" * 10_000_000).endswith("…")


class Lines(App[None]):
    def compose(self):
        yield LogLines()


async def test_what_has_no_end_yet_is_shown_and_goes_on() -> None:
    async with running(Lines()) as pilot:
        lines = pilot.app.query_one(LogLines)
        for data in (b"one\ntw", b"o\nthree \xe9", b"\x95\xb7\n", b"", b"four"):
            lines.add(data)
        assert lines.lines == ["one", "two", "three 長", "four"]


async def test_the_end_is_followed_until_somebody_looks_back() -> None:
    async with running(Lines()) as pilot:
        lines = pilot.app.query_one(LogLines)
        lines.focus()
        lines.add(b"".join(b"%d\n" % number for number in range(1000)))
        await pilot.pause()
        assert lines.scroll_offset.y == lines.max_scroll_y
        await pilot.press("pageup")
        where = lines.scroll_offset.y
        lines.add(b"more\n" * 50)
        await pilot.pause()
        assert not lines.follows
        assert lines.scroll_offset.y == where
        await pilot.press("end")
        lines.add(b"more\n" * 50)
        await pilot.pause()
        assert lines.scroll_offset.y == lines.max_scroll_y
        await pilot.press("home", "up", "left", "right", "down", "pagedown")
        assert lines.scroll_offset.y > 0


async def test_memory_is_bounded_while_a_log_grows(monkeypatch) -> None:
    monkeypatch.setattr("slurm_share_tui.screens.log.LINES_MOST", 100)
    monkeypatch.setattr("slurm_share_tui.screens.log.LETTERS_MOST", 1000)
    async with running(Lines()) as pilot:
        lines = pilot.app.query_one(LogLines)
        for _ in range(20):
            lines.add(b"x\n" * 90)
            assert len(lines.lines) <= 100
        for _ in range(20):
            lines.add(b"y" * 300 + b"\n")
        assert sum(map(len, lines.lines)) <= 1300
        lines.add(b"z" * 1_000_000)
        lines.add(b"z" * 1_000_000)
        assert len(lines.lines[-1]) <= LINE_MOST + 1


async def test_a_file_is_shown_as_it_grows_and_others_beside_it(tmp_path) -> None:
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    one.write_text("first line\n")
    two.write_text("of the other\n")
    files = [LogFile("log 0", str(one)), LogFile("output of the job", str(two))]
    app = Asks(LogScreen(files, lambda file: Tail(file.path), read_s=0.01))
    async with running(app) as pilot:
        await until(pilot, lambda: "first line" in screen_text(app))
        assert f"log 0 (1 of 2): {one}" in screen_text(app)
        with open(one, "a") as more:
            more.write("[red]second\x1b[2J\n")
        await until(pilot, lambda: "[red]second" in screen_text(app))
        await pilot.press("tab")
        await until(pilot, lambda: "of the other" in screen_text(app))
        assert "first line" not in screen_text(app)
        await pilot.press("f")
        await until(pilot, lambda: "follow: off" in screen_text(app))
        await pilot.press("y", "escape")
        await until(pilot, lambda: app.screen is not app.asked)


async def test_a_path_that_is_copied_is_one_word_of_one_line_to_a_shell() -> None:
    app = Asks(LogScreen([LogFile("output", "/tmp/out\ntouch $(PWNED)\n")], lambda one: Tail(one.path), read_s=0.01))
    async with running(app) as pilot:
        await pilot.press("y")
        await until(pilot, lambda: app.clipboard)
        assert "\n" not in app.clipboard
        assert len(shlex.split(app.clipboard)) == 1
        assert "PWNED" in app.clipboard


def test_there_is_one_way_into_the_clipboard() -> None:
    folder = Path(clipboard.__file__).parent
    found = [file.name for file in folder.rglob("*.py") if "copy_to_clipboard" in file.read_text(encoding="utf-8")]
    assert found == ["clipboard.py"]


async def test_of_many_lines_only_those_that_are_kept_are_made_clean(monkeypatch) -> None:
    cleaned = []
    monkeypatch.setattr("slurm_share_tui.screens.log.clean", lambda line: cleaned.append(line) or line)
    async with running(Lines()) as pilot:
        pilot.app.query_one(LogLines).add(b"\n" * 256 * 1024 + b"end\n")
        assert len(cleaned) <= LINES_MOST
        assert pilot.app.query_one(LogLines).lines[-1] == "end"


def test_a_piece_that_comes_after_the_end_has_nowhere_to_go(tmp_path, monkeypatch) -> None:
    (tmp_path / "log").write_text("line\n")
    screen = LogScreen([LogFile("output", str(tmp_path / "log"))], lambda one: Tail(one.path), read_s=0.0)
    over = threading.Event()

    def refuse(_message):
        over.set()
        raise RuntimeError("Event loop is closed")

    monkeypatch.setattr(screen, "post_message", refuse)
    screen._read(0, screen.file, over)
    assert over.is_set()


async def test_why_there_is_nothing_to_see_is_said_until_there_is(tmp_path) -> None:
    file = tmp_path / "log"
    app = Asks(LogScreen([LogFile("output", str(file))], lambda one: Tail(one.path), read_s=0.01))
    async with running(app) as pilot:
        await until(pilot, lambda: "No such file" in screen_text(app))
        file.write_text("here it is\n")
        await until(pilot, lambda: "here it is" in screen_text(app))
        assert "No such file" not in screen_text(app)

    def refused(_file):
        raise SlurmShareError("as root it is not shown")

    os.mkfifo(tmp_path / "pipe")
    for opened, said in ((refused, "as root it is not shown"), (lambda one: Tail(one.path), "is a pipe")):
        waits = Asks(LogScreen([LogFile("output", str(tmp_path / "pipe"))], opened, read_s=0.01))
        async with running(waits) as pilot:
            await until(pilot, lambda waits=waits, said=said: said in screen_text(waits))


async def test_a_file_system_that_hangs_stops_no_key() -> None:
    hangs = threading.Event()

    class Hanging:
        def read(self):
            hangs.wait()
            raise SlurmShareError("over")

        def close(self):
            pass

    app = Asks(LogScreen([LogFile("output", "/nfs/log")], lambda file: Hanging(), read_s=0.01))
    async with running(app) as pilot:
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is not app.asked)
    hangs.set()


async def test_a_log_lives_in_any_terminal(tmp_path) -> None:
    file = tmp_path / "log"
    file.write_text("長" * 5000 + "\nend\n")
    app = Asks(LogScreen([LogFile("名" * 100, str(file))], lambda one: Tail(one.path), read_s=0.01))
    async with running(app) as pilot:
        await until(pilot, lambda: "end" in screen_text(app))
        for size in ((20, 5), (5, 2), (300, 100)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        assert "end" in screen_text(app)
