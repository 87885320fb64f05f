"""Slurm asked through pyslurm: the records of jobs.py and nodes.py from its objects.

`queue`, `nodes` and `node_kinds` return None where pyslurm does not tell all of a record. Slurm's commands are asked
then. With pyslurm 25.11.2 on Slurm 26.05.5 that is:

* a queue with a job that is completing or being requeued: pyslurm has one word for the state of a job, and squeue's
  JSON has all of them;
* a queue with waiting jobs, and nodes, where AccountingStorageTRES lacks gres/gpu: of `--gpus=4` pyslurm's
  `tres_per_job` is None, and of a node it has no GresUsed. What is tracked as a TRES it tells;
* the same, and any queue with jobs on nodes, where GresTypes has `shard`: no TRES says which GPUs have shards taken;
* a queue with a job that depends on others or has no time limit: pyslurm takes the dependencies apart, and has the same
  None for no limit and for one that is not known;
* kinds of nodes with GPUs of several types, or with CPUs that are kept for the system: how many of each type are taken,
  and what sinfo makes of such CPUs, is not told.

It never tells, so that the commands are always asked for:

* a node's state in one word, which is of sinfo's making;
* controllers that do not answer: pyslurm's `ping` has no name for these;
* how a job was submitted (submissions.py), limits of accounting (cpu_limits.py), sbatch's options, and steps, of which
  slurm-share asks nothing, and the memory that a job asks for each GPU.

pyslurm is asked in a process of its own. Its import ends the process where no slurm.conf is found, and it restates
Slurm's inner structures: built for another release, it may end with a signal. The import takes 0.1 s, all of squeue
0.01 s. Never used by Prolog or Epilog.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..core import nodelist, text_files
from ..core.errors import CommandError, shown
from ..core.process import finish
from ..core.typed import Literal
from .records import ClusterName, NodeKind, QueuedJob, SlurmNode
from .rules.resources import granted_gpus, parse_gpu_indexes, parse_node_states, share_of

Topic = Literal["jobs", "nodes", "partitions"]
TIMEOUT_S = 10.0
"""For an answer; without a slurm.conf libslurm looks for one in the network, and much longer."""
_ASK = """\
import json, os, sys
conf = os.environ.get("SLURM_CONF")
if conf and not os.path.exists(conf):
    sys.exit(f"there is no {conf}")
import pyslurm
def asked_gpus(job):
    gpu = (job.requested_tres.gres if job.requested_tres else {}).get("gpu")
    return gpu.count if gpu else 0
special = {"layout": lambda job: job.get_resource_layout_per_node(), "asked_gpus": asked_gpus,
           "depends": lambda job: bool(job.dependencies), "extra": lambda job: getattr(job, "extra", None)}
loads = {"jobs": pyslurm.Jobs.load, "nodes": pyslurm.Nodes.load, "partitions": pyslurm.Partitions.load}
config = pyslurm.slurmctld.Config.load()
answer = {"pyslurm": pyslurm.__version__, "cluster": config.cluster_name, "version": config.version,
          "tracked": config.accounting_storage_tres, "gres_types": config.gres_types,
          "hooks": [*config.prolog, *config.epilog]}
for topic, names in json.loads(sys.argv[1]).items():
    answer[topic] = [{name: special[name](one) if name in special else getattr(one, name) for name in names}
                     for one in loads[topic]().values()]
print("answer " + json.dumps(answer))
"""
"""Prints one object. The fields of the records below are pyslurm's own, but for those in `special`."""


class _GresCount(Struct, frozen=True):
    count: int = 0
    indexes: str | int | None = None


class _Layout(Struct, frozen=True):
    gres: dict[str, _GresCount | int] = {}
    memory: int | None = None


class PyJob(Struct, frozen=True, kw_only=True):
    """pyslurm.Job, as far as it is asked for."""

    id: int
    array_id: int | None
    array_task_id: int | None
    array_tasks_waiting: str | None
    array_tasks_parallel: int | None
    heterogeneous_id: int | None
    heterogeneous_offset: int | None
    name: str | None
    user_id: int
    user_name: str | None
    partition: str | None
    priority: int | None
    state: str
    state_reason: str | None
    start_time: int | None
    cpus: int | None
    ntasks: int | None
    num_nodes: int | None
    allocated_nodes: str | None
    constraints: list[str] | None
    memory_per_cpu: int | None
    memory_per_node: int | None
    resource_sharing: str | None
    admin_comment: str | None
    comment: str | None
    command: str | None
    extra: str | None = None
    """pyslurm has it from 25.11 on."""
    submit_time: int | None = None
    time_limit: int | None = None
    """Minutes."""
    end_time: int | None = None
    qos: str | None = None
    account: str | None = None
    depends: bool = False
    layout: dict[str, _Layout]
    """By node, in the order of the job's nodes."""
    asked_gpus: int
    """GPUs among the requested TRES; 0 as well where they are not tracked."""


class PyNode(Struct, frozen=True, kw_only=True):
    """pyslurm.Node, as far as it is asked for."""

    name: str
    address: str | None
    state: str
    reason: str | None
    total_cpus: int
    allocated_cpus: int
    effective_cpus: int
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    available_features: list[str] | None
    real_memory: int
    allocated_memory: int
    free_memory: int | None
    cpu_load: float | None
    configured_gres: dict[str, int]
    allocated_tres: dict[str, str | int]
    partitions: list[str] | None


class PyPartition(Struct, frozen=True, kw_only=True):
    """pyslurm.Partition, as far as it is asked for."""

    name: str
    is_default: bool
    state: str
    max_nodes: int | str | None
    nodes: str | None


class PyslurmReply(Struct, frozen=True, kw_only=True):
    """One answer of pyslurm."""

    pyslurm: str
    """Its own version."""
    cluster: str
    version: str
    """Slurm's."""
    tracked: list[str]
    """AccountingStorageTRES."""
    gres_types: list[str]
    hooks: list[str]
    """Values of Prolog and Epilog that slurmctld runs with."""
    jobs: tuple[PyJob, ...] = ()
    nodes: tuple[PyNode, ...] = ()
    partitions: tuple[PyPartition, ...] = ()

    @property
    def tells_gpus(self) -> bool:
        """Whether the GPUs that jobs ask for and that nodes have given away are told, each as a number."""
        return "gres/gpu" in self.tracked and "shard" not in self.gres_types


_RECORDS: Mapping[Topic, type[Struct]] = {"jobs": PyJob, "nodes": PyNode, "partitions": PyPartition}


def ask_argv(topics: Sequence[Topic]) -> list[str]:
    """Return the command that asks pyslurm. -I: nothing of the caller's folder or environment is loaded in pyslurm's
    place."""
    fields = {topic: _RECORDS[topic].__struct_fields__ for topic in topics}
    return [sys.executable, "-I", "-c", _ASK, json.dumps(fields)]


def parse_answer(text: str) -> PyslurmReply:
    """Return what our program printed; other lines are of libslurm. Raises CommandError where there is no answer in
    it."""
    for line in text.splitlines():
        value, _, rest = line.partition(" ")
        if value == "answer":
            try:
                return msgspec.json.decode(rest, type=PyslurmReply)
            except text_files.NOT_JSON as error:
                raise CommandError(("pyslurm",), 0, f"an answer that is not ours: {shown(str(error), 200)}") from error
    raise CommandError(("pyslurm",), 0, "no answer")


def read_answer(topics: Sequence[Topic], timeout_s: float = TIMEOUT_S) -> PyslurmReply:
    """Return what Slurm shows the caller. Raises CommandError, with the reason, where pyslurm cannot be used."""
    env = {**os.environ, "SLURM_BITSTR_LEN": "0"}  # lists of array elements are not cut off
    done = finish(ask_argv(topics), timeout_s=min(timeout_s, TIMEOUT_S), env=env)
    if done.code != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["it said nothing"]
        why = f"ended by signal {-done.code}" if done.code < 0 else shown(last[0], 160)
        raise CommandError(("pyslurm",), done.code, why)
    return parse_answer(done.stdout)


# --- Jobs ------------------------------------------------------------------------------------------------------------

_OVER = frozenset({"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
                   "OUT_OF_MEMORY"})  # fmt: skip
"""squeue lists a job in one of these only where it is asked for that state."""
_STATES = {
    **{state: (state,) for state in ("PENDING", "RUNNING", "SUSPENDED", *_OVER)},
    "CONFIGURING": ("RUNNING", "CONFIGURING"),
}
"""pyslurm's word: all of Slurm's. Other words hide what a job was before it completed, or was requeued."""


def job_ids(answer: PyslurmReply, uid: int, node: str, states: Collection[str]) -> tuple[int, ...]:
    """Return the user's jobs in these states that have this node."""
    own = (job for job in answer.jobs if job.user_id == uid and job.state in states and job.allocated_nodes)
    return tuple(job.id for job in own if node in nodelist.unfold(job.allocated_nodes or ""))


def places(answer: PyslurmReply, states: Collection[str]) -> frozenset[str]:
    """Return folded lists of nodes of the jobs in these states."""
    return frozenset(job.allocated_nodes for job in answer.jobs if job.state in states and job.allocated_nodes)


def waiting(answer: PyslurmReply, users: Collection[str]) -> tuple[int, ...]:
    """Return the numbers of the jobs of these users, or of everybody, that wait, highest priority first."""
    found = [job for job in answer.jobs if job.state == "PENDING" and _is_of(job, users)]
    return tuple(job.id for job in sorted(found, key=lambda job: (-(job.priority or 0), job.id)))


def queue(
    answer: PyslurmReply, users: Collection[str], jobs: Collection[int], states: Collection[str]
) -> tuple[ClusterName | None, tuple[QueuedJob, ...]] | None:
    """Return what `jobs.read_queue` returns; None: pyslurm does not tell all of it."""
    named = [job for job in answer.jobs if not jobs or {job.id, job.array_id, job.heterogeneous_id} & set(jobs)]
    if jobs and not named:
        return None, ()
    found = []
    for job in named:
        words = _STATES.get(job.state)
        if words is None:
            return None
        is_wanted = set(words) & set(states) if states else words[0] not in _OVER
        if is_wanted and _is_of(job, users):
            if not answer.tells_gpus and ("shard" in answer.gres_types or not job.allocated_nodes):
                return None
            if job.depends or job.time_limit is None:
                return None
            found.append(_queued_job(job, words))
    return ClusterName(answer.cluster, answer.version), tuple(found)


def _is_of(job: PyJob, users: Collection[str]) -> bool:
    return not users or bool({str(job.user_id), job.user_name} & set(users))


def _queued_job(job: PyJob, states: tuple[str, ...]) -> QueuedJob:
    details = [_gres_text(node.gres) for node in job.layout.values()]
    nodes = job.allocated_nodes or ""
    limit = f"%{job.array_tasks_parallel}" if job.array_tasks_waiting and job.array_tasks_parallel else ""
    het = job.heterogeneous_id
    return QueuedJob(
        job_id=job.id,
        array=job.array_id,
        element=job.array_task_id if job.array_id else None,
        waiting=(job.array_tasks_waiting or "") + limit,
        het=None if het is None else (het, job.heterogeneous_offset or 0),
        name=job.name or "",
        user=job.user_name or str(job.user_id),
        uid=job.user_id,
        partition=job.partition or "",
        states=states,
        reason="" if job.state_reason in (None, "None") else job.state_reason,
        start=job.start_time,
        cpus=job.cpus,
        tasks=job.ntasks,
        node_count=job.num_nodes,
        nodes=nodes,
        features=",".join(job.constraints or ()),
        memory_mib=job.memory_per_cpu if job.memory_per_cpu is not None else job.memory_per_node or 0,
        memory_is_per_cpu=job.memory_per_cpu is not None,
        memory_on_nodes_mib=_memory_on_nodes(job) if nodes else (),
        gpus=granted_gpus(details) if nodes else None if job.resource_sharing == "NO" else job.asked_gpus,
        keeps_others_out=job.resource_sharing in ("NO", "USER", "MCS", "TOPO"),
        gpu_indexes=parse_gpu_indexes(details, job.num_nodes) if nodes and any(details) else (),
        share=share_of(job.admin_comment or "", job.extra or "", job.comment or ""),
        comment=job.comment or "",
        script=job.command or "",
        submitted=job.submit_time,
        limit_s=None if job.time_limit is None else 60 * job.time_limit,
        ends=job.end_time if "RUNNING" in states else None,
        priority=job.priority,
        qos=job.qos or "",
        account=job.account or "",
    )


def _memory_on_nodes(job: PyJob) -> tuple[int, ...]:
    """Return what `jobs.read_queue` has: the memory that Slurm has given the job on each of its nodes."""
    found = [node.memory for node in job.layout.values() if node.memory]
    return tuple(found) if len(found) == len(job.layout) == job.num_nodes else ()


def _gres_text(found: Mapping[str, _GresCount | int]) -> str:
    """Return the GPUs of one node as Slurm writes them in `gres_detail`."""
    texts = []
    for name, one in found.items():
        count, indexes = (one.count, one.indexes) if isinstance(one, _GresCount) else (one, None)
        texts.append(f"{name}:{count}" + ("" if indexes is None else f"(IDX:{indexes})"))
    return ",".join(texts)


# --- Nodes and partitions --------------------------------------------------------------------------------------------


def nodes(answer: PyslurmReply, wanted: str) -> tuple[SlurmNode, ...] | None:
    """Return what `nodes.read_nodes` returns, for a folded list or all; None: pyslurm does not tell all of it."""
    if not answer.tells_gpus:
        return None
    names = frozenset(nodelist.parse(wanted)) if wanted else None
    return tuple(_slurm_node(node) for node in answer.nodes if names is None or node.name in names)


def _slurm_node(node: PyNode) -> SlurmNode:
    states, heard = parse_node_states(node.state)
    return SlurmNode(
        name=node.name,
        address=node.address if node.address and node.address != node.name else "",
        states=states,
        reason=(node.reason or "").partition("\n")[0],
        cpus=node.total_cpus,
        cpus_allocated=node.allocated_cpus,
        memory_mib=node.real_memory,
        memory_allocated_mib=node.allocated_memory,
        gpus=sum(count for _, count in _gpus(node)),
        gpus_allocated=int(node.allocated_tres.get("gres/gpu", 0)),
        load5=node.cpu_load if heard else None,
        memory_free_mib=node.free_memory if heard else None,
        partitions=tuple(node.partitions or ()),
    )


_NOTHING_IDLE = frozenset({"DOWN", "DRAIN", "FAIL", "ERROR", "UNKNOWN", "FUTURE"})


def node_kinds(answer: PyslurmReply) -> tuple[NodeKind, ...] | None:
    """Return what `jobs.read_node_kinds` returns; None: pyslurm does not tell all of it."""
    if not answer.tells_gpus or any(
        len(_gpus(node)) > 1 or node.effective_cpus != node.total_cpus for node in answer.nodes
    ):
        return None
    found: list[NodeKind] = []
    for partition in answer.partitions:
        members = frozenset(nodelist.unfold(partition.nodes or ""))
        alike: dict[NodeKind, list[str]] = {}
        for node in answer.nodes:
            if node.name in members:
                alike.setdefault(_kind(node, partition), []).append(node.name)
        found += [replace(kind, nodes=tuple(names)) for kind, names in alike.items()]
    return tuple(found)


def _kind(node: PyNode, partition: PyPartition) -> NodeKind:
    states, _ = parse_node_states(node.state)
    taken = int(node.allocated_tres.get("gres/gpu", 0))
    return NodeKind(
        partition=partition.name,
        is_default=partition.is_default,
        partition_is_up=partition.state == "UP",
        max_nodes_per_job=partition.max_nodes if isinstance(partition.max_nodes, int) else None,
        nodes=(),
        states=states,
        cpus=node.total_cpus,
        cpus_allocated=node.allocated_cpus,
        cpus_idle=0 if _NOTHING_IDLE & set(states) else node.total_cpus - node.allocated_cpus,
        cores=node.sockets * node.cores_per_socket,
        threads_per_core=node.threads_per_core,
        memory_mib=node.real_memory,
        gpus=_gpus(node),
        gpus_allocated=tuple((kind, taken) for kind, _ in _gpus(node)),
        features=",".join(node.available_features or ()),
    )


def _gpus(node: PyNode) -> tuple[tuple[str, int], ...]:
    """Return (type, count) of each kind of GPU."""
    named = ((name.partition(":"), count) for name, count in node.configured_gres.items())
    return tuple((kind, count) for (name, _, kind), count in named if name == "gpu")
