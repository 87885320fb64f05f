"""How llload and the dashboard write one value."""

from __future__ import annotations

import pytest

from slurm_share.load import text


@pytest.mark.parametrize(
    ("triple", "said"),
    [
        (("96", "12", "84"), "12/96"),
        (("384GB", "48GB", "336GB"), "48/384GB"),
        (("32GB", "0.3GB", "32GB"), "0.3/32GB"),
        (("64GB", "12GB?", "52GB?"), "12?/64GB"),
        (("384GB", "?", "?"), "?/384GB"),
        (("-", "-", "-"), "-"),
        (("?", "?", "?"), "?/?"),
    ],
)
def test_used_of_total_is_written_shorter_and_says_the_same(triple, said):
    assert text.of_text(triple) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(None, "-"), (5, "0:05"), (65.9, "1:05"), (3723, "1:02:03"), (93784, "1-02:03:04")]
)
def test_time_is_written_as_squeue_writes_it(seconds, said):
    assert text.time_text(seconds) == said


def test_letters_of_a_line_mark_the_cell_that_they_are_about():
    assert [text.letter_of(("cL", "gH", "m!"), of) for of in "cgmv"] == ["L", "H", "!", ""]
    assert [text.worst(codes) for codes in (("cL", "n!"), ("cL", "gH"), ("cL",), ())] == ["!", "H", "L", ""]
