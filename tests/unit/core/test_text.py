"""Text for people: durations, lists of numbers, the order of names."""

from __future__ import annotations

import json

import pytest
from ClusterShell.RangeSet import RangeSet
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.core.text import ascii_json, fold, fold_some, joules_text, natural, span_text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (3.5, "3.5 s"), (9.96, "10 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h")],
)
def test_a_span_has_the_unit_that_says_it_shortest(seconds, words):
    assert span_text(seconds) == words


@pytest.mark.parametrize(
    ("joules", "like", "words"),
    [
        *((0, 0, "0 J"), (0.4, 0, "0.4 J"), (512, 0, "512 J"), (5_100, 0, "5.1 kJ"), (999_000, 0, "999.0 kJ")),
        *((4_320_000, 0, "1.20 kWh"), (100, 5_100, "0.1 kJ"), (360_000, 3_600_000, "0.10 kWh")),
    ],
)
def test_an_energy_has_the_unit_of_the_one_beside_it(joules, like, words):
    assert joules_text(joules, like) == words


def test_names_are_in_the_order_that_people_expect():
    assert sorted(["n10", "N2", "n1", "m3"], key=natural) == ["m3", "n1", "N2", "n10"]
    assert natural("n007") == natural("N7")


@given(st.sets(st.integers(0, 300), max_size=20))
def test_numbers_are_folded_as_clustershell_folds_them(numbers):
    assert fold(numbers) == (str(RangeSet(numbers)) if numbers else "")


def test_many_parts_are_cut_and_counted():
    assert fold_some([0, 1, 2, 8], 2) == "0-2,8"
    assert fold_some([0, 2, 4, 6], 2) == "0,2,... (4 in all)"


@given(st.lists(st.text()))
def test_json_in_ascii_has_the_same_value(texts):
    data = json.dumps(texts, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if not any("\ud800" <= one <= "\udfff" for one in data.decode("utf-8", "surrogatepass")):
        written = ascii_json(data)
        assert written.isascii()
        assert json.loads(written) == texts


def test_json_in_ascii_is_as_json_dumps_writes_it():
    text = "\u202e é \U0001f600 \x85 \\"
    assert ascii_json(json.dumps(text, ensure_ascii=False).encode()) == json.dumps(text).encode()
