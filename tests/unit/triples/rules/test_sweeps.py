"""Parameters of tasks: values, ranges, names, combinations, and what `{name}` becomes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.core.errors import UsageError
from slurm_share.triples.rules import sweeps
from slurm_share.triples.rules.sweeps import Parameter


def values(written: str) -> list[str]:
    return list(sweeps.values_of(*sweeps.name_of(written)))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("lr=1e-3,1e-4", ["1e-3", "1e-4"]),
        ("lr=1e-3, 1e-4", ["1e-3", "1e-4"]),
        ("seed=0..3", ["0", "1", "2", "3"]),
        ("seed=3..0", ["3", "2", "1", "0"]),
        ("n=0..100..50,7", ["0", "50", "100", "7"]),
        ("n=10..0..-5", ["10", "5", "0"]),
        ("n=08..11", ["08", "09", "10", "11"]),
        ("n=-1..1", ["-1", "0", "1"]),
        ("x=0.1..0.3..0.1", ["0.1", "0.2", "0.3"]),
        ("x=1e-3..3e-3..1e-3", ["0.001", "0.002", "0.003"]),
        ('act="a,b",c', ["a,b", "c"]),
        ('act="say ""x""",""', ['say "x"', ""]),
        ('n="0..3"', ["0..3"]),
        ("dir=../data,a..b", ["../data", "a..b"]),
        ("layers={a:1}", ["{a:1}"]),
        ("opt=a=b", ["a=b"]),
    ],
)
def test_values_are_items_between_commas_quoted_text_and_ranges(written: str, expected: list[str]) -> None:
    assert values(written) == expected


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("lr", "write a name and its values"),
        ("=1", "empty text cannot be the name"),
        ("lr=", "lr has no values"),
        ("lr=@", "lr has no values"),
        ("2lr=1", "2lr cannot be the name"),
        ("learning-rate=1", r"write learning_rate, and for a program .* -- --learning-rate=\{learning_rate\}"),
        ("l" * 65 + "=1", "at most 64"),
        ("lr=1,,2", "no value between two commas"),
        ("lr=1,", "no value between two commas or at the end"),
        ('lr="a', "a quote is not closed"),
        ('lr="a"b', "a quote is not closed before a comma"),
        ("layers=[64,64],[8,8]", r"open bracket; .*--sweep 'layers=\"\[64,64\]\"'"),
        ("n=0..1O", "is no range such as"),
        ("n=1e-5..1e-1", r"not whole, and no step; write 1e-5..1e-1..STEP"),
        ("n=0..5..0", "never reaches its end"),
        ("n=0..5..-1", "never reaches its end"),
        ("n=0..1000000", f"more than {sweeps.TASKS_MOST} values"),
        ("n=0..1e300..1e-300", f"more than {sweeps.TASKS_MOST} values"),
        ("n=a\nb", "line end"),
    ],
)
def test_what_has_no_values_is_refused(written: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        values(written)


@given(st.lists(st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=9), min_size=1))
def test_quoted_values_are_read_as_they_are(wanted: list[str]) -> None:
    text = ",".join('"' + one.replace('"', '""') + '"' for one in wanted)
    assert list(sweeps.values_of("a", text)) == wanted


@given(
    st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), st.text("a1,=\" '", max_size=6), min_size=1)
)
def test_the_label_of_a_task_names_it(params: dict[str, str]) -> None:
    assert sweeps.parse_label(sweeps.label(params)) == params
    assert sweeps.parse_label(sweeps.label(params, ",")) == params


# ---- Combinations ----

LR, SEED = Parameter("lr", ("a", "b")), Parameter("seed", ("0", "1"))


def test_the_last_parameter_changes_fastest_and_zip_takes_them_together() -> None:
    assert list(sweeps.combinations([LR, SEED], is_zip=False)) == [("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")]
    assert list(sweeps.combinations([LR, SEED], is_zip=True)) == [("a", "0"), ("b", "1")]
    assert sweeps.count([LR, SEED], is_zip=False, lines=3, repeats=5) == 60
    assert sweeps.count([LR, SEED], is_zip=True, lines=3, repeats=5) == 30


def test_zip_of_different_lengths_and_too_many_tasks_are_refused() -> None:
    with pytest.raises(UsageError, match="lr has 2 values, seed has 3 values; write as many of each"):
        sweeps.count([LR, Parameter("seed", ("0", "1", "2"))], is_zip=True)
    many = Parameter("n", tuple("x" * 9999))
    with pytest.raises(UsageError, match="9999 x 2 x 1000 = 19998000 tasks, but a run with parameters has at most"):
        sweeps.count([many, LR], is_zip=False, repeats=1000)


def test_names_that_collide_are_refused() -> None:
    with pytest.raises(UsageError, match="the name lr is there twice"):
        sweeps.count([LR, LR], is_zip=False)
    with pytest.raises(UsageError, match="lr and LR differ in case only, and would have one variable LLSUB_PARAM_LR"):
        sweeps.count([LR, Parameter("LR", ("1",))], is_zip=False)


# ---- Commands ----


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("--lr={lr}", "--lr=1e-3"),
        ("{lr}{lr}", "1e-31e-3"),
        ("{{lr}}", "{lr}"),
        ("{{{lr}}}", "{1e-3}"),
        ('{"opt":{"lr":{lr}}}', '{"opt":{"lr":1e-3}}'),
        ("${lr} {print $1} {} {a,b}", "${lr} {print $1} {} {a,b}"),
    ],
)
def test_only_names_in_braces_are_replaced(text: str, filled: str) -> None:
    assert sweeps.fill(text, {"lr": "1e-3"}) == filled


def test_values_are_quoted_for_a_shell() -> None:
    assert sweeps.fill("a {x}", {"x": "b c; rm"}, for_shell=True) == "a 'b c; rm'"


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(
        UsageError, match=r"there is no parameter \{lrr\}; for this text write \{\{lrr\}\}; did you mean lr"
    ):
        sweeps.check_fields("--lr={lrr}", ["lr", "seed"], "the argument --lr={lrr}")
