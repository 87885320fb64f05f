"""slurm-share pack explain on folders that a launcher does not leave behind, and groups that are not recorded."""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace

from slurm_share.cli import main
from slurm_share.packing import EVENTS, EventLog
from slurm_share.packing.records import PackRequest, PackSettings
from slurm_share.packing.rules.speed_account import GroupResult
from slurm_share.triples import run_folder
from slurm_share.triples.records import Run, Triple


@pytest.fixture
def folder(tmp_path):
    """A packed run of two tasks on one node, without a journal."""
    run = Run(
        name="mix", command=(), cwd="/", triple=Triple(1, 2), processes=2, tasks=2, task_kind="command",
        pack=PackRequest(settings=PackSettings()),
    )  # fmt: skip
    (tmp_path / run_folder.RUN).write_bytes(run_folder.render_run(run))
    (tmp_path / "p0-p1_n1").mkdir()
    return tmp_path


@pytest.mark.parametrize("kind", ["none", "fifo", "folder", "empty", "torn"])
def test_a_journal_that_says_nothing_is_no_error(folder, capsys, kind):
    file = folder / "p0-p1_n1" / EVENTS
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind != "none":
        file.write_text("" if kind == "empty" else '{"event":"decision","view":{"t":0.0},"begin":{"job":"7"')
    assert main.main(["pack", "explain", str(folder), "1"]) == 0
    assert capsys.readouterr().out == "task 1: it was part of no decision yet\n"


@pytest.mark.parametrize("task", ["2", "-1"])
def test_a_task_that_the_run_does_not_have_is_refused(folder, capsys, task):
    assert main.main(["pack", "explain", str(folder), "--", task]) == 2
    assert "its tasks are 0 to 1" in capsys.readouterr().err


def write_groups(node, groups):
    log = EventLog(node, "7")
    log.groups(groups)
    log.close()


GROUP = GroupResult(
    gpu=1, tasks=(0, 1), from_s=60.0, seconds=720.0, windows=6, stp=1.301, error=0.021, delta=1.25,
    slowdowns=(2.0, 1.25),
)  # fmt: skip
TEXT = "GPU 1, tasks 0 1: 1.30 +- 0.02 of one at a time for 12 min (delta 1.25)"


def test_without_a_task_every_measured_group_is_listed_in_order(folder, capsys):
    write_groups(folder / "p0-p1_n1", [GROUP, replace(GROUP, from_s=0.0, delta=None)])
    with open(folder / "p0-p1_n1" / EVENTS, "ab") as opened:
        opened.write(b'{"event":"group","gpu":1,\xff')
    assert main.main(["pack", "explain", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [TEXT.replace(" (delta 1.25)", ""), TEXT]
    (folder / "p2-p3_n2").mkdir()
    write_groups(folder / "p2-p3_n2", [GROUP])
    assert main.main(["pack", "explain", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"n1: {TEXT}", f"n2: {TEXT}"]


def test_a_run_without_measured_groups_says_what_it_takes(folder, capsys):
    assert main.main(["pack", "explain", str(folder)]) == 0
    assert "no group of tasks was measured" in capsys.readouterr().out
