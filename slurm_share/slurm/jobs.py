"""Read jobs, and the kinds of nodes, from Slurm. Not for Prolog and Epilog, which must not call Slurm."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from ..core import text_files
from ..core.errors import CommandError, SlurmSilentError, shown
from ..core.names import OPTION
from ..core.process import RetryCheck, finish, run
from . import backend, controllers, pyslurm_backend
from .records import ClusterName, NodeKind, QueuedJob
from .rules.resources import count_gpus_in_parts, granted_gpus, parse_gpu_indexes, parse_gpus, share_of

DATA_PARSER = "v0.0.42"
"""The JSON layout that both Slurm 24.11 and 26.05 write."""
_NEXT_PARSER = "v0.0.43"
"""The oldest that 26.11 writes, and 24.11 does not know (src/plugins/data_parser of Slurm's sources)."""
_NO_PARSER = "unable to find plugin: data_parser/"
_Kind = TypeVar("_Kind")

LONG_S = 60.0
"""Limit of a command while the controller answers: the queue of a large cluster takes long to send."""
CHECK_AFTER_S = 5.0
PING_S = 5.0
"""With CHECK_AFTER_S ten seconds until the user is told that Slurm does not answer. Slurm's own commands retry for 20
to 25 s (squeue of 26.05 with the controller stopped or gone), and longer with backup controllers."""


def patience(argv: Sequence[str]) -> RetryCheck:
    """Return the check that ends a wait for a command of Slurm when no controller answers.

    It raises SlurmSilentError about ten seconds after the command's start if the controller is stopped or gone. Without
    scontrol it raises nothing.
    """

    def ping() -> None:
        try:
            done = finish(controllers.ping_argv(), timeout_s=PING_S, env=queue_environment(os.environ))
        except CommandError as error:
            if not isinstance(error.__cause__, OSError):
                raise SlurmSilentError(tuple(argv), CHECK_AFTER_S + PING_S) from error
        else:
            if controllers.are_all_down(controllers.parse_ping(done.stdout)):
                raise SlurmSilentError(tuple(argv), CHECK_AFTER_S)

    return RetryCheck(CHECK_AFTER_S, ping)


def ask(
    argv: Sequence[str], timeout_s: float = LONG_S, *, env: Mapping[str, str] | None = None, errors: str = "replace"
) -> str:
    """Return what a command of Slurm prints, in the layout of its JSON that this Slurm has.

    `env`: default `queue_environment`. Raises CommandError where Slurm does not answer.
    """
    env, check = env or queue_environment(os.environ), patience(argv)
    try:
        return run(argv, timeout_s=timeout_s, env=env, check=check, errors=errors)
    except CommandError as error:
        if _NO_PARSER not in error.stderr:
            raise
    argv = [word.replace(f"--json={DATA_PARSER}", f"--json={_NEXT_PARSER}") for word in argv]
    return run(argv, timeout_s=timeout_s, env=env, check=check, errors=errors)


def _decode(text: str, kind: type[_Kind], program: str) -> _Kind:
    """Return the JSON that a command of Slurm printed. Raises CommandError for any other text."""
    try:
        return msgspec.json.decode(text, type=kind)
    except text_files.NOT_JSON as error:
        raise CommandError((program,), 0, f"an answer that is not its JSON: {shown(str(error), 200)}") from error


ON_A_NODE = ("RUNNING", "COMPLETING")
"""States in which a job has processes on its nodes."""


def read_my_job_ids(node: str) -> tuple[int, ...]:
    """Return the caller's running jobs on `node`. Raises CommandError where Slurm does not answer."""
    if answer := backend.ask("jobs"):
        return pyslurm_backend.job_ids(answer, os.getuid(), node, ON_A_NODE)
    argv = ["squeue", "--me", "--noheader", f"--nodelist={node}", f"--states={','.join(ON_A_NODE)}", "--format=%A"]
    return parse_numbers(ask(argv, 10))


# --- Kinds of nodes --------------------------------------------------------------------------------------------


class _Range(msgspec.Struct):
    minimum: int


class _Cpus(msgspec.Struct):
    allocated: int
    idle: int
    minimum: int


class _Gres(msgspec.Struct):
    total: str
    used: str


class _Features(msgspec.Struct):
    total: str


class _States(msgspec.Struct):
    state: list[str]


class _Names(msgspec.Struct):
    nodes: list[str]


class Number(msgspec.Struct, frozen=True):
    set: bool = False
    infinite: bool = False
    number: int = 0


class _Maximums(msgspec.Struct):
    nodes: Number


class _Partition(msgspec.Struct):
    name: str
    partition: _States
    maximums: _Maximums


class _NodeKind(msgspec.Struct):
    node: _States
    nodes: _Names
    cpus: _Cpus
    sockets: _Range
    cores: _Range
    threads: _Range
    memory: _Range
    gres: _Gres
    features: _Features
    partition: _Partition


class _Kinds(msgspec.Struct):
    sinfo: list[_NodeKind]


def parse_default_partition(text: str) -> str | None:
    """Return the partition of jobs that name none, from scontrol's text; None: there is no default."""
    for line in text.splitlines():
        values = line.split()
        if "Default=YES" in values and values[0].startswith("PartitionName="):
            return values[0].partition("=")[2]
    return None


def parse_node_kinds(text: str, default: str | None = None) -> tuple[NodeKind, ...]:
    """Return the kinds of nodes in sinfo's JSON. Raises CommandError for an answer that is not sinfo's."""
    return tuple(_node_kind(kind, default) for kind in _decode(text, _Kinds, "sinfo").sinfo if kind.nodes.nodes)


def _node_kind(kind: _NodeKind, default: str | None) -> NodeKind:
    count = len(kind.nodes.nodes)
    limit = kind.partition.maximums.nodes
    return NodeKind(
        partition=kind.partition.name,
        is_default=kind.partition.name == default,
        partition_is_up="UP" in kind.partition.partition.state,
        max_nodes_per_job=limit.number if limit.set and not limit.infinite else None,
        nodes=tuple(kind.nodes.nodes),
        states=tuple(kind.node.state),
        cpus=kind.cpus.minimum,
        cpus_allocated=kind.cpus.allocated // count,  # sinfo adds these two up over the entry's nodes
        cpus_idle=kind.cpus.idle // count,
        cores=kind.sockets.minimum * kind.cores.minimum,
        threads_per_core=kind.threads.minimum,
        memory_mib=kind.memory.minimum,
        gpus=parse_gpus(kind.gres.total),
        gpus_allocated=parse_gpus(kind.gres.used),
        gpus_in_parts=count_gpus_in_parts(kind.gres.used),
        features=kind.features.total,
    )


class SubmittingNodes(msgspec.Struct, frozen=True):
    """The nodes from which jobs of a partition may be submitted (AllocNodes of slurm.conf)."""

    is_everywhere: bool
    is_default: bool
    """Jobs that name no partition go there."""


def parse_alloc_nodes(text: str) -> dict[str, SubmittingNodes]:
    """Return partition -> its AllocNodes, from scontrol's lines."""
    found = {}
    for line in text.splitlines():
        values = dict(word.partition("=")[::2] for word in line.split())
        if "PartitionName" in values:
            is_everywhere = values.get("AllocNodes", "ALL") == "ALL"
            found[values["PartitionName"]] = SubmittingNodes(is_everywhere, values.get("Default") == "YES")
    return found


def read_alloc_nodes() -> dict[str, SubmittingNodes]:
    """Return partition -> its AllocNodes. Raises CommandError where Slurm does not answer."""
    return parse_alloc_nodes(ask(["scontrol", "--oneliner", "show", "partition"], 20))


def read_node_kinds() -> tuple[NodeKind, ...]:
    """Return the kinds of nodes of the cluster, partition by partition. Raises CommandError where Slurm does not
    answer."""
    answer = backend.ask("nodes", "partitions")
    if answer and (found := pyslurm_backend.node_kinds(answer)) is not None:
        return found
    # sinfo's JSON does not say which partition is the default.
    default = parse_default_partition(ask(["scontrol", "--oneliner", "show", "partition"], 20))
    return parse_node_kinds(ask(["sinfo", f"--json={DATA_PARSER}"], 20), default)


# --- The queue -------------------------------------------------------------------------------------------------------


class _AllocatedMemory(msgspec.Struct):
    allocated: int = 0


class _OnNode(msgspec.Struct):
    memory: _AllocatedMemory = msgspec.field(default_factory=_AllocatedMemory)


class _Allocation(msgspec.Struct):
    allocation: list[_OnNode] = []


class _Resources(msgspec.Struct):
    nodes: _Allocation | None = None


class _Queued(msgspec.Struct):
    job_id: int
    array_job_id: Number
    array_task_id: Number
    array_task_string: str
    het_job_id: Number
    het_job_offset: Number
    name: str
    user_name: str
    user_id: int
    partition: str
    job_state: list[str]
    state_reason: str
    state_description: str
    start_time: Number
    cpus: Number
    tasks: Number
    node_count: Number
    nodes: str
    features: str
    memory_per_cpu: Number
    memory_per_node: Number
    gres_detail: list[str]
    tres_per_job: str
    tres_per_node: str
    tres_per_socket: str
    tres_per_task: str
    shared: list[str]
    admin_comment: str
    comment: str
    extra: str = ""
    command: str = ""
    restart_cnt: int | None = None
    job_resources: _Resources | None = None
    submit_time: Number = Number()
    time_limit: Number = Number()
    end_time: Number = Number()
    preempt_time: Number = Number()
    priority: Number = Number()
    qos: str = ""
    account: str = ""
    dependency: str = ""
    memory_per_tres: str = ""


class _Version(msgspec.Struct):
    release: str
    cluster: str


class _Meta(msgspec.Struct):
    slurm: _Version


class _Queue(msgspec.Struct):
    jobs: list[_Queued]
    meta: _Meta


class _AnyAnswer(msgspec.Struct):
    meta: _Meta


_ASKED_GPUS = re.compile(r"(?:^|,)gres/gpu(?:[:/][^:=,]+)?[:=]([0-9]{1,18})(?=,|$)")
_MEMORY_PER_GPU = re.compile(r"(?:^|,)gres/gpu[:=]([0-9]{1,18})(?=,|$)")
"""In MiB."""
_NO_SUCH_JOB = "Invalid job id"


def queue_argv(*, users: Sequence[str] = (), jobs: Sequence[int] = (), states: Sequence[str] = ()) -> list[str]:
    """Return the command that lists the jobs that wait, run or complete: those of `users` (names or numbers), those
    with these numbers, or all that Slurm shows the caller. `states`: only jobs in one of these."""
    which = [f"--user={','.join(users)}"] if users else []
    which += [f"--states={','.join(states)}"] if states else []
    return ["squeue", *which, *([f"--jobs={','.join(map(str, jobs))}"] if jobs else []), f"--json={DATA_PARSER}"]


def read_places(states: Sequence[str], *, timeout_s: float = LONG_S) -> frozenset[str]:
    """Return the folded node lists of all jobs in these states that Slurm shows the caller.

    `read_queue` has them as well; for a thousand jobs it takes 0.4 s and 8 MB, this 0.01 s. Raises CommandError where
    Slurm does not answer.
    """
    if answer := backend.ask("jobs", timeout_s=timeout_s):
        return pyslurm_backend.places(answer, states)
    text = ask(["squeue", "--noheader", f"--states={','.join(states)}", "--format=%N"], timeout_s)
    return frozenset(line.strip() for line in text.splitlines()) - {""}


def parse_numbers(text: str) -> tuple[int, ...]:
    """Return the job numbers in squeue's text. Raises CommandError for an answer that is not squeue's."""
    try:
        return tuple(dict.fromkeys(int(line) for line in text.split()))
    except ValueError as error:
        raise CommandError(("squeue",), 0, f"an answer that is no list of jobs: {shown(str(error), 200)}") from error


def read_waiting(users: Sequence[str] = (), *, timeout_s: float = LONG_S) -> tuple[int, ...]:
    """Return the numbers of the waiting jobs of `users`, or of everybody, highest priority first. The waiting elements
    of an array are one job. For ten thousand jobs it takes as long as `read_queue` for a hundred. Raises CommandError
    where Slurm does not answer."""
    if answer := backend.ask("jobs", timeout_s=timeout_s):
        return pyslurm_backend.waiting(answer, users)
    which = [f"--user={','.join(users)}"] if users else []
    argv = ["squeue", "--noheader", *which, "--states=PENDING", "--sort=-p,i", "--format=%A"]
    return parse_numbers(ask(argv, timeout_s))


def parse_cluster(text: str) -> ClusterName:
    """Return the cluster that this JSON names. Raises CommandError for an answer that is not scontrol's."""
    version = _decode(text, _AnyAnswer, "scontrol").meta.slurm
    return ClusterName(version.cluster, version.release)


def parse_queue(text: str) -> tuple[ClusterName, tuple[QueuedJob, ...]]:
    """Return the jobs in squeue's JSON. Raises CommandError for an answer that is not squeue's."""
    answer = _decode(text, _Queue, "squeue")
    version = answer.meta.slurm
    return ClusterName(version.cluster, version.release), tuple(_queued_job(job) for job in answer.jobs)


def _queued_job(job: _Queued) -> QueuedJob:
    array = _known(job.array_job_id) or None
    het = _known(job.het_job_id) or None
    per_cpu = _known(job.memory_per_cpu)
    limit_min = _known(job.time_limit)
    per_gpu = _MEMORY_PER_GPU.search(job.memory_per_tres)
    runs = "RUNNING" in job.job_state and "SUSPENDED" not in job.job_state
    return QueuedJob(
        job_id=job.job_id,
        array=array,
        element=_known(job.array_task_id) if array else None,
        waiting=job.array_task_string,
        het=None if het is None else (het, job.het_job_offset.number),
        name=job.name,
        user=job.user_name or str(job.user_id),
        uid=job.user_id,
        partition=job.partition,
        states=tuple(job.job_state),
        reason=job.state_description or ("" if job.state_reason == "None" else job.state_reason),
        start=_known(job.start_time) or None,
        cpus=_known(job.cpus),
        tasks=_known(job.tasks),
        node_count=_known(job.node_count),
        nodes=job.nodes,
        features=job.features,
        memory_mib=_known(job.memory_per_node) if per_cpu is None else per_cpu,
        memory_is_per_cpu=per_cpu is not None,
        memory_on_nodes_mib=_memory_on_nodes(job),
        memory_per_gpu_mib=int(per_gpu[1]) if per_gpu else None,
        gpus=granted_gpus(job.gres_detail) if job.nodes else _asked_gpus(job),
        keeps_others_out=bool(job.shared),
        gpu_indexes=parse_gpu_indexes(job.gres_detail, _known(job.node_count)) if job.nodes else (),
        has_shards=any("shard" in text for text in (*job.gres_detail, job.tres_per_node)),
        share=share_of(job.admin_comment, job.extra, job.comment),
        comment=job.comment,
        script=job.command,
        restarts=job.restart_cnt,
        submitted=_known(job.submit_time) or None,
        limit_s=None if limit_min is None else 60 * limit_min,
        is_unlimited=job.time_limit.infinite,
        ends=_known(job.end_time) or None if runs and limit_min is not None else None,
        preempted=_known(job.preempt_time) or None if runs else None,
        priority=_known(job.priority),
        qos=job.qos,
        account=job.account,
        dependency=job.dependency,
    )


def _memory_on_nodes(job: _Queued) -> tuple[int, ...]:
    if not job.nodes or job.job_resources is None or job.job_resources.nodes is None:
        return ()
    found = tuple(one.memory.allocated for one in job.job_resources.nodes.allocation)
    # Where Slurm does not give out memory (SelectTypeParameters without MEMORY) each is 0.
    return found if len(found) == _known(job.node_count) and all(found) else ()


def _known(number: Number) -> int | None:
    return number.number if number.set and not number.infinite else None


def _asked_gpus(job: _Queued) -> int | None:
    if _ASKED_GPUS.search(job.tres_per_socket) or "none" in job.shared:
        return None  # Slurm has not chosen the nodes yet, on which it depends
    each = (
        (job.tres_per_job, 1),
        (job.tres_per_node, job.node_count.number),
        (job.tres_per_task, job.tasks.number),
    )
    return sum(int(found) * times for text, times in each for found in _ASKED_GPUS.findall(text))


_THEIRS = ("SQUEUE_", "SINFO_", "SCONTROL_", "SLURM_JSON", "SLURM_YAML", "SLURM_TIME_FORMAT")


def queue_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without options of squeue, sinfo and scontrol: SQUEUE_STATES would hide jobs,
    SINFO_PARTITION nodes. With SLURM_BITSTR_LEN, so that lists of array elements are not cut off."""
    kept = {name: value for name, value in environ.items() if not name.startswith(_THEIRS)}
    return {**kept, "SLURM_BITSTR_LEN": "0"}


def read_queue(
    *, users: Sequence[str] = (), jobs: Sequence[int] = (), states: Sequence[str] = (), timeout_s: float = LONG_S
) -> tuple[ClusterName | None, tuple[QueuedJob, ...]]:
    """Return the cluster, and the jobs of its queue as `queue_argv` chooses them.

    (None, ()) where `jobs` names one that Slurm does not know. Raises CommandError where Slurm does not answer.
    """
    answer = backend.ask("jobs", timeout_s=timeout_s)
    if answer and (found := pyslurm_backend.queue(answer, users, jobs, states)):
        return found
    try:
        argv = queue_argv(users=users, jobs=jobs, states=states)
        return parse_queue(ask(argv, timeout_s))
    except CommandError as error:
        if jobs and _NO_SUCH_JOB in error.stderr:
            return None, ()
        raise


def read_shown(job: int, *, has_ended: bool = False, timeout_s: float = LONG_S) -> QueuedJob | None:
    """Return a job as squeue shows it, with a preemption, which pyslurm does not tell; None: Slurm does not know it.

    `has_ended`: also a job that has ended, which Slurm forgets after MinJobAge. Raises CommandError where Slurm is
    silent.
    """
    found = read_all_shown(job, has_ended=has_ended, timeout_s=timeout_s)
    return next((one for one in found if one.job_id == job), None)


def read_all_shown(job: int, *, has_ended: bool = False, timeout_s: float = LONG_S) -> tuple[QueuedJob, ...]:
    """Return a job as in `read_shown`; of an array its elements, of a heterogeneous job its components."""
    argv = queue_argv(jobs=[job], states=["all"] if has_ended else ())
    try:
        return tuple(parse_queue(ask(argv, timeout_s))[1])
    except CommandError as error:
        if _NO_SUCH_JOB in error.stderr:
            return ()
        raise


def read_cluster() -> ClusterName:
    """Return the cluster that answers. Raises CommandError where Slurm does not answer."""
    if answer := backend.ask():
        return ClusterName(answer.cluster, answer.version)
    # the smallest answer that names the cluster
    return parse_cluster(ask(["scontrol", f"--json={DATA_PARSER}", "ping"], 20))


def read_has_share_option() -> bool:
    """Return whether sbatch knows --share-gpu, for which the site needs the plugin. False as well without sbatch."""
    try:
        return f"--{OPTION}" in run(["sbatch", "--help"], timeout_s=20)
    except CommandError:
        return False
