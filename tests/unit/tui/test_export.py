"""Export of what a table shows."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import time
from pathlib import Path

import pytest
from dashboards import screen_text, until
from shell import arrived_picture, shown_dashboard
from slurm_share_tui import export
from slurm_share_tui.screens.export import ExportScreen
from textual.widgets import Input

from slurm_share.core.errors import UsageError
from slurm_share.load import Column

NAME = Column("name", "NAME", "", lambda row: row[0], lambda row: row[0])
SIZE = Column("size", "SIZE", "", lambda row: row[1], lambda row: row[2], unit="GB")
ROWS = [("=1+1", "?", None), ("-", "2.5GB", 2.5), ("@a", "-", None), ('a,"b"\nc', "UNLIMITED", float("inf"))]


def test_csv_has_units_values_and_no_formula() -> None:
    found = list(csv.reader(io.StringIO(export.as_csv([NAME, SIZE], ROWS, 0.0))))
    assert found == [["NAME", "SIZE (GB)"], ["'=1+1", "?"], ["-", "2.5"], ["'@a", "-"], found[4]]
    assert found[4][0].startswith("a,")
    assert found[4][1] == "UNLIMITED"


@pytest.mark.parametrize("text", ["=a", "+a", "-a", "@a", "\ta", "\ra"])
def test_every_begin_of_a_formula_is_neutral(text: str) -> None:
    assert export.neutral(text) == f"'{text}"
    assert export.neutral(-1.5) == -1.5


def test_json_has_null_for_what_is_not_known() -> None:
    found = json.loads(export.as_json([NAME, SIZE], ROWS[:2], {"table": "a", "taken": 0.0}))
    assert found["rows"] == [{"name": "=1+1", "size": None}, {"name": "-", "size": 2.5}]
    assert found["units"] == {"size": "GB"}


def test_a_time_has_its_date_since_a_file_is_read_on_another_day() -> None:
    start = Column("start", "START", "", lambda row: "?" if row is None else "14:05", lambda row: row, is_moment=True)
    now = time.mktime((2026, 11, 29, 14, 0, 0, 0, 0, -1))
    assert export.as_csv([start], [300.2, None], now) == "START\n2026-11-29T14:05:00\n?\n"
    found = json.loads(export.as_json([start], [-86400, None], {"taken": now}))
    assert found["rows"] == [{"start": "2026-11-28T14:00:00"}, {"start": None}]


@pytest.mark.parametrize("text", ["", "  ", "a", "a.txt", "a\0.csv", "~nobody-has-this-name/a.csv"])
def test_a_file_without_a_format_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(UsageError):
        export.file_of(text)


def test_an_existing_file_stays_unless_it_may_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("mine")
    with pytest.raises(FileExistsError):
        export.write(file, "new")
    assert file.read_text() == "mine"
    export.write(file, "new", over=True)
    assert file.read_text() == "new"
    assert [one.name for one in tmp_path.iterdir()] == ["a.csv"]


def test_what_is_no_ordinary_file_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    for file in (tmp_path / "a.csv", tmp_path):
        with pytest.raises(UsageError, match="no ordinary file"):
            export.write(file, "new", over=True)
    assert stat.S_ISFIFO((tmp_path / "a.csv").stat().st_mode)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory"):
        export.write(tmp_path / "b" / "a.csv", "new")


@pytest.mark.parametrize("suffix", ["csv", "json", "svg"])
async def test_the_filtered_rows_are_written_and_a_file_is_asked_about(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.{suffix}"
    async with shown_dashboard(arrived_picture(), size=(80, 24)) as (pilot, app, _):
        await pilot.press("3")
        await until(pilot, lambda: app.main_screen.location.view == "jobs")
        app.main_screen.grid.query_text = "user=alice"
        for turn in range(2):
            await pilot.press("e")
            await until(pilot, lambda: isinstance(app.screen, ExportScreen))
            assert "4 rows" in screen_text(app)
            app.screen.query_one(Input).value = str(file)
            await pilot.press("enter")
            if turn:
                await until(pilot, lambda: "this file exists" in screen_text(app))
                assert file.read_text() == "mine"
                await pilot.press("enter")
            await until(pilot, lambda: file.exists() and file.read_text() not in ("", "mine"))
            text = file.read_text()
            file.write_text("mine")
    if suffix == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [row["USER"] for row in rows] == ["alice"] * 4
    elif suffix == "json":
        found = json.loads(text)
        assert (found["filter"], found["simulated"], len(found["rows"])) == ("user=alice", True, 4)
    else:
        assert "interactive" in text
        assert "this file exists" not in text


async def test_a_read_only_dashboard_writes_nothing() -> None:
    async with shown_dashboard(arrived_picture(), readonly=True) as (pilot, app, _):
        await pilot.press("e")
        await pilot.pause()
        assert len(app.screen_stack) == 1
