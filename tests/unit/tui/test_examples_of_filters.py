"""The examples of filters in the manual, the help and the list of keys work: each is valid for some table and matches
some row."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from dashboards import a_picture, a_survey, picture_of
from msgspec.structs import replace
from slurm_share_tui import keymap, query
from slurm_share_tui import tables as made
from slurm_share_tui.history import FigureHistory
from slurm_share_tui.query import parse
from slurm_share_tui.query_terms import QueryError
from slurm_share_tui.screens.help import FILTER
from slurm_share_tui.widgets.grid_rows import RowSet

from slurm_share.load.columns.base import Column
from slurm_share.load.rules.gpu_rows import gpu_rows
from slurm_share.load.rules.job_rows import job_rows, user_rows

MANUAL = Path(__file__).parents[3] / "packaging" / "docs" / "tui.md"
FIGURE = re.compile(r"[a-z_]+(?:<=|>=|!=|!~|[<>=~])[^\s,;]+")
FINDS_NOTHING = {'name="a (b)"', "name~n1*"}
"""Nothing in the demonstration is called so."""


def of_the_manual() -> list[str]:
    """Return the examples in the first column of the manual's table."""
    section = MANUAL.read_text(encoding="utf-8").partition("## Filters")[2].partition("\n## ")[0]
    rows = [line.partition(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    return [one for row in rows for one in re.findall(r"`([^`]+)`", row)]


def of_the_help() -> list[str]:
    """Return the examples in both columns of the help."""
    return [text for text, _ in FILTER] + [one for _, words in FILTER for one in FIGURE.findall(words)]


def of_the_keys() -> list[str]:
    """Return the examples in the help of `/`."""
    return [one.strip() for one in keymap.BY_ID["filter"].help.partition("words, ")[2].split(",")]


def of_the_module() -> list[str]:
    """Return the examples in the first line of the module's docstring."""
    return re.findall(r"`([^`]+)`", (query.__doc__ or "").splitlines()[0])


EXAMPLES = list(dict.fromkeys([*of_the_manual(), *of_the_help(), *of_the_keys(), *of_the_module()]))


@cache
def tables() -> tuple[tuple[tuple[Column[Any], ...], tuple[Any, ...]], ...]:
    """Return columns and rows of the demonstration, with one job named test."""
    survey = a_survey()
    picture = picture_of(replace(survey, jobs=(replace(survey.jobs[0], name="test"), *survey.jobs[1:])))
    history = FigureHistory()
    return (
        (made.nodes(history), picture.nodes),
        (made.users(history), tuple(user_rows(picture))),
        (made.JOBS, tuple(job_rows(picture))),
        (made.gpus(history), tuple(gpu_rows(picture.nodes))),
    )


def test_there_are_examples_to_be_run() -> None:
    assert len(of_the_manual()) >= 12
    assert len(of_the_help()) >= 8
    assert len(of_the_keys()) == 3
    assert {"memory>40G", "time<2h", "user=alice & mem>80", "name~n1*"} <= {*EXAMPLES}
    assert a_picture().nodes


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_true(example: str) -> None:
    found = understood = 0
    mistakes: list[str] = []
    for columns, rows in tables():
        try:
            asked = parse(example, columns, [column.id for column in columns if column.shown])
            found += len(asked.fitting(RowSet(rows, columns, str), len(rows)))
            understood += 1
        except QueryError as error:
            mistakes.append(str(error))
    assert all(one.startswith("there is no column") or " are in " in one for one in mistakes), mistakes
    assert understood
    assert found or example in FINDS_NOTHING


def test_a_start_is_asked_for_from_now_on() -> None:
    columns, rows = tables()[2]

    def found(text: str) -> int:
        asked = parse(text, columns, [column.id for column in columns if column.shown])
        return len(asked.fitting(RowSet(rows, columns, str), len(rows)))

    running = found("time>=0:00")
    assert 0 < running <= found("start<=0s")
    assert found("start<=0s & start>0s") == 0
    with pytest.raises(
        QueryError, match="start is compared with a time from now, and 14:05 is a time of day; for exam"
    ):
        found("start<14:05")
