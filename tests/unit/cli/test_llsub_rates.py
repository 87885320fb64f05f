"""llsub's options of how rates are measured, and the rate that --watch shows."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from llsub_desk import call, make_desk, submitted

from slurm_share.packing import EventLog, Progress, WorkRate
from slurm_share.packing.events import PROGRESS_MOST_S
from slurm_share.triples import follow, run_folder
from slurm_share.triples.records import Run, Triple
from slurm_share.triples.rules.progress import TaskCounts, as_text


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with scripts and with an sbatch that records its arguments."""
    return make_desk(tmp_path, monkeypatch)


@pytest.mark.parametrize("pack", [(), ("--pack",)])
def test_expression_and_window_stay_with_the_run(here: Path, pack: tuple[str, ...]) -> None:
    assert call("./plain.sh", "[1,2]", *pack, "--progress", r"step (\d+)", "--window=5") == 0
    run = run_folder.read_run(here / "LLSUB.1")
    assert (run.progress, run.rate_window_s) == (r"step (\d+)", 5.0)
    assert (run.pack is None) == (not pack)
    if run.pack is not None:
        assert run.pack.settings.rate_window_s == 5.0
    assert call("--resume", "LLSUB.1") == 0
    assert run_folder.read_run(here / "LLSUB.1") == run


def test_without_the_options_windows_are_half_a_minute(here: Path) -> None:
    assert call("./plain.sh", "[1,2]") == 0
    run = run_folder.read_run(here / "LLSUB.1")
    assert (run.progress, run.rate_window_s) == ("", 30.0)


def test_lines_of_the_script_count_less_than_the_command_line(here: Path) -> None:
    script = here / "own.sh"
    script.write_text("#!/bin/sh\n#LLSUB --progress='epoch (\\d+)' --window=90\n")
    script.chmod(0o755)
    assert call("./own.sh", "[1,2]", "--window=10") == 0
    run = run_folder.read_run(here / "LLSUB.1")
    assert (run.progress, run.rate_window_s) == (r"epoch (\d+)", 10.0)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--progress=epoch", "has 0 groups"),
        ("--progress=(", "is not a regular expression of Python"),
        ("--progress=(a)(b)", "has 2 groups"),
        ("--window=0", "from 1 to 3600"),
        ("--window=4000", "from 1 to 3600"),
        ("--window=x", "from 1 to 3600"),
    ],
)
def test_mistake_is_a_sentence_on_the_command_line_and_in_the_script(
    here: Path, capsys: pytest.CaptureFixture[str], option: str, why: str
) -> None:
    assert call("./plain.sh", "[1,2]", option) == 2
    assert why in capsys.readouterr().err
    (here / "plain.sh").write_text(f"#!/bin/sh\n#LLSUB '{option}'\n")
    assert call("./plain.sh", "[1,2]") == 2
    said = capsys.readouterr().err
    assert "line 2 of plain.sh" in said
    assert why in said
    assert submitted(here) == []


@pytest.mark.parametrize("option", ["--progress=(a)", "--window=5"])
def test_without_a_triple_they_are_refused(here: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert call("./plain.sh", option) == 2
    assert f"{option.partition('=')[0]} needs a triple" in capsys.readouterr().err


# ---- --watch ----


def write(folder: Path, node: str, **more: object) -> None:
    place = folder / f"p{node}_n{node}"
    place.mkdir(exist_ok=True)
    common = {"node": f"n{node}", "job": "12", "processes": 8, "running": 8, "failed": 0, "left": 50, "done": 0}
    log = EventLog(place, "12")
    log.progress(Progress(**{**common, "at": 100.0, **more}))  # type: ignore[arg-type]
    log.close()


RUN = Run(name="a", command=("/a",), cwd="/", triple=Triple(2, 8), processes=16, tasks=200)
WORK = WorkRate(per_s=412.0, tasks=8, source="progress", kind="a")


def test_rate_of_ended_tasks_is_their_mean_since_the_launchers_began(tmp_path: Path) -> None:
    """A watch that starts half a second before 16 tasks end does not show 32 a second."""
    write(tmp_path, "0", began=60.0, at=99.5, done=72)
    write(tmp_path, "8", began=61.0, at=99.5, done=0)
    reader = follow.TaskCountsReader(tmp_path, RUN, 12)
    assert reader.read() is not None
    write(tmp_path, "0", began=60.0, at=100.0, done=80)
    write(tmp_path, "8", began=61.0, at=100.0, done=8)
    counts = reader.read()
    assert counts is not None
    assert counts.per_s == pytest.approx(88 / 40)


def test_a_node_is_silent_a_minute_after_its_last_line_of_progress_unless_it_has_ended(tmp_path: Path) -> None:
    write(tmp_path, "0", began=60.0, at=100.0)
    write(tmp_path, "8", began=60.0, at=100.0, ended=True)
    reader = follow.TaskCountsReader(tmp_path, RUN, 12)
    reader.read()
    later = time.monotonic() + follow.SILENT_S + 1
    assert reader.silent(later - follow.SILENT_S) == []
    assert reader.silent(later) == ["n0"]
    assert follow.SILENT_S > 2 * PROGRESS_MOST_S  # a launcher that runs for days writes that seldom


def test_without_an_end_or_a_beginning_there_is_no_rate(tmp_path: Path) -> None:
    write(tmp_path, "0", began=60.0, done=0)
    counts = follow.TaskCountsReader(tmp_path, RUN, 12).read()
    assert counts is not None
    assert counts.per_s is None
    write(tmp_path, "0", done=5)
    counts = follow.TaskCountsReader(tmp_path, RUN, 12).read()
    assert counts is not None
    assert counts.per_s is None


def test_work_of_nodes_that_count_the_same_is_added_up_and_shown_with_its_source(tmp_path: Path) -> None:
    write(tmp_path, "0", work=WORK)
    write(tmp_path, "8", work=WORK)
    counts = follow.TaskCountsReader(tmp_path, RUN, 12).read()
    assert counts is not None
    assert as_text(counts).endswith("184 left, 824 units/s, 16 tasks 51.5 each (LLSUB_PROGRESS)")


@pytest.mark.parametrize("other", [{"source": "log"}, {"kind": "b"}])
def test_work_that_counts_different_things_is_not_added_up(tmp_path: Path, other: dict[str, str]) -> None:
    write(tmp_path, "0", work=WORK)
    write(tmp_path, "8", work=WorkRate(**{"per_s": 1.0, "tasks": 8, "source": "progress", "kind": "a", **other}))  # type: ignore[arg-type]
    counts = follow.TaskCountsReader(tmp_path, RUN, 12).read()
    assert counts is not None
    assert counts.work is None


def test_one_task_has_no_each_and_none_that_runs_has_no_rate() -> None:
    one = WorkRate(per_s=0.003125, tasks=1, source="output")
    assert as_text(TaskCounts(2, 0, 0, 1, work=one)).endswith("0.00313 lines/s (lines of output)")
    assert as_text(TaskCounts(2, 2, 0, 0, work=one)).endswith("0 left")
