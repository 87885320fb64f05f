"""Sparklines: a fixed scale, an exact width, and unknown differs from zero."""

from __future__ import annotations

import math

from rich.cells import cell_len
from slurm_share_tui.widgets.spark import BLOCKS, LETTERS, spark, tall


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


def test_plain_letters_say_the_same() -> None:
    assert len(set(LETTERS)) == 8
    assert spark((0, 50, None, 100), 4, ascii_only=True) == "_= #"
    assert all(line.isascii() for line in tall((0, 50, None, 100), 4, 3, ascii_only=True))


def test_several_lines_have_eight_steps_each() -> None:
    assert tall((0.0, 49.9, 50.0, 100.0), 4, 2) == ("  ▁█", "▁███")
    assert tall((10.0,), 2, 0) == ()
