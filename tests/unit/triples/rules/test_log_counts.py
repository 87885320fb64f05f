"""Lines and numbers of a task's output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.core.errors import UsageError
from slurm_share.triples.rules.log_counts import LINE_MAX, LogCounts, parse_pattern, parse_window

STEP = re.compile(r"step (\d+(?:\.\d+)?)")


@given(st.lists(st.integers(0, 10**6), max_size=30), st.lists(st.integers(1, 40), max_size=60), st.booleans())
def test_pieces_of_any_length_give_the_same_numbers_as_the_whole(
    steps: list[int], cuts: list[int], is_bar: bool
) -> None:
    end = b"\r" if is_bar else b"\n"
    text = b"".join(b"\x00\xff step %d done%s" % (step, end) for step in steps)
    counts, found, at = LogCounts(STEP), [], 0
    for cut in [*cuts, len(text)]:
        found += counts.feed(text[at : at + cut])
        at += cut
    found += counts.feed(text[at:])
    assert found == steps
    assert counts.lines == len(steps)


def test_last_line_without_an_end_counts_only_at_the_end() -> None:
    counts = LogCounts(STEP)
    assert counts.feed(b"step 1\nstep 2") == [1]
    assert counts.feed(b"3") == []
    assert counts.end() == [23]
    assert counts.end() == []


def test_end_of_a_long_line_is_not_searched() -> None:
    counts = LogCounts(STEP)
    assert counts.feed(b"x" * LINE_MAX + b"step 1\nstep 2 " + b"y" * 3 * LINE_MAX + b"\nstep 3\n") == [2, 3]
    assert counts.feed(b"x" * LINE_MAX) == []
    assert counts.feed(b"step 4 \nstep 5\n") == [5]


def test_output_behind_a_gap_begins_with_its_first_whole_line() -> None:
    counts = LogCounts(STEP)
    counts.feed(b"step 1\nst")
    counts.skip()
    assert counts.feed(b"ep 2\nstep 3\n") == [3]
    counts.skip()
    assert counts.feed(b"step 4") == []
    assert counts.feed(b"5\nstep 6\n") == [6]


@pytest.mark.parametrize("number", ["nan", "inf", "-3", "x", "", "1e999"])
def test_what_is_no_amount_is_left_out(number: str) -> None:
    assert LogCounts(re.compile("at (.*)")).feed(f"at {number}\nat 7\n".encode()) == [7]


def test_without_an_expression_only_lines_count() -> None:
    counts = LogCounts(None)
    assert counts.feed(b"step 1\n10%\r20%\r") == []
    assert (counts.lines, counts.end()) == (3, [])


@pytest.mark.parametrize("text", [r"epoch (\d+)", r"(?:step|iter) *(\d+)", r"\| (\d+)/\d+", "(?P<n>[0-9.]+) it"])
def test_expression_with_one_group_is_taken(text: str) -> None:
    assert parse_pattern(text, "--progress").pattern == text


@pytest.mark.parametrize(
    ("text", "line", "number"),
    [
        (r"step (\d+)", "step 120, loss 0.31", 120),
        (r"\| (\d+)/\d+ \[", "Epoch 3:  45%|####5     | 211/469 [00:03<00:04, 64.90it/s, v_num=0]", 211),
        (r"\| (\d+)/\d+ \[", " 45%|\u2588\u2588\u2588\u2588\u258c     | 211/469 [00:03<00:04, 64.90it/s]", 211),
        (r"Epoch (\d+)/\d+", "Epoch 3/10", 3),
    ],
)
def test_expressions_of_the_document_find_the_number(text: str, line: str, number: float) -> None:
    page = Path(__file__).parents[4] / "packaging" / "docs" / "progress.md"
    assert text.replace("|", "\\|") in page.read_text()  # as a cell of a table has it
    assert LogCounts(parse_pattern(text, "--progress")).feed(f"{line}\r".encode()) == [number]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epoch", "has 0 groups"),
        (r"(\d+)/(\d+)", "has 2 groups"),
        ("epoch (", "is not a regular expression of Python"),
        ("(a{99999999999999999999})", "is not a regular expression of Python"),
        ("", "printable characters"),
        ("(a)\n", "printable characters"),
        ("(" + "a" * 600 + ")", "printable characters"),
        ("(" * 200 + "a" + ")" * 200, "groups"),
    ],
)
def test_expression_that_cannot_be_used_is_refused_with_a_way_out(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        parse_pattern(text, "--progress")
    assert str(error.value).startswith("--progress")


@pytest.mark.parametrize(("text", "seconds"), [("1", 1), ("2.5", 2.5), ("3600", 3600)])
def test_window_of_a_second_to_an_hour_is_taken(text: str, seconds: float) -> None:
    assert parse_window(text, "--window") == seconds


@pytest.mark.parametrize("text", ["0", "0.5", "3601", "", "x", "-5", "nan", "1e2", "10s", "٣"])
def test_other_windows_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="from 1 to 3600"):
        parse_window(text, "--window")
