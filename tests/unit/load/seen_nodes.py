"""Nodes and jobs as a sampler and Slurm describe them, for the tests of the advice."""

from __future__ import annotations

from slurm_share.load.snapshot import GpuLoad, JobLoad, Means, NodeLoad, OnGpu, ProcessLoad, Snapshot, Survey
from slurm_share.node.gpu_figures import Activity
from slurm_share.slurm.records import QueuedJob

GIB = 1024
V100_MIB = 32510
"""What the driver says of a V100 with 32 GB."""


def means(percent, over_s=900.0):
    """The same over all windows."""
    return None if percent is None else Means(percent, percent, percent, over_s)


def job(**more):
    """A running job of alice's on n1, with both GPUs."""
    values = {"job_id": 11, "name": "train.sh", "user": "alice", "uid": 2001, "partition": "gpu", "nodes": "n1"}
    values |= {"states": ("RUNNING",), "cpus": 40, "tasks": 1, "node_count": 1, "gpus": 2, "keeps_others_out": True}
    return QueuedJob(**{**values, **more})


def node(
    *,
    name="n1",
    tasks=1,
    load=(35.0, 0.0),
    peak_gib=2.35,
    total_mib=V100_MIB,
    sm=False,
    measured_s=1200.0,
    over_s=900.0,
    cores=40,
    cpu=0.02,
    gpus=2,
    dram=None,
    driver="570.86",
    host_gib=384,
    host_peak_gib=1.0,
    kills=0,
    cap_mib=None,
    connections=None,
    jobs=((11, None),),
    used_mib=None,
    mig=False,
):
    """A node on which `tasks` tasks of each job (number, tasks or the default) take GPUs in turn."""
    peak = None if peak_gib is None else round(peak_gib * GIB)
    host_peak = round(host_peak_gib * GIB) if host_peak_gib else None
    uuids = [f"GPU-{number}" for number in range(gpus)]
    processes, loads = [], []
    for number, own in jobs:
        count = tasks if own is None else own
        owner = {"job": number, "uid": 2001, "user": "alice"}
        for place in range(count if gpus else 0):
            on = OnGpu(uuid=uuids[place % gpus], memory_mib=peak, peak_mib=peak, sm_time_percent=None)
            processes.append(
                ProcessLoad(
                    pid=1000 * number + place,
                    name="python",
                    gpus=(on,),
                    cap_mib=cap_mib,
                    connections=connections,
                    memory_mib=host_peak,
                    **owner,
                )
            )
        loads.append(
            JobLoad(
                tasks=count if gpus else 0,
                tasks_at_once=count if gpus else 0,
                gpus=tuple(uuids[: min(count, gpus)]),
                task_peak_mib=peak if gpus else None,
                task_host_peak_mib=host_peak,
                memory_mib=round(host_peak_gib * GIB * count) if host_peak_gib else None,
                memory_kills=kills,
                tasks_measured=count,
                measured_s=measured_s,
                cpu_cores=cpu * 1.0,
                cpu_cores_windows=means(cpu * 1.0),
                **owner,
            )
        )
    cards = tuple(
        GpuLoad(
            uuid=uuid,
            index=index,
            name="Tesla V100",
            memory_total_mib=total_mib,
            memory_used_mib=sum(one.gpus[0].memory_mib or 0 for one in processes if one.gpus[0].uuid == uuid)
            if used_mib is None
            else used_mib,
            utilization_percent_windows=means(load[index], over_s),
            sm_percent_windows=means(load[index], over_s) if sm else None,
            activity=Activity(dram_percent=dram),
            mig_of="GPU-x" if mig else None,
        )
        for index, uuid in enumerate(uuids)
    )
    return Snapshot(
        node=name,
        taken=1e9,
        cpus=cores,
        cores=cores,
        load=(cpu, cpu, cpu),
        cpu_cores=cpu * len(loads) + 0.1,
        memory_total_mib=host_gib * GIB,
        memory_used_mib=2 * GIB,
        gpus=cards,
        processes=tuple(processes),
        jobs=tuple(loads),
        measured_s=measured_s,
        driver=driver,
    )


def survey(snapshots, jobs, *, silent=(), **more):
    nodes = [NodeLoad(name=one.node, snapshot=one) for one in snapshots]
    nodes += [NodeLoad(name=name, why=why) for name, why in silent]
    known = {"taken": 1e9, "user": "alice", "source": "demo", "jobs": tuple(jobs), "jobs_taken": 1e9}
    return Survey(**{**known, **more}, nodes=tuple(nodes))
