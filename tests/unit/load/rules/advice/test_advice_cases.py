"""The advice of an experienced operator, case by case; it does not change with noise.

The cases are from LLSC's guide (CPU load 50 to 150 %, GPU load 50 to 100 %, two models a GPU where both are below
half, the tuning recipe that doubles), its paper on GPU sharing (LeNet-4, ResNet-18 on two V100), jobstats' notes (a GPU
at 0 % is a mistake; too many threads; host memory), RAD-RM's limit of 80 % SM activity, and the manuals of JAX and
TensorFlow.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from msgspec.structs import replace
from seen_nodes import GIB, job, means, node, survey

from slurm_share.load.rules.advice.advise import advise, advise_all
from slurm_share.load.snapshot import Means
from slurm_share.slurm.records import SlurmNode


def over(one, windows):
    """The node with these means of every GPU's load over 1, 5 and 15 minutes."""
    return replace(one, gpus=tuple(replace(gpu, sm_percent_windows=Means(*windows, 900.0)) for gpu in one.gpus))


def with_dram(one, percent):
    """The node with this memory bandwidth over all windows."""
    return replace(one, gpus=tuple(replace(gpu, dram_percent_windows=means(percent)) for gpu in one.gpus))


def waiting(average, cpu, **more):
    """The node with this load average, and this CPU time of the job."""
    return replace(seen(cpu=cpu, **more), load=(average, average, average))


def others(one, cores):
    """The node with this CPU time outside its job."""
    return replace(one, cpu_cores=one.jobs[0].cpu_cores + cores)


def with_libraries(one, libraries):
    """The node whose tasks have loaded these libraries, which take memory at their start."""
    return replace(one, processes=tuple(replace(task, in_advance=libraries) for task in one.processes))


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
    "LLSC's LeNet-4 alone: room for four": (seen(load=(35, 0)), {}, ("more", 4, "medium")),
    "LLSC's guide: load and memory below half, two models a GPU": (
        seen(tasks=2, load=(40, 40), peak_gib=10.0), {}, ("more", 4, "high"),
    ),
    "light tasks: four times as many, not all that a straight line says": (
        seen(tasks=4, load=(8, 8), peak_gib=1.0), {}, ("more", 16, "high"),
    ),
    "3 % SM activity: find out first": (seen(tasks=4, load=(3, 3)), {}, ("look", None, "high")),
    "nothing on the GPU at all": (seen(tasks=2, load=(0.2, 0.1)), {}, ("look", None, "high")),
    "3 % SM activity and the CPUs full": (seen(tasks=4, load=(3, 3), cpu=38.0), {}, ("look", None, "high")),
    "one of two tasks does nothing": (seen(tasks=2, load=(60, 2)), {}, ("look", None, "high")),
    "90 running threads on 40 CPUs, by 8 tasks": (
        waiting(90.0, 39.0, tasks=8, load=(40, 40)), {}, ("change", 8, "high"),
    ),
    "the same of a triple with ten threads": (
        seen(tasks=8, load=(40, 40), cpu=90.0), {"comment": "llsub [1,8,10]"}, ("change", 8, "high"),
    ),
    "the same though the triple says five": (
        seen(tasks=8, load=(40, 40), cpu=90.0), {"comment": "llsub [1,8,5]"}, ("change", 8, "high"),
    ),
    "more tasks than cores are too many tasks": (
        seen(tasks=80, load=(40, 40), cpu=90.0, peak_gib=0.3), {}, ("fewer", 40, "high"),
    ),
    "without GPUs, twice as many threads as CPUs": (
        node(gpus=0, load=(), cpu=90.0, tasks=4, peak_gib=None),
        {"gpus": 0, "comment": "llsub [1,4,20]"}, ("change", 4, "high"),
    ),
    "one task without GPUs that waits": (
        node(gpus=0, load=(), cpu=0.001, tasks=1, peak_gib=None), {"gpus": 0}, ("look", None, "medium"),
    ),
    "LLSC's guide: half the CPUs busy are good": (
        node(gpus=0, load=(), cpu=20.0, tasks=20, peak_gib=None),
        {"gpus": 0, "comment": "llsub [1,20,2]"}, ("stay", 20, "high"),
    ),
    "GPU 0 full, GPU 1 not, as many tasks on both": (seen(tasks=4, load=(95, 20)), {}, ("change", 4, "high")),
    "GPU 0 full with two tasks, GPU 1 with one: one more there": (
        seen(tasks=3, load=(95, 40)), {}, ("more", 4, "high"),
    ),
    "all tasks on the first GPU": (on_gpu_0(seen(tasks=4, load=(70, 0))), {}, ("change", 4, "high")),
    "JAX takes 24 of 32 GiB at its start": (seen(tasks=2, load=(10, 10), peak_gib=24.0), {}, ("change", 2, "medium")),
    "the same with JAX's library loaded": (
        with_libraries(seen(tasks=2, load=(10, 10), peak_gib=24.0), ("JAX",)), {}, ("change", 2, "high"),
    ),
    "the same without such a library, or with it turned off": (
        with_libraries(seen(tasks=2, load=(10, 10), peak_gib=24.0), ()), {}, ("stay", 2, "high"),
    ),
    "a large model on a full GPU": (seen(tasks=2, load=(98, 98), peak_gib=30.0), {}, ("stay", 2, "high")),
    "load 130 of 64 and CPU time 3: storage, not threads": (
        waiting(130.0, 3.0, tasks=16, load=(4, 4), cores=64),
        {"comment": "llsub [1,16,4]", "cpus": 64}, ("waits", None, "medium"),
    ),
    "the same while the GPUs are used: it does not wait all the time": (
        waiting(130.0, 3.0, tasks=16, load=(20, 20), cores=64), {"cpus": 64}, ("stay", 16, "medium"),
    ),
    "the same where others use the CPUs: it may be their load": (
        others(waiting(130.0, 3.0, tasks=16, load=(20, 20), cores=64), 4.0), {"cpus": 64}, ("more", 26, "medium"),
    ),
    "the same without the CPU time of the node": (
        replace(waiting(130.0, 3.0, tasks=16, load=(4, 4), cores=64), cpu_cores=None),
        {"cpus": 64}, ("look", None, "high"),
    ),
    "the same from a source that lists no processes": (
        replace(waiting(130.0, 3.0, gpus=0, load=(), tasks=16, peak_gib=None, cores=64, sm=False),
                unknown={"processes": "not in Prometheus"}),
        {"gpus": 0, "cpus": 64, "comment": "llsub [1,16,4]"}, ("more", 64, "high"),
    ),
    "the same while the GPUs are full: they have enough to do": (
        waiting(130.0, 3.0, tasks=16, load=(90, 90), cores=64), {"cpus": 64}, ("stay", 16, "high"),
    ),
    "the same on a node that others use as well": (
        waiting(130.0, 3.0, tasks=16, load=(20, 20), cores=64),
        {"cpus": 8, "keeps_others_out": False}, ("more", 26, "medium"),
    ),
    "the same while processes of the system use 16 CPUs": (
        replace(waiting(130.0, 3.0, tasks=16, load=(20, 20), cores=64), cpu_cores=19.0),
        {"cpus": 64}, ("more", 26, "medium"),
    ),
    "load 130 of 64 and CPU time 40: neither is shown": (
        waiting(130.0, 40.0, tasks=16, load=(20, 20), cores=64), {"cpus": 64}, ("more", 26, "medium"),
    ),
    "without GPUs, load 60 of 64 and CPU time 2": (
        waiting(60.0, 2.0, gpus=0, load=(), tasks=16, peak_gib=None, cores=64, sm=False),
        {"gpus": 0, "cpus": 64, "comment": "llsub [1,16,4]"}, ("waits", None, "medium"),
    ),
    "a cap that does not fit is left out, and that is said": (
        seen(tasks=8, load=(20, 20), peak_gib=3.0), {"share": "4,mem=7G"}, ("more", 20, "medium"),
    ),
    "the last two percent in one step": (seen(tasks=8, load=(10, 10), peak_gib=2.39), {}, ("more", 26, "medium")),
    "a peak at its cap counts as the cap": (
        seen(tasks=4, load=(20, 20), peak_gib=7.8, cap_mib=8192), {"share": "2,mem=8G"}, ("more", 6, "medium"),
    ),
    "a GPU with 24 of 32 GiB in use and a load of 70 % is at work, and the other GPU takes one more task": (
        seen(tasks=1, load=(70, 0), peak_gib=24.0), {}, ("more", 2, "medium"),
    ),
    "the kernel killed six": (seen(tasks=8, load=(60, 60), kills=6), {}, ("fewer", 4, "high")),
    "six tasks of 14 GiB on two GPUs of 32": (seen(tasks=6, load=(40, 40), peak_gib=14.0), {}, ("fewer", 4, "high")),
    "memory bandwidth full": (with_dram(seen(tasks=4, load=(45, 45)), 86.0), {}, ("stay", 4, "high")),
    "one sample of memory bandwidth beside windows of it": (
        with_dram(seen(tasks=4, load=(45, 45), dram=97.0), 30.0), {}, ("more", 8, "high"),
    ),
    "busy a quarter of an hour ago, idle now": (over(seen(tasks=4), (5.5, 30.0, 90.0)), {}, ("more", 8, "low")),
    "the CPUs three quarters busy": (seen(tasks=4, load=(40, 40), cpu=31.0), {}, ("stay", 4, "high")),
    "one task over two GPUs is not for sharing": (
        replace(seen(), processes=(replace(seen().processes[0], gpus=(seen().processes[0].gpus[0],
                replace(seen().processes[0].gpus[0], uuid="GPU-1"))),)),
        {}, ("unknown", None, "none"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_an_operator_would_say(case):
    one, submitted, expected = CASES[case]
    advice = advise(job(**submitted), [one])
    assert (advice.verdict, advice.next, advice.confidence) == expected, advice.sentence
    assert "?" not in advice.sentence
    if advice.next is None:
        assert len(advice.sentence) > 40, "without a number it says in words what to do"


def test_the_sentences_of_the_cases(golden):
    found = {case: advise(job(**submitted), [one]) for case, (one, submitted, _) in CASES.items()}
    lines = [line for case, one in found.items() for line in (f"{case}:", one.sentence, *one.evidence, "")]
    golden("operator.txt", "".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(("cpus", "verdict"), [(64, "waits"), (128, "look")])
def test_the_load_average_of_a_node_with_cpus_for_other_jobs_is_not_the_jobs(cpus, verdict):
    """Slurm counts 128 CPUs on a node where the kernel of the machine has 64."""
    one = waiting(130.0, 3.0, tasks=16, load=(4, 4), cores=64)
    slurm = {"n1": SlurmNode(name="n1", states=("ALLOCATED",), cpus=cpus, memory_mib=384 * GIB)}
    assert advise(job(cpus=64, keeps_others_out=False), [one], slurm=slurm).verdict == verdict


# ---- In a steady state ----


class Noise:
    """A sampler whose figures are off: each by itself, the peaks as the most that was seen so far."""

    def __init__(self, seed, noise):
        self.rng = random.Random(seed)
        self.noise = noise
        self.peaks = {}

    def off(self, value):
        return None if value is None else type(value)(max(0, value * self.noise(self.rng)))

    def most(self, key, value):
        if value is None:
            return None
        self.peaks[key] = max(self.peaks.get(key, 0), self.off(value))
        return self.peaks[key]

    def windows(self, figure, most=1e9):
        if figure is None:
            return None
        return Means(*(min(most, self.off(value)) for value in (figure.m1, figure.m5, figure.m15)), figure.over_s)

    def gpu(self, card):
        return replace(
            card,
            memory_used_mib=min(card.memory_total_mib, self.off(card.memory_used_mib)),
            utilization_percent_windows=self.windows(card.utilization_percent_windows, 100.0),
            sm_percent_windows=self.windows(card.sm_percent_windows, 100.0),
            dram_percent_windows=self.windows(card.dram_percent_windows, 100.0),
        )

    def process(self, one):
        memory = [self.off(on.memory_mib) for on in one.gpus]
        gpus = tuple(
            replace(
                on,
                memory_mib=mib,
                peak_mib=self.most((one.pid, on.uuid), on.peak_mib),
                sm_time_percent=self.off(on.sm_time_percent),
            )
            for on, mib in zip(one.gpus, memory, strict=True)
        )
        return replace(one, gpus=gpus, memory_mib=self.off(one.memory_mib), cpu_cores=self.off(one.cpu_cores))

    def job(self, load):
        return replace(
            load,
            cpu_cores_windows=self.windows(load.cpu_cores_windows),
            memory_mib=self.off(load.memory_mib),
            task_peak_mib=self.most((load.job, "gpu"), load.task_peak_mib),
            task_host_peak_mib=self.most((load.job, "host"), load.task_host_peak_mib),
        )

    def __call__(self, one):
        """Return the node with every measured figure off."""
        return replace(
            one,
            gpus=tuple(map(self.gpu, one.gpus)),
            processes=tuple(map(self.process, one.processes)),
            jobs=tuple(map(self.job, one.jobs)),
            load=tuple(map(self.off, one.load)),
            memory_used_mib=self.off(one.memory_used_mib),
        )


def changes_of(one, seed, noise, told):
    """Return how often what is told of the advice differs from the survey before, in 60 surveys."""
    noisy, previous, count = Noise(seed, noise), (), 0
    for _ in range(60):
        advice = advise_all(survey([noisy(one)], [job(cpus=one.cpus)]), previous=previous)
        count += bool(previous) and told(advice[0]) != told(previous[0])
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


def verdict(advice):
    return advice.verdict


def verdict_and_number(advice):
    return advice.verdict, advice.next


EVEN = {"10 %": lambda rng: rng.uniform(0.9, 1.1), "gauss": lambda rng: rng.gauss(1.0, 0.1)}


@pytest.mark.parametrize("state", STEADY)
@pytest.mark.parametrize("noise", EVEN)
def test_in_a_steady_state_it_changes_its_mind_once_at_most(state, noise):
    counts = {seed: changes_of(STEADY[state], seed, EVEN[noise], verdict_and_number) for seed in range(2)}
    assert max(counts.values()) <= 1, counts


NEAR = {
    f"load average {average}, CPU time {cpu} of 40, {load} % by {tasks}": waiting(
        average, cpu, tasks=tasks, load=(load, load), peak_gib=0.5
    )
    for average, cpu, load, tasks in [
        (60, 30, 40, 8), (61, 31, 80, 8), (62, 30, 4.9, 8), (90, 30, 40, 8), (60, 38, 40, 8), (130, 3, 20, 8),
        (40, 20, 40, 8), (40, 19, 5, 8), (39, 19.5, 78, 8), (41, 20, 80, 8), (24, 3.5, 40, 8), (22, 2, 80, 4),
    ]
} | {
    f"{tasks} tasks of {peak} GiB at {load} %": seen(tasks=tasks, load=(load, load), peak_gib=peak)
    for tasks, peak, load in [
        (4, 15.5, 40), (6, 10.2, 40), (6, 10.5, 80), (8, 7.8, 50), (2, 22.3, 49), (2, 22.3, 51), (2, 31.0, 40),
        (4, 7.7, 4.9),
    ]
} | {
    f"host memory of {gib} GiB, tasks of {peak}": seen(
        tasks=8, load=(40, 40), peak_gib=1.0, host_gib=gib, host_peak_gib=peak
    )
    for gib, peak in [(64, 7.8), (64, 3.9), (70, 8.0)]
}  # fmt: skip


@pytest.mark.parametrize("state", NEAR)
@pytest.mark.parametrize("noise", EVEN)
def test_noise_on_every_figure_changes_the_verdict_once_at_most(state, noise):
    counts = {seed: changes_of(NEAR[state], seed, EVEN[noise], verdict) for seed in range(2)}
    assert max(counts.values()) <= 1, counts


def any_state(rng):
    """A node and its job with figures that are often near a threshold."""
    gpus, tasks = rng.choice([0, 1, 2, 4]), rng.randint(1, 12)
    seen = {
        "tasks": tasks,
        "gpus": gpus,
        "load": tuple(rng.choice([rng.uniform(0, 100), 5, 80, 41, 50]) for _ in range(gpus)),
        "peak_gib": rng.choice([rng.uniform(0.1, 30), 15.5, 22.3, 7.8]) if gpus else None,
        "cpu": rng.choice([rng.uniform(0, 40), rng.uniform(15, 35)]),
        "sm": rng.random() < 0.6,
        "host_gib": rng.choice([64, 384]),
        "host_peak_gib": rng.choice([1.0, 7.8, rng.uniform(0.1, 20)]),
    }
    average = rng.choice([seen["cpu"], rng.uniform(0, 140), 60.0])
    one = replace(node(**seen), load=(average, average, average))
    return one, job(cpus=40, gpus=gpus, comment=f"llsub [1,{tasks},{max(1, 40 // tasks)}]")


@pytest.mark.parametrize("seed", range(4))
def test_noise_of_ten_percent_changes_the_verdict_of_no_state_more_than_once(seed):
    rng = random.Random(100 + seed)
    for number in range(12):
        one, of_job = any_state(rng)
        noisy, previous, found = Noise(number, EVEN["10 %"]), (), []
        for _ in range(60):
            previous = advise_all(survey([noisy(one)], [of_job]), previous=previous)
            found.append(previous[0].verdict)
        assert sum(now != before for before, now in pairwise(found)) <= 1, (one, found)


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
