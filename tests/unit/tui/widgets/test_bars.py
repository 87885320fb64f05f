"""Bars have exactly their width, whatever they show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as any_
from slurm_share_tui.widgets.bars import bar


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
def test_the_same_in_ascii(share: float, drawn: str) -> None:
    assert "".join(bar(share, 8, ascii_only=True)) == drawn


def test_little_is_not_drawn_as_nothing() -> None:
    assert bar(0.0001, 4)[0] == "▏"
    assert bar(0.0001, 4, ascii_only=True)[0] == "-"


def test_almost_full_is_not_drawn_as_full() -> None:
    assert bar(0.999, 4)[0] == "███▉"


@given(any_.none() | any_.floats(), any_.integers(-2, 60), any_.booleans())
def test_every_bar_is_as_wide_as_it_was_told(share: float | None, width: int, ascii_only: bool) -> None:
    filled, rest = bar(share, width, ascii_only=ascii_only)
    assert len(filled) + len(rest) == max(0, width)
