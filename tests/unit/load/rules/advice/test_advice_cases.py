"""The advice of an experienced operator, case by case; it does not change with noise.

The cases are from LLSC's guide (CPU load 50 to 150 %, GPU load 50 to 100 %, two models a GPU where both are below
half, the tuning recipe that doubles), its paper on GPU sharing (LeNet-4, ResNet-18 on two V100), jobstats' notes (a GPU
at 0 % is a mistake; too many threads; host memory), RAD-RM's limit of 80 % SM activity, and the manuals of JAX and
TensorFlow.
"""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace
from seen_nodes import GIB, job, means, node, survey

from slurm_share.load.rules.advice.advise import advise, advise_all
from slurm_share.load.snapshot import Means


def over(one, windows):
    """The node with these means of every GPU's load over 1, 5 and 15 minutes."""
    return replace(one, gpus=tuple(replace(gpu, sm_percent_windows=Means(*windows, 900.0)) for gpu in one.gpus))


def with_dram(one, percent):
    """The node with this memory bandwidth over all windows."""
    return replace(one, gpus=tuple(replace(gpu, dram_percent_windows=means(percent)) for gpu in one.gpus))


def on_gpu_0(one):
    """The node with all its tasks on its first GPU."""
    moved = tuple(replace(task, gpus=(replace(task.gpus[0], uuid="GPU-0"),)) for task in one.processes)
    used = sum(task.gpus[0].memory_mib for task in moved)
    cards = (replace(one.gpus[0], memory_used_mib=used), replace(one.gpus[1], memory_used_mib=0))
    return replace(one, processes=moved, gpus=cards, jobs=(replace(one.jobs[0], gpus=("GPU-0",)),))


def seen(**more):
    """Two V100 with SM activity, 40 cores."""
    return node(**{"sm": True, **more})


CASES = {
    "LLSC's LeNet-4 alone: room for four": (
        seen(load=(35, 0)), {}, ("more", 4, "medium"), ["next 4 with --share-gpu=2"],
    ),
    "LLSC's guide: load and memory below half, two models a GPU": (
        seen(tasks=2, load=(40, 40), peak_gib=10.0), {}, ("more", 4, "high"), ["next 4 with --share-gpu=2"],
    ),
    "light tasks: four times as many, not all that a straight line says": (
        seen(tasks=4, load=(8, 8), peak_gib=1.0), {}, ("more", 16, "high"), ["decided by growth"],
    ),
    "3 % SM activity: find out first": (
        seen(tasks=4, load=(3, 3)), {}, ("look", None, "high"),
        ["its tasks on GPU 0, 1 use 3 % of them: find out first what they wait for", "before adding any"],
    ),
    "nothing on the GPU at all": (
        seen(tasks=2, load=(0.2, 0.1)), {}, ("look", None, "high"), ["have done nothing there: check whether they use"],
    ),
    "3 % SM activity and the CPUs full": (
        seen(tasks=4, load=(3, 3), cpu=38.0), {}, ("look", None, "high"), ["the CPU", "CPU load 38.0 of 40"],
    ),
    "one of two tasks does nothing": (
        seen(tasks=2, load=(60, 2)), {}, ("look", None, "high"), ["its tasks on GPU 1 use 2 % of it"],
    ),
    "90 running threads on 40 CPUs, by 8 tasks": (
        seen(tasks=8, load=(40, 40), cpu=90.0), {}, ("change", 8, "high"),
        ["fewer threads, not fewer tasks: the CPU load is 90 of 40", "OMP_NUM_THREADS=5", "NTPP 5",
         "submit it with OMP_NUM_THREADS=5"],
    ),
    "the same of a triple with ten threads": (
        seen(tasks=8, load=(40, 40), cpu=90.0), {"comment": "llsub [1,8,10]"}, ("change", 8, "high"),
        ["submit it with llsub [1,8,5]"],
    ),
    "the same though the triple says five": (
        seen(tasks=8, load=(40, 40), cpu=90.0), {"comment": "llsub [1,8,5]"}, ("change", 8, "high"),
        ["the program ignores that", "num_workers"],
    ),
    "more tasks than cores are too many tasks": (
        seen(tasks=80, load=(40, 40), cpu=90.0, peak_gib=0.3), {}, ("fewer", 40, "high"),
        ["80 tasks are more than cores allows"],
    ),
    "without GPUs, twice as many threads as CPUs": (
        node(gpus=0, load=(), cpu=90.0, tasks=4, peak_gib=None), {"gpus": 0, "comment": "llsub [1,4,20]"},
        ("change", 4, "high"), ["submit it with llsub [1,4,10]"],
    ),
    "one task without GPUs that waits": (
        node(gpus=0, load=(), cpu=0.001, tasks=1, peak_gib=None), {"gpus": 0}, ("look", None, "medium"),
        ["its 1 task uses less than 1 % of a CPU: find out"],
    ),
    "LLSC's guide: half the CPUs busy are good": (
        node(gpus=0, load=(), cpu=20.0, tasks=20, peak_gib=None), {"gpus": 0, "comment": "llsub [1,20,2]"},
        ("stay", 20, "high"), ["decided by CPU load"],
    ),
    "GPU 0 full, GPU 1 not, as many tasks on both": (
        seen(tasks=4, load=(95, 20)), {}, ("change", 4, "high"),
        ["add none while the load is uneven: GPU 0 is full (95 %), GPU 1 at 20 %, with 2 and 2 tasks"],
    ),
    "GPU 0 full with two tasks, GPU 1 with one: one more there": (
        seen(tasks=3, load=(95, 40)), {}, ("more", 4, "high"), ["decided by GPU load"],
    ),
    "all tasks on the first GPU": (
        on_gpu_0(seen(tasks=4, load=(70, 0))), {}, ("change", 4, "high"),
        ["spread them first", "4 on GPU 0, none on GPU 1", "CUDA_VISIBLE_DEVICES"],
    ),
    "JAX takes 24 of 32 GiB at its start": (
        seen(tasks=2, load=(10, 10), peak_gib=24.0), {}, ("change", 2, "high"),
        ["let its program not take memory in advance: a task holds 24.0 GiB",
         "submit it with XLA_PYTHON_CLIENT_PREALLOCATE=false TF_FORCE_GPU_ALLOW_GROWTH=true"],
    ),
    "24 of 32 GiB at 70 %: it is at work, and the other GPU takes one more": (
        seen(tasks=1, load=(70, 0), peak_gib=24.0), {}, ("more", 2, "medium"), ["next 2 with --share-gpu=1"],
    ),
    "the kernel killed six": (
        seen(tasks=8, load=(60, 60), kills=6), {}, ("fewer", 4, "high"),
        ["^the kernel killed 6 processes of it because host memory was full: fewer, 4 with --share-gpu=2"],
    ),
    "six tasks of 14 GiB on two GPUs of 32": (
        seen(tasks=6, load=(40, 40), peak_gib=14.0), {}, ("fewer", 4, "high"),
        ["^6 tasks are more than GPU memory allows"],
    ),
    "memory bandwidth full": (
        with_dram(seen(tasks=4, load=(45, 45)), 86.0), {}, ("stay", 4, "high"), ["decided by GPU load; stay"],
    ),
    "one sample of memory bandwidth beside windows of it": (
        with_dram(seen(tasks=4, load=(45, 45), dram=97.0), 30.0), {}, ("more", 8, "high"), ["next 8"],
    ),
    "busy a quarter of an hour ago, idle now": (
        over(seen(tasks=4), (5.5, 30.0, 90.0)), {}, ("more", 8, "low"),
        ["the load of its GPUs is not steady: 6 % over one minute, 30 % over five, 90 % over fifteen"],
    ),
    "the CPUs three quarters busy": (
        seen(tasks=4, load=(40, 40), cpu=31.0), {}, ("stay", 4, "high"), ["decided by CPU load"],
    ),
    "one task over two GPUs is not for sharing": (
        replace(seen(), processes=(replace(seen().processes[0], gpus=(seen().processes[0].gpus[0],
                replace(seen().processes[0].gpus[0], uuid="GPU-1"))),)), {}, ("unknown", None, "none"),
        ["works on 2 GPUs at once", "llload --advise 11 --watch 10"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_an_operator_would_say(case):
    one, submitted, expected, said = CASES[case]
    advice = advise(job(**submitted), [one])
    assert (advice.verdict, advice.next, advice.confidence) == expected, advice.sentence
    whole = " | ".join((advice.sentence, *advice.evidence))
    for words in said:
        if words.startswith("^"):
            assert advice.sentence.startswith(words[1:]), advice.sentence
        else:
            assert words in whole, whole
    assert "?" not in advice.sentence
    if advice.next is None:
        assert len(advice.sentence) > 40, "without a number it says in words what to do"


# ---- In a steady state ----


def noisy(one, rng, noise):
    """The node with every load off by so much, each window and GPU by itself."""

    def off(value):
        return max(0.0, value * noise(rng))

    def gpu(card):
        load = card.sm_percent_windows
        dram = None if card.dram_percent_windows is None else means(off(card.dram_percent_windows.m5))
        sm = Means(*(min(100.0, off(value)) for value in (load.m1, load.m5, load.m15)), load.over_s)
        return replace(card, sm_percent_windows=sm, dram_percent_windows=dram)

    cpu = off(one.load[1])
    jobs = tuple(replace(load, cpu_cores_windows=means(off(load.cpu_cores_windows.m5))) for load in one.jobs)
    return replace(one, gpus=tuple(map(gpu, one.gpus)), load=(cpu, cpu, cpu), jobs=jobs)


def changes_of(one, seed, noise):
    """Return how often verdict or number differ from those of the survey before, in 60 surveys."""
    rng, previous, count = random.Random(seed), (), 0
    for _ in range(60):
        advice = advise_all(survey([noisy(one, rng, noise)], [job()]), previous=previous)
        count += bool(previous) and (advice[0].verdict, advice[0].next) != (previous[0].verdict, previous[0].next)
        previous = advice
    return count


STEADY = {
    f"{load} % by {tasks}": seen(tasks=tasks, load=(load, load), peak_gib=0.5, cpu=cpu)
    for load, tasks, cpu in [
        (3, 4, 1.0), (4.9, 4, 1.0), (5, 4, 1.0), (5.2, 8, 1.0), (12, 4, 2.0), (17, 3, 2.0), (20, 4, 2.0), (23, 10, 2.0),
        (33, 6, 2.0), (40, 4, 2.0), (50, 4, 2.0), (75, 4, 2.0), (79, 4, 2.0), (80, 4, 2.0), (82, 4, 2.0), (88, 4, 2.0),
        (40, 6, 30.0), (40, 8, 60.0), (30, 8, 13.0),
    ]
} | {
    "uneven": seen(tasks=4, load=(85, 41)),
    "DRAM": with_dram(seen(tasks=4, load=(45, 45)), 80.0),
    "taken in advance": seen(tasks=2, load=(49, 49), peak_gib=24.0),
}  # fmt: skip


@pytest.mark.parametrize("state", STEADY)
@pytest.mark.parametrize(
    "noise", [lambda rng: rng.uniform(0.9, 1.1), lambda rng: rng.gauss(1.0, 0.1)], ids=["10 %", "gauss"]
)
def test_in_a_steady_state_it_changes_its_mind_once_at_most(state, noise):
    counts = {seed: changes_of(STEADY[state], seed, noise) for seed in range(4)}
    assert max(counts.values()) <= 1, counts


def test_what_has_changed_is_said_soon():
    light, full = seen(tasks=4, load=(20, 20)), seen(tasks=4, load=(95, 95))
    previous = None
    said = []
    for one in [light] * 3 + [full] * 12 + [light] * 20:
        previous = advise(job(), [one], previous=previous)
        said.append(previous.verdict)
    assert said[2] == "more"
    assert "stay" in said[3:15]
    assert said[-1] == "more"
    large = seen(tasks=4, load=(20, 20), peak_gib=20.0, used_mib=31 * GIB)
    assert advise(job(), [large], previous=previous).verdict == "fewer"


def test_what_is_kept_is_said_to_be():
    first = advise(job(), [seen(tasks=4, load=(75, 75))])
    then = advise(job(), [seen(tasks=4, load=(83, 83))], previous=replace(first, gpu_percents=(81.0, 81.0)))
    assert (first.verdict, then.verdict) == ("more", "more")
    assert any("kept from the survey before" in line for line in then.evidence)
    other = advise(job(), [seen(tasks=6, load=(83, 83))], previous=replace(first, gpu_percents=(81.0, 81.0)))
    assert other.verdict == "stay", "other tasks, and nothing to keep"
