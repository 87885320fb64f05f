"""Find all GPUs of a job on a node whose GPUs are of several types.

slurmd gives a hook the GPUs of a job in SLURM_JOB_GPUS and CUDA_VISIBLE_DEVICES. It writes these once for each of the
job's GRES records, and each record replaces the one before (gres_common_prep_set_env; seen on 24.11 and 26.05). Slurm
has a record for each type that slurm.conf gives the GPUs of a node: two models, or several MIG profiles. There the
variables name the GPUs of one type only, and nothing on the node names the others before the job's first step. So the
controller is asked: only for a shared job, on a node of several types, and for ASK_S at most. A hook runs no other
command of Slurm but those of share/plugin_use.py, where no step of a job loaded the plugin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core import numbers, slurm_home, text_files
from ..core.errors import CommandError, ConfigError, UsageError, shown
from ..core.process import Deadline, run
from .rules.resources import parse_gpu_indexes

ASK_S = 5.0
"""The most seconds to wait for the controller. scontrol takes 0.1 s; a controller that starts jobs answers."""
JSON = "v0.0.42"
"""The version of Slurm's JSON, as in jobs.py, which a hook does not load. Text could be forged: it shows the job's name
and comment, which may have lines that look like Slurm's."""
_GRES = re.compile(r"gres[ \t]*[-+*/]?=[ \t]*\"?([^\s\"]*)")
"""In a text of lower-case letters, in which the pattern begins with a word that is found fast."""
_GPU = re.compile(r"(?:^|,)gpu(?=[:,(]|$)", re.IGNORECASE)
_COUNT = re.compile(r"(?:^|,)gpu(?::[^:,()]+)*?(?::([0-9]{1,4}))?(?:\([^)]*\))?(?=,|$)", re.IGNORECASE)
_ELSEWHERE = ("include", "maxnodecount")
"""Words in a file some lines of which are in other files, or where nodes may register that no line names."""


class NodeGpus(Struct, frozen=True):
    """The GPUs of a node in slurm.conf."""

    types: int | None
    """The number of types; None: not known."""
    count: int | None = None
    """The number of GPUs; None: not known."""


class _GresJob(Struct):
    job_id: int
    nodes: str
    gres_detail: list[str]


class _GresJobs(Struct):
    jobs: list[_GresJob]


def parse_gres(gres: str) -> NodeGpus:
    """Return the types and the number of the GPUs in a node's Gres, such as gpu:a100:2,gpu:v100:2,shard:64."""
    return NodeGpus(len(_GPU.findall(gres)), sum(int(count or 1) for count in _COUNT.findall(gres)))


def read_node_gpus(file: Path, node: str) -> NodeGpus:
    """Return what slurm.conf says of the GPUs of `node`; nothing is known where it cannot be read.

    On most clusters no node has GPUs of several types. Then a look at the text suffices.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace").lower()
        is_whole = not any(word in text for word in _ELSEWHERE)
        if is_whole and all(len(_GPU.findall(gres)) < 2 for gres in _GRES.findall(text)):
            return NodeGpus(1)
        from .conf import read_conf  # few clusters need it; its import takes time

        conf = read_conf(file)
        found = [gres for line, gres in conf.node_lines("Gres") if _has(line.pairs[0][1], node)]
    except (ConfigError, OSError, UsageError, ValueError):  # ValueError: a name that no file can have
        return NodeGpus(None)
    return parse_gres(found[-1]) if found and not conf.missing else NodeGpus(None)


def _has(names: str, node: str) -> bool:
    """Return whether a node list has a node. Raises UsageError for a text that is none."""
    return node == names or node in _unfold(names)


def _unfold(names: str) -> tuple[str, ...]:
    if not any(sign in names for sign in "[,"):
        return (names,)
    from ..core import nodelist  # its import takes longer than all else here

    return nodelist.unfold(names)


def read_numbers(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the GPUs in SLURM_JOB_GPUS, which a hook gets in Slurm's numbers also where CUDA_VISIBLE_DEVICES has
    UUIDs; empty if it has other words."""
    found = [numbers.whole(word) for word in environ.get("SLURM_JOB_GPUS", "").split(",")]
    return tuple(number for number in found if number is not None) if None not in found else ()


def argv(job_id: int) -> list[str]:
    """Return the command that asks the controller for a job."""
    return ["scontrol", f"--json={JSON}", "show", "job", str(job_id)]


def parse_answer(text: str, job_id: int, node: str) -> tuple[int, ...]:
    """Return the numbers of a job's GPUs on a node in scontrol's JSON. Raises CommandError for another answer."""
    try:
        jobs = msgspec.json.decode(text, type=_GresJobs).jobs
    except text_files.NOT_JSON as error:
        raise CommandError(("scontrol",), 0, f"an answer that is not its JSON: {shown(str(error), 200)}") from error
    # Of an array's number it answers with all elements.
    job = next((one for one in jobs if one.job_id == job_id), None)
    if job is None:
        raise CommandError(("scontrol",), 0, f"an answer without job {job_id}")
    try:
        nodes = _unfold(job.nodes)
    except UsageError as error:
        raise CommandError(("scontrol",), 0, str(error)) from error
    found = parse_gpu_indexes(job.gres_detail, len(nodes))
    if not found or node not in nodes:
        raise CommandError(("scontrol",), 0, f"an answer without the numbers of the job's GPUs on {shown(node)}")
    return found[nodes.index(node)]


def ask(job_id: int, node: str, conf: str, deadline: Deadline) -> tuple[int, ...]:
    """Return the numbers of a job's GPUs on a node, as the controller knows them. `conf`: the path of slurm.conf.

    Raises CommandError if it does not answer in time, or not as expected.
    """
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "SLURM_CONF": conf}
    slurm_home.add_to_path(env)
    return parse_answer(run(argv(job_id), timeout_s=deadline.at_most(ASK_S).left(), env=env), job_id, node)
