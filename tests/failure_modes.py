"""The table of failure modes, with the tests of each: `python tests/failure_modes.py` writes the document.

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
    """One failure, and its effects."""

    number: int
    failure: str
    jobs: str
    """The effect on the jobs on the node."""
    node: str
    """The reaction of the node, and whether it stays in service."""
    also: tuple[str, ...] = ()
    """Tests of this failure that have other names."""


ROWS = (
    Row(
        1,
        "A Prolog runs twice, or for two jobs of a user at once",
        "both use one MPS daemon of their GPU",
        "in service",
    ),
    Row(2, "An Epilog runs without a Prolog before it", "no effect", "nothing is done; in service"),
    Row(
        3,
        "An Epilog runs twice for a job",
        "no effect on the user's other jobs",
        "the second does nothing; in service",
    ),
    Row(4, "The first of two jobs on a GPU ends", "no effect on the other's daemon, folder and tasks", "in service"),
    Row(
        5,
        "Tasks are still on the GPU when the last job ends, or were killed while they used it",
        "the tasks are ended",
        "through MPS first, then by signals, in limited time; in service",
    ),
    Row(
        6,
        "MPS does not answer to `quit`, or to any command",
        "the next job gets a new daemon",
        "SIGTERM, then SIGKILL, after `release_deadline_s`; in service",
    ),
    Row(
        7,
        "Sockets, pid files and folders are left by a crash or an earlier boot",
        "they get a new daemon",
        "state of an earlier boot is ignored; remains of dead daemons are replaced",
        ("test_a_power_cut_leaves_no_old_state_behind",),
    ),
    Row(8, "A pid was assigned to another process", "no effect", "that process gets no signal, and the log says so"),
    Row(
        9,
        "A user put a folder or link in the place of ours",
        "shared without MPS, or with a new folder",
        "nothing is written through it; in service",
    ),
    Row(
        10,
        "A previous user's daemon still runs",
        "they have their own",
        "it is ended, by signals if necessary; a process that outlives SIGKILL drains the node",
        ("test_somebody_elses_process_on_the_gpu_is_ended_and_the_node_serves_on",),
    ),
    Row(
        11,
        "Administrators run their own MPS daemon",
        "shared without MPS, which the output says; `mps=on` is refused",
        "the daemon is named and never stopped",
    ),
    Row(
        12,
        "An MPS server is in FAULT",
        "the GPU's next job runs without MPS if the server has clients, else gets a new daemon",
        "no effect on other GPUs; in service",
    ),
    Row(13, "One task has a fatal fault", "tasks on that GPU fail, those on other GPUs finish", "in service"),
    Row(
        14,
        "A daemon dies during a job",
        "tasks that start later are refused with a sentence, exit code 69",
        "its remains are removed after the job; in service",
    ),
    Row(
        15,
        "A task would silently run without MPS",
        "it does not start: a sentence, exit code 69",
        'in service; with `compute_mode = "exclusive_process"` the GPU itself refuses it',
        ("test_a_program_that_goes_round_mps_fails_on_an_exclusive_gpu",),
    ),
    Row(
        16,
        "A GPU was left in exclusive mode",
        "no effect",
        "the Epilog, or the next hook of any job, restores the previous mode",
        ("test_an_exclusive_gpu_is_set_for_the_share_and_put_back_after_it",),
    ),
    Row(
        17,
        "GPUs are named by number, by UUID, as MIG instances, more than ten, or not at all",
        "found by UUID, in Slurm's order; an entry that names no GPU is refused with a sentence",
        "in service",
    ),
    Row(18, "GPUs are renumbered twice (Slurm, MPS)", "each task is on the GPU in its plan", "in service"),
    Row(
        19,
        "There are more tasks on a GPU than MPS supports clients",
        "refused with the calculation",
        "in service",
        ("test_more_tasks_than_mps_takes_are_refused_with_the_arithmetic",),
    ),
    Row(20, "A share without a GPU", "refused by sbatch, or with a sentence in the job's output", "in service"),
    Row(
        21,
        "The option has a hostile value",
        "refused by sbatch with the valid form",
        "one line of limited length in the log, no shell; in service",
        ("test_a_hostile_value_that_reaches_the_prolog_is_logged_and_does_nothing",),
    ),
    Row(
        22,
        "`srun --share-gpu` has another value than its job",
        "the step ends with a sentence on what to do instead; the job continues",
        "in service",
    ),
    Row(
        23,
        "Another script fails first, and our Epilog is skipped",
        "no effect",
        "Slurm drains it for that script; the next job's Prolog cleans up",
    ),
    Row(
        24,
        "A folder of hooks is empty, or a file in it cannot be run",
        "Slurm requeues and holds them",
        "slurmd drains it, whatever the hook; after the repair, the next job runs",
    ),
    Row(
        25,
        "slurmd kills the processes that a Prolog left",
        "their daemons keep running",
        "daemons have no pipe of the hook and are not in its process group",
    ),
    Row(26, "PrologFlags=RunInJob", "shared without MPS, and the output says why", "in service"),
    Row(
        27,
        "The driver is slow",
        "after `hook_deadline_s` shared without MPS",
        "a start that failed is undone; in service",
    ),
    Row(
        28,
        "slurmd restarts, the node loses power, or the package is upgraded during a job",
        "they continue, or are requeued by Slurm; existing daemons are joined",
        "live processes tell which jobs have ended; in service. A slurmd that is killed between a job's Prolog and its"
        " first step runs no Epilog for it: the next job's Prolog cleans up",
        ("test_a_suspended_jobs_stopped_tasks_end_with_the_job",),
    ),
    Row(
        29,
        "A limit names a GPU that the task does not see",
        "each task's limit is for its one GPU; a task above it ends alone",
        "values are read back after setting them; screens show the task's actual limit",
        ("test_a_task_that_takes_more_than_its_cap_ends_alone", "test_a_value_that_does_not_read_back_is_refused"),
    ),
    Row(
        30,
        "The plugin was built for another Slurm release",
        "ordinary jobs run; sbatch does not have the option; running shared jobs end normally",
        "slurmd does not load the object and logs that; in service",
    ),
)

OTHER_MODES = {
    "a full disk for logs": "test_a_full_log_disk_keeps_no_hook_from_its_work",
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
"""Further failures, each with its test."""

HEAD = """\
# Failure modes

Made by `python tests/failure_modes.py`. For each failure: its effect on the jobs on the node, the reaction of the node,
and the tests that show it with real Slurm daemons (`tests/run.sh` runs them; the GPUs are simulated, and questions that
only a real GPU can answer are in `tests/gpu/`). "In service": the node is not drained. A user can never cause a drain.
The hooks drain a node only if a process on a GPU outlives SIGKILL (row 10), if the driver cannot be read after a job,
or if three jobs in ten minutes were refused for a cause of the node's own: see "What drains a node" in
[policy.md](policy.md).

| # | failure | jobs | node | tests |
|---|---|---|---|---|
"""
CHAOS = """
## Chaos

`python tests/chaos.py` combines these failures on six nodes: two users submit, cancel, requeue and overrun shared and
ordinary jobs while tasks, MPS, hooks, slurmd, slurmctld and nodes are killed, networks are cut and disks are filled. A
seed determines the events. The last third of the nodes has no failures.

A job that did not complete counts as lost, unless an event on one of its nodes or on the controller during its time can
end a job in that state, with that exit code, and slurmctld's log or the job's output confirms it
(`tests/chaos_runs/causes.py` lists the evidence for each event). The table has the number of jobs that each event
explains. It also has the sensitivity of this check: the number of completed jobs that would have been detected as lost
if they had been refused, or had failed, whatever the logs said. A node that Slurm drains because a hook was killed is
counted separately, and so are remains of a killed Epilog that the node's next shared job removes; without a killed hook
nothing may be left. `tests/bench/results/chaos_events.json` has all events and jobs.
Slurm {slurm}, {date}, {machine}:

| | |
|---|---|
"""


def find_tests(tests: Path = TESTS) -> Mapping[str, str]:
    """Return test function -> file below tests/."""
    found = {}
    for file in sorted(tests.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] = str(file.relative_to(tests))
    return found


def rows_of(name: str) -> frozenset[int]:
    """Return the rows in a test's name."""
    match = re.match(r"test_rows?_(\d\d)(?:_and_(\d\d))?_", name)
    return frozenset(int(number) for number in match.groups() if number) if match else frozenset()


def shown_by(row: Row, known: Mapping[str, str]) -> list[str]:
    """Return the row's tests, first those with its number in their names."""
    return [name for name in known if row.number in rows_of(name)] + [name for name in row.also if name in known]


def render(known: Mapping[str, str], figures: Mapping[str, Any]) -> str:
    """Return the text of the document."""
    lines = []
    for row in ROWS:
        tests = "<br>".join(f"`{name}`" for name in shown_by(row, known))
        lines.append(f"| {row.number} | {row.failure} | {row.jobs} | {row.node} | {tests} |\n")
    others = "".join(f"| {what} | `{name}` |\n" for what, name in OTHER_MODES.items())
    files = sorted({known[name] for row in ROWS for name in shown_by(row, known)})
    where = ", ".join(f"`tests/{file}`" for file in files)
    tail = f"\nThe tests are in {where}.\n\n## Further failures\n\n| failure | test |\n|---|---|\n{others}"
    return HEAD + "".join(lines) + tail + chaos(figures)


def chaos(figures: Mapping[str, Any]) -> str:
    """Return the section about the last run of tests/chaos.py."""
    shown = ((row["what"], f"{row['value']:.10g} {row['unit']}".strip()) for row in figures["rows"])
    rows = "".join(f"| {what} | {value} |\n" for what, value in shown)
    return CHAOS.format(**figures) + rows


def read_figures() -> Mapping[str, Any]:
    """Return the figures that tests/chaos.py wrote."""
    return json.loads(FIGURES.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


if __name__ == "__main__":
    DOCUMENT.write_text(render(find_tests(), read_figures()), encoding="utf-8")
