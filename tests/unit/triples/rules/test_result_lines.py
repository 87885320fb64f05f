"""Results that tasks print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.triples.rules import result_lines
from slurm_share.triples.rules.result_lines import NAMES_MAX


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("loss=0.12 acc=0.9", {"loss": "0.12", "acc": "0.9"}),
        ("  loss=0.12\t acc=0.9  ", {"loss": "0.12", "acc": "0.9"}),
        ('val/loss=1 note="two words ""x"""', {"val/loss": "1", "note": 'two words "x"'}),
        ("loss=0.12 done", None),
        ("loss 0.12", None),
        ("loss=0.12,", {"loss": "0.12,"}),
        ("loss=a\x1b[31m", None),
        ("", None),
        ("2=1", None),
        ("a=" + "x" * 201, None),
        ("a=1 " * 2000, None),
        ('a="open', None),
    ],
)
def test_a_line_is_names_and_values_or_no_line_of_results(text: str, found: dict[str, str] | None) -> None:
    assert result_lines.parse_line(text) == found


def test_the_last_value_of_a_name_counts_and_a_bar_may_be_before_the_word() -> None:
    data = b"LLSUB_RESULT loss=1 acc=2\nLLSUB_RESULT is a word\n 50%|##\rLLSUB_RESULT loss=0.5\nx LLSUB_RESULT loss=9\n"
    assert result_lines.read(data, 3, is_ended=True).of(3, 1) == {"loss": "0.5", "acc": "2"}


def test_a_line_without_its_end_counts_only_after_the_end() -> None:
    assert result_lines.read(b"LLSUB_RESULT loss=0.1", 0, is_ended=True).of(0, 1) == {"loss": "0.1"}
    assert result_lines.read(b"LLSUB_RESULT loss=0.1", 0, is_ended=False).of(0, 1) == {}


def test_each_attempt_of_each_task_has_its_own_results() -> None:
    data = (
        b"--- task 3\nLLSUB_RESULT a=3\n--- task 4\nLLSUB_RESULT a=4 b=4\n--- task 4, attempt 2\nLLSUB_RESULT a=5"
        b"--- task 5\nnothing\n"
    )
    found = result_lines.read(data, None, is_ended=True)
    assert found.of(3, 1) == {"a": "3"}
    assert found.of(4, 1) == {"a": "4", "b": "4"}
    assert found.of(4, 2) == {"a": "5"}
    assert found.of(5, 1) == {}
    assert found.last == (5, 1)


def test_in_the_log_of_one_task_the_beginning_belongs_to_the_first_attempt_that_wrote() -> None:
    data = b"LLSUB_RESULT a=1\n--- task 7, attempt 2\n--- task 8\nLLSUB_RESULT a=2\n"
    found = result_lines.read(data, 7, is_ended=True)
    assert found.of(7, 1) == {"a": "1"}
    assert found.of(7, 2) == {"a": "2"}
    assert result_lines.read(b"LLSUB_RESULT a=1\n", 7, is_ended=True).of(7, 2) == {"a": "1"}


def test_a_task_has_a_limited_number_of_names() -> None:
    data = b"".join(b"LLSUB_RESULT n%d=1\n" % number for number in range(NAMES_MAX + 5)) + b"LLSUB_RESULT n0=2\n"
    found = result_lines.read(data, 0, is_ended=True).of(0, 1)
    assert len(found) == NAMES_MAX
    assert found["n0"] == "2"


@given(st.binary(max_size=200))
def test_no_output_breaks_the_reader(data: bytes) -> None:
    result_lines.read(b"LLSUB_RESULT " + data, None, is_ended=True)
    result_lines.read(b"LLSUB_RESULT " + data, 1, is_ended=False)
