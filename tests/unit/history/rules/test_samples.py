"""From a look at all nodes to the archive's samples."""

from __future__ import annotations

from msgspec.structs import replace
from seen_nodes import GIB, job, means, node, survey

from slurm_share.core.settings import Settings
from slurm_share.history.records import ALL
from slurm_share.history.rules import samples
from slurm_share.load.snapshot import UserLoad


def taken(snapshots, jobs, **more):
    look, *rest = samples.samples(survey(snapshots, jobs, everybody=True, **more), 900, 900, Settings())
    assert (look.node, look.user, look.time) == (ALL, ALL, 900)
    return {(one.node, one.user): one for one in rest}


def with_user(seen, user="alice", gpus=("GPU-0",), mib=2406, load=None):
    """The snapshot with the sum of a user, as a sampler makes it."""
    own = UserLoad(uid=1, user=user, gpus=gpus, gpu_memory_mib=mib, gpu_load=load)
    return replace(seen, users=(*seen.users, own))


def test_one_lenet_on_two_gpus():
    (one,) = taken([with_user(node(cpu=0.02))], [job()]).values()
    assert (one.jobs, one.cpus, one.cpu_load, one.gpus, one.gpu_load, one.gpu_memory_mib) == (
        1,
        40,
        0.02,
        2,
        0.35,
        2406,
    )
    assert (one.load_by, one.nppn, one.advised, one.decided_by, one.work) == ("util", 1, 4, "GPU load", "under-used")
    assert (one.memory_mib, one.interval_s) == (GIB, 900)


def test_two_users_on_a_node_have_their_own():
    seen = node(jobs=((11, 1), (12, 1)), load=(90, 0), cpu=30.0)
    jobs = (
        replace(seen.jobs[0], cpu_cores_windows=means(1.5)),
        replace(seen.jobs[1], user="bob", cpu_cores_windows=means(2.5)),
    )
    processes = (seen.processes[0], replace(seen.processes[1], user="bob"))
    seen = replace(seen, jobs=jobs, processes=processes)
    seen = with_user(with_user(seen, load=0.3), "bob", load=0.6)
    found = taken([seen], [job(gpus=1, cpus=4), job(job_id=12, user="bob", gpus=1, cpus=4)])
    alice, bob = found["n1", "alice"], found["n1", "bob"]
    assert (alice.cpu_load, bob.cpu_load) == (1.5, 2.5)
    assert (alice.gpu_load, bob.gpu_load) == (0.3, 0.6)
    assert (alice.gpus, bob.gpus) == (1, 1)


def test_what_else_loads_a_node_is_not_the_load_of_one_core():
    seen = node(gpus=0, load=(), cpu=12.0)
    seen = replace(seen, jobs=(replace(seen.jobs[0], cpu_cores_windows=means(0.9)),))
    (one,) = taken([seen], [job(gpus=0, cpus=1)]).values()
    assert (one.cpus, one.cpu_load) == (1, 0.9)


def test_a_silent_node_is_unknown_and_not_idle():
    (one,) = taken([], [job()], silent=[("n1", "down")]).values()
    assert (one.jobs, one.cpus, one.gpus) == (1, 40, 2)
    assert (one.cpu_load, one.gpu_load, one.memory_mib, one.nppn) == (None, None, None, None)


def test_gpus_that_nobody_uses_are_idle_and_not_unknown():
    (one,) = taken([node(tasks=0, load=(0, 0))], [job()]).values()
    assert (one.gpus, one.gpu_load, one.gpu_memory_mib, one.advised) == (2, 0.0, 0, None)


def test_a_node_without_gpus_has_none():
    (one,) = taken([node(gpus=0, load=(), cpu=30.0)], [job(gpus=0)]).values()
    assert (one.gpus, one.gpu_load, one.cpu_load) == (0, None, 30.0)


def test_four_quarters_of_one_gpu_are_one_gpu():
    parts = [job(job_id=n, gpus=0, has_shards=True, gpu_indexes=((1,),), cpus=1) for n in (31, 32, 33, 34)]
    (one,) = taken([node(tasks=0)], parts).values()
    assert (one.jobs, one.gpus, one.cpus) == (4, 1, 4)


def test_only_what_runs_counts():
    assert taken([node()], [job(states=("COMPLETING",))]) == {}


def test_without_slurm_the_nodes_own_word_has_to_do():
    (one,) = taken([with_user(node())], [], jobs_taken=None).values()
    assert (one.user, one.jobs, one.cpus, one.gpus) == ("alice", 1, None, 1)
