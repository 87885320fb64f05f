"""Read the share status of every node of the cluster through the site's remote command (`remote_command`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from ..core import config, text_files
from ..core.errors import shown
from ..core.text import natural
from ..slurm import nodes as slurm_nodes
from ..slurm.controllers import short_name
from ..slurm.remote_hosts import AT_ONCE, run_on
from . import lua_settings, mode_file, queue_verdicts
from .records import ClusterShares, NodeShares
from .rules import switch as rules
from .rules.verdict import mode_of_file

NODE_S = 20.0
"""The time limit of one node: a driver takes seconds to initialize."""
_MOST_BYTES = 4 * 1024 * 1024
_PROBLEM_MOST = 300
COMMAND = ("slurm-share", "status", "--json")


class _SharedJob(msgspec.Struct):
    job_id: int
    slots: int = 0
    share: str | None = None


class _Gpu(msgspec.Struct):
    mps: str | None = None


class _Status(msgspec.Struct):
    mode: str
    partition_modes: dict[str, str] = {}
    jobs: list[_SharedJob] = []
    gpus: list[_Gpu] = []
    problems: list[str] = []


def parse(node: str, text: str) -> NodeShares:
    """Return a node's answer, with a problem if it cannot be parsed. Its texts are untrusted: escape them before they
    reach a terminal."""
    try:
        if len(text) > _MOST_BYTES:
            raise msgspec.DecodeError("more than 4 MiB")
        found = msgspec.json.decode(text, type=_Status)
    except text_files.NOT_JSON as error:
        return NodeShares(
            node, problem=f"the answer is not that of `slurm-share status --json`: {shown(str(error), 200)}"
        )
    shared = [job for job in found.jobs if job.share]
    return NodeShares(
        node,
        mode=found.mode,
        partition_modes=found.partition_modes,
        jobs=tuple(job.job_id for job in shared),
        slots=sum(job.slots for job in shared),
        daemons=sum(gpu.mps is not None for gpu in found.gpus),
        problem="; ".join(found.problems)[:_PROBLEM_MOST] or None,
    )


def _ask(remote: Sequence[str], node: str) -> NodeShares:
    text, problem = run_on(remote, node, COMMAND, NODE_S, most=_PROBLEM_MOST)
    return NodeShares(node, problem=problem) if problem else parse(node, text)


def read() -> ClusterShares:
    """Return the status of all of Slurm's nodes. Raises ConfigError for a wrong configuration, CommandError if Slurm
    does not answer."""
    here = config.load()
    known = slurm_nodes.read_states(queue_verdicts.environment())
    names = sorted(known, key=natural)
    found = read_nodes(here.settings.remote_command, names)
    value, problem = _read_mode_file(here.settings.mode_file)
    return ClusterShares(
        host=short_name(os.uname().nodename),
        modes=here.modes(),
        is_switched_off=here.settings.switched_off,
        mode_file=value,
        states={node: known[node][1] for node in names},
        nodes={node: rules.without_driver_problem(found[node], has_gpus=known[node][0]) for node in names},
        problems=tuple(said for said in (problem, lua_settings.outdated(here)) if said),
    )


def _read_mode_file(path: str) -> tuple[str | None, str | None]:
    """Return the mode in the site's mode file (None: there is none), and why the file cannot be read."""
    if not path:
        return None, None
    found = mode_file.read(path)
    if found.problem is not None:
        return None, (
            f"the mode file {path} cannot be read here ({found.problem}); a node that cannot read it uses its own mode "
            "and the job's verdict"
        )
    return None if found.text is None else mode_of_file(found.text), None


def read_nodes(remote: Sequence[str], nodes: Sequence[str]) -> Mapping[str, NodeShares]:
    """Return each node's answer, asking AT_ONCE nodes in parallel. A node that fails has a problem in its answer."""
    if not nodes:
        return {}
    with ThreadPoolExecutor(max_workers=min(AT_ONCE, len(nodes))) as pool:
        return dict(zip(nodes, pool.map(lambda node: _ask(remote, node), nodes), strict=True))
