"""Bars and sparklines: a fixed scale, an exact width, and unknown differs from zero."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as any_
from rich.cells import cell_len
from slurm_share_tui.widgets import glyphs
from slurm_share_tui.widgets.bars import BLOCKS, LETTERS, bar, spark, tall


@pytest.mark.parametrize(
    ("share", "drawn"),
    [
        (0.0, "········"),
        (0.5, "████····"),
        (0.55, "████▍···"),
        (1.0, "████████"),
        (1.01, "███████»"),
        (-1.0, "········"),
        (None, "?       "),
        (float("nan"), "?       "),
        (float("inf"), "███████»"),
    ],
)
def test_a_bar_fills_from_the_left_in_eighths_and_says_what_is_over(share: float | None, drawn: str) -> None:
    assert "".join(bar(share, 8)) == drawn


@pytest.mark.parametrize(
    ("share", "drawn"), [(0.0, "........"), (0.5, "####...."), (0.57, "####-..."), (1.0, "########"), (1.5, "#######>")]
)
def test_the_same_in_ascii(share: float, drawn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "_is_plain", True)
    assert "".join(bar(share, 8)) == drawn
    assert bar(0.0001, 4)[0] == "-"


def test_little_is_not_drawn_as_nothing_and_almost_full_not_as_full() -> None:
    assert bar(0.0001, 4)[0] == "▏"
    assert bar(0.999, 4)[0] == "███▉"


@given(any_.none() | any_.floats(), any_.integers(-2, 60), any_.booleans())
def test_every_bar_is_as_wide_as_it_was_told(share: float | None, width: int, is_plain: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glyphs, "_is_plain", is_plain)
        assert sum(map(len, bar(share, width))) == max(0, width)


def test_the_scale_is_fixed() -> None:
    assert spark((98, 99, 100), 3) == "███"
    assert spark((0, 1, 2), 3) == "▁▁▁"
    assert spark(tuple(range(0, 100, 13)), 8) == BLOCKS


def test_unknown_is_blank_and_zero_is_drawn() -> None:
    assert spark((0.0, None, 50.0), 3) == "▁ ▅"
    assert tall((0.0, None, 100.0), 3, 2) == ("  █", "▁·█")


def test_above_full_is_full_and_below_empty_is_empty() -> None:
    assert spark((1e12, -5.0, math.inf, math.nan), 4) == "█▁█▁"


def test_the_newest_is_at_the_right_in_exactly_the_width() -> None:
    for width in range(6):
        for values in ((), (10.0,), (10.0, None, 90.0, 100.0)):
            assert cell_len(spark(values, width)) == width
    assert spark((0.0, 100.0), 5) == "   ▁█"
    assert spark((0.0, 50.0, 100.0), 2) == "▅█"
    assert spark((1.0,), -1) == ""


def test_plain_letters_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "_is_plain", True)
    assert len(set(LETTERS)) == 8
    assert spark((0, 50, None, 100), 4) == "_= #"
    assert all(line.isascii() for line in tall((0, 50, None, 100), 4, 3))


def test_several_lines_have_eight_steps_each() -> None:
    assert tall((0.0, 49.9, 50.0, 100.0), 4, 2) == ("  ▁█", "▁███")
    assert tall((10.0,), 2, 0) == ()
