"""Surveys made by hand, for the tests of llload's words and screens."""

from __future__ import annotations

from msgspec.structs import replace

from slurm_share.load.snapshot import GpuLoad, JobLoad, Means, NodeLoad, OnGpu, ProcessLoad, Snapshot, Survey, UserLoad
from slurm_share.slurm.records import QueuedJob, SlurmNode

TAKEN = 1_800_000_000.0
GB = 1024


def steady(percent, over=900.0):
    """A load that has been the same all the time."""
    return Means(percent, percent, percent, over)


def gpu(index=0, *, total=32 * GB, used=2 * GB, load=20.0, sm=False, **more):
    """A GPU under a steady load, by utilisation or by SM activity."""
    means = None if load is None else steady(load)
    return GpuLoad(
        uuid=f"GPU-{index}",
        index=index,
        name="Tesla V100",
        memory_total_mib=total,
        memory_used_mib=used,
        utilization_percent_windows=None if sm else means,
        sm_percent_windows=means if sm else None,
        utilization_percent=load,
        **more,
    )


def node(name="n1", *, cpus=40, used=40, load=30.0, memory=384, memory_used=48, gpus=(), gpus_used=None, **more):
    """A node that answers, as Slurm and its sampler have it; memory in GB. `more` goes into the snapshot."""
    slurm = SlurmNode(
        name=name,
        states=("ALLOCATED",),
        cpus=cpus,
        cpus_allocated=used,
        memory_mib=memory * GB,
        gpus=len(gpus),
        gpus_allocated=len(gpus) if gpus_used is None else gpus_used,
    )
    snapshot = Snapshot(
        node=name,
        taken=TAKEN - 3,
        source="srun",
        cpus=cpus,
        cores=cpus,
        load=(load, load, load),
        memory_total_mib=memory * GB,
        memory_used_mib=memory_used * GB,
        gpus=tuple(gpus),
        **more,
    )
    return NodeLoad(name=name, slurm=slurm, snapshot=snapshot)


def silent(name="n9", why="no answer within 5 s", *, gpus=2, states=("ALLOCATED",), reason=""):
    """A node without a snapshot."""
    slurm = SlurmNode(name=name, states=states, reason=reason, cpus=40, cpus_allocated=40, memory_mib=1, gpus=gpus)
    return NodeLoad(name=name, slurm=replace(slurm, memory_mib=384 * GB, load5=7.0, gpus_allocated=gpus), why=why)


def survey(*nodes, **more):
    """A look of studentx's at these nodes."""
    known = {"taken": TAKEN, "cluster": "txe1", "slurm_version": "26.05.5", "user": "studentx", "source": "srun"}
    return Survey(**{**known, "jobs_taken": TAKEN - 20, **more}, nodes=nodes)


def process(pid=77, *, user="alice", name="python", job=4711, on="GPU-0"):
    return ProcessLoad(
        pid=pid,
        name=name,
        uid=2001,
        user=user,
        job=job,
        step="0",
        task=0,
        slot=0,
        gpus=(OnGpu(uuid=on, memory_mib=2300, peak_mib=2300, sm_time_percent=9.0),),
        cap_mib=7800,
        cpu_cores=0.5,
        memory_mib=1536,
    )


def shared_node(name="n1", **more):
    """A node with a share of two tasks, everything known."""
    job = JobLoad(
        job=4711,
        uid=2001,
        user="alice",
        share=4,
        slots=8,
        tasks=2,
        gpus=("GPU-0", "GPU-1"),
        gpu_memory_mib=4600,
        gpu_load=0.35,
        cpu_cores=1.0,
        memory_mib=3072,
        memory_kills=0,
        task_peak_mib=2400,
        tasks_measured=2,
    )
    return node(
        name,
        gpus=(gpu(0), gpu(1)),
        processes=(process(77), process(78, on="GPU-1")),
        jobs=(job,),
        users=(UserLoad(uid=2001, user="alice", jobs=(4711,), processes=2),),
        **more,
    )


def queued(name="train"):
    """Slurm's record of that job."""
    return QueuedJob(
        job_id=4711,
        name=name,
        user="alice",
        uid=2001,
        partition="gpu",
        states=("RUNNING",),
        nodes="n1",
        node_count=1,
        gpus=2,
        gpu_indexes=((0, 1),),
        share="4",
    )
