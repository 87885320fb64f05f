"""Jobs that hold GPUs and have never had a process on them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from seen_nodes import job, node, survey

from slurm_share.load.output import notes
from slurm_share.load.rules.advice.advise import advise_all
from slurm_share.load.snapshot import Means, OnGpu, ProcessLoad

NOW = 1e9


def held(minutes=12.0, **more):
    """A batch job of alice's that has had both GPUs of n1 for so many minutes."""
    values = {"start": round(NOW - 60 * minutes), "script": "/home/alice/train.sh", "gpu_indexes": ((0, 1),)}
    return job(**{**values, **more})


def unused(minutes=12.0, cpu=0.02, **more):
    """A node on which the job was watched for so many minutes, without a process on its two GPUs."""
    seen = node(tasks=0, load=(0, 0), cpu=cpu, measured_s=60 * minutes, **more)
    return replace(seen, gpus=tuple(replace(gpu, clients=0) for gpu in seen.gpus))


def load_of(seen, **more):
    """The node with these figures of its first job."""
    return replace(seen, jobs=(replace(seen.jobs[0], **more), *seen.jobs[1:]))


def on_gpu(seen, **more):
    """The node with a process on GPU-0."""
    values = {"pid": 9, "name": "python", "uid": 2001, "user": "alice", "gpus": (OnGpu(uuid="GPU-0", memory_mib=500),)}
    gpus = (replace(seen.gpus[0], clients=1, memory_used_mib=500), *seen.gpus[1:])
    return replace(seen, processes=(ProcessLoad(**{**values, **more}),), gpus=gpus)


def advised(one, *seen):
    (advice,) = advise_all(survey(seen, [one] if not isinstance(one, list) else one))
    return advice


STEPLESS = replace(unused(), jobs=(), gpus=tuple(replace(gpu, unused_s=700.0) for gpu in unused().gpus))

RELEASED = {
    "a batch job": (held(), unused(), "medium"),
    "for two hours": (held(120), unused(119), "high"),
    "one GPU": (held(gpus=1, gpu_indexes=((0,),)), unused(), "medium"),
    "it unpacks its input": (held(), unused(cpu=3.0), "low"),
    "a shell": (held(40, script=""), unused(40), "low"),
    "a share, with the server of MPS": (held(share="4"), on_gpu(unused(), name="nvidia-cuda-mps-server"), "medium"),
    "a Prolog that took a minute": (held(12), unused(10.8), "medium"),
    "parts of a GPU that another job works on": (
        held(gpus=None, has_shards=True, gpu_indexes=((0,),)), on_gpu(unused(), job=12), "medium",
    ),
    "an allocation without a step": (held(40, script=""), STEPLESS, "low"),
}  # fmt: skip


@pytest.mark.parametrize("case", RELEASED)
def test_gpus_that_were_never_used_are_to_be_released(case):
    one, seen, confidence = RELEASED[case]
    advice = advised(one, seen)
    assert (advice.verdict, advice.confidence, advice.next) == ("release", confidence, None), advice.sentence
    assert advice.unused_gpus == (1 if one.gpus != 2 else 2)
    assert advice.unused_since == (one.start if seen.jobs else NOW - 700.0)


def test_the_sentences_about_unused_gpus(golden):
    golden("unused.txt", "".join(f"{case}: {advised(*row[:2]).sentence}\n" for case, row in RELEASED.items()))


def test_of_a_large_array_only_the_elements_that_run_are_to_be_cancelled():
    elements = [held(job_id=20 + n, array=20, element=n, nodes=f"n{n}") for n in (1, 2, 3, 4, 6)]
    nodes = [replace(load_of(unused(), job=20 + n), node=f"n{n}") for n in (1, 2, 3, 4, 6)]
    assert "(scancel '20_[1-4,6]')" in advised(elements, *nodes).sentence


KEPT = {
    "nine minutes": (held(9), unused(9)),
    "it had a process before": (held(), load_of(unused(), tasks_measured=1, tasks_at_once=1)),
    "it was not watched from its start": (held(120), unused(12)),
    "there was a gap while it was watched": (held(120), unused(100)),
    "the driver does not list processes": (
        held(), replace(unused(), gpus=tuple(replace(gpu, clients=None) for gpu in unused().gpus))),
    "a process that may be the job's": (held(), on_gpu(unused())),
    "a process that cannot be seen": (
        held(), replace(unused(), gpus=tuple(replace(gpu, others_mib=300) for gpu in unused().gpus))),
    "a GPU is in use, by nobody that is listed": (
        held(), replace(unused(), gpus=tuple(replace(gpu, utilization_percent_windows=Means(9, 9, 9, 900.0))
                                             for gpu in unused().gpus))),
    "a GPU is not shown": (held(), replace(unused(), gpus=unused().gpus[:1], hidden_gpus=1)),
    "its tasks are not reported": (held(), load_of(unused(), unknown={"tasks": "not in Prometheus"})),
    "it ends": (held(states=("RUNNING", "COMPLETING")), unused()),
    "one of its nodes is silent": (
        held(nodes="n[1-2]", node_count=2, gpus=4, gpu_indexes=((0, 1), (0, 1))), unused()),
    "no GPU": (held(gpus=0, gpu_indexes=()), unused()),
    "its start is not known": (held(start=None), unused()),
    "without a step for a minute": (
        held(), replace(STEPLESS, gpus=tuple(replace(gpu, unused_s=60.0) for gpu in STEPLESS.gpus))),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_what_was_not_seen_is_not_said(case):
    one, seen = KEPT[case]
    assert advised(one, seen).verdict in ("unknown", "look")


def test_a_job_that_was_not_watched_from_its_start_is_told_what_was_seen():
    advice = advised(held(120), unused(30))
    assert "no process of it was on its 2 GPUs in the 30 min that it was watched; what was before is not known" in (
        advice.evidence
    )


def test_two_nodes_and_elements_of_an_array_count_together():
    two = held(nodes="n[1-2]", node_count=2, gpus=4, cpus=80, gpu_indexes=((0, 1), (0, 1)))
    assert advised(two, unused(), unused(name="n2")).unused_gpus == 4
    used = load_of(unused(name="n2"), tasks_measured=1)
    assert advised(two, unused(), used).verdict == "unknown"
    elements = [held(job_id=n, array=20, element=n, nodes=f"n{n - 20}") for n in (21, 22)]
    seen = [unused(name=f"n{n - 20}", jobs=((n, 0),)) for n in (21, 22)]
    advice = advised(elements, *seen)
    assert (advice.verdict, advice.unused_gpus) == ("release", 4)
    assert "scancel 20_21 20_22" in advice.sentence


def test_it_is_first_in_the_list():
    idle, too_many = held(job_id=12, nodes="n2"), job(cpus=40, tasks=8)
    seen = [node(tasks=8, peak_gib=10.0), unused(name="n2", jobs=((12, 0),))]
    found = advise_all(survey(seen, [too_many, idle]))
    assert [one.verdict for one in notes.in_order(found)] == ["release", "fewer"]
