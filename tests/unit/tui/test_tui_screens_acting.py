"""The confirmation, the choice of a signal, the output: the effect of every key and of accidents."""

from __future__ import annotations

import os
import shlex
import threading
import time
from pathlib import Path

import pytest
from dashboards import drive
from slurm_share_tui import clipboard
from slurm_share_tui.action_rules import Cancel, PlannedAction, Scope
from slurm_share_tui.screens.confirm import Answers, Confirm
from slurm_share_tui.screens.log import LogScreen
from slurm_share_tui.screens.signal import SignalChoice
from slurm_share_tui.widgets.log_lines import LINE_MOST, LINES_MOST, LogLines, clean
from textual import events
from textual.app import App

from slurm_share.core.errors import SlurmShareError
from slurm_share.triples.job_output import LogFile, Tail

HOSTILE = '4711  OF bob  running, on n1  "[red]y\\x1b[31m[/red] [@click=app.bell]' + "長" * 20 + '"'


def a_planned_action(*lines: str) -> PlannedAction:
    return PlannedAction(
        title="Cancel job 4711?",
        lines=lines or (HOSTILE,),
        command="scancel -- 4711",
        yes="cancel",
        act=Cancel(()),
    )


class Asks(App[None]):
    """Opens one screen and keeps its answer."""

    def __init__(self, screen) -> None:
        super().__init__()
        self.asked = screen
        self.answers: list = []

    def on_mount(self) -> None:
        self.push_screen(self.asked, self.answers.append)


def text(app: App[None]) -> str:
    """Return the text of the screen."""
    return "\n".join("".join(one.text for one in strip) for strip in app.screen._compositor.render_strips())


async def until(pilot, what) -> None:
    """Let the event loop run until the condition holds."""
    for _ in range(400):
        if what():
            return
        await pilot.pause(0.02)
    assert what()


def answered(*keys: str, guard_s: float = 0.0) -> list:
    """Return the question's answer to these keys."""
    app = Asks(Confirm(a_planned_action(), guard_s=guard_s))

    async def play(pilot) -> None:
        await until(pilot, lambda: app.asked._since is not None)
        for key in keys:
            await pilot.press(key)
        await pilot.pause()

    drive(app, play)
    return app.answers


# ---- The question ----


@pytest.mark.parametrize("key", ["enter", "n", "escape", "q", "backspace"])
def test_no_is_the_answer_of_enter_and_of_leaving(key) -> None:
    assert answered(key) == [False]


@pytest.mark.parametrize("keys", [("y",), ("Y",), ("tab", "enter"), ("x", "y"), ("tab", "tab", "tab", "enter")])
def test_yes_is_a_key_of_its_own(keys) -> None:
    assert answered(*keys) == [True]


@pytest.mark.parametrize("keys", [("space",), ("x",), ("l",), ("left",), ("right",), ("1",), ("c",), ("down",)])
def test_any_other_key_is_no_answer(keys) -> None:
    assert answered(*keys) == []


@pytest.mark.parametrize("keys", [("tab", "tab", "enter"), ("right", "enter"), ("space", "enter"), ("l", "enter")])
def test_enter_is_no_unless_yes_was_chosen(keys) -> None:
    assert answered(*keys) == [False]


@pytest.mark.parametrize("keys", [("y",), ("y", "y", "y"), ("tab", "y"), ("Y",)])
def test_a_yes_before_it_could_be_read_does_not_count(keys) -> None:
    assert answered(*keys, guard_s=3600) == []


def test_tab_and_enter_typed_ahead_are_a_no() -> None:
    assert answered("tab", "enter", guard_s=3600) == [False]


def test_a_key_from_before_the_question_does_not_count_however_late_it_arrives() -> None:
    app = Asks(Confirm(a_planned_action(), guard_s=0.5))

    async def play(pilot) -> None:
        await until(pilot, lambda: app.asked._since is not None)
        app.asked._since = time.monotonic() - 10
        early = events.Key("y", "y")
        early.time = app.asked._since + 0.1
        app.asked.post_message(early)
        await pilot.pause()
        assert app.answers == []
        late = events.Key("y", "y")
        late.time = early.time + 0.6
        app.asked.post_message(late)
        await until(pilot, lambda: app.answers == [True])

    drive(app, play)


def test_a_key_that_is_held_down_never_confirms() -> None:
    app = Asks(Confirm(a_planned_action(), guard_s=0.5))

    async def play(pilot) -> None:
        await until(pilot, lambda: app.asked._since is not None)
        begin = app.asked._since
        for number in range(100):
            again = events.Key("y", "y")
            again.time = begin + 0.03 * number
            app.asked.post_message(again)
        await pilot.pause()
        assert app.answers == []

    drive(app, play)


def test_the_question_shows_what_would_be_done_as_plain_text() -> None:
    app = Asks(Confirm(a_planned_action()))

    async def play(pilot) -> None:
        await pilot.pause()
        shown = text(app)
        assert '"[red]y\\x1b[31m[/red]' in shown
        assert "[@click=app.bell]長" in shown
        assert "runs: scancel -- 4711" in shown
        assert "[no]" in shown

    drive(app, play)


def test_a_click_answers_only_on_an_answer() -> None:
    for guard_s, at, answers in (
        (0.0, (1, 0), [False]),
        (0.0, (10, 0), [True]),
        (3600.0, (10, 0), []),
        (0.0, (60, 0), []),
    ):
        app = Asks(Confirm(a_planned_action(), guard_s=guard_s))

        async def play(pilot, app=app, at=at) -> None:
            await until(pilot, lambda: app.asked._since is not None)
            await pilot.click(Answers, offset=at)
            await pilot.click(offset=(0, 0))
            await pilot.pause()

        drive(app, play)
        assert app.answers == answers


def test_a_long_list_is_scrolled_and_the_answers_stay_in_sight() -> None:
    planned = a_planned_action(*[f"{number}  your own  running, on n1" for number in range(500)])
    for size in ((80, 24), (20, 5)):
        app = Asks(Confirm(planned, guard_s=0.0))

        async def play(pilot, app=app) -> None:
            await until(pilot, lambda: app.asked._since is not None)
            await pilot.pause()
            assert "[no]" in text(app)
            assert "0  your own" in text(app)
            for _ in range(3):
                await pilot.press("pagedown")
            await pilot.press("down")
            await pilot.pause()
            assert "0  your own" not in text(app).splitlines()[1]
            assert "[no]" in text(app)
            await pilot.resize_terminal(5, 2)
            await pilot.resize_terminal(80, 24)
            await pilot.press("y")
            await pilot.pause()
            assert app.answers == [True]

        drive(app, play, size=size)


# ---- Which signal ----

SCOPES = (
    Scope("process", 'process 900 on n1, task 3 of step 0 of job 4711  "[red]python"'),
    Scope("job", "every task of every step of job 4711, not its script"),
)


def chosen(*keys: str, scopes=SCOPES, size=(120, 40)) -> tuple[list, str]:
    """Return the answer, and the screen before the last key."""
    app = Asks(SignalChoice(scopes))
    shown = []

    async def play(pilot) -> None:
        await pilot.pause()
        for key in keys[:-1]:
            await pilot.press(key)
        await pilot.pause()
        shown.append(text(app))
        await pilot.press(keys[-1])
        await pilot.pause()

    drive(app, play, size=size)
    return app.answers, shown[0]


def test_the_mildest_to_the_least_is_offered_first() -> None:
    answers, shown = chosen("enter")
    assert answers == [(SCOPES[0], "TERM")]
    assert 'Signal to process 900 on n1, task 3 of step 0 of job 4711  "[red]python"' in shown


def test_arrows_choose_the_signal_and_tab_to_whom() -> None:
    answers, shown = chosen("down", "enter")
    assert answers == [(SCOPES[0], "INT")]
    assert "> INT" in shown
    assert "> TERM" not in shown
    assert chosen("j", "j", "k", "enter")[0] == [(SCOPES[0], "INT")]
    assert chosen("end", "enter")[0] == [(SCOPES[0], "KILL")]
    answers, shown = chosen("tab", "end", "enter")
    assert answers == [(SCOPES[1], "CONT")]
    assert "Signal to every task of every step" in shown
    assert chosen("tab", "tab", "enter")[0] == [(SCOPES[0], "TERM")]


@pytest.mark.parametrize("key", ["escape", "q", "backspace"])
def test_leaving_sends_nothing(key) -> None:
    assert chosen("down", key)[0] == [None]


def test_the_choice_lives_in_a_tiny_terminal() -> None:
    answers, shown = chosen("down", "enter", size=(20, 5))
    assert answers == [(SCOPES[0], "INT")]
    assert "Signal to" in shown
    assert "INT" in shown


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


def test_what_has_no_end_yet_is_shown_and_goes_on() -> None:
    async def play(pilot) -> None:
        lines = pilot.app.query_one(LogLines)
        for data in (b"one\ntw", b"o\nthree \xe9", b"\x95\xb7\n", b"", b"four"):
            lines.add(data)
        assert lines.lines == ["one", "two", "three 長", "four"]

    drive(Lines(), play)


def test_the_end_is_followed_until_somebody_looks_back() -> None:
    async def play(pilot) -> None:
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

    drive(Lines(), play)


def test_memory_is_bounded_while_a_log_grows(monkeypatch) -> None:
    monkeypatch.setattr("slurm_share_tui.widgets.log_lines.LINES_MOST", 100)
    monkeypatch.setattr("slurm_share_tui.widgets.log_lines.LETTERS_MOST", 1000)

    async def play(pilot) -> None:
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

    drive(Lines(), play)


def test_a_file_is_shown_as_it_grows_and_others_beside_it(tmp_path) -> None:
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    one.write_text("first line\n")
    two.write_text("of the other\n")
    files = [LogFile("log 0", str(one)), LogFile("output of the job", str(two))]
    app = Asks(LogScreen(files, lambda file: Tail(file.path), read_s=0.01))

    async def play(pilot) -> None:
        await until(pilot, lambda: "first line" in text(app))
        assert f"log 0 (1 of 2): {one}" in text(app)
        with open(one, "a") as more:
            more.write("[red]second\x1b[2J\n")
        await until(pilot, lambda: "[red]second" in text(app))
        await pilot.press("tab")
        await until(pilot, lambda: "of the other" in text(app))
        assert "first line" not in text(app)
        await pilot.press("f")
        await until(pilot, lambda: "follow: off" in text(app))
        await pilot.press("y", "escape")
        await until(pilot, lambda: app.screen is not app.asked)

    drive(app, play)


def test_a_path_that_is_copied_is_one_word_of_one_line_to_a_shell() -> None:
    app = Asks(LogScreen([LogFile("output", "/tmp/out\ntouch $(PWNED)\n")], lambda one: Tail(one.path), read_s=0.01))

    async def play(pilot) -> None:
        await pilot.press("y")
        await until(pilot, lambda: app.clipboard)
        assert "\n" not in app.clipboard
        assert len(shlex.split(app.clipboard)) == 1
        assert "PWNED" in app.clipboard

    drive(app, play)


def test_there_is_one_way_into_the_clipboard() -> None:
    folder = Path(clipboard.__file__).parent
    found = [file.name for file in folder.rglob("*.py") if "copy_to_clipboard" in file.read_text(encoding="utf-8")]
    assert found == ["clipboard.py"]


def test_of_many_lines_only_those_that_are_kept_are_made_clean(monkeypatch) -> None:
    cleaned = []
    monkeypatch.setattr("slurm_share_tui.widgets.log_lines.clean", lambda line: cleaned.append(line) or line)

    async def play(pilot) -> None:
        pilot.app.query_one(LogLines).add(b"\n" * 256 * 1024 + b"end\n")
        assert len(cleaned) <= LINES_MOST
        assert pilot.app.query_one(LogLines).lines[-1] == "end"

    drive(Lines(), play)


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


def test_why_there_is_nothing_to_see_is_said_until_there_is(tmp_path) -> None:
    file = tmp_path / "log"
    app = Asks(LogScreen([LogFile("output", str(file))], lambda one: Tail(one.path), read_s=0.01))

    async def play(pilot) -> None:
        await until(pilot, lambda: "No such file" in text(app))
        file.write_text("here it is\n")
        await until(pilot, lambda: "here it is" in text(app))
        assert "No such file" not in text(app)

    drive(app, play)

    def refused(_file):
        raise SlurmShareError("as root it is not shown")

    os.mkfifo(tmp_path / "pipe")
    for opened, said in ((refused, "as root it is not shown"), (lambda one: Tail(one.path), "is a pipe")):
        waits = Asks(LogScreen([LogFile("output", str(tmp_path / "pipe"))], opened, read_s=0.01))

        async def look(pilot, waits=waits, said=said) -> None:
            await until(pilot, lambda: said in text(waits))

        drive(waits, look)


def test_a_file_system_that_hangs_stops_no_key() -> None:
    hangs = threading.Event()

    class Hanging:
        def read(self):
            hangs.wait()
            raise SlurmShareError("over")

        def close(self):
            pass

    app = Asks(LogScreen([LogFile("output", "/nfs/log")], lambda file: Hanging(), read_s=0.01))

    async def play(pilot) -> None:
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is not app.asked)

    drive(app, play)
    hangs.set()


def test_a_log_lives_in_any_terminal(tmp_path) -> None:
    file = tmp_path / "log"
    file.write_text("長" * 5000 + "\nend\n")
    app = Asks(LogScreen([LogFile("名" * 100, str(file))], lambda one: Tail(one.path), read_s=0.01))

    async def play(pilot) -> None:
        await until(pilot, lambda: "end" in text(app))
        for size in ((20, 5), (5, 2), (300, 100)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        assert "end" in text(app)

    drive(app, play)
