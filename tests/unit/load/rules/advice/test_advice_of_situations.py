"""The advice in situations that users of GPU clusters have, as `llload --replay FILE --advise` prints it.

Verdict, number and confidence were written down before anyone looked at the rules, from LLSC's guide and paper,
the manuals of NVIDIA, JAX, TensorFlow and Slurm, jobstats' notes, and the papers on collocation. The cases under ALSO
were added when the rules were read.
"""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from msgspec import Struct
from msgspec.structs import replace
from seen_nodes import GIB, job, means, node, survey

from slurm_share.cli import llload, llload_watch
from slurm_share.load import recording
from slurm_share.load.snapshot import JobProgress, LevelRate, Means, OnGpu

H100_MIB = 81559
"""The total memory of an H100 with 80 GB in MiB, as the driver gives it."""
MIG_MIB = 40448
"""An instance 3g.40gb of it."""
NOW = 1e9
"""Time of a survey of `seen_nodes`."""


class Case(Struct, kw_only=True):
    """A survey, and the advice that it has to lead to."""

    seen: object
    verdict: str
    """One or more, with `|` between them."""
    next: range = range(0)
    """The tasks on a node that may be advised; empty: no number."""
    confidence: str = "none|low|medium|high"


# ---- What is seen ----


def on_every_gpu(one, **more):
    """The node with these figures of every GPU."""
    return replace(one, gpus=tuple(replace(gpu, **more) for gpu in one.gpus))


def of_every_job(one, **more):
    """The node with these figures of every job."""
    return replace(one, jobs=tuple(replace(load, **more) for load in one.jobs))


def h100(*, percent=None, cpu_time=None, **more):
    """GPUs of 80 GB with SM activity, 64 cores, 1 TB. `percent`: load of every GPU. `cpu_time`: cores that the job
    uses, if the load average (`cpu`) is not made of these."""
    values = {"total_mib": H100_MIB, "sm": True, "cores": 64, "cpu": 4.0, "host_gib": 1007, "gpus": 1}
    values |= {"driver": "580.95", **more}
    if percent is not None:
        values["load"] = (percent,) * values["gpus"]
    one, cores = node(**values), values["cpu"] if cpu_time is None else cpu_time
    one = replace(one, cpu_cores=cores * len(one.jobs) + 0.1)
    return of_every_job(one, cpu_cores=cores, cpu_cores_windows=means(cores))


def of(*nodes, silent=(), **more):
    """A survey of these nodes with one job, which has all their CPUs and GPUs."""
    first, names = nodes[0], [one.node for one in nodes] + [name for name, _ in silent]
    gpus = len(first.gpus)
    values = {"cpus": first.cpus * len(names), "gpus": gpus * len(names), "nodes": ",".join(names)}
    values |= {"node_count": len(names), "start": int(NOW - first.jobs[0].measured_s)}
    values |= {"script": "/home/alice/train.sh"}
    values |= {"gpu_indexes": (tuple(range(gpus)),) * len(names) if gpus else ()}
    return survey(nodes, [job(**{**values, **more})], silent=silent)


def nobody_on(one, numbers, seconds):
    """Return the node with no process on the GPUs with these numbers for so many seconds."""
    none = Means(0.0, 0.0, 0.0, min(900.0, seconds), m10=0.0 if seconds >= 600 else None)
    figures = {"unused_s": min(900.0, seconds), "sm_percent_windows": none, "utilization_percent_windows": none}
    return replace(one, gpus=tuple(replace(gpu, **figures) if gpu.index in numbers else gpu for gpu in one.gpus))


def lost(one, number):
    """The node with a GPU of which the driver only says that it is lost."""
    gone = {"problem": "GPU is lost", "sm_percent_windows": None, "utilization_percent_windows": None}
    gone |= {"memory_total_mib": None, "memory_used_mib": None}
    return replace(one, gpus=tuple(replace(gpu, **gone) if gpu.index == number else gpu for gpu in one.gpus))


def never_used(gpus, minutes, cpu):
    """A node with a job that never had a process on a GPU."""
    one = h100(gpus=gpus, tasks=0, percent=0.0, cpu=cpu, measured_s=60.0 * minutes, host_peak_gib=None)
    one = of_every_job(one, task_peak_mib=None, memory_mib=8 * GIB, gpus=())
    one = replace(one, gpus=tuple(replace(gpu, clients=0, minor=gpu.index) for gpu in one.gpus))
    return nobody_on(one, range(gpus), 60.0 * minutes)


def of_sizes(one, *sizes):
    """The node with processes of these sizes in MiB."""
    tasks = tuple(
        replace(task, gpus=(replace(task.gpus[0], memory_mib=size, peak_mib=size),))
        for task, size in zip(one.processes, sizes, strict=True)
    )
    return of_every_job(replace(one, processes=tasks), task_peak_mib=max(sizes))


def with_helpers(one, mib):
    """The node with a second process of so much memory in every task."""
    tasks = [replace(task, step="0", task=place) for place, task in enumerate(one.processes)]
    helpers = [
        replace(task, pid=task.pid + 500, gpus=(replace(task.gpus[0], memory_mib=mib, peak_mib=mib),)) for task in tasks
    ]
    peak = (one.jobs[0].task_peak_mib or 0) + mib
    return of_every_job(replace(one, processes=(*tasks, *helpers)), task_peak_mib=peak)


def over_all_gpus(one, *, processes):
    """The node with one task on all GPUs: by one process, or by a process on each."""
    task, mib = one.processes[0], one.jobs[0].task_peak_mib
    on = [OnGpu(uuid=gpu.uuid, memory_mib=mib, peak_mib=mib) for gpu in one.gpus]
    found = [replace(task, pid=place + 1, gpus=(one,)) for place, one in enumerate(on)]
    found = [replace(task, gpus=tuple(on))] if processes == 1 else found
    peak = mib * len(on)
    one = of_every_job(replace(one, processes=tuple(found)), gpus=tuple(gpu.uuid for gpu in on), task_peak_mib=peak)
    return on_every_gpu(one, memory_used_mib=mib)


def in_advance(one, *libraries):
    """The node with processes of which these libraries take memory in advance, and no other."""
    return replace(one, processes=tuple(replace(task, in_advance=libraries) for task in one.processes))


def rated(one, rates, now):
    """The node with the rates of a run of llsub with these numbers of tasks."""
    levels = tuple(
        LevelRate(level=level, per_s=rate, spread_per_s=rate / 50, windows=6) for level, rate in rates.items()
    )
    told = {"source": "progress", "family": "train", "tasks": now, "rated": now, "rate_per_s": rates[now]}
    told |= {"spread_per_s": rates[now] / 50, "windows": 6, "levels_source": "progress"}
    return of_every_job(one, progress=JobProgress(**told, levels=tuple(one for one in levels if one.level != now)))


# ---- What is to be said ----

SMALL = {"tasks": 20, "percent": 12.0, "peak_gib": 900 / GIB, "cores": 128, "cpu": 15.0, "driver": "570.86"}
FALLING = rated(h100(gpus=2, tasks=8, percent=45.0, peak_gib=3.0), {4: 10.0, 8: 8.1}, now=8)
MIG = on_every_gpu(
    h100(gpus=2, tasks=2, percent=20.0, peak_gib=5.0, total_mib=MIG_MIB, mig=True), utilization_percent_windows=None
)
HUNGRY = h100(gpus=4, tasks=8, percent=10.0, peak_gib=4.0, host_peak_gib=30.0)

CASES = {
    "01 GPUs held and never used, CPUs busy": Case(
        seen=of(never_used(4, 14, cpu=30.0)), verdict="release", confidence="low|medium",
    ),
    "02 GPUs held for six minutes, nothing started yet": Case(
        seen=of(never_used(4, 6, cpu=30.0)), verdict="unknown",
    ),
    "03 tasks in state D on NFS": Case(
        seen=of(h100(gpus=4, tasks=16, percent=8.0, peak_gib=3.0, cpu=130.0, cpu_time=3.0), comment="llsub [1,16,4]"),
        verdict="waits|look|stay", next=range(16, 17), confidence="low|medium",
    ),
    "04 too many threads": Case(
        seen=of(h100(gpus=4, tasks=16, percent=15.0, peak_gib=3.0, cpu=260.0, cpu_time=63.6), comment="llsub [1,16,4]"),
        verdict="change", next=range(16, 17), confidence="medium|high",
    ),
    "05 data loaders take all CPUs": Case(
        seen=of(h100(gpus=4, tasks=4, percent=25.0, peak_gib=10.0, cores=32, cpu=33.0, cpu_time=31.0)),
        verdict="stay", next=range(4, 5), confidence="medium|high",
    ),
    "06 a large model of PyTorch": Case(
        seen=of(h100(tasks=1, percent=60.0, peak_gib=73400 / GIB)),
        verdict="stay", next=range(1, 2),
    ),
    "07 JAX takes 75 % at its start": Case(
        seen=of(h100(tasks=1, percent=15.0, peak_gib=61169 / GIB)),
        verdict="change", next=range(1, 2), confidence="low|medium",
    ),
    "08 JAX, and XLA_PYTHON_CLIENT_PREALLOCATE=false is set": Case(
        seen=of(in_advance(h100(tasks=1, percent=15.0, peak_gib=61169 / GIB))),
        verdict="stay", next=range(1, 2),
    ),
    "09 mem=8G and a peak of 3 GB": Case(
        seen=of(h100(tasks=4, percent=20.0, peak_gib=3000 / GIB, cap_mib=8192), share="4,mem=8G"),
        verdict="more", next=range(8, 17), confidence="low|medium",
    ),
    "10 mem=8G and a peak of 7.9 GB": Case(
        seen=of(h100(tasks=4, percent=20.0, peak_gib=7900 / GIB, cap_mib=8192), share="4,mem=8G"),
        verdict="more", next=range(8, 10), confidence="low|medium",
    ),
    "11 two GPUs held, one used": Case(
        seen=of(nobody_on(h100(gpus=2, tasks=1, load=(70, 0), peak_gib=20.0), {1}, 900), share="1"),
        verdict="more|change", next=range(2, 3),
    ),
    "12 --mem=0 and a part of the node's memory": Case(
        seen=of(HUNGRY, memory_mib=0, memory_on_nodes_mib=(256 * GIB,)),
        verdict="stay", next=range(8, 9), confidence="high",
    ),
    "13 --mem=0 and the whole node's memory": Case(
        seen=of(HUNGRY, memory_mib=0, memory_on_nodes_mib=(1000 * GIB,)),
        verdict="more", next=range(28, 33), confidence="medium|high",
    ),
    "14 clients of MPS, driver 570": Case(
        seen=of(h100(**SMALL)), verdict="more", next=range(48, 49),
    ),
    "15 clients of MPS, driver 590": Case(
        seen=of(h100(**SMALL | {"driver": "590.44"})), verdict="more", next=range(60, 61),
    ),
    "16 two processes in each task": Case(
        seen=of(with_helpers(h100(**SMALL), 200)), verdict="more", next=range(24, 25),
    ),
    "17 MIG instances with SM activity": Case(seen=of(MIG), verdict="more", next=range(4, 9, 2)),
    "18 MIG instances without a load": Case(
        seen=of(on_every_gpu(MIG, sm_percent_windows=None)), verdict="unknown",
    ),
    "19 utilisation 95 %, SM activity 20 %": Case(
        seen=of(on_every_gpu(h100(tasks=1, percent=20.0, peak_gib=6.0), utilization_percent_windows=means(95.0))),
        verdict="more", next=range(4, 5), confidence="medium|high",
    ),
    "20 SM activity 85 %": Case(
        seen=of(h100(tasks=2, percent=85.0, peak_gib=6.0)), verdict="stay", next=range(2, 3), confidence="medium|high",
    ),
    "21 the measured rate falls from four to eight tasks": Case(
        seen=of(FALLING, comment="llsub [1,8,8]"), verdict="fewer", next=range(4, 5), confidence="medium|high",
    ),
    "22 the same run after a requeue": Case(
        seen=of(FALLING, comment="llsub [1,8,8]", restarts=1), verdict="fewer", next=range(4, 5),
        confidence="medium|high",
    ),
    "23 LLSC's LeNet-4, one task on two V100": Case(
        seen=of(node(tasks=1, load=(35, 0), peak_gib=2.3, cpu=1.0)), verdict="more", next=range(4, 5),
        confidence="low|medium",
    ),
    "24 CPUs only": Case(
        seen=of(h100(gpus=0, load=(), tasks=64, cpu=60.0, peak_gib=None), tasks=64), verdict="stay",
        next=range(64, 65),
    ),
    "25 a job of 90 seconds": Case(
        seen=of(h100(tasks=1, percent=5.0, peak_gib=1.0, measured_s=90.0, over_s=90.0)),
        verdict="unknown|more", next=range(1, 5), confidence="none|low",
    ),
    "26 the end of a run: two of eight tasks are left": Case(
        seen=of(
            of_every_job(h100(gpus=4, tasks=2, load=(20, 20, 0, 0), peak_gib=3.0), tasks_at_once=8, tasks_measured=100),
            comment="llsub [1,8,8]",
        ),
        verdict="more|stay|unknown", next=range(8, 33), confidence="none|low|medium",
    ),
    "27 three small tasks and a large one": Case(
        seen=of(of_sizes(h100(tasks=4, percent=20.0), 2048, 2048, 2048, 20480)),
        verdict="stay|fewer", next=range(3, 5), confidence="low|medium",
    ),
    "28 one of two nodes is silent": Case(
        seen=of(h100(gpus=4, tasks=4, percent=15.0, peak_gib=5.0), silent=[("n2", "no answer")], comment="llsub [2,4]"),
        verdict="more", next=range(16, 17), confidence="low|medium",
    ),
    "29 two nodes, one nearly full": Case(
        seen=of(
            h100(name="n1", gpus=4, tasks=4, percent=75.0, peak_gib=5.0),
            h100(name="n2", gpus=4, tasks=4, percent=10.0, peak_gib=5.0), comment="llsub [2,4]",
        ),
        verdict="stay|more", next=range(4, 9), confidence="low|medium",
    ),
    "30 GPU memory is not known": Case(
        seen=of(on_every_gpu(h100(tasks=1, percent=15.0, peak_gib=None), memory_used_mib=None)),
        verdict="unknown", confidence="none",
    ),
    "31 training on eight GPUs, one process each": Case(
        seen=of(h100(gpus=8, tasks=8, percent=98.0, peak_gib=60.0)), verdict="stay", next=range(8, 9),
        confidence="medium|high",
    ),
    "32 one process on four GPUs": Case(
        seen=of(over_all_gpus(h100(gpus=4, tasks=1, percent=30.0, peak_gib=10.0), processes=1)),
        verdict="unknown",
    ),
    "33 an interactive shell that does nothing": Case(
        seen=of(never_used(1, 40, cpu=0.0), script=""), verdict="release",
    ),
    "34 a notebook that has been idle for hours": Case(
        seen=of(h100(tasks=1, percent=0.0, peak_gib=8.0, measured_s=10800.0)), verdict="look",
    ),
    "35 an inference server with bursts": Case(
        seen=of(on_every_gpu(h100(tasks=1, peak_gib=10.0, percent=12.0), sm_percent_windows=Means(60, 12, 8, 900.0))),
        verdict="more|stay", next=range(1, 5), confidence="low|medium",
    ),
    "36 the kernel ended tasks for host memory": Case(
        seen=of(
            h100(gpus=4, tasks=16, percent=20.0, peak_gib=3.0, host_peak_gib=18.0, kills=3), memory_mib=256 * GIB
        ),
        verdict="fewer", next=range(12, 13), confidence="high",
    ),
    "37 as many tasks as cores": Case(
        seen=of(h100(gpus=4, tasks=48, percent=25.0, peak_gib=800 / GIB, cpu=30.0)), verdict="more",
        next=range(64, 65),
    ),
    "38 the measured rate rises": Case(
        seen=of(rated(h100(gpus=2, tasks=4, percent=55.0, peak_gib=12000 / GIB), {2: 2.0, 4: 3.9}, now=4)),
        verdict="more", next=range(8, 9), confidence="medium|high",
    ),
}  # fmt: skip

ALSO = {
    "four processes of torchrun in one task": Case(
        seen=of(over_all_gpus(h100(gpus=4, tasks=1, percent=30.0, peak_gib=10.0), processes=4)),
        verdict="unknown",
    ),
    "GPUs of a batch job never used, for forty minutes": Case(
        seen=of(never_used(4, 40, cpu=0.1)), verdict="release", confidence="medium|high",
    ),
    "JAX, by its library": Case(
        seen=of(in_advance(h100(tasks=2, gpus=2, percent=15.0, peak_gib=61169 / GIB), "JAX")),
        verdict="change", next=range(2, 3), confidence="high",
    ),
    "two nodes, one with a lost GPU": Case(
        seen=of(
            h100(name="n1", gpus=4, tasks=4, percent=20.0, peak_gib=5.0),
            lost(h100(name="n2", gpus=4, tasks=3, percent=20.0, peak_gib=5.0), 3), comment="llsub [2,4]",
        ),
        verdict="unknown",
    ),
    "tasks with a small second process are not unlike": Case(
        seen=of(with_helpers(h100(gpus=1, tasks=4, percent=20.0, peak_gib=10.0), 300)),
        verdict="more", next=range(7, 8), confidence="high",
    ),
    "a full GPU with two tasks of two processes, another with one": Case(
        seen=of(with_helpers(h100(gpus=2, tasks=3, load=(95, 40), peak_gib=5.0), 300)),
        verdict="more", next=range(4, 5),
    ),
    "a CPU job on a node with GPUs that it does not have": Case(
        seen=of(
            of_every_job(
                nobody_on(h100(gpus=4, tasks=0, percent=0.0, cpu=30.0), range(4), 900), task_peak_mib=None, gpus=()
            ),
            gpus=0, gpu_indexes=(), tasks=32, cpus=32,
        ),
        verdict="stay", next=range(32, 33),
    ),
}  # fmt: skip


@pytest.fixture
def printed(tmp_path, capsys):
    """Return a function that records surveys, and returns what llload prints of the recording."""

    def replayed(surveys, *words):
        file = tmp_path / "day.jsonl"
        file.unlink(missing_ok=True)
        writer = recording.RecordingWriter(file)
        for one in surveys:
            writer.write(one)
        writer.close()
        assert llload.main(["--replay", str(file), "--advise", *words]) == 0
        return capsys.readouterr().out

    return replayed


@pytest.mark.parametrize("name", [*CASES, *ALSO])
def test_advice_of_a_situation(name, printed):
    case = (CASES | ALSO)[name]
    advice = json.loads(printed([case.seen], "--json"))["advice"][0]
    whole = " ".join(printed([case.seen]).split())
    assert advice["verdict"] in case.verdict.split("|"), whole
    assert advice["confidence"] in case.confidence.split("|"), whole
    assert advice["next"] is None or advice["next"] in case.next, whole


def test_the_advice_of_all_situations(printed, golden):
    found = {name: printed([case.seen]).splitlines(keepends=True) for name, case in (CASES | ALSO).items()}
    golden("situations.txt", "".join("".join([f"{name}:\n", *lines[2:], "\n"]) for name, lines in found.items()))


def test_gpus_that_are_never_used_come_first(printed):
    used = replace(CASES["14 clients of MPS, driver 570"].seen.nodes[0].snapshot, node="n2")
    used = of_every_job(replace(used, processes=tuple(replace(one, job=5) for one in used.processes)), job=5)
    both = of(never_used(4, 40, cpu=0.1))
    other = replace(of(used).jobs[0], job_id=5)
    both = replace(both, nodes=(*both.nodes, *of(used).nodes), jobs=(other, *both.jobs))
    heads = [line for line in printed([both]).splitlines() if line.startswith("job ")]
    assert [line.split()[1] for line in heads] == ["11", "5"]


@pytest.mark.parametrize("percent", [5.0, 20.0, 40.0, 80.0])
def test_noise_of_ten_percent_changes_the_advice_once_at_most(percent, printed, monkeypatch):
    monkeypatch.setattr(llload_watch.select, "select", lambda *_: ([], [], []))
    rng, surveys = random.Random(int(percent)), []
    for place in range(60):
        m1, m5, m15 = (min(100.0, percent * rng.uniform(0.9, 1.1)) for _ in range(3))
        one = on_every_gpu(h100(tasks=2, percent=percent), sm_percent_windows=Means(m1, m5, m15, 900.0))
        surveys.append(replace(of(one), taken=NOW + 5 * place))
    lines = printed(surveys, "--json", "--watch", "0.5").splitlines()
    said = [(one["verdict"], one["next"]) for one in (json.loads(line)["advice"][0] for line in lines)]
    assert len(said) == 60
    assert sum(one != before for before, one in pairwise(said)) <= 1
