"""NPPN advice: what decides, what is no evidence, what is said, and what never happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace
from seen_nodes import GIB, job, node, survey

from slurm_share.core.settings import Settings
from slurm_share.load.output import notes
from slurm_share.load.rules.advice import bounds
from slurm_share.load.rules.advice.advise import advise, advise_all
from slurm_share.load.rules.advice.evidence import Evidence, Room, of_job
from slurm_share.load.snapshot import GpuBooking, Means, OnGpu, ProcessLoad
from slurm_share.share import option
from slurm_share.slurm.records import SlurmNode
from slurm_share.triples.rules import triple as rule_triple


def bound(advice, resource):
    return next((one.nppn for one in advice.bounds if one.resource == resource), None)


def with_windows(one, means):
    """Return the node with these means of its GPUs' utilisation."""
    return replace(one, gpus=tuple(replace(gpu, utilization_percent_windows=means) for gpu in one.gpus))


# ---- What decides ----

MANY_TASKS = {"load": (6.5, 6.5), "tasks": 90, "cores": 256}


@pytest.mark.parametrize(
    ("seen", "now", "verdict", "next_", "decided_by"),
    [
        ({"load": (10, 10), "tasks": 4}, 4, "more", 16, "growth"),
        ({"load": (10, 10), "tasks": 8}, 8, "more", 26, "GPU memory"),
        ({"load": (40, 40), "tasks": 4}, 4, "more", 8, "growth"),
        ({"load": (20, 20), "tasks": 4}, 4, "more", 16, "GPU load"),
        ({"load": (79, 79), "tasks": 4}, 4, "more", 8, "growth"),
        ({"load": (80, 80), "tasks": 4}, 4, "stay", 4, "GPU load"),
        ({"load": (20, 20), "tasks": 4, "dram": 85.0}, 4, "stay", 4, "GPU load"),
        ({"load": (20, 20), "tasks": 4, "cpu": 20.0}, 4, "more", 8, "growth"),
        ({"load": (20, 20), "tasks": 4, "cores": 7}, 4, "more", 6, "cores"),
        ({"load": (20, 20), "tasks": 4, "cores": 4}, 4, "stay", 4, "cores"),
        ({"load": (20, 20), "tasks": 8, "cores": 6}, 8, "fewer", 6, "cores"),
        ({"load": (20, 20), "tasks": 4, "host_gib": 64, "host_peak_gib": 10.0}, 4, "more", 6, "host memory"),
        ({"load": (20, 20), "tasks": 8, "host_gib": 64, "host_peak_gib": 10.0}, 8, "fewer", 6, "host memory"),
        ({"load": (20, 20), "tasks": 4, "peak_gib": 14.0}, 4, "stay", 4, "GPU memory"),
        ({**MANY_TASKS, "peak_gib": 0.3}, 90, "more", 96, "MPS clients"),
        ({**MANY_TASKS, "peak_gib": 0.25, "driver": "590.44"}, 90, "more", 120, "MPS clients"),
        ({"load": (60, 0), "gpus": 2, "tasks": 1, "peak_gib": 31.9}, 1, "more", 2, "growth"),
        ({"load": (100, 100, 0, 0), "gpus": 4, "tasks": 2}, 2, "more", 4, "GPU load"),
        ({"load": (60, 0), "tasks": 1, "kills": 1}, 1, "stay", 1, "host memory"),
    ],
)
def test_what_decides(seen, now, verdict, next_, decided_by):
    gpus = seen.get("gpus", 2)
    advice = advise(job(tasks=now, gpus=gpus, cpus=seen.get("cores", 40)), [node(**seen)])
    assert (advice.now, advice.verdict, advice.next, advice.decided_by) == (now, verdict, next_, decided_by)


def test_tasks_that_died_of_gpu_memory_are_halved_or_left_alone():
    fits = node(tasks=8, load=(60, 60), peak_gib=1.0)
    assert advise(job(), [fits], memory_failures=2).next == 4
    alone = advise(job(), [node(tasks=2, load=(60, 60))], memory_failures=1)
    assert (alone.verdict, alone.next) == ("stay", 2)
    assert "more GPU memory for a task" in alone.sentence


def test_what_others_hold_on_the_gpus_is_no_room():
    used = round((20 + 2.35) * GIB)
    one = node(tasks=2, load=(20, 20), used_mib=used)
    assert bound(advise(job(tasks=2), [one]), "GPU memory") == 2 * 5


def test_a_source_without_processes_gives_the_advice_of_one_with_them():
    """The memory of the job's own tasks does not count as others', and a GPU with its tasks not as empty."""
    for seen in (
        node(tasks=2, load=(2, 2), peak_gib=20.0, used_mib=20 * GIB + 300),
        node(tasks=2, load=(20, 20), peak_gib=14.0, used_mib=14 * GIB + 300),
        node(tasks=4, load=(90, 30), peak_gib=2.0, used_mib=4 * GIB + 300),
        node(tasks=1, load=(60, 0), peak_gib=2.0),
    ):
        tasks = len(seen.processes)
        held = sum(on.memory_mib for one in seen.processes for on in one.gpus)
        gpus = tuple(
            replace(gpu, clients=sum(gpu.uuid == one.gpus[0].uuid for one in seen.processes), mps_servers=0)
            for gpu in seen.gpus
        )
        known = replace(seen, gpus=gpus, jobs=(replace(seen.jobs[0], gpu_memory_mib=held),))
        sums = replace(known, processes=(), unknown={"processes": "Prometheus keeps none"})
        one, other = (advise(job(tasks=tasks), [each]) for each in (known, sums))
        assert (one.verdict, one.next, one.decided_by) == (other.verdict, other.next, other.decided_by)
        assert bound(one, "GPU memory") == bound(other, "GPU memory")


def test_the_load_of_another_job_on_the_gpu_is_not_the_jobs_for_a_source_without_processes():
    seen = node(tasks=2, load=(90, 90), jobs=((11, None), (12, None)))
    own, other = seen.jobs
    seen = replace(seen, processes=(), jobs=(replace(own, gpu_load=0.02), other), unknown={"processes": "none"})
    found = of_job(seen, [job(tasks=2)], [seen.jobs[0]], None)
    assert (found.load, found.own_load, found.alone) == (1.8, 0.02, True)
    unknown = replace(seen, jobs=(own, other))
    assert not of_job(unknown, [job(tasks=2)], [own], None).alone


def test_host_memory_that_is_there_takes_no_task_away():
    one = node(tasks=8, load=(85, 85), host_gib=64, host_peak_gib=10.0)
    one = replace(one, jobs=(replace(one.jobs[0], memory_mib=24 * GIB),))
    advice = advise(job(tasks=8), [one])
    assert (advice.verdict, bound(advice, "host memory")) == ("stay", 8)


@pytest.mark.parametrize(
    ("asked", "slurm_mib", "allows", "said"),
    [
        ({"memory_mib": 0, "memory_on_nodes_mib": (64 * GIB,)}, 384 * GIB, 6, "64.0 GiB that Slurm gave the job"),
        ({"memory_mib": 0, "memory_on_nodes_mib": (384 * GIB,), "gpus": 1, "gpu_indexes": ((0,),)}, 384 * GIB, 37,
         "384.0 GiB that Slurm gave the job"),
        ({"memory_mib": 0, "memory_on_nodes_mib": (9, 64 * GIB), "nodes": "n[0-1]", "node_count": 2, "cpus": 80,
          "gpus": 4}, 384 * GIB, 6, "64.0 GiB that Slurm gave the job"),
        ({"memory_mib": 2 * GIB, "memory_is_per_cpu": True, "memory_on_nodes_mib": (64 * GIB,)}, 384 * GIB, 6, "gave"),
        ({"memory_mib": 64 * GIB}, 384 * GIB, 6, "64.0 GiB that Slurm gave the job"),
        ({"memory_mib": 0}, 64 * GIB, 6, "64.0 GiB of the node for it"),
        ({"memory_mib": 0}, 384 * GIB, 37, "384.0 GiB of the node for it"),
    ],
)  # fmt: skip
def test_host_memory_is_what_slurm_gave(asked, slurm_mib, allows, said):
    """The node has 384 GiB. --mem=0, which llsub asks for, gives no limit: what Slurm granted does."""
    one = node(tasks=4, load=(20, 20), host_peak_gib=10.0)
    one = replace(one, memory_used_mib=0)
    slurm = {"n1": SlurmNode(name="n1", states=("ALLOCATED",), cpus=40, memory_mib=slurm_mib, gpus=2)}
    advice = advise(job(**asked), [one], slurm=slurm)
    assert bound(advice, "host memory") == allows
    assert any(said in limit.why for limit in advice.bounds)


def test_without_mps_there_is_no_limit_of_its_clients():
    light = node(tasks=40, load=(2, 2), peak_gib=0.25, cores=256)
    assert bound(advise(job(share="20"), [light]), "MPS clients") == 96
    assert bound(advise(job(share="20,mps=off"), [light]), "MPS clients") == 120
    assert bound(advise(job(share="20"), [light], Settings(max_share=10)), "MPS clients") == 20


@pytest.mark.parametrize(
    ("connections", "driver", "tasks", "clients"),
    [
        *((None, "570.86", 8, 96), (1, "570.86", 8, 96), (2, "595.1", 8, 120), (8, "570.86", 8, 24)),
        *((8, "595.1", 8, 30), (32, "570.86", 2, 6), (8, "570.86", 40, 40), (1000, "570.86", 2, 2)),
    ],
)
def test_tasks_with_more_connections_leave_room_for_fewer_clients(connections, driver, tasks, clients):
    """On two GPUs; never for fewer than run there now, since how connections add up is not documented."""
    one = node(tasks=tasks, load=(2, 2), peak_gib=0.1, cores=256, driver=driver, connections=connections)
    assert bound(advise(job(share=str(tasks // 2), tasks=tasks), [one]), "MPS clients") == clients


def test_advice_that_connections_decide_names_the_variable():
    one = node(tasks=20, load=(20, 20), peak_gib=0.1, cores=256, connections=8)
    advice = advise(job(share="10", tasks=20), [one])
    assert (advice.next, bound(advice, "MPS clients")) == (24, 24)
    assert any("CUDA_DEVICE_MAX_CONNECTIONS=8" in one.why for one in advice.bounds)
    unaware = advise(job(share="10,mps=off", tasks=20), [one])
    assert bound(unaware, "MPS clients") == 120


def test_the_load_of_others_on_the_same_gpu_is_not_the_jobs():
    both = node(jobs=((11, 2), (12, 2)), load=(60, 60))
    told = tuple(
        replace(one, gpus=(replace(one.gpus[0], sm_time_percent=10.0 if one.job == 11 else 50.0),))
        for one in both.processes
    )
    advice = advise(job(tasks=2), [replace(both, processes=told)])
    assert (advice.now, bound(advice, "GPU load")) == (2, 6)  # 0.2 of 1.2 is its own: (1.6 - 1.0) / 0.1
    untold = advise(job(tasks=2), [both])
    assert (bound(untold, "GPU load"), untold.confidence) == (2, "low")
    assert any("their part of the load is not known" in line for line in untold.evidence)


@pytest.mark.parametrize(("measured_s", "m1", "m5", "verdict"), [
    (100.0, 35.0, 95.0, "more"), (400.0, 35.0, 95.0, "stay"), (400.0, 95.0, 35.0, "stay"), (100.0, 95.0, 35.0, "stay"),
])  # fmt: skip
def test_the_load_of_the_job_before_is_not_this_jobs(measured_s, m1, m5, verdict):
    one = node(tasks=2, load=(0, 0), measured_s=measured_s)
    assert advise(job(tasks=2), [with_windows(one, Means(m1, m5, m5, 900.0))]).verdict == verdict


def test_an_mps_server_is_nobody_elses_program():
    one = node(tasks=2, load=(40, 40))
    server = ProcessLoad(
        pid=9, name="nvidia-cuda-mps", uid=2001, user="alice", gpus=(OnGpu(uuid="GPU-0", memory_mib=500),)
    )
    advice = advise(job(tasks=2), [replace(one, processes=(*one.processes, server))])
    assert advice.confidence == "medium"


# ---- No evidence, no advice ----


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ({"measured_s": 59.0}, "watched for 59 s only"),
        ({"tasks": 0}, "none of its processes is on a GPU"),
        ({"load": (None, None)}, "load of its GPUs is not known"),
        ({"peak_gib": None}, "how much GPU memory a task takes is not known"),
    ],
)
def test_without_evidence_there_is_no_advice(seen, why):
    advice = advise(job(), [node(**seen)])
    assert (advice.verdict, advice.next, advice.confidence, advice.change) == ("unknown", None, "none", ())
    assert why in advice.sentence
    assert "llload --advise 11" in advice.sentence


def test_memory_that_is_too_small_is_evidence_however_short_it_was_watched():
    advice = advise(job(tasks=8), [node(tasks=8, peak_gib=10.3, measured_s=20.0)])
    assert (advice.verdict, advice.next, advice.confidence) == ("fewer", 6, "low")


def test_a_task_that_works_on_several_gpus_is_no_task_to_share():
    one = node(load=(60, 60))
    wide = (OnGpu(uuid="GPU-0", memory_mib=9000), OnGpu(uuid="GPU-1", memory_mib=9000))
    narrow = (OnGpu(uuid="GPU-0", memory_mib=400), OnGpu(uuid="GPU-1", memory_mib=9000))
    assert "2 GPUs at once" in advise(job(), [replace(one, processes=(replace(one.processes[0], gpus=wide),))]).sentence
    assert advise(job(), [replace(one, processes=(replace(one.processes[0], gpus=narrow),))]).verdict == "more"


def test_a_node_that_does_not_answer_is_named():
    advice = advise(job(), [], silent={"n1": "down"})
    assert advice.sentence == "no advice: none of its nodes answers (n1: down)", "watching it is no use"
    assert notes.advice_lines([advice], 200)[0] == "job 11 of alice on n1: unknown"
    other = advise(job(job_id=99), [node()])
    assert (other.verdict, other.job) == ("unknown", 99)


@pytest.mark.parametrize(
    ("more", "options"),
    [
        ({"source": "srun"}, ""),
        ({"source": "local"}, " --source local"),
        ({"source": "agent", "everybody": True}, " --all --source agents"),
        ({"source": "prometheus", "user": "alice"}, " -u alice --source prometheus"),
        ({"source": "demo"}, " --demo"),
        ({"source": "replay"}, None),
    ],
)
def test_the_line_that_watches_a_job_shows_it_to_who_has_seen_it(more, options):
    (advice,) = advise_all(survey([node(measured_s=10.0)], [job()], **more))
    line = "" if options is None else f"; to have one, while its tasks work: llload --advise 11{options} --watch 10, "
    assert advice.sentence.endswith(f"allows 26{line}{'for five minutes' if line else ''}"), advice.sentence


def test_without_slurm_a_lone_job_is_advised_all_the_same():
    assert advise(None, [node()]).next == 4
    assert advise(None, [node(jobs=((11, 1), (12, 1)))]).verdict == "unknown"


# ---- How sure ----


@pytest.mark.parametrize(
    ("seen", "confidence"),
    [
        ({"measured_s": 120.0, "over_s": 120.0}, "low"),
        ({"measured_s": 299.0, "over_s": 299.0}, "low"),
        ({"measured_s": 300.0, "over_s": 300.0}, "medium"),
        ({"tasks": 4}, "medium"),
        ({"tasks": 4, "sm": True}, "high"),
        ({"tasks": 1, "sm": True}, "medium"),
        ({"tasks": 4, "sm": True, "over_s": 100.0}, "low"),
        ({"tasks": 4, "sm": True, "cap_mib": 2450}, "medium"),
    ],
)
def test_confidence_is_time_tasks_and_counter(seen, confidence):
    advice = advise(job(), [node(**{"load": (40, 40), **seen})])
    assert advice.confidence == confidence


def test_what_weakens_an_advice_is_said():
    capped = advise(job(share="4"), [node(tasks=4, cap_mib=2450, load=(20, 20))])
    assert any("at its cap of 2.4 GiB" in line for line in capped.evidence)
    jax = advise(job(), [node(peak_gib=24.0)])
    assert any("JAX and TensorFlow" in line for line in jax.evidence)
    half = advise(job(node_count=2, gpus=4, nodes="n[1-2]"), [node()], silent={"n2": "no agent"})
    assert "by 1 of its 2 nodes, without n2: no agent" in half.evidence


# ---- Classes ----


@pytest.mark.parametrize(
    ("seen", "word"),
    [
        ({"load": (0.5, 0.0)}, "idle"),
        ({"load": (35, 0.0)}, "under-used"),
        ({"load": (60, 60), "tasks": 2}, "well-used"),
        ({"load": (90, 90), "tasks": 2, "sm": True}, "GPU-compute-bound"),
        ({"load": (90, 90), "tasks": 2}, "well-used"),  # utilisation is an upper bound
        ({"load": (90, 90), "tasks": 2, "dram": 90.0}, "memory-bandwidth-bound"),
        ({"load": (30, 30), "tasks": 4, "peak_gib": 14.0}, "memory-full"),
        ({"load": (30, 30), "tasks": 2, "cpu": 32.0}, "CPU-bound"),
        ({"load": (30, 30), "tasks": 2, "cpu": 61.0}, "over-subscribed"),
        ({"load": (30, 30), "tasks": 6, "peak_gib": 14.0}, "over-subscribed"),
        ({"load": (None, None), "tasks": 2}, "unknown"),
    ],
)
def test_the_class_in_words(seen, word):
    assert advise(job(), [node(**seen)]).work == word


# ---- Several nodes, arrays, parts, no GPUs ----


def test_of_several_nodes_the_worst_decides_memory_and_the_mean_load():
    two = [node(tasks=2, load=(100, 100)), node(name="n2", tasks=2, load=(30, 30), peak_gib=7.0)]
    advice = advise(job(nodes="n[1-2]", node_count=2, gpus=4, cpus=80, tasks=4), two)
    assert (advice.verdict, advice.next, bound(advice, "GPU memory")) == ("more", 4, 8)
    assert advice.nodes == ("n1", "n2")
    assert advice.change == ("--share-gpu=2 -n8", "llsub [2,4,10]")


def test_a_job_with_some_of_the_gpus_has_its_part_of_the_cores():
    one = node(gpus=4, load=(20, 0, 0, 0))
    one = replace(one, gpus=one.gpus[:1], hidden_gpus=3)
    advice = advise(job(gpus=1, cpus=1), [one])
    assert (bound(advice, "cores"), advice.next) == (10, 4)
    assert advice.change == ("--share-gpu=4 --gres=gpu:1", "llsub [1,4,2] -g 1")


def test_slurm_says_which_gpus_are_the_jobs():
    one = node(gpus=3, load=(35, 0, 90))
    one = replace(one, gpus=(*one.gpus[:2], replace(one.gpus[2], memory_used_mib=30000)))
    advice = advise(job(nodes="n[0-1]", node_count=2, gpus=3, gpu_indexes=((0,), (0, 1))), [one])
    assert (advice.gpus, advice.next, advice.memory_allows) == (2, 4, (26, 26))


def test_slurm_knows_gpus_that_a_step_does_not_see():
    alone = node(gpus=1, load=(20,))
    slurm = {"n1": SlurmNode(name="n1", states=("MIXED",), cpus=40, memory_mib=1, gpus=4)}
    assert "--gres=gpu:1" in advise(job(gpus=1, cpus=10), [alone], slurm=slurm).change[0]
    assert "--gres" not in advise(job(gpus=1, cpus=40), [alone]).change[0]


@pytest.mark.parametrize(
    ("cpu", "verdict", "next_", "decided_by"),
    [
        (2.0, "more", 16, "growth"),
        (10.0, "more", 16, "CPU load"),
        (19.0, "more", 8, "growth"),
        (20.0, "stay", 4, "CPU load"),
        (60.0, "stay", 4, "CPU load"),
    ],
)
def test_without_gpus_the_cpus_count(cpu, verdict, next_, decided_by):
    plain = job(gpus=0, tasks=1, comment="llsub [1,4,10]")
    advice = advise(plain, [node(gpus=0, load=(), cpu=cpu, tasks=4, peak_gib=None)])
    assert (advice.now, advice.verdict, advice.next, advice.decided_by) == (4, verdict, next_, decided_by)
    assert advice.change == (() if verdict == "stay" else (f"llsub [1,{next_},{40 // next_}]",))


def test_a_mig_instance_takes_no_mps():
    """Its tasks take turns; the driver without GPM does not tell its load, and memory alone is no advice."""
    one = node(mig=True, load=(None, None), total_mib=9856)
    advice = advise(job(), [one])
    assert (advice.verdict, advice.memory_allows) == ("unknown", (8, 8))
    assert "GPU memory alone allows 8" in advice.sentence
    known = advise(job(), [node(mig=True, load=(30, 0), total_mib=9856)])
    assert bound(known, "MPS clients") == 2 * 60


def test_one_advice_for_each_running_job_of_the_one_who_looks():
    jobs = [job(), job(job_id=12, user="bob"), job(job_id=13, states=("PENDING",), nodes="")]
    seen = [node(jobs=((11, 1), (12, 1)))]
    assert [one.job for one in advise_all(survey(seen, jobs))] == [11]
    assert [one.job for one in advise_all(survey(seen, jobs, everybody=True))] == [11, 12]


def test_two_kinds_of_nodes_are_judged_by_the_load_of_a_gpu():
    """4 and 2 GPUs, all at 90 %: whichever comes first, they are full; and one advice fits the smaller."""
    two = [node(gpus=4, tasks=4, load=(90,) * 4), node(name="n2", gpus=2, tasks=4, load=(90, 90))]
    both = job(nodes="n[1-2]", node_count=2, gpus=6, gpu_indexes=((0, 1, 2, 3), (0, 1)), comment="llsub [2,4,10]")
    for seen in (two, two[::-1]):
        advice = advise(both, seen)
        assert (advice.verdict, advice.next, advice.gpus, advice.decided_by) == ("stay", 4, 2, "GPU load")
    light = [with_windows(one, Means(10, 10, 10, 900.0)) for one in two]
    found = {advise(both, seen).next for seen in (light, light[::-1])}
    assert len(found) == 1
    assert found <= {8, 16, 24}


def test_a_share_over_two_kinds_of_nodes_counts_tasks_of_a_gpu():
    """4 on each GPU of both, which all fit: 16 on the larger node are not too many for the smaller."""
    two = [node(gpus=4, tasks=16, load=(30,) * 4, peak_gib=5.0), node(name="n2", tasks=8, load=(30, 30), peak_gib=5.0)]
    both = job(nodes="n[1-2]", node_count=2, gpus=6, gpu_indexes=((0, 1, 2, 3), (0, 1)), share="4", cpus=80)
    for seen in (two, two[::-1]):
        advice = advise(both, seen)
        assert (advice.verdict, advice.now, advice.next, advice.gpus) == ("more", 8, 12, 2)
        assert advice.change[0] == "--share-gpu=6"


def test_gpus_that_slurm_counts_over_all_nodes_alone_are_not_guessed():
    two = [node(gpus=4, tasks=4, load=(20,) * 4), node(name="n2", gpus=2, tasks=4, load=(20, 20))]
    advice = advise(job(nodes="n[1-2]", node_count=2, gpus=6, gpu_indexes=None, cpus=80), two)
    assert advice.verdict == "unknown"
    assert "how many GPUs it has on each" in advice.sentence


def test_unlike_tasks_that_fit_are_not_told_to_be_fewer():
    """One of 17.6 GiB and seven of 1 GiB on two GPUs: eight of the largest would not fit, these do."""
    eight = node(tasks=8, load=(40, 40), peak_gib=1.0, sm=True)
    first = eight.processes[0]
    first = replace(first, gpus=(replace(first.gpus[0], memory_mib=18000, peak_mib=18000),))
    peaked = (replace(eight.jobs[0], task_peak_mib=18000),)
    cards = (replace(eight.gpus[0], memory_used_mib=18000 + 3 * GIB + 300), eight.gpus[1])
    there = replace(eight, processes=(first, *eight.processes[1:]), jobs=peaked, gpus=cards)
    ended = replace(eight, jobs=peaked)
    between = replace(ended, processes=ended.processes[1:], jobs=(replace(peaked[0], tasks=7, tasks_at_once=8),))
    for seen in (there, ended, between):
        advice = advise(job(tasks=8), [seen])
        assert (advice.verdict, advice.next, advice.confidence) == ("stay", 8, "low")
        assert any("unlike" in line for line in advice.evidence)
    # Where even these do not fit, they are too many.
    full = replace(there, gpus=(replace(cards[0], memory_total_mib=19000), cards[1]))
    assert advise(job(tasks=8), [full]).verdict == "fewer"


def test_a_part_of_a_job_is_said_to_be_one():
    full = node(tasks=4, load=(20, 20), sm=True)
    (advice,) = advise_all(survey([full], [job(nodes="n[1-8]", node_count=8, gpus=16, tasks=32, cpus=320)]))
    assert "by 1 of its 8 nodes, without n[2-8]: not read" in advice.evidence
    assert (advice.verdict, advice.confidence) == ("more", "medium")
    other = node(name="n2", jobs=((99, 1),))
    halved = advise(job(nodes="n[1-2]", node_count=2, gpus=4, cpus=80), [full, other])
    assert "by 1 of its 2 nodes, without n2: the job was not measured there" in halved.evidence
    (none,) = advise_all(survey([], [job(nodes="n9")]))
    assert "none of its nodes was read" in none.sentence


def test_what_is_not_known_of_one_node_or_task_is_not_passed_over():
    two = job(nodes="n[1-2]", node_count=2, gpus=4, cpus=80, tasks=4)
    seen = {"tasks": 2, "load": (20, 20), "sm": True}
    no_peak = advise(two, [node(**seen), node(name="n2", peak_gib=None, **seen)])
    assert (no_peak.verdict, "a task takes is not known on n2" in no_peak.sentence) == ("unknown", True)
    one = node(**seen)
    no_size = advise(job(), [replace(one, gpus=(one.gpus[0], replace(one.gpus[1], memory_total_mib=None)))])
    assert (no_size.verdict, "its GPU has is not known" in no_size.sentence) == ("unknown", True)
    untold = node(jobs=((21, 1), (22, 1)), load=(30, 30))
    untold = replace(untold, jobs=(untold.jobs[0], replace(untold.jobs[1], task_peak_mib=None)))
    elements = [job(job_id=n, array=20, element=n, gpus=1, cpus=20) for n in (21, 22)]
    assert advise(elements[0], [untold], elements=elements[1:]).verdict == "unknown"
    no_host = advise(two, [node(**seen), node(name="n2", host_peak_gib=None, **seen)])
    assert (no_host.verdict, no_host.confidence) == ("more", "low")
    assert any("not known on n2: host memory of a task" in line for line in no_host.evidence)
    no_cpu = advise(
        job(), [replace(one, load=None, jobs=(replace(one.jobs[0], cpu_cores=None, cpu_cores_windows=None),))]
    )
    assert (no_cpu.verdict, no_cpu.confidence) == ("more", "low")
    assert any("not known: CPU time" in line for line in no_cpu.evidence)
    no_use = advise(job(), [replace(one, gpus=(one.gpus[0], replace(one.gpus[1], memory_used_mib=None)))])
    assert any("what else is in its GPUs' memory" in line for line in no_use.evidence)


def test_a_users_other_jobs_take_clients_of_mps_as_well():
    both = node(jobs=((11, 16), (12, 80)), load=(5, 5), peak_gib=0.1, cores=256)
    advice = advise(job(cpus=256), [both])
    assert (bound(advice, "MPS clients"), advice.next) == (16, 16)
    elsewhere = tuple(replace(one, uid=2002) if one.job == 12 else one for one in both.processes)
    assert bound(advise(job(cpus=256), [replace(both, processes=elsewhere)]), "MPS clients") == 96


def test_deaths_are_counted_by_job():
    seen = [node(tasks=8, load=(60, 60), peak_gib=1.0)]
    (advice,) = advise_all(survey(seen, [job()]), memory_failures={11: 2, 99: 5})
    assert (advice.verdict, advice.next, advice.decided_by) == ("fewer", 4, "GPU memory")
    assert "2 tasks of it ran out of GPU memory, by the run's results" in advice.evidence


# ---- The lines ----


def test_elements_of_one_task_on_one_gpu_become_parts_of_gpus():
    """Each stays one task; where the site has no parts, one job with all of them is what is left."""
    four = [job(job_id=n, array=20, element=n, gpus=1, cpus=10, tasks=1, nodes=f"n{n - 20}") for n in range(21, 25)]
    seen = [node(name=f"n{n - 20}", gpus=1, load=(20,), jobs=((n, 1),)) for n in range(21, 25)]
    advice = advise(four[0], seen, Settings(shards_per_gpu=720720), elements=four[1:])
    assert advice.next == 4
    assert advice.change == ("--share-gpu=4 --gres=gpu:1 -n1", "llsub [4,4,10]")
    assert advise(four[0], seen, elements=four[1:]).change == ("llsub [4,4,10]",)


def test_elements_of_a_shared_array_have_one_advice_and_keep_their_gpu():
    elements = [job(job_id=n, array=20, element=n, gpus=1, share="2", cpus=20, tasks=2) for n in (21, 22)]
    both = node(jobs=((21, 2), (22, 2)), load=(30, 30))
    (advice,) = advise_all(survey([both], elements))
    assert (advice.job, advice.now, advice.gpus, advice.next) == (20, 4, 2, 10)
    assert advice.change == ("--share-gpu=5 --gres=gpu:1 -n5", "llsub [1,10,4]")


@pytest.mark.parametrize(
    ("now", "lines"),
    [
        ({}, ("--share-gpu=4", "llsub [1,8,5]")),
        ({"share": "2"}, ("--share-gpu=4", "llsub [1,8,5]")),
        ({"share": "2", "tasks": 4}, ("--share-gpu=4 -n8", "llsub [1,8,5]")),
        ({"tasks": 4}, ("--share-gpu=4 -n8", "llsub [1,8,5]")),
        ({"share": "2,sm=even"}, ("--share-gpu=4,sm=even", "llsub [1,8,5] --share-gpu=sm=even")),
        ({"share": "2,mem=4096M"}, ("--share-gpu=4,mem=4096M", "llsub [1,8,5] --share-gpu=mem=4096M")),
        ({"share": "2,mem=15G"}, ("--share-gpu=4", "llsub [1,8,5]")),
        ({"share": "2,mem=4G:15G"}, ("--share-gpu=4,mem=4096M:15360M", "llsub [1,8,5] --share-gpu=mem=4096M:15360M")),
        ({"share": "2,mem=15G:20G"}, ("--share-gpu=4", "llsub [1,8,5]")),
        (
            {"share": "2,mps=off"},
            ("--share-gpu=4,sharing=time-slicing", "llsub [1,8,5] --share-gpu=sharing=time-slicing"),
        ),
        (
            {"share": "2", "comment": "llsub [3,4,10]", "node_count": 3, "gpus": 6, "cpus": 120},
            ("llsub [3,8,5]", "--share-gpu=4"),
        ),
    ],
)
def test_the_lines_are_for_what_the_job_is(now, lines):
    advice = advise(job(**now), [node(tasks=4, load=(40, 40))])
    assert (advice.next, advice.change) == (8, lines)


# ---- Whatever is measured ----

SEEN = some.fixed_dictionaries(
    {
        "tasks": some.integers(1, 40),
        "load": some.tuples(*[some.floats(0, 100)] * 4),
        "peak_gib": some.floats(0.05, 33),
        "cores": some.integers(1, 64),
        "cpu": some.floats(0, 300),
        "host_gib": some.integers(2, 512),
        "host_peak_gib": some.floats(0.1, 40),
        "sm": some.booleans(),
        "measured_s": some.sampled_from([10.0, 100.0, 1000.0]),
        "kills": some.sampled_from([0, 0, 0, 2]),
        "gpus": some.integers(1, 4),
        "driver": some.sampled_from(["570.1", "590.1", None]),
    }
)
FORMS = some.fixed_dictionaries(
    {
        "share": some.sampled_from([None, "2", "4,mem=4G", "3,mem=10G", "2,sm=even", "2,mps=off", "8,mem=30G"]),
        "form": some.sampled_from(["job", "llsub", "tasks", "parts", "array", "shared array"]),
        "nodes": some.integers(1, 3),
    }
)


def advised(seen):
    """By a job with all GPUs of the node."""
    return advise(job(gpus=seen["gpus"], cpus=seen["cores"], tasks=seen["tasks"]), [node(**seen)])


@given(SEEN)
def test_next_is_above_no_hard_bound_and_in_multiples_of_the_gpus(seen):
    """Fewer than the GPUs are only where not even one task each is allowed; what stays, stays as it is."""
    advice = advised(seen)
    if advice.next is None:
        assert advice.change == ()
        assert (advice.verdict, advice.confidence) == ("unknown", "none") or advice.verdict == "look"
        return
    assert advice.next >= 1
    assert all(advice.next <= one.nppn for one in advice.bounds if one.hard)
    assert advice.next <= max(4 * advice.now, seen["gpus"])
    if advice.verdict not in ("stay", "change"):
        allowed = min(one.nppn for one in advice.bounds if one.hard)
        assert advice.next % seen["gpus"] == 0 or advice.next < seen["gpus"]
        assert advice.next % seen["gpus"] == 0 or allowed < seen["gpus"] or seen["kills"]
    assert {"more": advice.next > advice.now, "fewer": advice.next < advice.now}.get(
        advice.verdict, advice.next == advice.now
    )


@given(SEEN, some.integers(0, 40960))
def test_more_gpu_memory_never_means_fewer_tasks(seen, more_mib):
    small, large = advised({**seen, "total_mib": 32510}), advised({**seen, "total_mib": 32510 + more_mib})
    if small.next is not None and large.next is not None:
        assert small.next <= large.next


@given(SEEN)
def test_load_alone_never_says_fewer(seen):
    advice = advised(seen)
    if advice.verdict == "fewer":
        over = any(advice.now > one.nppn for one in advice.bounds if one.hard)
        assert over or seen["kills"]
        assert advice.decided_by not in ("GPU load", "CPU load", "growth")


def submitted(seen, share, form, nodes):
    """(advice, nodes, GPUs of a node) of that form of job on so many like nodes."""
    names = [f"n{number}" for number in range(1, nodes + 1)]
    if form in ("parts", "array", "shared array"):
        seen = {**seen, "gpus": 1, "load": seen["load"][:1]} if form == "parts" else {**seen, "tasks": 1}
        gpus, per_node = seen["gpus"], seen["tasks"] if form == "parts" else seen["gpus"]
        elements, snapshots, number = [], [], 100
        for name in names:
            own = range(number, number + per_node)
            number += per_node
            snapshots.append(node(**{**seen, "name": name, "jobs": tuple((one, 1) for one in own)}))
            for one in own:
                kind = {"gpus": 0, "has_shards": True} if form == "parts" else {"gpus": 1}
                word = share or "2" if form != "array" else None
                elements.append(
                    job(job_id=one, array=100, element=one, cpus=1, tasks=1, nodes=name, share=word, **kind)
                )
        return advise(elements[0], snapshots, Settings(shards_per_gpu=720720), elements=elements[1:]), nodes, gpus
    more = {"job": {"tasks": 1}, "tasks": {"tasks": 64}, "llsub": {"comment": f"llsub [{nodes},{seen['tasks']},1]"}}[
        form
    ]
    of_all = {"node_count": nodes, "gpus": seen["gpus"] * nodes, "cpus": seen["cores"] * nodes}
    one = job(nodes=",".join(names), share=share, **of_all, **more)
    return advise(one, [node(**{**seen, "name": name}) for name in names]), nodes, seen["gpus"]


@given(SEEN, FORMS)
def test_every_line_can_be_submitted(seen, form):
    """The option and the triple are in their valid forms, fit one another, and are what is advised."""
    advice, nodes, gpus = submitted(seen, **form)
    for line in advice.change:
        words = line.split()
        share = next((word.partition("=")[2] for word in words if word.startswith("--share-gpu=")), None)
        triple = next((word for word in words if word.startswith("[")), None)
        tasks = next((int(word[2:]) for word in words if word.startswith("-n")), None)
        if share is not None:
            share = share if share[0].isdecimal() else f"{advice.next // gpus},{share}"
            request = option.parse(share)
            assert request.per_gpu * gpus == advice.next
            assert request.mem_mib is None or request.mem_mib * request.per_gpu <= 32510
        if triple is not None:
            parsed = rule_triple.parse(triple)
            assert (parsed.nodes, parsed.per_node) == (nodes, advice.next)
            assert parsed.per_node * parsed.threads <= max(seen["cores"], gpus, seen["tasks"])
        elif form["form"] in ("parts", "array"):
            assert words[-2:] == ["--gres=gpu:1", "-n1"] or advice.verdict == "change"
        elif form["form"] == "tasks":
            assert tasks is None or tasks == advice.next * nodes
            assert tasks is not None or nodes >= 64 or advice.verdict == "change"
        elif form["form"] == "shared array":
            assert ("--gres=gpu:1" in words) is (gpus > 1) or advice.verdict == "change"


@given(SEEN)
def test_the_same_looked_at_again_says_the_same(seen):
    advice = advised(seen)
    assert advised(seen) == advice
    for text in (advice.sentence, *advice.evidence, *(one.why for one in advice.bounds)):
        assert text.isprintable()
        assert "nan" not in text
        assert "None" not in text


def sized(*gib, packed=False):
    """A node whose tasks took so much GPU memory at their peaks, in turn on two GPUs."""
    seen = node(tasks=len(gib), load=(40, 40), peak_gib=1.0, sm=True)
    mib = [int(one * GIB) for one in gib]
    processes = tuple(
        replace(one, gpus=(replace(one.gpus[0], memory_mib=size, peak_mib=size),))
        for one, size in zip(seen.processes, mib, strict=True)
    )
    bookings = (GpuBooking(uid=seen.jobs[0].uid, job=seen.jobs[0].job, booked_mib=9),) if packed else ()
    gpus = tuple(replace(one, bookings=bookings) for one in seen.gpus)
    return replace(seen, processes=processes, gpus=gpus, jobs=(replace(seen.jobs[0], task_peak_mib=max(mib)),))


@pytest.mark.parametrize(
    ("gib", "are_unlike"),
    [
        ((2.0, 2.0, 2.0, 4.0), True),
        ((2.0, 2.0, 2.0, 3.9), False),  # less than twice
        ((0.5, 0.5, 0.5, 1.4), False),  # less than a GiB more
        ((1.0, 3.0), False),  # too few to say what is usual
        ((1.0, 3.0, 3.0, 3.0), False),  # one has just begun
    ],
)
def test_tasks_of_unlike_sizes_are_pointed_to_packing(gib, are_unlike):
    advice = advise(job(tasks=len(gib)), [sized(*gib)])
    said = [line for line in advice.evidence if "unlike" in line]
    largest = f"{max(gib):.2f}".rstrip("0").rstrip(".")
    assert len(said) == are_unlike
    if are_unlike:
        assert f"half of them take at most {gib[0]:.1f}" in said[0]
        assert said[0].endswith("llsub --pack places each by its own size")
        assert largest in said[0]


def test_a_packed_run_is_not_pointed_to_what_it_has():
    (said,) = [line for line in advise(job(tasks=4), [sized(2, 2, 2, 8, packed=True)]).evidence if "unlike" in line]
    assert said.endswith("; its run places each by its own size")
    assert "llsub" not in said


def test_a_task_whose_memory_is_not_known_makes_no_tasks_unlike():
    seen = sized(2, 2, 2, 8)
    first = seen.processes[0]
    unknown = replace(first, gpus=(replace(first.gpus[0], memory_mib=None, peak_mib=None),))
    advice = advise(job(tasks=4), [replace(seen, processes=(unknown, *seen.processes[1:]))])
    assert not any("unlike" in line for line in advice.evidence)


def test_memory_of_the_node_is_named_in_the_bound():
    found = Evidence(node="n1", gpus=1, rooms=(Room(122880, 0, None, is_host=True),), peak_mib=4096)
    bound = bounds.gpu_memory(found, Settings())
    assert bound is not None
    assert bound[0] == 29
    assert "120.0 GiB of the node (MemTotal) less 2.4 GiB" in bound[1]
