"""`slurm-share results` and the names of tasks with parameters, from the folder of a run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from msgspec import json as msgjson
from msgspec.structs import replace

from slurm_share.cli import llsub, main
from slurm_share.core.errors import UsageError
from slurm_share.packing import Progress, TaskSpec
from slurm_share.triples import failed_tasks, follow, result_rows, run_files, run_folder, task_names
from slurm_share.triples.launcher import report
from slurm_share.triples.records import Ended, Outcome, Run, Triple
from slurm_share.triples.rules.progress import TaskCounts

RUN = Run(
    name="t.sh", command=("/t.sh",), cwd="/", triple=Triple(1, 2), processes=2, tasks=4, task_kind="arguments",
    distribution="dynamic", other_lines=None,
)  # fmt: skip
PARAMS = [{"lr": "1e-3", "opt": "a b"}, {"lr": "1e-3", "opt": "c"}, {"lr": "1e-4", "opt": "c"}, {"lr": "1e-4"}]


def make(folder: Path, outcomes: dict[int, Outcome], *, logs: str = "task", is_live: bool = False) -> Path:
    """Make the folder of a run; return that of its node. A live node's launcher has just written its progress."""
    run = RUN if logs == "task" else replace(RUN, logs="rank")
    lines = [msgjson.encode([f"--{name}={value}" for name, value in one.items()]).decode() for one in PARAMS]
    run_files.write(folder, run, lines, "", specs=[TaskSpec(params=one) for one in PARAMS])
    node = folder / "p0-p1_n1"
    node.mkdir()
    ended = [
        Ended(task=task, rank=task % 2, attempt=1, outcome=outcome, node="n1", job="1", started=1.0 + task,
              seconds=65.0, code=0 if outcome == "done" else 3, why="" if outcome == "done" else "exit code 3",
              peak_gpu_mib=512, rate_per_s=12.5, units=100.0)
        for task, outcome in outcomes.items()
    ]  # fmt: skip
    (node / run_folder.RESULTS).write_bytes(b"".join(map(run_folder.render_ended, ended)))
    progress = Progress(node="n1", job="1", processes=2, running=1, done=1, failed=0, left=0, at=time.time(),
                        ended=not is_live)  # fmt: skip
    (node / "events.jsonl").write_bytes(msgjson.encode(progress) + b"\n")
    return node


def call(*words: str) -> int:
    try:
        return main.main(["results", *words])
    except SystemExit as error:
        return int(error.code or 0)


def test_each_task_has_a_row_with_what_it_printed_last(tmp_path: Path) -> None:
    node = make(tmp_path, {0: "done", 1: "failed"})
    (node / "t.sh.log.0").write_text("x\nLLSUB_RESULT loss=2\nLLSUB_RESULT loss=1 acc=0.5")
    (node / "t.sh.log.1").write_text("LLSUB_RESULT loss=9\n--- task 1, attempt 2\nLLSUB_RESULT loss=8\n")
    rows = result_rows.read(tmp_path).rows
    assert [row.results for row in rows] == [{"loss": "1", "acc": "0.5"}, {"loss": "9"}, {}, {}]
    assert [row.fixed["outcome"] for row in rows] == ["done", "failed", "not begun", "not begun"]
    assert [row.params for row in rows] == PARAMS


def test_a_task_that_did_not_run_has_no_time(tmp_path: Path) -> None:
    make(tmp_path, {0: "done", 1: "given up"})
    assert [row.fixed.get("seconds") for row in result_rows.read(tmp_path).rows] == [65.0, None, None, None]


def test_a_log_of_several_tasks_is_shared_out(tmp_path: Path) -> None:
    node = make(tmp_path, {0: "done", 2: "done"}, logs="rank")
    (node / "t.sh.log.0").write_text("--- task 0\nLLSUB_RESULT a=0\n--- task 2\nLLSUB_RESULT a=1\n")
    assert [row.results for row in result_rows.read(tmp_path).rows] == [{"a": "0"}, {}, {"a": "1"}, {}]


@pytest.mark.parametrize("logs", ["task", "rank"])
def test_while_a_run_runs_its_tasks_have_what_they_printed_up_to_now(tmp_path: Path, logs: str) -> None:
    node = make(tmp_path, {0: "done", 1: "failed"}, logs=logs, is_live=True)
    marks = (
        ["--- task 2\n", "--- task 1\n", "--- task 1, attempt 2\n"]
        if logs == "rank"
        else ["", "", "--- task 1, attempt 2\n"]
    )
    (node / f"t.sh.log.{2 if logs == 'task' else 0}").write_text(f"{marks[0]}LLSUB_RESULT loss=3\nLLSUB_RESULT loss=0.")
    (node / "t.sh.log.1").write_text(f"{marks[1]}LLSUB_RESULT loss=9\n{marks[2]}LLSUB_RESULT loss=7\n")
    found = result_rows.read(tmp_path)
    assert [row.fixed["outcome"] for row in found.rows] == ["done", "running", "running", "not begun"]
    assert found.rows[2].results == {"loss": "3"}
    assert found.rows[1].results == {"loss": "7"}
    assert found.rows[1].fixed["why"] == "again after exit code 3"


def test_the_table_on_a_terminal_and_the_best_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = make(tmp_path, {0: "done", 1: "failed", 2: "done"})
    for task, loss in ((0, "0.5"), (1, "0.1"), (2, "0.25")):
        (node / f"t.sh.log.{task}").write_text(f"LLSUB_RESULT loss={loss}\n")
    assert call(str(tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "TASK",
        "lr",
        "opt",
        "loss",
        "OUTCOME",
        "TIME",
        "WHY",
        "GPU",
        "MIB",
        "RATE",
        "NODE",
        "PROGRESS",
    ]
    assert lines[1].split()[:6] == ["0", "1e-3", "a", "b", "0.5", "done"]
    assert lines[-1] == "4 tasks: 2 done, 1 failed, 1 not begun"
    assert call(str(tmp_path), "--min", "loss", "--csv") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("2,1e-4,c,0.25,done,65.0,,512,12.5,n1,")
    assert call(str(tmp_path), "--by", "lr", "--sort", "loss", "--reverse", "--columns", "lr,loss", "--csv") == 0
    assert capsys.readouterr().out == "lr,loss\n1e-3,0.5\n1e-4,0.25\n"
    assert call(str(tmp_path), "--where", "outcome=failed", "--json") == 0
    assert [row["task"] for row in json.loads(capsys.readouterr().out)["rows"]] == [1]


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("--min", "los"), 2, "there is no column los; did you mean loss"),
        (("--by", "x"), 2, "there is no column x; the columns are task, lr"),
        (("--where", "loss"), 2, "is no condition"),
        (("--min", "progress", "--max", "loss"), 2, "not allowed with argument"),
        (("--columns", ""), 2, "there is no column ''"),
        (("--min", "opt"), 0, "no done task of {} has a number in the column opt"),
        (("--reverse",), 0, "--reverse ignored"),
    ],
)
def test_what_the_table_does_not_have_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, why: str
) -> None:
    node = make(tmp_path, {0: "done"})
    (node / "t.sh.log.0").write_text("LLSUB_RESULT loss=1\n")
    assert call(str(tmp_path), *words) == code
    assert why.format(tmp_path.name) in capsys.readouterr().err


def test_a_run_without_parameters_has_its_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(name="c", command=(), cwd="/", triple=Triple(1, 2), processes=2, tasks=2, task_kind="command")
    run_files.write(tmp_path, run, ["a --x 1", "b\x1b[31m"], "")
    assert call(str(tmp_path), "--columns", "task,command") == 0
    assert capsys.readouterr().out.split("\n")[:3] == ["TASK  command", "   0  a --x 1", r"   1  b\x1b[31m"]
    assert call(str(tmp_path / "no")) == 2
    assert "there is no folder" in capsys.readouterr().err


# ---- Names ----


def test_failed_tasks_are_named_by_their_parameters_and_come_back_as_a_table(tmp_path: Path) -> None:
    make(tmp_path, {0: "failed", 1: "done", 3: "failed"})
    run, found = failed_tasks.read_account(tmp_path)
    lines = failed_tasks.lines_of(tmp_path, run, found)
    assert lines[1].startswith('  task 0: lr=1e-3 opt="a b" -> no log (exit code 3)')
    assert failed_tasks.bare_lines(tmp_path, run, found) == ["lr,opt", "1e-3,a b", "1e-4,"]


def test_the_summary_has_the_parameters(tmp_path: Path) -> None:
    make(tmp_path, {0: "done"})
    assert report.summarize(tmp_path, run_folder.read_run(tmp_path)).labels[1] == "lr=1e-3 opt=c"
    assert json.loads((tmp_path / run_folder.SUMMARY).read_bytes())["params"] == PARAMS


def test_a_task_is_found_by_its_number_or_parameters(tmp_path: Path) -> None:
    make(tmp_path, {})
    run = run_folder.read_run(tmp_path)
    assert task_names.find(tmp_path, run, "3") == 3
    assert task_names.find(tmp_path, run, 'lr=1e-3,opt="a b"') == 0
    for asked, why in (
        ("lr=1e-3", r'2 tasks of .* have lr=1e-3 \(task 0: lr=1e-3 opt="a b", task 1: lr=1e-3 opt=c\)'),
        ("lr=7", "no task of .* has lr=7; slurm-share results"),
        ("rl=7", "have no parameter rl; they have lr, opt"),
        ("-1", "is neither the number of a task"),
        ("", "is not the number of a task"),
    ):
        with pytest.raises(UsageError, match=why):
            task_names.find(tmp_path, run, asked)


def test_commands_come_back_so_that_they_are_the_same(tmp_path: Path) -> None:
    run = Run(name="c", command=(), cwd="/", triple=Triple(1, 2), processes=2, tasks=1, task_kind="command")
    specs = [TaskSpec(params={"command": "a {x} {{y}}", "x": "1"}, timeout_s=600.0)]
    assert task_names.table_of(run, specs, ["a 1 {y}"], [0]) == "timeout,x,run\n10m,1,a 1 {{y}}\n"


def test_a_table_of_failed_tasks_says_what_they_wait_for(tmp_path: Path) -> None:
    run = Run(name="c", command=("/c",), cwd="/", triple=Triple(1, 2), processes=2, tasks=3, task_kind="arguments")
    specs = [
        TaskSpec(params={"x": "1"}, name="a"),
        TaskSpec(params={"x": "2"}, name="b", after=("a",)),
        TaskSpec(params={"x": "3"}, after=("a", "b")),
    ]
    table = task_names.table_of(run, specs, [""] * 3, [1, 2])
    assert table == "name,x,after\nb,2,\n,3,b\n"
    with pytest.raises(
        UsageError, match=r"the parameter timeout cannot be a column .*; llsub --resume runs the failed"
    ):
        task_names.table_of(run, [TaskSpec(params={"timeout": "1"})], [""], [0])


def test_the_log_of_a_task_is_printed_by_its_parameters(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    node = make(tmp_path, {1: "done"})
    (node / "t.sh.log.1").write_text("hello\n")
    assert llsub.main(["--log", str(tmp_path), "lr=1e-3,opt=c"]) == 0
    assert capfdbinary.readouterr().out == b"hello\n"


def test_the_line_of_progress_names_what_has_failed(tmp_path: Path) -> None:
    make(tmp_path, {0: "failed", 1: "done", 3: "failed"})
    names = follow._FailedNames(tmp_path, run_folder.read_run(tmp_path))
    assert names.clause(None) == ""
    assert names.clause(TaskCounts(4, done=1, failed=0, running=1)) == ""
    clause = names.clause(TaskCounts(4, done=1, failed=2, running=1))
    assert clause == '; failed: lr=1e-3 opt="a b", lr=1e-4'
    assert names.clause(TaskCounts(4, done=2, failed=2, running=0)) == clause


@pytest.mark.parametrize("logs", ["task", "rank"])
def test_no_log_keeps_the_table_waiting(tmp_path: Path, logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    node = make(tmp_path, {0: "done", 1: "done", 2: "done"}, logs=logs, is_live=True)
    os.mkfifo(node / "t.sh.log.0")
    (node / "t.sh.log.1").mkdir()
    (node / "t.sh.log.2").symlink_to("/dev/zero")
    (node / "t.sh.log.x").write_text("LLSUB_RESULT a=1\n")
    assert call(str(tmp_path), "--csv") == 0
    assert "Is a directory" in capsys.readouterr().err


def test_a_damaged_folder_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(name="c", command=("/a",), cwd="/", triple=Triple(1, 2), processes=2, tasks=2, task_kind="arguments")
    run_files.write(tmp_path, run, ["[]"], "")
    assert call(str(tmp_path), "--columns", "task,outcome,input", "--csv") == 0
    assert capsys.readouterr().out == "task,outcome,input\n0,not begun,\n1,not begun,\n"
    for name, text in (("tasks", "no list\n"), ("specs.jsonl", "{}\n"), ("run.json", "{}")):
        (tmp_path / name).write_text(text)
        assert call(str(tmp_path)) in (1, 2)
        assert "Traceback" not in capsys.readouterr().err


def test_without_a_folder_the_newest_run_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call() == 2
    assert "write its path: slurm-share results FOLDER" in capsys.readouterr().err
    for number, outcome in ((2, "done"), (10, "failed")):
        (tmp_path / f"LLSUB.{number}").mkdir()
        make(tmp_path / f"LLSUB.{number}", {0: outcome})  # type: ignore[dict-item]
    assert call("--columns", "outcome", "--csv") == 0
    assert capsys.readouterr().out.splitlines()[1] == "failed"


@pytest.mark.parametrize("logs", ["task", "rank"])
def test_a_running_task_has_the_progress_in_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: str) -> None:
    monkeypatch.setattr(f"{__name__}.RUN", replace(RUN, progress=r"step (\d+)"))
    node = make(tmp_path, {0: "done"}, logs=logs, is_live=True)
    text = "--- task 0\nstep 99\n--- task 2\nstep 1\n" if logs == "rank" else "step 1\n"
    (node / f"t.sh.log.{0 if logs == 'rank' else 2}").write_text(f"{text}step 2\nstep 31")
    row = result_rows.read(tmp_path).rows[2]
    assert (row.fixed["outcome"], row.fixed["progress"]) == ("running", 2.0)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert result_rows.read(tmp_path).rows[2].fixed["progress"] is None
