"""The report as text, for each kind of job."""

from __future__ import annotations

import re
from typing import Any

import report_cases as cases
from rich.cells import cell_len

from slurm_share.core.settings import Settings
from slurm_share.report import tables, text
from slurm_share.report.records import JobFigures, JobReport
from slurm_share.report.rules import figures, next_time, spread, wording
from slurm_share.usage import EnergyUse

SHARE = """\
Job 4711  train.sh  alice, gpu, n1
  Completed after 10 min of 60 min
  asked for    --share-gpu=2, 2 GPUs, 64.0 GiB on each node, at most 60 min
  had          2 GPUs (NVIDIA H100), sharing=mps, 16 CPUs, 64.0 GiB of memory on
               a node, 1 node

  GPU load     [||||||||||||        50 %]  SM activity, mean of 2 GPUs
  GPU memory   [||                  10 %]  peak 8.0 GiB of 80.0 GiB on GPU 0;
                                           cap of a task 38.0 GiB
  CPU          [|||||               20 %]  3.2 of 16 CPUs busy
  host memory  [||||                19 %]  peak 12.0 GiB of 64.0 GiB
  time         [||||                17 %]  10 min of 60 min
  GPUs idle    20 % (4 GPU-min), 90 s without a break
  GPU DRAM     20 % of the bandwidth
  waiting      for a CPU 5 s, for storage 30 s
  energy       360.0 kJ of the 400.0 kJ of its GPUs; 40.0 kJ is nobody's (exact:
               nobody else was on them)

GPUs
  NODE  GPU  LOAD    SM  DRAM   OWN   MEMORY        OF   IDLE  LONGEST    ENERGY
  n1      0  70 %  50 %  20 %  50 %  8.0 GiB  80.0 GiB  2 min     90 s  180.0 kJ
  n1      1  70 %  50 %  20 %  50 %  8.0 GiB  80.0 GiB  2 min     90 s  180.0 kJ

Next time
  4 tasks, GPU load 1.00 of 2, peak 4.0 GiB: memory allows 38-40, load 6,
  decided by growth; next 8 with --share-gpu=4, then look again (confidence:
  medium)

Known from
  the kernel's counters of the job, the node's agent."""


def said(report: JobReport, width: int = 80) -> str:
    found = figures.figures(report)
    requests = next_time.requests(report, found)
    line = next_time.line(requests, report.job.submit_line, script_is_there=True) if report.job else ""
    then = next_time.NextTime(advice=next_time.advice(report, Settings(), None), requests=requests, line=line)
    parts = text.sections(report, found, then, width)
    head = re.sub("; [0-9]{4}-.*", "", parts[0].lines[1])  # without the time of day, which is the host's
    return "\n".join(text.lines(parts)).replace(parts[0].lines[1], head)


def test_a_share() -> None:
    assert said(cases.report()) == SHARE


def test_what_nobody_measured_is_unknown_with_the_way_to_know_it() -> None:
    found = said(cases.report(uses=()))
    assert "  GPUs         unknown: nobody measured them. The launcher of llsub measures a\n" in found
    assert "ask an administrator for slurm-share-agent" in found
    assert "  Nothing was measured on n1." in found
    assert "GPU load" not in found


def test_many_tasks_are_folded_to_quantiles_and_the_worst_five() -> None:
    tasks = [cases.task(number, seconds=float(number + 1)) for number in range(58)]
    tasks.append(cases.task(58, outcome="gpu memory"))
    found = said(cases.report(title="LLSUB.3", run="LLSUB.3", triple="[1,4,4]", run_tasks=60, tasks=tuple(tasks)))
    assert "Run LLSUB.3  train.sh  alice, gpu, n1\n" in found
    assert "  tasks        58 done, 1 gpu memory of 60, 1 not ended\n" in found
    assert "Tasks (59 attempts)\n                 LEAST     HALF     90 %     MOST  TASK       SUM\n" in found
    assert "  time             1 s     30 s     54 s     60 s    58    30 min\n" in found
    rows = found.partition("the five that most want a look:")[2].splitlines()[2:7]
    assert [row.split()[0] for row in rows] == ["58", "57", "56", "55", "54"]
    assert "  llsub --resume LLSUB.3    the tasks that are not done" in found


def test_tasks_that_are_done_and_alike_want_no_look() -> None:
    tasks = tuple(cases.task(number, seconds=60.0 + number % 3) for number in range(40))
    found = said(cases.report(title="LLSUB.3", run="LLSUB.3", tasks=tasks, run_tasks=40))
    assert "Tasks (40 attempts)" in found
    assert "want" not in found.partition("Next time")[0]


def test_tasks_that_failed_are_first_then_those_at_their_cap_then_the_slow_ones() -> None:
    def on(**changed: Any) -> dict[str, Any]:
        return {"gpus": (cases.gpu(0, memory_peak_mib=2048, idle_s=6.0, **changed),)}

    odd: dict[int, dict[str, Any]] = {
        7: {"outcome": "failed"},
        9: on(memory_booked_mib=2000),
        11: on(memory_cap_mib=2048),
        13: {"seconds": 300.0},
        15: {"outcome": "host memory"},
        17: {"gpus": (cases.gpu(0, idle_s=500.0),)},
    }
    tasks = [cases.task(number, **odd.get(number, {})) for number in range(40)]
    assert [one.task for one in spread.worst(tasks, 9)] == [15, 7, 9, 11, 13, 17]
    assert [one.task for one in spread.worst([*tasks, cases.task(7, attempt=2)], 1)] == [15]
    assert spread.worst([cases.task(0, outcome="failed"), cases.task(0, attempt=2)]) == ()


def test_elements_of_an_array_have_a_line_each_and_a_sum() -> None:
    starts = tuple(
        cases.accounted(
            job=10 + n, id=f"9_{n}", state="TIMEOUT" if n == 2 else "COMPLETED", cpus=4, gpus=0, cpu_s=600.0
        )
        for n in range(4)
    )
    found = said(cases.report(title="9", starts=starts, uses=(), share=""))
    assert "  3 completed, 1 was ended by its time limit; 4 elements, 40 min together" in found
    assert "Elements\n  JOB  STATE" in found
    assert "  9_2  TIMEOUT    n1" in found


def test_a_job_that_was_ended_says_why_in_words() -> None:
    by = {
        "TIMEOUT": "Was ended by its time limit after 10 min of 60 min",
        "NODE_FAIL": "Was lost with a node after",
        "OUT_OF_MEMORY": "Ran out of host memory after",
        "CANCELLED": "Was cancelled after",
    }
    for state, words in by.items():
        assert words in said(cases.report(starts=(cases.accounted(state=state),)))
    failed = cases.accounted(state="FAILED", exit_code=3)
    assert "Failed (exit code 3) after 10 min" in said(cases.report(starts=(failed,)))


def test_a_running_job_is_told_so_far() -> None:
    runs = cases.accounted(state="RUNNING", end=None)
    assert "  Runs, so far 10 min of 60 min" in said(cases.report(starts=(runs,), uses=(cases.use(ended=None),)))


def test_requeues_are_listed() -> None:
    starts = (cases.accounted(state="NODE_FAIL"), cases.accounted(restarts=1))
    found = said(cases.report(starts=starts, uses=(cases.use(), cases.use(restarts=1))))
    assert "; 2 starts, 20 min together" in text.when(
        cases.report(starts=starts), figures.figures(cases.report(starts=starts))
    )
    assert "Starts\n" in found
    assert "4711 (start 2)" in found


def test_others_on_the_same_gpu_are_told() -> None:
    gpus = (cases.gpu(0, was_shared=True, own_sm_percent=12.0, energy=EnergyUse(joules=5.0, rule="sm time")),)
    found = said(cases.report(uses=(cases.use(gpus=gpus),)))
    assert "others were on the same GPUs" in " ".join(found.split())
    assert "12 % was its own" in " ".join(found.split())
    assert "the idle power in equal parts, the rest by SM time" in " ".join(found.split())


def test_of_many_gpus_those_that_were_idle_have_a_line() -> None:
    gpus = tuple(cases.gpu(n, idle_s=float(n)) for n in range(16))
    rows, note = tables.gpu_rows(figures.figures(cases.report(uses=(cases.use(gpus=gpus),))))
    assert [row[1] for row in rows[1:]] == ["15", "14", "13", "12", "11"]
    assert note == "the 5 of 16 GPUs that were idle for longest; --csv has all"


def test_no_line_is_wider_than_the_terminal_or_hides_a_character() -> None:
    """Names are chosen by users."""
    bad = cases.accounted(name="\x1b[31m\n" + "名" * 100, partition="p", submit_line="sbatch --comment=a\x1bb x.sh")
    for width in (60, 80, 120):
        lines = said(cases.report(starts=(bad,)), width).splitlines()
        assert max(map(cell_len, lines)) <= width
        assert all(line.isprintable() for line in lines)


def test_a_bar_is_never_longer_than_its_frame() -> None:
    assert [len(text.bar(percent)) for percent in (0, 0.4, 50, 99.9, 100, 250)] == [text.BAR + 2] * 6
    assert text.bar(50).count("|") == 12


def test_jobs_of_a_day_have_a_line_each() -> None:
    lines = tables.day_lines([cases.report(), cases.report(uses=())], 3, 100)
    assert lines[0].split() == ["JOB", "NAME", "STATE", "STARTED", "TIME", "LIMIT", "CPU", "MEMORY", "GPUS", "LOAD",
                                "IDLE", "ENERGY"]  # fmt: skip
    assert lines[1].split()[-3:] == ["min", "360.0", "kJ"]
    assert lines[2].split()[-2:] == ["?", "?"]
    assert lines[3] == "... and 3 older jobs: slurm-share report JOB, sacct"


def test_the_three_energies_add_up_as_they_are_written() -> None:
    for joules, nobodys, written in (
        (7_660.0, 0.0, "7.7 kJ of the 7.7 kJ of its GPUs"),
        (3_260.0, 80.0, "3.3 kJ of the 3.3 kJ of its GPUs"),
        (7_540.0, 80.0, "7.5 kJ of the 7.6 kJ of its GPUs; 0.1 kJ is nobody's"),
        (12_340.0, 120.0, "12.3 kJ of the 12.5 kJ of its GPUs; 0.2 kJ is nobody's"),
    ):
        found = JobFigures(energy_j=joules, unattributed_j=nobodys, device_j=joules + nobodys)
        assert wording.energy(found) == written


def test_a_job_that_has_not_started_had_nothing() -> None:
    for state, verb in (("PENDING", "  Waits"), ("CANCELLED", "  Was cancelled before it started")):
        job = cases.accounted(state=state, start=None, end=None, elapsed_s=0.0, nodes=())
        lines = said(cases.report(starts=(job,), uses=())).splitlines()
        assert lines[1] == verb
        assert not [line for line in lines if line.startswith("  had ")]


def test_an_unknown_time_has_no_limit_beside_it() -> None:
    job = cases.accounted(elapsed_s=None)
    assert "  Completed\n" in said(cases.report(starts=(job,), uses=()))
