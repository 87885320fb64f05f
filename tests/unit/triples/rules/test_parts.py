"""The parts of a node that a task takes, and what is refused at submission."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.core.errors import UsageError
from slurm_share.packing import TaskSpec
from slurm_share.triples.records import ProcessPlace, Run, Worker
from slurm_share.triples.rules import parts
from slurm_share.triples.rules.task_files import Tasks

RUN = Run(name="x", command=(), cwd="/", triple=None, processes=4, tasks=8, distribution="dynamic")


def workers(*blocks: range) -> tuple[Worker, ...]:
    return tuple(Worker(n, ProcessPlace(n, None, tuple(block), len(block))) for n, block in enumerate(blocks))


def test_a_task_takes_as_many_workers_as_have_its_cpus_together() -> None:
    found = parts.parts_of("n1", workers(range(4), range(4, 8), range(8, 12)), 9000, is_bound=True)
    taken = [found.workers_for(TaskSpec(cpus=cpus)) for cpus in (None, 1, 4, 5, 8, 9, 12)]
    assert taken == [1, 1, 1, 2, 2, 3, 3]
    uneven = parts.parts_of("n1", workers(range(2), range(2, 4), range(4, 7)), None, is_bound=True)
    assert uneven.workers_for(TaskSpec(cpus=7)) == 3
    shared = parts.parts_of("n1", workers(range(8), range(8)), None, is_bound=False)
    assert [shared.workers_for(TaskSpec(cpus=cpus)) for cpus in (4, 5)] == [1, 2]


def test_what_can_never_start_says_why() -> None:
    found = parts.parts_of("n1", workers(range(4)), 9000, is_bound=True)
    assert found.why_never(TaskSpec(cpus=4, mem_mib=9000)) == ""
    assert found.why_never(TaskSpec(cpus=5)) == "it needs 5 CPUs, and the job has 4 on n1"
    assert found.why_never(TaskSpec(mem_mib=9001)) == "it needs 9001 MiB of memory, and the job has 9000 MiB on n1"
    assert replace(found, host_mib=None).why_never(TaskSpec(mem_mib=9001)) == ""


def test_tasks_that_are_dealt_cannot_wait_for_parts() -> None:
    tasks = Tasks(("a", "b"), (TaskSpec(), TaskSpec(cpus=2)), (1, 2), "--tasks f")
    parts.check(RUN, tasks, is_tried=False)
    with pytest.raises(UsageError, match=r"--tasks f: line 2: CPUs .* --distribution=block .* --distribution=dynamic"):
        parts.check(replace(RUN, distribution="block"), tasks, is_tried=False)
    with pytest.raises(UsageError, match="here each process has one; write T of the triple for cores, or --ntasks M"):
        parts.check(replace(RUN, tasks=4, distribution="block", spec=TaskSpec(mem_mib=5)), Tasks(), is_tried=False)
    with pytest.raises(UsageError, match="and --distribution=cyclic gives them to processes before the run"):
        parts.check(replace(RUN, distribution="cyclic", spec=TaskSpec(mem_mib=5)), Tasks(), is_tried=False)
    with pytest.raises(UsageError, match="conflict with trials"):
        parts.check(RUN, tasks, is_tried=True)
    parts.check(replace(RUN, distribution="block"), Tasks(("a",)), is_tried=False)


def test_more_than_the_largest_node_has_is_refused_at_submission() -> None:
    tasks = Tasks(("a", "b"), (TaskSpec(), TaskSpec(cpus=20, mem_mib=900)), (1, 3), "--tasks f")
    parts.check_room(RUN, tasks, None, None)
    parts.check_room(RUN, tasks, 20, 900)
    with pytest.raises(UsageError, match=r"--tasks f: line 3 asks for 20 CPUs, which are more than the 16 CPUs"):
        parts.check_room(RUN, tasks, 16, None)
    with pytest.raises(UsageError, match="line 3 asks for 900M of memory, which is more than the 800 MiB of a node"):
        parts.check_room(RUN, tasks, 20, 800)
