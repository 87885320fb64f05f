"""The short report at the end of a job's output."""

from __future__ import annotations

import report_cases as cases
from rich.cells import cell_len

from slurm_share.report import short_text

SHARE = """\
slurm-share: job 4711 (train.sh) completed after 10 min of 60 min
  GPUs        2 GPUs, load 50 % (SM activity)
  GPUs idle   20 % (4 GPU-min)
  GPU memory  peak 8.0 GiB of 80.0 GiB, cap of a task 38.0 GiB
  energy      360.0 kJ of the 400.0 kJ of its GPUs; 40.0 kJ is nobody's
  CPU         3.2 of 16 CPUs (20 %); waited for a CPU 5 s, for storage 30 s
  memory      peak 12.0 GiB of 64.0 GiB
  next time   --share-gpu=4
  all of it   slurm-share report 4711"""


def test_a_share() -> None:
    assert short_text.lines(cases.report(), ["--share-gpu=4"]) == SHARE.splitlines()


def test_records_of_a_node_are_enough() -> None:
    """The Epilog has no accounts of the job yet."""
    assert short_text.lines(cases.report(starts=()))[0] == "slurm-share: job 4711 ended after 10 min"


def test_a_run_counts_its_tasks() -> None:
    tasks = (*(cases.task(number) for number in range(57)), cases.task(57, outcome="gpu memory"))
    said = short_text.lines(cases.report(title="LLSUB.3", run="LLSUB.3", run_tasks=60, tasks=tasks))
    assert said[0].startswith("slurm-share: run LLSUB.3 completed")
    assert "  tasks       57 done, 1 gpu memory of 60, 2 not ended" in said


def test_simulated_gpus_are_said_to_be() -> None:
    said = short_text.lines(cases.report(uses=(cases.use(gpus=(cases.gpu(simulated=True),)),)))
    assert said[1].startswith("  GPUs        2 SIMULATED GPUs, ")


def test_it_never_has_more_than_12_lines_of_80_columns() -> None:
    """Whatever a user's job is called."""
    bad = cases.accounted(name="\x1b[31m\n" + "名" * 100, state="OUT_OF_MEMORY")
    said = short_text.lines(cases.report(starts=(bad,)), [f"{number} " + "x" * 200 for number in range(20)])
    assert len(said) == short_text.LINES
    assert max(map(cell_len, said)) <= short_text.WIDTH
    assert all(line.isprintable() for line in said)


def test_nothing_known_is_two_lines() -> None:
    assert short_text.lines(cases.report(starts=(), uses=())) == [
        "slurm-share: job 4711 ended", "  all of it   slurm-share report 4711",
    ]  # fmt: skip
