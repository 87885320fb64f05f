"""The table of results: columns, conditions, order, groups."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.core.errors import UsageError
from slurm_share.triples.records import Run
from slurm_share.triples.rules import result_table
from slurm_share.triples.rules.result_table import FIXED, ResultTable, Row, Value


def row(task: int, lr: str, loss: str | None, outcome: str = "done", seconds: float = 2.0) -> Row:
    fixed: dict[str, Value] = dict.fromkeys(FIXED)
    fixed |= {"outcome": outcome, "seconds": seconds, "node": "n1"}
    return Row(task=task, params={"lr": lr}, results={} if loss is None else {"loss": loss}, fixed=fixed)


ROWS = [row(0, "1e-3", "0.5"), row(1, "1e-3", "0.3", seconds=4.0), row(2, "1e-4", "0.1", "failed"),
        row(3, "1e-4", "nan"), row(4, "1e-4", "x"), row(5, "1e-5", None, "running")]  # fmt: skip


def tasks(found: ResultTable) -> list[Value]:
    return [one[0] for one in found.rows]


@pytest.fixture
def table() -> ResultTable:
    return result_table.table(ROWS)


def test_columns_are_task_parameters_results_and_the_fixed_ones(table: ResultTable) -> None:
    assert table.columns == ("task", "lr", "loss", *FIXED)


def test_a_name_that_another_column_has_gets_a_prefix() -> None:
    one = Row(task=0, params={"node": "a", "lr": "1"}, results={"lr": "2", "code": "3"}, fixed=dict.fromkeys(FIXED))
    assert result_table.table([one]).columns[:5] == ("task", "param.node", "lr", "result.lr", "result.code")


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("outcome=failed", [2]),
        ("outcome!=done", [2, 5]),
        ("lr=1e-3", [0, 1]),
        ("lr=0.001", [0, 1]),
        ("loss<0.5", [1, 2]),
        ("loss<=0.5", [0, 1, 2]),
        ("loss>0.3", [0]),
        ("loss>=0.3", [0, 1]),
        ("loss=", [5]),
    ],
)
def test_where_keeps_the_rows_with_a_value(table: ResultTable, condition: str, expected: list[int]) -> None:
    assert tasks(result_table.where(table, [condition])) == expected


@pytest.mark.parametrize(
    ("condition", "words"),
    [("los<1", "there is no column los; did you mean loss"), ("loss", "is no condition"), ("loss<a", "a is no number")],
)
def test_a_wrong_condition_is_refused(table: ResultTable, condition: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        result_table.where(table, [condition])


def test_rows_are_sorted_by_number_then_text_then_nothing(table: ResultTable) -> None:
    assert tasks(result_table.ordered(table, "loss")) == [2, 1, 0, 3, 4, 5]
    assert tasks(result_table.ordered(table, "loss", is_reverse=True)) == [0, 1, 2, 4, 3, 5]


def test_the_best_task_is_one_that_is_done(table: ResultTable) -> None:
    assert tasks(result_table.best(table, "loss", is_most=False)) == [1]
    assert tasks(result_table.best(table, "loss", is_most=True)) == [0]
    assert tasks(result_table.best(table, "progress", is_most=True)) == []


def test_groups_have_the_means_of_their_done_tasks(table: ResultTable) -> None:
    found = result_table.grouped(table, ["lr"])
    assert found.columns == ("lr", "tasks", "done", "loss", "loss_sd", "seconds", "seconds_sd")
    assert found.rows[0] == ("1e-3", 2, 2, 0.4, 0.141, 3.0, 1.41)
    assert found.rows[1] == ("1e-4", 3, 2, None, None, 2.0, 0.0)
    assert found.rows[2] == ("1e-5", 1, 0, None, None, None, None)
    assert result_table.best(found, "loss", is_most=False).rows[0][0] == "1e-3"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=4))
def test_csv_gives_every_cell_back(cells: list[str]) -> None:
    table = ResultTable(columns=tuple(f"c{place}" for place in range(len(cells))), rows=(tuple(cells),))
    read = list(csv.reader(io.StringIO(result_table.csv(table), newline="")))
    assert read[1:] == ([cells] if cells != [""] else [[]])


def test_json_has_numbers_for_results_and_text_for_parameters(table: ResultTable) -> None:
    run = Run(name="a", command=("/a",), cwd="/", triple=None, processes=1, tasks=6)
    found = json.loads(result_table.as_json("LLSUB.3", run, table))
    assert found["parameters"] == ["lr"]
    assert found["results"] == ["loss"]
    assert [one["loss"] for one in found["rows"]] == [0.5, 0.3, 0.1, "nan", "x", None]
    assert found["rows"][0]["lr"] == "1e-3"
