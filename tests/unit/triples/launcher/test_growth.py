"""Tasks that are added while a launcher runs, and at its end."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from launches import QUIET, wait_for
from msgspec.structs import replace
from test_launch import Launch

from slurm_share.core.errors import UsageError
from slurm_share.packing import TaskSpec
from slurm_share.triples import added_tasks, run_folder
from slurm_share.triples.added_tasks import Head, append
from slurm_share.triples.launcher.claims import Claims
from slurm_share.triples.launcher.feeder import Feeder
from slurm_share.triples.launcher.growth import Growth, seal_at_end
from slurm_share.triples.launcher.node import Node
from slurm_share.triples.records import Run, Triple
from slurm_share.triples.rules import deal, failing, task_files
from slurm_share.triples.task_stream import Lease, LineReader, TaskStream

NOTE = """#!/bin/bash
echo "$LLSUB_TASK $LLSUB_TASKS $1" >>effects
until [ -e go ] || [ "$1" != wait ]; do sleep 0.05; done
"""


def add(folder: Path, run: Run, *lines: str) -> int:
    entry = append(folder, Head(first=0, tasks=len(lines), has_lines=True), lines, tasks=run.first_tasks, most=10**6)
    assert entry is not None
    return entry.head.first


def effects(folder: Path) -> list[str]:
    file = folder / "effects"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize("distribution", ["block", "cyclic", "dynamic"])
def test_tasks_that_are_added_while_it_runs_are_run(tmp_path: Path, distribution: str) -> None:
    made = Launch(tmp_path, NOTE, 2, ["wait", "b", "c"], task_kind="input", distribution=distribution)
    made.write(replace(made.run, tasks=3))
    made.start()
    wait_for(lambda: effects(tmp_path))
    add(made.folder, made.run, "d", "e")
    wait_for(lambda: any(line.startswith("4 ") for line in effects(tmp_path)))
    add(made.folder, made.run, "f")
    (tmp_path / "go").touch()
    code, text = made.end()
    assert code == 0, text
    assert "6 of 6 tasks done" in text
    assert Counter(line.split()[0] for line in effects(tmp_path)) == Counter(map(str, range(6)))
    assert "4 5 e" in effects(tmp_path), "LLSUB_TASKS counts the tasks that are known when a task starts"
    assert added_tasks.read_last(made.folder)[1].seal, "the job is sealed"


def test_a_percentage_of_failed_tasks_counts_those_that_were_added(tmp_path: Path) -> None:
    made = Launch(tmp_path, NOTE + '[ "$1" != bad ]\n', 2, ["wait"], task_kind="input")
    made.write(failing.with_max_failures(replace(made.run, tasks=1), "50%"))
    made.start()
    wait_for(lambda: effects(tmp_path))
    add(made.folder, made.run, "bad", "c", "d")
    wait_for(lambda: len(made.ended()) >= 1)
    (tmp_path / "go").touch()
    code, text = made.end()
    assert code == 1
    assert "3 of 4 tasks done" in text


def test_a_killed_launcher_and_its_successor_run_each_added_task_once(tmp_path: Path) -> None:
    made = Launch(tmp_path, NOTE, 2, ["wait"], task_kind="input", distribution="dynamic")
    made.write(replace(made.run, tasks=1))
    made.start()
    wait_for(lambda: effects(tmp_path))
    for number in range(20):
        add(made.folder, made.run, f"x{number}")
    wait_for(lambda: len(made.ended()) >= 5)
    os.kill(made.loop_pid(), signal.SIGKILL)
    assert made.end()[0] == 1
    add(made.folder, made.run, "last")
    (tmp_path / "go").touch()
    code, text = made.go()
    assert code == 0, text
    run = run_folder.read_run(made.folder)
    assert run.tasks == 22
    assert set(made.result_outcomes().values()) == {"done"}
    twice = [task for task, tried in made.attempts().items() if [one.outcome for one in tried].count("done") > 1]
    assert twice == []


def test_a_task_that_another_user_has_put_there_does_not_run(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: another user's file needs root")
    made = Launch(tmp_path, NOTE, 2, ["wait"], task_kind="input")
    made.write(replace(made.run, tasks=1))
    made.start()
    wait_for(lambda: effects(tmp_path))
    (tmp_path / "other").mkdir()
    add(tmp_path / "other", replace(made.run, tasks=1), "foreign")
    os.chown(tmp_path / "other" / "added" / "1", 65534, 65534)
    (tmp_path / "other" / "added").rename(made.folder / "added")
    (tmp_path / "go").touch()
    code, text = made.end()
    assert code == 1
    assert "added/1: it belongs to nobody, whose tasks do not run here; remove it" in text
    assert len(effects(tmp_path)) == 1


def a_node(folder: Path, index: int = 0, count: int = 1) -> Node:
    return Node(
        name=f"n{index}", index=index, count=count, job="4711", first_rank=0, last_rank=0, folder=folder, workers=()
    )


def a_launcher(folder: Path, index: int, count: int) -> tuple[Growth, Feeder]:
    run = run_folder.with_added(folder, RUN)
    claims = Claims(folder / "queue" / "4711", f"n{index}", deal.chunks_of(run))
    growth, feeder = Growth(run, folder, a_node(folder, index, count), ["a"], []), Feeder(run, range(1), set(), claims)
    growth.begin(feeder)
    return growth, feeder


RUN = Run(
    name="a",
    command=(),
    cwd="/",
    triple=Triple(2, 1),
    processes=2,
    tasks=1,
    task_kind="command",
    distribution="dynamic",
)


def test_only_the_last_launcher_seals_and_what_came_before_is_its_own(tmp_path: Path) -> None:
    first, second = a_launcher(tmp_path, 0, 2), a_launcher(tmp_path, 1, 2)
    assert first[1].take() == 0
    assert first[1].take() is None
    assert first[0].may_end(first[1]), "the other one still runs"
    assert added_tasks.read_last(tmp_path) == (0, None)
    add(tmp_path, RUN, "b")
    assert not second[0].may_end(second[1]), "it is the last one, and a task was added"
    assert second[1].take() == 1
    assert second[0].may_end(second[1])
    assert added_tasks.read_last(tmp_path)[1].seal == "4711"
    assert add(tmp_path, RUN, "c") == 2
    assert not second[0].look(second[1]), "a task after the seal is another job's"
    assert seal_at_end(tmp_path, RUN, "4711").tasks == 2
    assert run_folder.with_added(tmp_path, RUN).tasks == 3


def test_the_summary_seals_a_job_whose_launchers_did_not(tmp_path: Path) -> None:
    add(tmp_path, RUN, "b")
    assert seal_at_end(tmp_path, RUN, "4711.1").tasks == 2
    assert added_tasks.read_last(tmp_path)[1].seal == "4711.1"
    assert seal_at_end(tmp_path, RUN, "4711.1").tasks == 2
    assert added_tasks.read_last(tmp_path)[0] == 2


def test_nodes_deal_added_tasks_once_whatever_each_has_seen_when(tmp_path: Path) -> None:
    add(tmp_path, RUN, "b", "c")
    first = a_launcher(tmp_path, 0, 2)
    add(tmp_path, RUN, *"defg")
    second = a_launcher(tmp_path, 1, 2)
    first[0].look(first[1])
    taken = []
    while (task := first[1].take()) is not None:
        taken.append(task)
        if (task := second[1].take()) is not None:
            taken.append(task)
    assert sorted(taken) == list(range(7))
    assert first[0]._lines[1:] == list("defg")


def named(run: str, name: str = "", *after: str) -> tuple[str, TaskSpec]:
    return run, TaskSpec(name=name, after=after)


@pytest.mark.parametrize("distribution", ["block", "cyclic", "dynamic"])
def test_a_task_waits_for_what_it_names_and_is_given_up_with_it(tmp_path: Path, distribution: str) -> None:
    made = Launch(tmp_path, "", 2)
    tasks = [
        named("cat a b >both", "both", "part"),
        named("sleep 0.2; echo a >a", "part"),
        named("echo b >b", "part"),
        named("[ $LLSUB_ATTEMPT = 2 ]", "late"),
        named("echo late >late", "", "late"),
        named("[ -e good ]", "bad"),
        named("echo x >x", "never", "bad", "part"),
        named("echo y >y", "", "never"),
    ]
    run = {"command": (), "task_kind": "command", "distribution": distribution, "retries": 1, "tasks": len(tasks)}
    made.write(replace(made.run, **run))
    (made.folder / "tasks").write_text("".join(f"{line}\n" for line, _ in tasks))
    (made.folder / "specs.jsonl").write_bytes(run_folder.render_specs([spec for _, spec in tasks]))
    code, text = made.go()
    assert code == 1
    assert made.result_outcomes() == dict.fromkeys(range(5), "done") | {5: "failed", 6: "given up", 7: "given up"}
    assert (tmp_path / "both").read_text() == "a\nb\n"
    assert made.results()[6].why == "it needs task 5 (bad), which failed (exit code 1)"
    assert made.results()[7].why.startswith("it needs task 6 (never), which")
    assert "given up: 6-7" in text
    (tmp_path / "good").touch()
    entry = append(
        made.folder,
        Head(first=0, tasks=1, has_lines=True, has_specs=True),
        ["cat x >added"],
        run_folder.render_specs([TaskSpec(after=("never", "bad"))]).splitlines(),
        tasks=len(tasks),
        most=100,
    )
    assert entry is not None
    code, text = made.go()
    assert code == 0, text
    assert set(made.result_outcomes().values()) == {"done"}
    assert [len(made.attempts()[task]) for task in (0, 1, 5, 6)] == [1, 1, 3, 2], "what was done is not run again"


def test_what_waits_for_an_unfinished_task_is_left_and_the_launcher_ends(tmp_path: Path) -> None:
    made = Launch(tmp_path, "", 1)
    made.write(replace(made.run, command=(), task_kind="command", distribution="dynamic", tasks=2))
    (made.folder / "tasks").write_text("exit 75\necho x >x\n")
    specs = [TaskSpec(name="a"), TaskSpec(after=("a",))]
    (made.folder / "specs.jsonl").write_bytes(run_folder.render_specs(specs))
    code, text = made.go()
    assert code == 75, text
    assert made.result_outcomes() == {0: "saved"}
    assert "unfinished: 1" in text


IMPATIENT = """
import sys
from slurm_share.triples.launcher import growth
growth.LEASE_S = 1.0
from slurm_share.cli.main import main
sys.exit(main(["launch", *sys.argv[1:]]))
"""


def test_a_run_stays_open_while_a_lease_is_renewed_and_ends_without(tmp_path: Path) -> None:
    made = Launch(tmp_path, NOTE, 1, ["a"], task_kind="input", distribution="dynamic")
    lease = Lease(made.folder)
    made.start()
    wait_for(lambda: len(made.ended()) == 1)
    for number in range(3):
        add(made.folder, made.run, f"x{number}")
        wait_for(lambda done=number + 2: len(made.ended()) == done)
    assert made.process.poll() is None
    lease.close()
    code, text = made.end()
    assert code == 0, text
    assert "4 of 4 tasks done" in text


def test_a_run_whose_client_was_killed_ends_by_itself(tmp_path: Path) -> None:
    made = Launch(tmp_path, NOTE, 1, ["a"], task_kind="input", distribution="dynamic")
    Lease(made.folder)
    made.process = made.launch([sys.executable, "-c", IMPATIENT, str(made.folder)], QUIET)
    code, text = made.end()
    assert code == 0, text
    assert "has not been heard of for 1 s: the run ends" in text
    assert not list((made.folder / "added").glob("open-*")), "a later job does not wait for it"


def a_stream(folder: Path, fd: int, taken: list[int]) -> TaskStream:
    run = replace(RUN, task_kind="input", command=("/a",), tasks=1)
    return TaskStream(folder, run, LineReader(fd), [], lambda first, count: taken.append(first) is None)


def test_lines_become_tasks_with_their_numbers_and_options(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(run_folder.render_run(RUN))
    reading, writing = os.pipe()
    taken: list[int] = []
    stream = a_stream(tmp_path, reading, taken)
    os.write(writing, b"a\n#LLSUB --task-time=9s\nb\nhalf")
    assert stream._reader.gather(0.1)
    assert stream.add_some()
    os.write(writing, b" a line\n#LLSUB --task-time=8s\n")
    assert stream._reader.gather(0.1)
    assert stream.add_some()
    os.write(writing, b"d\n\ne\n")
    os.close(writing)
    with pytest.raises(UsageError, match="line 7 is empty"):
        stream.add_all(Lease(tmp_path))
    os.close(reading)
    entries = list(added_tasks.read_entries(tmp_path))
    assert [entry.lines for entry in entries] == [("a", "b"), ("half a line",), ("d",)], "those before it are added"
    specs = run_folder.read_specs(tmp_path, run_folder.read_run(tmp_path))
    assert [spec.timeout_s for spec in specs] == [None, None, 9.0, 9.0, 8.0]
    numbers = [
        task_files.line_number(task - head.first, head.other_lines, head.first_line)
        for task in range(1, 5)
        if (head := added_tasks.find_head(tmp_path, task)) is not None
    ]
    assert numbers == [1, 3, 4, 6]
    assert stream.count == 4
    assert taken == [1]
