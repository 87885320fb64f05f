"""pyslurm's records, which are those of Slurm's commands, and who is asked by which setting."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from slurm_share.core.errors import CommandError
from slurm_share.slurm import backend, jobs, nodes, pyslurm_backend, remote_hosts
from slurm_share.slurm.pyslurm_backend import PyJob, PyNode, PyslurmReply
from slurm_share.slurm.records import ClusterName, NodeKind

RECORDED = json.loads((Path(__file__).parents[2] / "data/slurm-26.05/pyslurm.json").read_text())
ANSWER = pyslurm_backend.parse_answer(RECORDED["pyslurm"])
CLUSTER, QUEUE = jobs.parse_queue(RECORDED["squeue"])


# --- The records -----------------------------------------------------------------------------------------------------


def test_the_queue_is_squeues() -> None:
    """Jobs of two users on one node and on two, an array, a heterogeneous job, a share, every request for GPUs."""
    assert len(QUEUE) == 13
    assert pyslurm_backend.queue(ANSWER, (), (), ()) == (CLUSTER, QUEUE)
    assert pyslurm_backend.waiting(ANSWER, ()) == jobs.parse_numbers(RECORDED["waiting"])
    assert pyslurm_backend.places(ANSWER, ["RUNNING"]) == set(RECORDED["places"].split())


@pytest.mark.parametrize(
    ("users", "numbers", "states", "wanted"),
    [
        (["bob"], (), (), lambda job: job.user == "bob"),
        (["2001"], (), (), lambda job: job.uid == 2001),
        ((), [3], (), lambda job: job.array == 3),
        ((), [11], (), lambda job: job.het is not None),
        ((), (), ["RUNNING", "COMPLETING"], lambda job: job.states == ("RUNNING",)),
        (["alice"], [2], (), lambda job: False),
    ],
)
def test_jobs_are_chosen_as_squeue_chooses_them(users, numbers, states, wanted) -> None:
    found = pyslurm_backend.queue(ANSWER, users, numbers, states)
    assert found == (CLUSTER, tuple(job for job in QUEUE if wanted(job)))


def test_a_number_that_slurm_does_not_know_is_no_answer_of_the_cluster() -> None:
    assert pyslurm_backend.queue(ANSWER, (), [4711], ()) == (None, ())
    over = replace(ANSWER, jobs=(replace(ANSWER.jobs[0], state="COMPLETED"),))
    assert pyslurm_backend.queue(over, (), [ANSWER.jobs[0].id], ()) == (CLUSTER, ())


def test_nodes_and_their_kinds_are_scontrols_and_sinfos() -> None:
    wanted = nodes.parse_nodes(RECORDED["nodes"])
    assert [node.states for node in wanted] == [("MIXED", "PLANNED"), ("MIXED", "DRAIN")]
    # pyslurm is not asked who gave a reason, and when: views show that as not known.
    told = tuple(replace(node, reason_by="", reason_since=None) for node in wanted)
    assert pyslurm_backend.nodes(ANSWER, "") == told
    assert pyslurm_backend.nodes(ANSWER, "n[2-9]") == told[1:]
    default = jobs.parse_default_partition(RECORDED["partitions"])
    kinds = pyslurm_backend.node_kinds(ANSWER)
    assert kinds is not None
    assert _by_node(kinds) == _by_node(jobs.parse_node_kinds(RECORDED["sinfo"], default))


def _by_node(kinds: tuple[NodeKind, ...]) -> dict[tuple[str, str], NodeKind]:
    return {(kind.partition, node): replace(kind, nodes=(node,)) for kind in kinds for node in kind.nodes}


def test_jobs_on_a_node_are_the_users_own() -> None:
    own = [job.job_id for job in QUEUE if job.uid == 2002 and job.nodes in ("n2", "n[1-2]")]
    assert list(pyslurm_backend.job_ids(ANSWER, 2002, "n2", jobs.ON_A_NODE)) == own
    assert pyslurm_backend.job_ids(ANSWER, 2002, "n1", jobs.ON_A_NODE) == ()


def _with_job(**fields: object) -> PyslurmReply:
    return replace(ANSWER, jobs=(*ANSWER.jobs, replace(ANSWER.jobs[0], id=99, **fields)))  # type: ignore[arg-type]


UNTRACKED = replace(ANSWER, tracked=["cpu", "mem"])
SHARDS = replace(ANSWER, gres_types=["gpu", "shard"])


@pytest.mark.parametrize(
    "answer",
    [
        *(_with_job(state="COMPLETING"), _with_job(state="REQUEUE_HOLD"), UNTRACKED, SHARDS),
        *(_with_job(depends=True), _with_job(time_limit=None)),
    ],
    ids=["completing", "requeued", "GPUs are not tracked", "shards", "depends", "no limit"],
)
def test_a_queue_that_is_not_told_in_full_is_not_told(answer: PyslurmReply) -> None:
    assert pyslurm_backend.queue(answer, (), (), ()) is None


@pytest.mark.parametrize("field", ["extra", "comment"])
def test_a_share_is_found_in_the_verdict_where_another_tool_overwrote_the_admin_comment(field: str) -> None:
    first = replace(ANSWER.jobs[0], admin_comment="JS1:H4s", **{field: "hers;slurm-share=on,share-gpu=3,sm=even"})
    cluster_and_jobs = pyslurm_backend.queue(replace(ANSWER, jobs=(first,)), (), (), ())
    assert cluster_and_jobs is not None
    assert [job.share for job in cluster_and_jobs[1]] == ["3,sm=even"]


def test_what_is_not_chosen_spoils_no_queue() -> None:
    """Without tracked GPUs, those of jobs on nodes are known all the same."""
    running = tuple(job for job in QUEUE if job.states == ("RUNNING",))
    assert pyslurm_backend.queue(UNTRACKED, (), (), ["RUNNING"]) == (CLUSTER, running)


def _with_node(**fields: object) -> PyslurmReply:
    return replace(ANSWER, nodes=(replace(ANSWER.nodes[0], **fields),))  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [UNTRACKED, SHARDS], ids=["GPUs are not tracked", "shards"])
def test_nodes_whose_free_gpus_are_not_told_are_not_told(answer: PyslurmReply) -> None:
    assert pyslurm_backend.nodes(answer, "") is None
    assert pyslurm_backend.node_kinds(answer) is None


@pytest.mark.parametrize("fields", [{"configured_gres": {"gpu:a": 1, "gpu:b": 1}}, {"effective_cpus": 1}])
def test_kinds_that_only_sinfo_makes_are_not_told(fields) -> None:
    assert pyslurm_backend.node_kinds(_with_node(**fields)) is None
    assert pyslurm_backend.nodes(_with_node(**fields), "") is not None


def test_a_node_that_is_silent_has_no_load() -> None:
    """Slurm's record keeps the last report of its slurmd."""
    (node,) = pyslurm_backend.nodes(_with_node(state="DOWN+NOT_RESPONDING"), "") or ()
    assert (node.load5, node.memory_free_mib, node.answers) == (None, None, False)


def test_each_field_that_is_read_is_asked_for() -> None:
    wanted = json.loads(pyslurm_backend.ask_argv(("jobs", "nodes"))[-1])
    assert wanted == {"jobs": list(PyJob.__struct_fields__), "nodes": list(PyNode.__struct_fields__)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing of ours\n",
        "answer\n",
        'answer {"jobs": [[1]]}\n',
        'answer {"x": ' + "[" * 100_000,
        'answer {"version": "\udcff"}\n',
    ],
    ids=["nothing", "no answer", "empty", "no jobs", "nested without end", "no text"],
)
def test_what_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(CommandError):
        pyslurm_backend.parse_answer(text)


# --- Which backend ---------------------------------------------------------------------------------------------------


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "python"
    file.touch(0o755)
    monkeypatch.setattr(sys, "executable", str(file))
    monkeypatch.setattr(backend, "_installed", lambda: "26.5.1")
    monkeypatch.setattr(backend, "_fits", lambda: True)
    monkeypatch.setattr(jobs, "run", lambda *_, **__: pytest.fail("a command was asked"))
    return file


def set_backend(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(backend, "_setting", lambda: value)


@pytest.mark.parametrize("value", ["auto", "pyslurm"])
def test_where_it_answers_no_command_is_started(program: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    set_backend(monkeypatch, value)
    program.write_text(f"#!/bin/sh\ncat <<'X'\nslurm: some line of libslurm\n{RECORDED['pyslurm']}X\n")
    monkeypatch.setattr(os, "getuid", lambda: 2002)
    assert jobs.read_places(["RUNNING"]) == pyslurm_backend.places(ANSWER, ["RUNNING"])
    assert jobs.read_my_job_ids("n2") == pyslurm_backend.job_ids(ANSWER, 2002, "n2", jobs.ON_A_NODE)
    assert jobs.read_waiting() == pyslurm_backend.waiting(ANSWER, ())
    assert jobs.read_queue() == (CLUSTER, QUEUE)
    assert jobs.read_cluster() == ClusterName("demo", "26.05.5")
    assert jobs.read_node_kinds() == pyslurm_backend.node_kinds(ANSWER)
    assert nodes.read_nodes() == pyslurm_backend.nodes(ANSWER, "")
    assert remote_hosts.read_hooks_in_force() == {
        "/opt/slurm-share/bin/slurm-share-prolog",
        "/opt/slurm-share/bin/slurm-share-epilog",
    }
    assert backend.describe().startswith("Slurm is asked through pyslurm 25.11.2")


FAILURES = {
    "echo 'fatal: Could not establish a configuration source' >&2; exit 1": "Could not establish",
    "echo \"ModuleNotFoundError: No module named 'pyslurm'\" >&2; exit 1": "No module named",
    "kill -SEGV $$": "ended by signal 11",
    "exit 3": "it said nothing",
    "echo hello": "no answer",
}


@pytest.mark.parametrize(("script", "why"), FAILURES.items())
def test_where_it_cannot_be_used_the_setting_says_what_becomes_of_it(
    program: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    """Its import ends the process where it finds no slurm.conf, and one built for another release may crash."""
    program.write_text(f"#!/bin/sh\n{script}\n")
    set_backend(monkeypatch, "pyslurm")
    with pytest.raises(CommandError) as caught:
        jobs.read_places(["RUNNING"])
    assert str(caught.value).startswith('slurm.backend is "pyslurm" in config.toml, and pyslurm cannot be used: ')
    assert why in str(caught.value)
    assert f"pyslurm cannot be used: {caught.value.stderr}" in backend.describe()
    set_backend(monkeypatch, "auto")
    monkeypatch.setattr(jobs, "run", lambda *_, **__: "n7\n")
    assert jobs.read_places(["RUNNING"]) == {"n7"}


def test_a_record_that_it_does_not_tell_in_full_comes_from_the_command(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_backend(monkeypatch, "pyslurm")
    untracked = msgspec.json.encode(UNTRACKED).decode()
    program.write_text(f"#!/bin/sh\ncat <<'X'\nanswer {untracked}\nX\n")
    monkeypatch.setattr(jobs, "run", lambda *_, **__: RECORDED["squeue"])
    assert jobs.read_queue() == (CLUSTER, QUEUE)


@pytest.mark.parametrize(
    ("value", "installed", "release", "uses"),
    [
        ("auto", "", (26, 5), False),
        ("auto", "26.5.0", (26, 5), True),
        ("auto", "25.11.2", (26, 5), False),
        ("auto", "25.11.2", None, False),
        ("cli", "26.5.0", (26, 5), False),
        ("pyslurm", "25.11.2", (26, 5), True),
    ],
)
def test_auto_takes_a_pyslurm_of_the_release_on_the_host(monkeypatch, value, installed, release, uses) -> None:
    """One for another release may end with a signal, and only the site can want it."""
    set_backend(monkeypatch, value)
    monkeypatch.setattr(backend, "_installed", lambda: installed)
    monkeypatch.setattr(backend, "read_release", lambda: release)
    monkeypatch.setattr(backend, "_fits", backend._fits.__wrapped__)
    monkeypatch.setattr(pyslurm_backend, "read_answer", lambda topics, timeout_s=0.0: ANSWER)
    assert (backend.ask("jobs") is ANSWER) is uses
    assert ("through pyslurm" in backend.describe()) is uses
    assert ("for another release" in backend.describe()) is (value == "auto" and installed == "25.11.2")
