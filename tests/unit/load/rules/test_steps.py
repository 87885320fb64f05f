"""Which steps are started in whose jobs: every GPU seen, no step too many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_share.core import nodelist
from slurm_share.load.rules.steps import choose
from slurm_share.slurm.records import QueuedJob


def a_job(job_id, nodes, where=(), **other):
    """A running job; `where` are the indexes on each of its nodes."""
    values = {"states": ("RUNNING",), "start": 1, "gpus": sum(map(len, where or ())), **other}
    return QueuedJob(
        job_id=job_id, name="x", user="alice", uid=1, partition="gpu", nodes=nodes, gpu_indexes=where, **values
    )


def said(steps):
    return [
        (step.job if step.component is None else f"{step.job}+{step.component}", ",".join(step.nodes), step.gres)
        for step in steps
    ]


TABLE = {
    "a job without GPUs": ([a_job(1, "n1")], [(1, "n1", "none")]),
    "several nodes alike: one step": ([a_job(1, "n[1-3]", ((0, 1), (0, 1), (0, 3)))], [(1, "n1,n2,n3", "gpu:2")]),
    "nodes with unlike numbers of GPUs: a step for each number": (
        [a_job(1, "n[1-3]", ((0, 1, 2, 3), (0,), (1,)))],
        [(1, "n1", "gpu:4"), (1, "n2,n3", "gpu:1")],
    ),
    "a job without GPUs beside one with": ([a_job(1, "n1"), a_job(2, "n1", ((1,),))], [(2, "n1", "gpu:1")]),
    "an array of parts of one GPU": (
        [a_job(n, "n1", ((2,),), has_shards=True, array=9, element=n) for n in (1, 2, 3, 4)],
        [(1, "n1", "shard:1")],
    ),
    "what another step sees already is left out of the nodes": (
        [a_job(1, "n[1-2]", ((0,), (0,))), a_job(2, "n[2-3]", ((1,), (0,)))],
        [(1, "n1,n2", "gpu:1"), (2, "n2,n3", "gpu:1")],
    ),
    "a single node's job where a job of many nodes has been there": (
        [a_job(1, "n1"), a_job(2, "n[1-4]"), a_job(3, "n4")],
        [(2, "n1,n2,n3,n4", "none")],
    ),
    "components of a heterogeneous job": (
        [a_job(7, "n3", ((0,),), het=(7, 0)), a_job(8, "n1", het=(7, 1))],
        [("7+0", "n3", "gpu:1"), ("7+1", "n1", "none")],
    ),
    "GPUs that Slurm counts and does not number": (
        [a_job(1, "n[1-2]", None, gpus=4), a_job(2, "n1", None, gpus=1)],
        [(1, "n1,n2", "gpu:2"), (2, "n1", "gpu:1")],
    ),
    "no step in a job that cannot have one": (
        [
            a_job(1, "n1", ((0,),), states=("SUSPENDED",)),
            a_job(2, "n2", ((0,),), states=("RUNNING", "CONFIGURING")),
            a_job(3, "n3", ((0,),), states=("RUNNING", "COMPLETING")),
            a_job(4, "", states=("PENDING",)),
        ],
        [],
    ),
}


@pytest.mark.parametrize(("jobs", "expected"), TABLE.values(), ids=TABLE.keys())
def test_steps(jobs, expected):
    nodes = [node for job in jobs for node in nodelist.unfold(job.nodes)]
    assert sorted(said(choose(jobs, nodes)), key=str) == sorted(expected, key=str)


def test_only_the_nodes_that_are_asked_for():
    assert said(choose([a_job(1, "n[1-4]", ((0,),) * 4)], ["n2", "n4"])) == [(1, "n2,n4", "gpu:1")]


def test_a_step_that_runs_is_kept_when_a_better_one_could_be_had():
    first = choose([a_job(1, "n1", ((0,),))], ["n1"])
    jobs = [a_job(1, "n1", ((0,),)), a_job(2, "n[1-2]", ((1, 2), (0, 1)))]
    assert set(first) < set(choose(jobs, ["n1", "n2"], running=first))


def test_a_step_of_many_nodes_is_kept_when_one_of_them_is_no_longer_asked_for():
    jobs = [a_job(1, "n[1-4]", ((0,),) * 4)]
    first = choose(jobs, ["n1", "n2", "n3", "n4"])
    assert choose(jobs, ["n1", "n2", "n4"], running=first) == first


def test_a_step_with_a_node_that_its_job_has_given_back_is_not_kept():
    first = choose([a_job(1, "n[1-2]", ((0,), (0,)))], ["n1", "n2"])
    jobs = [a_job(1, "n1", ((0,),)), a_job(2, "n2", ((0,),))]
    assert said(choose(jobs, ["n1", "n2"], running=first)) == [(1, "n1", "gpu:1"), (2, "n2", "gpu:1")]


def test_a_requeued_job_is_another_one():
    before = a_job(1, "n1", ((0,),))
    running = choose([before], ["n1"])
    assert not set(choose([replace(before, start=2)], ["n1"], running)) & set(running)


def test_where_a_step_failed_another_job_is_tried_and_never_the_same_again():
    jobs = [a_job(1, "n1", ((0,),)), a_job(2, "n1", ((0,),))]
    failed = choose(jobs, ["n1"])
    assert said(failed) == [(1, "n1", "gpu:1")]
    assert said(choose(jobs, ["n1"], failed=failed)) == [(2, "n1", "gpu:1")]
    assert choose(jobs[:1], ["n1"], failed=failed) == ()


NAMES = ["n1", "n2", "n3", "n4", "n5"]
PLACES = st.dictionaries(st.sampled_from(NAMES), st.frozensets(st.integers(0, 3), max_size=4), min_size=1)


@st.composite
def jobs_on_nodes(draw):
    """A user's jobs on a small cluster."""
    found = []
    for job_id, place in enumerate(draw(st.lists(PLACES, min_size=1, max_size=8)), 1):
        nodes = sorted(place)
        shards = draw(st.booleans()) and all(len(gpus) <= 1 for gpus in place.values())
        indexes = tuple(tuple(sorted(place[node])) for node in nodes)
        found.append(a_job(job_id, ",".join(nodes), indexes if any(indexes) else (), has_shards=shards))
    return found


def sees(step, jobs):
    """(node, GPU) that a step sees, counted from the jobs themselves."""
    job = next(job for job in jobs if job.job_id == step.job)
    where = dict(zip(nodelist.unfold(job.nodes), job.gpu_indexes or ((),) * 99, strict=False))
    return {(node, gpu) for node in step.nodes for gpu in (None, *where[node])}


@given(jobs_on_nodes(), st.sets(st.sampled_from(NAMES)), st.data())
def test_every_gpu_is_seen_and_no_step_is_surplus(jobs, nodes, data):
    before = choose(data.draw(st.lists(st.sampled_from(jobs), unique_by=id)), nodes)
    chosen = choose(jobs, nodes, running=before)
    wanted = {
        (node, gpu)
        for job in jobs
        for node, gpus in zip(nodelist.unfold(job.nodes), job.gpu_indexes or ((),) * 99, strict=False)
        if node in nodes
        for gpu in (None, *gpus)
    }
    views = [sees(step, jobs) for step in chosen]
    assert set().union(*views) == wanted
    for number, view in enumerate(views):
        others = set().union(*(other for n, other in enumerate(views) if n != number))
        assert not view <= others, said(chosen)
    for step in chosen:
        job = next(job for job in jobs if job.job_id == step.job)
        where = dict(zip(nodelist.unfold(job.nodes), job.gpu_indexes or ((),) * 99, strict=False))
        counts = {len(where[node]) for node in step.nodes}
        assert len(counts) == 1  # one request for all of its nodes


@given(jobs_on_nodes(), st.sets(st.sampled_from(NAMES)))
def test_asked_again_nothing_changes(jobs, nodes):
    chosen = choose(jobs, nodes)
    assert set(choose(jobs, nodes, running=chosen)) == set(chosen)
