"""The failed tasks of a run by their lines and logs, and the log of one task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_share.core.errors import StateError, UsageError
from slurm_share.packing import PackRequest, TaskSpec
from slurm_share.triples import failed_tasks, run_files, run_folder
from slurm_share.triples.records import Ended, Outcome, Run, Triple
from slurm_share.triples.rules import task_files

RUN = Run(
    name="cmds", command=(), cwd="/", triple=Triple(1, 2), processes=2, tasks=3, task_kind="command",
    distribution="dynamic", tasks_file="cmds.txt",
)  # fmt: skip


def made(
    folder: Path, run: Run, outcomes: dict[int, Outcome], lines: list[str], specs: tuple[TaskSpec, ...] = ()
) -> tuple[Path, Any, Any]:
    run_files.write(folder, run, lines, "", specs=specs)
    node = folder / "p0-p1_n1"
    node.mkdir()
    ended = [
        Ended(task=task, rank=task % 2, attempt=1, outcome=outcome, node="n1", job="1", started=1.0 + task,
              seconds=1.0, why="exit code 3")
        for task, outcome in outcomes.items()
    ]  # fmt: skip
    (node / run_folder.RESULTS).write_bytes(b"".join(map(run_folder.render_ended, ended)))
    return (node, *failed_tasks.read_account(folder))


def test_a_failed_task_is_named_with_its_line_log_reason_and_last_line(tmp_path: Path) -> None:
    """The line is that of the user's file, in which other lines may stand between the tasks."""
    run = replace(RUN, other_lines=(1, 3))
    node, *rest = made(tmp_path, run, {0: "done", 1: "failed", 2: "saved"}, ["a", "b --x 1", "c"])
    (node / "cmds.log.1").write_text("begin\noh no\n\n")
    assert failed_tasks.lines_of(tmp_path, *rest) == [
        "failed: 1 of 3, as task -> log (why): its last line",
        f"  task 1, line 4 of cmds.txt: b --x 1 -> {node}/cmds.log.1 (exit code 3): oh no",
    ]


def test_a_line_number_that_was_not_recorded_is_not_shown(tmp_path: Path) -> None:
    text = "".join(f"#LLSUB --gpu-mem={1 + task % 2}G\necho {task}\n" for task in range(2 + task_files.OTHERS_MOST))
    tasks = task_files.parse(text.encode(), "cmds.txt", TaskSpec(), is_json=False, is_packed=True)
    run = replace(RUN, tasks=len(tasks.lines), other_lines=tasks.others)
    _, *rest = made(tmp_path, run, {1: "failed"}, list(tasks.lines))
    assert failed_tasks.lines_of(tmp_path, *rest)[1] == "  task 1: echo 1 -> no log (exit code 3)"


def test_the_first_ten_are_named_and_how_to_see_the_others(tmp_path: Path) -> None:
    run = replace(RUN, tasks=30, logs="rank")
    node, *rest = made(tmp_path, run, dict.fromkeys(range(30), "failed"), [f"t{task}" for task in range(30)])
    (node / "cmds.log.0").write_text("--- task 0\nzero\n--- task 2\ntwo\n--- task 2, attempt 2\ntwo again")
    said = failed_tasks.lines_of(tmp_path, *rest)
    assert len(said) == 12
    assert said[3] == f"  task 2, line 3 of cmds.txt: t2 -> {node}/cmds.log.0 (exit code 3): two again"
    assert said[-1] == f"  and 20 more: llsub --failed {tmp_path}"
    assert len(failed_tasks.lines_of(tmp_path, *rest, None)) == 31


def test_bare_lines_are_a_tasks_file_with_the_same_requests(tmp_path: Path) -> None:
    base = TaskSpec()
    specs = (base, replace(base, gpu_mem_mib=6144), replace(base, gpus=2, name="a b"))
    lines = ["one", "two", "three"]
    _, run, found = made(
        tmp_path, replace(RUN, pack=PackRequest()), {0: "failed", 1: "failed", 2: "failed"}, lines, specs
    )
    text = "".join(f"{line}\n" for line in failed_tasks.bare_lines(tmp_path, run, found))
    again = task_files.parse(text.encode(), "x", base, is_json=False, is_packed=True)
    assert again.lines == tuple(lines)
    assert again.specs == specs


def test_bare_lines_wait_for_those_that_have_failed(tmp_path: Path) -> None:
    base = TaskSpec()
    specs = (
        replace(base, name="prep"),
        replace(base, name="train", after=("prep",), timeout_s=60.0, priority=-2, cpus=2),
        replace(base, after=("prep", "train")),
    )
    lines = ["one", "two", "three"]
    _, run, found = made(tmp_path, RUN, {0: "done", 1: "failed", 2: "given up"}, lines, specs)
    assert failed_tasks.bare_ending(tmp_path, run, found) == ".jsonl"
    text = "".join(f"{line}\n" for line in failed_tasks.bare_lines(tmp_path, run, found))
    again = task_files.parse(text.encode(), "x", base, is_json=True, is_packed=False)
    assert again.lines == ("two", "three")
    assert again.specs == (replace(specs[1], after=()), replace(specs[2], after=("train",)))


def test_tasks_of_one_command_have_no_lines(tmp_path: Path) -> None:
    _, run, found = made(tmp_path, replace(RUN, task_kind="rank", tasks=2), {0: "failed"}, [])
    assert failed_tasks.lines_of(tmp_path, run, found)[1].startswith("  rank 0 -> no log (exit code 3)")
    with pytest.raises(UsageError, match="has no lines: all of its tasks are one command; llsub --resume"):
        failed_tasks.bare_lines(tmp_path, run, found)


def test_the_log_of_a_task_is_all_that_its_attempts_wrote(tmp_path: Path) -> None:
    node, run, _ = made(tmp_path, replace(RUN, logs="rank"), {0: "done", 1: "done"}, ["a", "b", "c"])
    (node / "cmds.log.0").write_text("--- task 0\nzero--- task 2\ntwo\n--- task 0, attempt 2\nagain\n")
    (node / "cmds.log.1").write_text("--- task 1\none\n")
    read = {task: b"".join(failed_tasks.read_log(tmp_path, run, task)).decode() for task in range(3)}
    assert read == {
        0: "--- task 0\nzero--- task 0, attempt 2\nagain\n", 1: "--- task 1\none\n", 2: "--- task 2\ntwo\n",
    }  # fmt: skip
    with pytest.raises(UsageError, match="has the tasks 0 to 2, and no task 3"):
        next(failed_tasks.read_log(tmp_path, run, 3))
    (node / "cmds.log.1").write_bytes(b"")
    with pytest.raises(UsageError, match=r"task 1 of .* has written nothing, or has not started"):
        next(failed_tasks.read_log(tmp_path, run, 1))


@pytest.mark.parametrize("line", ["echo a", "[]", '["a\\u0000b"]', "[" * 3000, "9" * 5000], ids=lambda line: line[:9])
def test_a_damaged_input_of_a_map_is_said(tmp_path: Path, line: str) -> None:
    run = replace(RUN, kind="llmapreduce", command=("/bin/x",), task_kind="arguments", tasks_file="")
    _, run, found = made(tmp_path, run, {0: "failed"}, [line, '["b"]', '["c"]'])
    for read in (failed_tasks.lines_of, failed_tasks.bare_lines):
        with pytest.raises(UsageError, match=r"`tasks` is damaged: .* is no list of arguments; submit the run again"):
            read(tmp_path, run, found)


@pytest.mark.parametrize(
    "tasks", [-1, 10_000_001, 10**18, 10**4000], ids=["less than none", "too many", "more", "most"]
)
def test_a_run_with_a_number_of_tasks_that_no_run_has_is_refused(tasks: int) -> None:
    data = run_folder.render_run(RUN).replace(b'"tasks": 3', b'"tasks": %d' % tasks)
    with pytest.raises(StateError, match="tasks") as caught:
        run_folder.parse_run(data, "run.json")
    assert len(str(caught.value)) < 1000
