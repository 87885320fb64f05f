"""Read what waits in the whole cluster, which GPUs are free, and which nodes are out of service; or make it up for the
demonstration."""

from __future__ import annotations

import os
import time

from ...core import nodelist
from ...core.background import BackgroundCall
from ...core.errors import SlurmShareError, shown
from ...slurm import jobs, nodes
from ...slurm.records import QueuedJob, SlurmNode
from ...slurm.rules import free
from ...slurm.rules.free import FreeGpus
from ..rules.queue_rows import QueueState, out_nodes
from ..snapshot import Survey
from .survey_reader import SLURM_TIMEOUT_S, WAITING, read_jobs


def read_queue_state() -> QueueState:
    """Return the state of the queue: one squeue, one sinfo and one scontrol, at the same time. Of a long queue the jobs
    of the highest priority are read. Never raises: `problem` has what Slurm said."""
    taken = time.time()
    try:
        kinds = BackgroundCall(jobs.read_node_kinds)
        described = BackgroundCall(lambda: nodes.read_nodes(timeout_s=SLURM_TIMEOUT_S))
        _, found, more = read_jobs([], waiting=True)
        held = {name for one in free.held_by_others(found, os.getuid()) for name in nodelist.unfold(one)}
        return QueueState(
            taken=taken,
            waiting=tuple(job for job in found if not job.nodes and WAITING in job.states),
            more=more,
            gpus=free.gpus_by_type(kinds.answer(), held),
            out=out_nodes(described.answer()),
        )
    except SlurmShareError as error:
        return QueueState(taken=taken, problem=f"the queue is not known: {shown(str(error), 200)}")


# --- The demonstration ------------------------------------------------------------------------------------------------

_WAITING = (
    ("llm-finetune", "bob", 3, "Resources", 4, 96, 2),
    ("resnet18", "carol", 4, "Priority", 1, 10, 1),
    ("sweep", "alice", 2, "Priority", 1, 10, 1),
    ("gnn-leak", "dave", 2, "QOSMaxGRESPerUser", 2, 20, 1),
    ("evaluate", "alice", 1, "Dependency", 1, 10, 1),
    ("cpu-pipeline", "bob", 2, "Resources", 0, 48, 1),
)
"""Name, user, number of jobs, reason, GPUs, CPUs and nodes of each."""


def demo_queue(survey: Survey) -> QueueState:
    """Return a simulated queue for a survey of the demonstration."""
    now = int(survey.taken)
    hour = now - now % 3600
    found = [
        QueuedJob(
            job_id=990_000 + 10 * kind + number, name=name, user=user, uid=2001, partition="gpu" if gpus else "cpu",
            states=("PENDING",), reason=reason, cpus=cpus, gpus=gpus, node_count=node_count, tasks=node_count,
            memory_mib=65_536, submitted=max(0, hour - 1700 * (kind + 1) - 300 * number), limit_s=86_400,
            start=now + 1800 * (number + 1) if reason == "Resources" else None, priority=2000 - 100 * kind - number,
            account="vision" if user in ("alice", "carol") else "genomics", qos="normal",
            dependency="afterok:11239(unfulfilled)" if reason == "Dependency" else "",
        )
        for kind, (name, user, count, reason, gpus, cpus, node_count) in enumerate(_WAITING)
        for number in range(count)
    ]  # fmt: skip
    drained = SlurmNode(
        name="h-9", states=("IDLE", "DRAIN"), reason="GPU 2: Xid 79, has fallen off the bus", reason_by="root",
        reason_since=hour - 20 * 3600, cpus=96, memory_mib=1024 * 1024, gpus=4, partitions=("gpu",),
    )  # fmt: skip
    down = SlurmNode(
        name="c-2", states=("DOWN", "NOT_RESPONDING"), reason="Not responding", reason_by="slurm",
        reason_since=hour - 2 * 3600, cpus=48, memory_mib=192 * 1024, partitions=("cpu",),
    )  # fmt: skip
    return QueueState(
        taken=survey.taken,
        waiting=tuple(found),
        gpus=(FreeGpus(name="h100", count=12, free=0, unusable=4), FreeGpus(name="v100", count=16, free=2)),
        out=(drained, down),
    )
