"""Two clusters for the dashboard's tests: a large one, and one that was recorded.

The large one has 400 nodes, of which 20 need somebody; `python scenes.py FILE` records it. Job numbers have seven
digits, names are as long as users make them, and 22 rows of jobs wait, for every usual reason. The same time gives the
same survey.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from slurm_share.core import nodelist
from slurm_share.load.recording import RecordingWriter
from slurm_share.load.snapshot import (
    GpuLoad,
    JobLoad,
    Means,
    NodeLoad,
    OnGpu,
    ProcessLoad,
    Snapshot,
    Survey,
    UserLoad,
    parse_survey,
)
from slurm_share.slurm.records import QueuedJob, SlurmNode

NODES = 400
NEED = {"dead": 4, "silent": 2, "broken": 1, "memory full": 3, "killed": 1, "GPU full": 3, "idle": 6}
"""How many nodes need somebody, and why: 20."""
HINTS = 60
"""Nodes with a low load, which is a hint and no more."""
IDLE = 25
"""Nodes without a job."""
HOUR = 3600
RECORDED = Path(__file__).parents[2] / "data" / "slurm-26.05" / "survey.jsonl"
_NAMES = ("bert-large-pretraining-whole-word-masking", "resnet50-imagenet-sweep", "gromacs", "mae_vit_b16_800ep", "x")
_USERS = ("alice", "bob", "christopher.fitzgerald", "dvorak", "eun-ji", "farnsworth", "gu", "h.vandenberg")
_FIRST_JOB, _FIRST_ARRAY = 3_918_204, 3_900_117


@dataclass(frozen=True)
class _State:
    """How much a node's work uses of it, in percent."""

    gpu: float = 78.0
    cpu: float = 92.0
    gpu_memory: float = 61.0
    host_memory: float = 44.0
    kills: int = 0


_STATES = {
    "memory full": _State(host_memory=97.4),
    "killed": _State(kills=3),
    "GPU full": _State(gpu_memory=99.1),
    "idle": _State(gpu=0.4, cpu=60.0, gpu_memory=18.0),
    "hint": _State(gpu=31.0, cpu=34.0),
}


def recorded() -> Survey:
    """Return the survey of alice's nodes and jobs on a real Slurm with simulated GPUs."""
    return parse_survey(RECORDED.read_bytes(), RECORDED.name)


def kinds_of_nodes() -> dict[str, str]:
    """Return the nodes of the large cluster, each with a key of NEED, or: hint, no job, well."""
    kinds = [kind for kind, number in NEED.items() for _ in range(number)]
    kinds += ["hint"] * HINTS + ["no job"] * IDLE
    kinds += ["well"] * (NODES - len(kinds))
    random.Random(7).shuffle(kinds)
    return dict(zip((f"d-{rack}-{place}" for rack in range(1, 41) for place in range(1, 11)), kinds, strict=True))


def large(now: float) -> Survey:
    """Return the survey of an operator at this time."""
    chance, of_nodes = random.Random(8), kinds_of_nodes()
    names, kinds = list(of_nodes), list(of_nodes.values())
    ids, jobs, nodes, at = count(_FIRST_JOB), [], [], 0
    while at < NODES:
        size = 1
        if kinds[at] == "well":  # the only nodes with jobs of several
            most = chance.choice((1, 1, 2, 4))
            while size < most and at + size < NODES and kinds[at + size] == "well":
                size += 1
        together = names[at : at + size]
        is_alone = kinds[at] in ("well", "hint") and size == 1
        job = None if kinds[at] in ("no job", "dead") else _running(next(ids), together, now, chance, is_alone=is_alone)
        jobs += [] if job is None else [job]
        nodes += [_node(name, kinds[at], job, now, chance) for name in together]
        at += size
    return Survey(
        taken=now,
        cluster="large",
        slurm_version="26.05.5",
        user="root",
        everybody=True,
        source="agent",
        nodes=tuple(nodes),
        jobs=(*jobs, *waiting(now, ids)),
        jobs_taken=now - 12,
    )


def _running(job: int, names: list[str], now: float, chance: random.Random, *, is_alone: bool) -> QueuedJob:
    user, is_array = chance.choice(_USERS), is_alone and chance.random() < 0.4
    start = now - chance.choice((0.3, 1.4, 20, 70)) * HOUR
    return QueuedJob(
        job_id=job,
        array=_FIRST_ARRAY + _USERS.index(user) if is_array else None,
        element=job % 1000 if is_array else None,
        name="hyper-parameter-search" if is_array else chance.choice(_NAMES),
        user=user,
        uid=3000 + _USERS.index(user),
        partition="gpu",
        states=("RUNNING",),
        start=int(start),
        limit_s=4 * 24 * HOUR,
        ends=int(start + 4 * 24 * HOUR),
        cpus=40 * len(names),
        tasks=8 * len(names),
        node_count=len(names),
        nodes=nodelist.fold(names),
        gpus=2 * len(names),
        gpu_indexes=((0, 1),) * len(names),
        share="4",
    )


def waiting(now: float, ids: Iterator[int]) -> tuple[QueuedJob, ...]:
    """Return the jobs that wait: one for each of the usual reasons, and two arrays."""

    def job(reason: str, hours: float | None, **more: Any) -> QueuedJob:
        number = next(ids)
        user = _USERS[number % len(_USERS)]
        return QueuedJob(
            job_id=number,
            name=_NAMES[number % len(_NAMES)],
            user=user,
            uid=3000 + _USERS.index(user),
            partition="gpu",
            states=("PENDING",),
            reason=reason,
            submitted=int(now - 2 * HOUR),
            limit_s=24 * HOUR,
            priority=40_000 - number % 1000,
            start=None if hours is None else int(now + hours * HOUR),
            **{"cpus": 40, "node_count": 1, "gpus": 2} | more,
        )

    array = next(ids)
    return (
        job("Resources", 0.4, node_count=16, gpus=32, cpus=640),
        *(job("Priority", 1.5 + 3 * place) for place in range(8)),
        job("JobArrayTaskLimit", None, array=array, waiting="12-999%16"),
        job("Priority", 40, array=array + 1000, waiting="0-63"),
        job("Dependency", None),
        job("DependencyNeverSatisfied", None),
        job("BeginTime", 30),
        job("JobHeldUser", None),
        job("JobHeldAdmin", None),
        job("QOSMaxJobsPerUserLimit", None),
        job("AssocGrpGRES", None),
        job("Licenses", None),
        job("PartitionTimeLimit", None),
        job("ReqNodeNotAvail, UnavailableNodes:d-3-[4-6],d-17-2", None),
        job("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", 71),
    )


def _node(name: str, kind: str, job: QueuedJob | None, now: float, chance: random.Random) -> NodeLoad:
    is_down = kind == "dead"
    slurm = SlurmNode(
        name=name,
        states=("DOWN", "NOT_RESPONDING") if is_down else ("IDLE",) if job is None else ("ALLOCATED",),
        reason="Not responding" if is_down else "",
        cpus=40,
        cpus_allocated=0 if job is None else 40,
        memory_mib=384 * 1024,
        memory_allocated_mib=0 if job is None else 384 * 1024,
        gpus=2,
        gpus_allocated=0 if job is None else 2,
        load5=None if is_down else 37.0,
        partitions=("gpu",),
    )
    if kind in ("dead", "silent"):
        return NodeLoad(name=name, slurm=slurm, why="down" if is_down else "no agent answers")
    return NodeLoad(name=name, slurm=slurm, snapshot=_snapshot(name, kind, job, now, chance))


def _snapshot(name: str, kind: str, job: QueuedJob | None, now: float, chance: random.Random) -> Snapshot:
    state = _State(0.0, 1.0, 0.0, 2.0) if job is None else _STATES.get(kind, _State())

    def about(percent: float) -> float:
        return percent if kind in NEED or job is None else percent * chance.uniform(0.88, 1.12)

    cores = round(0.4 * about(state.cpu), 2)
    host_mib = int(384 * 10.24 * about(state.host_memory))
    tasks, uuids = (0 if job is None else 8), [f"GPU-{name}-{index}" for index in (0, 1)]
    gpus = []
    for index, uuid in enumerate(uuids):
        load, used_mib = about(state.gpu), int(327.68 * about(state.gpu_memory))
        means = Means(load, load, load, 900.0, load)
        gpus.append(
            GpuLoad(
                uuid=uuid,
                index=index,
                name="Tesla V100-PCIE-32GB",
                minor=index,
                memory_total_mib=32768,
                memory_used_mib=used_mib,
                utilization_percent=round(load, 1),
                utilization_percent_windows=means,
                power_w=60.0 + 2 * load,
                temperature_c=int(34 + 0.4 * load),
                clients=tasks // 2,
                unused_s=900.0 if job is None else None,
                problem="GPU is lost" if kind == "broken" and index else None,
            )
        )
    if job is None:
        jobs: tuple[JobLoad, ...] = ()
        users: tuple[UserLoad, ...] = ()
    else:
        use: dict[str, Any] = {
            "uid": job.uid,
            "user": job.user,
            "gpus": tuple(uuids),
            "gpu_memory_mib": sum(gpu.memory_used_mib or 0 for gpu in gpus),
            "gpu_load": sum(gpu.load_percent_5min or 0.0 for gpu in gpus) / 100,
            "cpu_cores": cores,
            "memory_mib": host_mib,
        }
        age_s = min(900.0, now - (job.start or now))
        jobs = (
            JobLoad(
                job=job.job_id,
                share=4,
                slots=8,
                tasks=8,
                cpu_cores_windows=Means(cores, cores, cores, age_s),
                memory_kills=state.kills,
                task_peak_mib=gpus[0].memory_used_mib // 4 if gpus[0].memory_used_mib else None,
                task_host_peak_mib=host_mib // 8,
                tasks_measured=8,
                tasks_at_once=8,
                measured_s=now - (job.start or now),
                **use,
            ),
        )
        users = (UserLoad(jobs=(job.job_id,), processes=8, **use),)
    return Snapshot(
        node=name,
        taken=now - 2.0,
        source="agent",
        measured_s=86_400.0,
        interval_s=5.0,
        driver="595.71.05",
        cpus=40,
        cores=40,
        load=(cores, cores, cores),
        cpu_cores=cores,
        memory_total_mib=384 * 1024,
        memory_used_mib=host_mib,
        gpus=tuple(gpus),
        processes=() if job is None else tuple(_processes(job, gpus, cores, host_mib)),
        jobs=jobs,
        users=users,
    )


def _processes(job: QueuedJob, gpus: list[GpuLoad], cores: float, host_mib: int) -> Iterator[ProcessLoad]:
    for task in range(8):
        gpu = gpus[task % 2]
        used_mib = (gpu.memory_used_mib or 0) // 4
        on = OnGpu(uuid=gpu.uuid, memory_mib=used_mib, peak_mib=used_mib, sm_time_percent=(gpu.load_percent or 0.0) / 4)
        yield ProcessLoad(
            pid=20_000 + 17 * task + job.job_id % 1000,
            start_ticks=10_000 + job.job_id,
            name="python",
            uid=job.uid,
            user=job.user,
            job=job.job_id,
            step="0",
            task=task,
            slot=task,
            gpus=(on,),
            cap_mib=8028,
            cpu_cores=round(cores / 8, 2),
            memory_mib=host_mib // 8,
        )


def main() -> None:
    """Record the cluster of the last minute in the named file."""
    writer = RecordingWriter(Path(sys.argv[1]))
    now = time.time()
    for ago_s in range(60, -1, -20):
        writer.write(large(now - ago_s))
    writer.close()


if __name__ == "__main__":
    main()
