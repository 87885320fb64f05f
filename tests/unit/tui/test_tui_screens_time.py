"""The line of a replay, and the jump to a time."""

from __future__ import annotations

import datetime
from contextlib import asynccontextmanager

import pytest
from dashboards import NOW, Asks, a_picture, a_survey, picture_of, running
from rich.cells import cell_len
from slurm_share_tui.screens.jump import Jump, target_of
from slurm_share_tui.widgets.replay_bar import HERE, ReplayBar, clock, part_of
from slurm_share_tui.wire import Position
from textual.app import App
from textual.widgets import Static

from slurm_share.core.errors import UsageError

HOUR = Position(number=7, count=13, first=NOW - 1800, last=NOW + 1800, speed=1.0)


class Replays(App[None]):
    """Shows only the line of a replay."""

    def __init__(self) -> None:
        super().__init__()
        self.sought: list[float] = []

    def compose(self):
        yield ReplayBar()

    def on_replay_bar_sought(self, event: ReplayBar.Sought) -> None:
        self.sought.append(event.taken)


@asynccontextmanager
async def replaying(position: Position = HOUR, width: int = 120, *, held: bool = False):
    """Run the line of a replay at this position."""
    async with running(Replays(), size=(width, 5)) as pilot:
        bar = pilot.app.query_one(ReplayBar)
        bar.show(picture_of(a_survey(), position=position), held=held)
        await pilot.pause()
        yield pilot, bar


def drawn(app: App[None]) -> str:
    return app.query_one(ReplayBar).render().plain


@pytest.mark.parametrize("width", [5, 12, 20, 40, 60, 80, 200])
async def test_the_line_fits_its_width_and_says_the_time(width) -> None:
    async with replaying(width=width, held=True) as (pilot, _):
        text = drawn(pilot.app)
        assert cell_len(text) <= width
        if width >= 20:
            assert clock(NOW) in text
        if width >= 40:
            assert HERE in text
            assert "paused" in text
        if width >= 80:
            assert "7 of 13  1x" in text
            assert clock(NOW + 1800, seconds=False) in text


async def test_a_live_source_has_no_such_line() -> None:
    async with replaying() as (pilot, bar):
        assert bar.display
        bar.show(a_picture(), held=False)
        await pilot.pause()
        assert not bar.display
        assert drawn(pilot.app) == ""


async def test_a_click_on_the_bar_goes_there_and_beside_it_nowhere() -> None:
    async with replaying(width=100) as (pilot, bar):
        bar.render()
        begin, room = bar._bar
        for x in (begin, begin + room - 1, begin + (room - 1) // 2, 0, 99):
            await pilot.click(ReplayBar, offset=(x, 0))
        await pilot.pause()
        first, last, middle = pilot.app.sought
        assert (first, last) == (HOUR.first, HOUR.last)
        assert middle == pytest.approx(NOW, abs=60)


async def test_what_is_over_says_so_and_days_are_written_where_there_are_several() -> None:
    long = Position(number=13, count=13, first=NOW - 5 * 86400, last=NOW, speed=4.0, is_over=True)
    async with replaying(long) as (pilot, _):
        text = drawn(pilot.app)
        assert text.startswith(f" over {clock(NOW, day=True)}")
        assert text.rstrip().endswith("13 of 13  4x")


def test_how_much_is_behind() -> None:
    assert part_of(HOUR, NOW) == 0.5
    assert (part_of(HOUR, 0), part_of(HOUR, 1e11)) == (0.0, 1.0)
    still = Position(number=3, count=5, first=NOW, last=NOW, speed=1.0)
    assert part_of(still, NOW) == 0.5
    assert part_of(Position(number=1, count=1, first=NOW, last=NOW, speed=1.0), NOW) == 0.0


def test_a_time_of_no_calendar_is_unknown() -> None:
    assert clock(1e300) == "?"


# ---- To a time ----


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ("+5m", NOW + 300),
        ("-90s", NOW - 90),
        ("-30", NOW - 30),
        ("+0.5h", NOW + 1800),
        ("50%", NOW),
        ("0%", NOW - 1800),
        ("100%", NOW + 1800),
        (" 25% ", NOW - 900),
        (str(NOW + 7), NOW + 7),
        (datetime.datetime.fromtimestamp(NOW + 60).isoformat(), NOW + 60),
        (datetime.datetime.fromtimestamp(NOW + 60).strftime("%H:%M:%S"), NOW + 60),
    ],
)
def test_a_time_is_written_in_many_ways(written, taken) -> None:
    assert target_of(written, HOUR, NOW) == (pytest.approx(taken, abs=1), "")


@pytest.mark.parametrize("written", ["+9d", "1e10", "999%"])
def test_a_time_after_the_recording_is_its_end(written) -> None:
    assert target_of(written, HOUR, NOW)[0] == HOUR.last


def test_the_time_on_the_screen_is_that_of_its_look() -> None:
    taken = NOW + 0.6
    assert target_of(clock(taken), HOUR, NOW)[0] >= taken
    assert target_of(clock(taken), HOUR, NOW)[0] < NOW + 1
    assert target_of(str(NOW + 0.2), HOUR, NOW)[0] == NOW + 0.2
    ends = Position(number=1, count=9, first=NOW + 0.5, last=NOW + 9.5, speed=1.0)
    for edge in (ends.first, ends.last):
        assert target_of(clock(edge), ends, NOW)[1] == ""


@pytest.mark.parametrize(("written", "said"), [("+9d", "after"), ("0", "before"), ("-2h", "before"), ("1e10", "after")])
def test_a_time_outside_the_recording_is_said_to_be_there(written: str, said: str) -> None:
    assert f"is {said} the recording" in target_of(written, HOUR, NOW)[1]


@pytest.mark.parametrize("written", ["", "yesterday", "5x", "[red]", "-", "nan", "25:99", "\x1b[2J", "長" * 1000])
def test_what_is_no_time_is_answered_with_those_that_are(written) -> None:
    with pytest.raises(UsageError, match="is not a time; write 14:30") as refused:
        target_of(written, HOUR, NOW)
    assert str(refused.value).isprintable()


async def test_it_is_written_and_gone_to() -> None:
    app = Asks(Jump(HOUR, NOW))
    async with running(app, size=(20, 5)) as pilot:
        await pilot.press(*"[b]", "enter")
        await pilot.pause()
        assert app.answers == []
        said = app.screen.query_one("#jump-said", Static)
        assert "[b] is not a time" in str(said.render())
        await pilot.press("backspace", "backspace", "backspace", *"+5m", "enter")
        await pilot.pause()
    assert app.answers == [NOW + 300]


async def test_esc_stays_where_one_is() -> None:
    app = Asks(Jump(HOUR, NOW))
    async with running(app) as pilot:
        await pilot.press("5", "escape")
        await pilot.pause()
    assert app.answers == [None]
