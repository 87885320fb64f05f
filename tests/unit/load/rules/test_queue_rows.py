"""Waiting jobs in groups, free GPUs by type, and nodes out of service."""

from __future__ import annotations

import pytest

from slurm_share.load.columns import job_columns, queue_columns
from slurm_share.load.rules.job_rows import JobRow, requested_mib
from slurm_share.load.rules.node_rows import rows_of
from slurm_share.load.rules.queue_rows import QueueState, is_out, of_survey, waiting_rows
from slurm_share.load.snapshot import JobLoad
from slurm_share.load.sources.demo import Demo
from slurm_share.load.sources.queue_reader import demo_queue
from slurm_share.slurm.nodes import parse_nodes
from slurm_share.slurm.records import NodeKind, QueuedJob, SlurmNode
from slurm_share.slurm.rules.free import gpus_by_type

NOW = 1_795_271_308.0


def waiting(number: int = 1, **words) -> QueuedJob:
    given = {"name": "a", "user": "alice", "uid": 1, "partition": "gpu", "states": ("PENDING",), "reason": "Resources"}
    return QueuedJob(job_id=number, **(given | {"gpus": 1, "cpus": 2, "node_count": 1, "memory_mib": 1024} | words))


def test_jobs_with_the_same_reason_partition_and_gpus_are_one_row() -> None:
    jobs = (
        waiting(1, submitted=100),
        waiting(2, user="bob", submitted=50, start=900, reason="Resources, nodes n1"),
        waiting(3, gpus=2),
        waiting(4, array=4, waiting="0-9%2"),
    )
    rows = waiting_rows(QueueState(taken=1000.0, waiting=jobs), "alice")
    assert [(row.reason, row.gpus, row.count, row.own) for row in rows] == [
        ("Resources", 1, 12, 11),
        ("Resources", 2, 1, 1),
    ]
    first = rows[0]
    assert (first.gpus_asked, first.cpus_asked, first.memory_mib) == (12, 24, 12 * 1024)
    assert (first.waited_s, first.starts, first.users) == (950.0, 900, ("alice", "bob"))


def test_a_sentence_of_slurms_stays_whole() -> None:
    sentence = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    (row,) = waiting_rows(QueueState(taken=0.0, waiting=(waiting(1, reason=sentence),)), "bob")
    assert row.reason == sentence
    assert queue_columns.why(row) == "-"


def test_a_row_is_unknown_where_one_of_its_jobs_is() -> None:
    row = waiting_rows(QueueState(taken=0.0, waiting=(waiting(1, gpus=None, cpus=None, memory_mib=0),)), "bob")[0]
    assert (row.gpus_asked, row.cpus_asked, row.memory_mib, row.waited_s, row.starts, row.own) == (*[None] * 5, 0)
    assert [column.text(row) for column in queue_columns.WAITING][2:6] == ["?", "1", "-", "?"]


@pytest.mark.parametrize(
    ("words", "mib"),
    [
        ({"memory_on_nodes_mib": (100, 200)}, 300),
        ({"memory_mib": 100, "node_count": 3}, 300),
        ({"memory_mib": 100, "memory_is_per_cpu": True, "cpus": 5}, 500),
        ({"memory_per_gpu_mib": 100, "gpus": 4}, 400),
        ({"memory_mib": 0}, None),
        ({"memory_mib": None}, None),
    ],
)
def test_requested_memory_is_of_all_nodes(words: dict, mib: int | None) -> None:
    assert requested_mib(waiting(1, **words)) == mib


@pytest.mark.parametrize(("used_mib", "text", "letter"), [(950, "95%", "H"), (100, "10%", ""), (None, "?", "")])
def test_a_job_near_its_memory_is_marked(used_mib: int | None, text: str, letter: str) -> None:
    job = waiting(1, states=("RUNNING",), nodes="v-1", memory_on_nodes_mib=(1000,))
    load = JobLoad(job=1, uid=1, user="alice", memory_mib=used_mib)
    rows = rows_of(Demo(everybody=True, clock=lambda: NOW).read())
    node = next(row for row in rows if row.name == "v-1")
    row = JobRow(records=(job,), loads=((node, load),), now=NOW)
    column = next(column for column in job_columns.JOBS if column.id == "memuse")
    assert column.letter is not None
    assert (column.text(row), column.letter(row)) == (text, letter)


def test_the_reason_of_a_node_says_who_and_since_when() -> None:
    text = (
        "NodeName=n1 Arch=x86_64 CPUAlloc=0 CPUTot=8 CPULoad=0.00 Gres=gpu:a100:2 NodeAddr=n1 RealMemory=1000 "
        "AllocMem=0 FreeMem=500 State=IDLE+DRAIN Partitions=p Reason=fan [x@y] broken [root@2026-11-28T14:05:00]\n"
    )
    (node,) = parse_nodes(text)
    assert (node.reason, node.reason_by) == ("fan [x@y] broken", "root")
    row = queue_columns.OutRow(node, float(node.reason_since or 0) + 60)
    assert (queue_columns.state(row), queue_columns.since(row)) == ("drained", "14:05")


@pytest.mark.parametrize(
    ("states", "word"),
    [
        (("IDLE", "DRAIN"), "drained"),
        (("MIXED", "DRAIN"), "draining"),
        (("DOWN", "NOT_RESPONDING"), "down*"),
        (("IDLE", "NOT_RESPONDING"), "not_responding"),
        (("FAIL",), "fail"),
    ],
)
def test_states_are_written_as_sinfo_does(states: tuple[str, ...], word: str) -> None:
    node = SlurmNode(name="n", states=states, cpus=1, memory_mib=1)
    assert is_out(node)
    assert queue_columns.state(queue_columns.OutRow(node, 0.0)) == word


def kind(partition: str, nodes: tuple[str, ...], states: tuple[str, ...] = ("MIXED",), **words) -> NodeKind:
    given = {"cpus": 8, "cores": 8, "memory_mib": 1, "gpus": (("a100", 4),)}
    return NodeKind(partition=partition, nodes=nodes, states=states, **(given | words))


def test_free_gpus_count_each_node_once_and_none_that_takes_no_jobs() -> None:
    found = gpus_by_type(
        [
            kind("p", ("n1", "n2"), gpus_allocated=(("a100", 1),), gpus_in_parts=1),
            kind("q", ("n1",), gpus_allocated=(("a100", 1),), gpus_in_parts=1),
            kind("p", ("n3",), ("IDLE", "DRAIN")),
            kind("p", ("n4",), ("IDLE",), gpus=(("", 2),)),
            kind("p", ("n5",), ("IDLE",)),
        ],
        held={"n5"},
    )
    assert [(one.name, one.count, one.free, one.unusable) for one in found] == [("a100", 16, 4, 4), ("", 2, 2, 0)]


def test_a_recording_shows_the_queue_of_its_own_jobs_and_nodes() -> None:
    survey = Demo(everybody=True, clock=lambda: NOW).read()
    state = of_survey(survey)
    assert state.is_part
    assert [node.name for node in state.out] == ["c-2"]
    assert sum(one.count for one in state.gpus) == sum(node.slurm.gpus for node in survey.nodes if node.slurm)
    assert demo_queue(survey).out[0].reason_by == "root"
