"""The table of failure modes, with the tests that show each: python tests/failure_modes.py writes the document anew.

A test belongs to a row by its name (`test_row_07_...`, `test_rows_14_and_15_...`), or because the row names it here.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
DOCUMENT = TESTS.parent / "packaging/docs/failure-modes.md"
FIGURES = TESTS / "bench/results/chaos.json"


@dataclass(frozen=True)
class Row:
    """One failure, and what is promised for it."""

    number: int
    failure: str
    jobs: str
    """What the jobs on the node notice."""
    node: str
    """What the node does, and whether it stays in service."""
    also: tuple[str, ...] = ()
    """Tests that show it and are named for something else."""


ROWS = (
    Row(
        1,
        "A Prolog runs twice, or for two jobs of a user at once",
        "both share one MPS daemon of their GPU",
        "in service",
    ),
    Row(2, "An Epilog runs where no Prolog did", "nothing", "nothing is done; in service"),
    Row(
        3,
        "An Epilog runs twice for a job",
        "the user's other jobs keep what is theirs",
        "the second does nothing; in service",
    ),
    Row(4, "The first of two jobs on a GPU ends", "the other's daemon, folder and tasks are untouched", "in service"),
    Row(
        5,
        "Tasks are still on the GPU when the last job ends, or were killed in flight",
        "they are ended",
        "told first, then signals, in bounded time; in service",
    ),
    Row(
        6,
        "MPS does not answer, to `quit` or to anything",
        "the next job has a new daemon",
        "SIGTERM, then SIGKILL, after `release_deadline_s`; in service",
    ),
    Row(
        7,
        "Sockets, pid files and folders of a crash or an earlier boot",
        "have a fresh daemon",
        "old state is void with a new boot; what is dead is made anew",
        ("test_a_power_cut_leaves_no_old_state_behind",),
    ),
    Row(8, "A process number means another process by now", "nothing", "it is left alone, and the log says so"),
    Row(
        9,
        "A folder or link was put where ours is to be",
        "shared without MPS, or with a folder made anew",
        "nothing is written through it; in service",
    ),
    Row(
        10,
        "A previous user's daemon is still there",
        "have their own",
        "it is ended, by signals if need be; what outlives SIGKILL drains the node",
        ("test_somebody_elses_process_on_the_gpu_is_ended_and_the_node_serves_on",),
    ),
    Row(
        11,
        "Operators run an MPS daemon of their own",
        "shared without MPS, and told so; `mps=on` is refused",
        "theirs is named and never touched",
    ),
    Row(
        12,
        "An MPS server is in FAULT",
        "the GPU's next job goes without MPS if clients are there, else has a new daemon",
        "other GPUs are untouched; in service",
    ),
    Row(13, "One task has a fatal fault", "tasks on that GPU fail, those on other GPUs finish", "in service"),
    Row(
        14,
        "A daemon dies in mid-job",
        "tasks that start later are refused with a sentence, exit code 69",
        "what it left goes with the job; in service",
    ),
    Row(
        15,
        "A task would run past MPS without knowing",
        "it does not begin: a sentence, exit code 69",
        'in service; with `compute_mode = "exclusive_process"` the GPU itself refuses',
        ("test_a_program_that_goes_round_mps_fails_on_an_exclusive_gpu",),
    ),
    Row(
        16,
        "A GPU was left in exclusive mode",
        "nothing",
        "the mode found is put back by the Epilog, or by the next hook of any job",
        ("test_an_exclusive_gpu_is_set_for_the_share_and_put_back_after_it",),
    ),
    Row(
        17,
        "GPUs are named by number, by UUID, as MIG instances, by the dozen, or not at all",
        "known by UUID, in Slurm's order; what names no GPU is a sentence",
        "in service",
    ),
    Row(18, "Numbers of GPUs are counted anew twice", "each task is on the GPU that its plan says", "in service"),
    Row(
        19,
        "More tasks on a GPU than MPS takes clients",
        "refused with the arithmetic",
        "in service",
        ("test_more_tasks_than_mps_takes_are_refused_with_the_arithmetic",),
    ),
    Row(20, "A share without a GPU", "refused by sbatch, or with a sentence in the job's output", "in service"),
    Row(
        21,
        "A hostile value",
        "refused by sbatch with the valid form",
        "one bounded line in the log, no shell; in service",
        ("test_a_hostile_value_that_reaches_the_prolog_is_logged_and_does_nothing",),
    ),
    Row(
        22,
        "`srun --share-gpu` in a job that is shared otherwise",
        "the step ends with what to do instead; the job goes on",
        "in service",
    ),
    Row(
        23,
        "Another script fails first, and our Epilog is skipped",
        "nothing",
        "Slurm drains it for that script; the next job's Prolog clears what was left",
    ),
    Row(
        24,
        "A folder of hooks is empty, or a file in it cannot be run",
        "Slurm requeues and holds them",
        "slurmd drains it, whatever the hook; in order again, the next job runs",
    ),
    Row(
        25,
        "slurmd kills what the Prolog left behind",
        "their daemons live",
        "daemons hold no pipe and no process group of the hook's",
    ),
    Row(26, "PrologFlags=RunInJob", "shared without MPS, and told why", "in service"),
    Row(
        27, "The driver is slow", "after `hook_deadline_s` shared without MPS", "nothing half-started stays; in service"
    ),
    Row(
        28,
        "slurmd restarts, the node loses power, the package is upgraded in mid-job",
        "go on, or are requeued by Slurm; their daemons are joined, not doubled",
        "what is over is told by who lives; in service. A slurmd that is killed between a job's Prolog and its first"
        " step runs no Epilog for it: the next job's Prolog clears what is left",
        ("test_a_suspended_jobs_stopped_tasks_end_with_the_job",),
    ),
    Row(
        29,
        "A limit names a GPU that the task does not see",
        "each task's limit is for its one GPU; a task over it ends alone",
        "what was set is read back; screens show the limit that the task has",
        ("test_a_task_that_takes_more_than_its_cap_ends_alone", "test_a_value_that_does_not_read_back_is_refused"),
    ),
    Row(
        30,
        "The plugin is of another Slurm release",
        "ordinary jobs run; sbatch does not know the option; running shared jobs end well",
        "the object is left out with a line in slurmd's log; in service",
    ),
)

OTHER_MODES = {
    "a full disk of logs": "test_a_full_log_disk_keeps_no_hook_from_its_work",
    "a full state folder": "test_a_full_state_folder_keeps_no_epilog_from_its_work",
    "a clock that is set": "test_a_clock_that_jumps_makes_nobody_live_on",
    "RemoveIPC": "test_a_logout_that_takes_shared_memory_takes_no_share",
    "two partitions with different policy on one node": "test_a_partition_may_have_a_mode_of_its_own",
    "a program that wants all GPUs of a shared job": "test_a_step_that_wants_no_slot_has_the_jobs_gpus",
    "a hook that is killed": "test_a_hook_killed_half_way_is_taken_up_by_the_next_one",
    "a GPU that is lost": "test_a_gpu_that_is_lost_in_mid_job_keeps_nothing_else_from_being_cleared",
    "a hundred parts of GPUs while tasks, MPS and slurmd are killed": (
        "test_a_hundred_parts_survive_what_is_killed_at_random"
    ),
    "a slurmstepd that slurmctld does not answer": "test_a_slurmstepd_whose_task_is_over_keeps_nobody_away",
    "a minute of chaos": "test_a_minute_of_chaos_loses_nothing_and_leaves_nothing",
}
"""Failures that have no row, and a test each."""

HEAD = """\
# What breaks, and what happens then

Made by `python tests/failure_modes.py`. For each failure: what the jobs on the node notice, what the node does, and the
tests that show it with real Slurm daemons (`tests/run.sh` runs them; the GPUs are simulated, and what only a real one
can settle is in `tests/gpu/`). "In service": the node is not drained. What a user can bring about never drains one.
The hooks drain a node only when a process on a GPU outlives SIGKILL (row 10), when the driver cannot be read after a
job, or when three jobs in ten minutes were refused for a cause of the node's own: "What drains a node" in
[policy.md](policy.md).

| # | failure | jobs | node | tests |
|---|---|---|---|---|
"""
CHAOS = """
## Chaos

`python tests/chaos.py` does it all at once on six nodes: two users submit, cancel, requeue and overrun shared and
ordinary jobs while tasks, MPS, hooks, slurmd, slurmctld and nodes are killed, networks cut and disks filled; a seed
decides what happens when. Nothing befalls the last third of the nodes.

A job that did not complete is lost, unless something that can end a job in that state, with that exit code, befell one
of its nodes or the controller in its time, and slurmctld's log or the job's output tells of it
(`tests/chaos_runs/causes.py` says for each what that is). How many jobs each explains is below, and how sharp this
is: of the jobs that completed, how many would have been found if they had been refused, or had failed, instead,
whatever had been said of them. A node that Slurm drains since a hook was killed in mid-run is counted apart, and
so is what a killed Epilog left for the node's next shared job to clear; where no hook was killed nothing may be left.
`tests/bench/results/chaos_events.json` has
all that was judged. Slurm {slurm}, {date}, {machine}:

| | |
|---|---|
"""


def find_tests(tests: Path = TESTS) -> Mapping[str, str]:
    """Every test function and the file it is in, below tests/."""
    found = {}
    for file in sorted(tests.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] = str(file.relative_to(tests))
    return found


def rows_of(name: str) -> frozenset[int]:
    """The rows that a test's name says it shows."""
    match = re.match(r"test_rows?_(\d\d)(?:_and_(\d\d))?_", name)
    return frozenset(int(number) for number in match.groups() if number) if match else frozenset()


def shown_by(row: Row, known: Mapping[str, str]) -> list[str]:
    """The row's tests, its own first."""
    return [name for name in known if row.number in rows_of(name)] + [name for name in row.also if name in known]


def render(known: Mapping[str, str], figures: Mapping[str, Any]) -> str:
    """The document."""
    lines = []
    for row in ROWS:
        tests = "<br>".join(f"`{name}`" for name in shown_by(row, known))
        lines.append(f"| {row.number} | {row.failure} | {row.jobs} | {row.node} | {tests} |\n")
    step_argv = "".join(f"| {what} | `{name}` |\n" for what, name in OTHER_MODES.items())
    files = sorted({known[name] for row in ROWS for name in shown_by(row, known)})
    where = ", ".join(f"`tests/{file}`" for file in files)
    tail = f"\nThe tests are in {where}.\n\n## Besides\n\n| failure | test |\n|---|---|\n{step_argv}"
    return HEAD + "".join(lines) + tail + chaos(figures)


def chaos(figures: Mapping[str, Any]) -> str:
    """The last run of tests/chaos.py, from the file that it wrote."""
    shown = ((row["what"], f"{row['value']:g} {row['unit']}".strip()) for row in figures["rows"])
    rows = "".join(f"| {what} | {value} |\n" for what, value in shown)
    return CHAOS.format(**figures) + rows


def read_figures() -> Mapping[str, Any]:
    """What tests/chaos.py wrote."""
    return json.loads(FIGURES.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


if __name__ == "__main__":
    DOCUMENT.write_text(render(find_tests(), read_figures()), encoding="utf-8")
