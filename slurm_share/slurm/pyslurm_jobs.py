"""Slurm through pyslurm instead of its commands, for the questions that pyslurm answers as fully as they do.

Found with pyslurm 25.11.2 on Slurm 26.05.5, these are two: where jobs are (`slurm.read_places`), and which of one's own
are on a node (`slurm.read_my_job_ids`). For the others its records would be poorer than those of the commands:

* a job has one word for its state where `--json` has all of them, and its request is not told: of `--gpus=4`
  `tres_per_job` is None and `gres_per_node` empty;
* of a node `allocated_gres` is empty where jobs have all of its GPUs, so nobody could say how many are free;
* kinds of nodes are of sinfo's making, and are made of such nodes.

It is used only where somebody asks for it (WISH). To look for it by itself would be worth it for speed, and it is the
slower way: its import takes a tenth of a second, squeue's whole answer a hundredth. What it is good for is a site that
has it, and whose squeue is a wrapper or answers in another layout than we know.

pyslurm is asked in a process of its own. Its import ends the process where no slurm.conf is found, and it restates
Slurm's inner structures: built for another release, it may end with a signal. Never used by Prolog or Epilog.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping

import msgspec
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

from ..core.errors import CommandError, shown
from ..core.process import finish

WISH = "SLURM_SHARE_PYSLURM"
"""Environment variable; `1`: ask through pyslurm where it can be used. Otherwise it is not even looked for."""
TIMEOUT_S = 10.0
"""For an answer; without a slurm.conf libslurm looks for one in the network, and much longer."""
_ASK = """\
import json, os, sys
conf = os.environ.get("SLURM_CONF")
if conf and not os.path.exists(conf):
    sys.exit(f"there is no {conf}")
import pyslurm
jobs = [(job.id, job.user_id, job.state, job.allocated_nodes or "") for job in pyslurm.Jobs.load().values()]
print("answer " + json.dumps({"version": pyslurm.__version__, "jobs": jobs}))
"""


class PlacedJob(msgspec.Struct, frozen=True, array_like=True):
    """A job as far as it is asked for here."""

    job_id: int
    uid: int
    state: str
    """In one word, as squeue writes it."""
    nodes: str
    """A folded list; empty: it has none."""


class Answer(msgspec.Struct, frozen=True):
    """What pyslurm said."""

    version: str
    """Its own."""
    jobs: tuple[PlacedJob, ...]


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Return whether the caller wants pyslurm to be asked where it can be."""
    return environ.get(WISH) == "1"


def ask_argv() -> list[str]:
    """Return the command that asks pyslurm for all jobs. -I: nothing of the caller's folder or environment is loaded
    in pyslurm's place."""
    return [sys.executable, "-I", "-c", _ASK]


def parse_answer(text: str) -> Answer:
    """Return the jobs that our program printed; other lines are of libslurm. Raises CommandError where there is no
    answer in it."""
    for line in text.splitlines():
        value, _, rest = line.partition(" ")
        if value == "answer":
            try:
                return msgspec.json.decode(rest, type=Answer)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                raise CommandError(("pyslurm",), 0, f"an answer that is not ours: {error}") from error
    raise CommandError(("pyslurm",), 0, "no answer")


def read_answer(timeout_s: float = TIMEOUT_S) -> Answer:
    """Return all jobs that Slurm shows the caller. Raises CommandError, with the reason, where pyslurm cannot be
    used."""
    done = finish(ask_argv(), timeout_s=min(timeout_s, TIMEOUT_S))
    if done.code != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["it said nothing"]
        why = f"ended by signal {-done.code}" if done.code < 0 else shown(last[0], 160)
        raise CommandError(("pyslurm",), done.code, why)
    return parse_answer(done.stdout)


def read_where_wanted(environ: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> Answer | None:
    """Return all jobs that Slurm shows the caller, through pyslurm; None: nobody wants pyslurm, or it cannot be used
    (`backend` says why), and the commands are to be asked."""
    if not is_wanted(environ):
        return None
    try:
        return read_answer(timeout_s)
    except CommandError:
        return None


def job_ids(answer: Answer, uid: int, node: str, states: Collection[str]) -> tuple[int, ...]:
    """Return the user's jobs in these states that have this node."""
    own = (job for job in answer.jobs if job.uid == uid and job.state in states and job.nodes)
    return tuple(sorted(job.job_id for job in own if node in NodeSet(job.nodes, resolver=RESOLVER_NOGROUP)))


def places(answer: Answer, states: Collection[str]) -> frozenset[str]:
    """Return folded lists of nodes of the jobs in these states."""
    return frozenset(job.nodes for job in answer.jobs if job.state in states and job.nodes)


def backend(environ: Mapping[str, str]) -> str:
    """Return a sentence that names what Slurm is asked through, and why, if something else was wanted."""
    if not is_wanted(environ):
        return "Slurm is asked through its commands"
    try:
        version = read_answer().version
    except CommandError as error:
        return f"Slurm is asked through its commands; pyslurm cannot be used: {error.stderr}"
    return f"Slurm is asked through pyslurm {version} for where jobs are and whose, through its commands for all else"
