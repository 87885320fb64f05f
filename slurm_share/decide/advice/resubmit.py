"""The lines that carry an advice out: --share-gpu and the triple, for what the job is now."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ... import names, share_option
from ...errors import OptionError
from ...records import Gpu, QueuedJob, ShareRequest
from ...settings import Settings
from ...share.rules import limits
from ...work import Triple
from .. import node_names, queue
from .bounds import usable_mib
from .evidence import Evidence


def lines(jobs: Sequence[QueuedJob], nodes: Sequence[Evidence], nppn: int, settings: Settings) -> tuple[str, ...]:
    """The first line is for what the job is now; `jobs` are the elements of an array, or the job, or none where Slurm
    does not answer. Without GPUs there is but the triple; where NPPN is no multiple of the GPUs as well, since
    --share-gpu counts tasks of a GPU."""
    job = jobs[0] if jobs else None
    request = _request(job, nodes, nppn, settings)
    by_triple = _by_triple(jobs, nodes, nppn, request)
    is_part = job is not None and job.has_shards
    if request is None:
        return () if is_part else (by_triple,)
    share = f"sbatch --{names.OPTION}={share_option.render(request)}"
    if is_part:
        return (f"{share} {PART} ...",)
    if _are_single(jobs, nodes):
        # Each element stays one task; as a part of a GPU, several of them are on one.
        return (f"{share} {PART} ...", by_triple) if settings.shards_per_gpu else (by_triple,)
    by_share = " ".join([share, *_beside_share(jobs, nodes, request), "..."])
    of_llsub = job is not None and queue.triple_of(job) is not None
    return (by_triple, by_share) if of_llsub else (by_share, by_triple)


PART = "--gres=gpu:1 -n1"
"""Beside --share-gpu: one task, with a part of one GPU."""


def _by_triple(jobs: Sequence[QueuedJob], nodes: Sequence[Evidence], nppn: int, request: ShareRequest | None) -> str:
    if len(jobs) > 1:
        count = len({name for job in jobs for name in node_names.unfold(job.nodes)})  # all elements in one job
    else:
        count = (jobs[0].node_count if jobs else None) or 1
    triple = Triple(count, nppn, max(1, min(one.cores for one in nodes) // nppn))
    settings_alone = "" if request is None else share_option.render(request).partition(",")[2]
    words = ["llsub ..."]
    words += [f"-g {_fewest(nodes)}"] if _has_some(nodes) else []
    words.append(str(triple))
    words += [f"--{names.OPTION}={settings_alone}"] if settings_alone else []
    return " ".join(words)


def _beside_share(jobs: Sequence[QueuedJob], nodes: Sequence[Evidence], request: ShareRequest) -> list[str]:
    """GPUs where it has not all of a node, and tasks where their number stands in the script: that one would stay."""
    job = jobs[0] if jobs else None
    gpus = _fewest(nodes)
    of_all = gpus if job is None else job.gpus or gpus * (job.node_count or 1)
    if job is not None and job.array is not None and job.gpus:
        gpus = min(gpus, -(-job.gpus // (job.node_count or 1)))
    words = [f"--gres=gpu:{gpus}"] if _has_some(nodes) or gpus < _fewest(nodes) else []
    is_told = job is not None and job.tasks is not None and job.tasks > (job.node_count or 1)
    return [*words, f"-n{request.per_gpu * of_all}"] if is_told and queue.triple_of(jobs[0]) is None else words


def _are_single(jobs: Sequence[QueuedJob], nodes: Sequence[Evidence]) -> bool:
    """Whether these are elements of an array of one task on one whole GPU each."""
    if not jobs or jobs[0].array is None or share_of(jobs[0]) is not None:
        return False
    return all(job.gpus == 1 and job.tasks in (None, 1) for job in jobs) and sum(
        node.now or 0 for node in nodes
    ) <= len(jobs)


def _fewest(nodes: Sequence[Evidence]) -> int:
    return min(node.gpus for node in nodes)


def _has_some(nodes: Sequence[Evidence]) -> bool:
    """Whether it has some of a node's GPUs, and not all."""
    return _fewest(nodes) > 0 and any(node.gpus < node.gpus_of_node for node in nodes)


def _request(job: QueuedJob | None, nodes: Sequence[Evidence], nppn: int, settings: Settings) -> ShareRequest | None:
    """The share: what the user wrote besides N stays, a memory cap only where N of it fit."""
    gpus = _fewest(nodes)
    if not gpus or nppn % gpus or not 1 <= nppn // gpus <= names.SHARE_MAX:
        return None
    each = nppn // gpus
    written = share_of(job)
    request = ShareRequest(each) if written is None else replace(written, per_gpu=each)
    rooms = [room for node in nodes for room in node.rooms]
    peak = max((node.peak_mib or 0 for node in nodes), default=0)
    if request.mps is False or not rooms or any(node.is_mig for node in nodes):
        return request
    part = min(usable_mib(room, settings) for room in rooms) // each
    if request.mem_mib is not None and not peak <= request.mem_mib <= part:
        request = replace(request, mem_mib=None)
    smallest = min(room.total for room in rooms)
    cap = limits.memory_cap_mib(Gpu("", 0, 0, "", smallest), request, settings)
    if cap is not None and cap < peak <= part:
        # The even part keeps mps_server_memory_mib back as well, and the task would be held just below what it needs.
        request = replace(request, mem_mib=part)
    return request


def share_of(job: QueuedJob | None) -> ShareRequest | None:
    """What was written after --share-gpu; None: an ordinary job, or nothing that can be read."""
    if job is None or job.share is None:
        return None
    try:
        return share_option.parse(job.share)
    except OptionError:
        return None
