"""Build the srun command that starts samplers in a job, and parse its messages when they end."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence

from ...core import names, nodelist
from ...core.errors import UsageError, shown
from ...slurm import small_step
from ..rules.steps import SurveyStep

SILENCE_S = 60.0
"""A sampler ends when its input has been silent for this long: srun was killed, or its host is gone."""
STEP_NAME = "llload"
_START = (
    # If the job's memory is full, the kernel ends the sampler first (proc(5): a process may raise its own score).
    "{ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null; "
    'if ! [ -x "$1" ]; then echo "$SLURMD_NODENAME: there is no $1" >&2; exit 127; fi; exec "$@"'
)
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS")
"""Variables with one of these prefixes that are kept: they select the Slurm and authenticate the user."""
_FOREIGN = ("SLURM_", "SLURMD_", "SRUN_", "SPANK_", "_SLURM_SPANK_OPTION_", "PMI_", "PMIX_")
"""Prefixes of variables that a job, a step or a user's options for srun leave in the environment."""
_TASK_ENDED = re.compile(r"srun: error: (\S+): tasks? [0-9,-]+: (.+)")
_OUR_MESSAGE = re.compile(r"([A-Za-z0-9._-]+): (there is no .+|slurm-share: .+)")
_UNABLE = re.compile(r"Unable to (?:create step for|confirm allocation for) job [0-9+_]+: (.+)")
_NOT_LAUNCHED = re.compile(r"Task launch for \S+ failed on node \S+: (.+)")
CANCELLED = "the job or its step was ended"
WAITS = "srun waits"
MEMORY_FULL = "the job's memory is full, or the node's"
_OUT_OF_MEMORY = re.compile(r"oom_kill event|OOM Killed|: Out Of Memory$")
_SLURM_SAYS = {
    "Job/step already completing or completed": "the job has ended",
    "Invalid job id specified": "the job has ended",
    "Job is pending execution": "the job does not run",
    "Access/permission denied": "not your job",
    "Requested nodes are busy": "the job's own steps leave no room",
    "Communication connection failure": "its slurmd does not answer",
}


def srun_argv(step: SurveyStep, program: Sequence[str], interval_s: float, silence_s: float = SILENCE_S) -> list[str]:
    """Return the command that streams snapshots of a step's nodes."""
    return [
        *small_step.step_argv(
            job=step.job,
            component=step.component,
            nodes=nodelist.fold(step.nodes),
            count=len(step.nodes),
            gres=step.gres,
            name=STEP_NAME,
        ),
        # A lost node must not end the samplers on other nodes.
        "--no-kill",
        "--wait=0",
        "--input=all",
        "/bin/sh",
        "-c",
        _START,
        "sh",
        *program,
        *names.SAMPLE_WORDS,
        f"--interval={interval_s:g}",
        f"--silence={silence_s:g}",
        "--frames",
    ]


def srun_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment without the variables of a job and the caller's options for srun. The step takes
    no slot of a share."""
    kept = {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_FOREIGN)}
    return {**kept, names.ENV_SLOT: names.SLOT_NONE}


def why_ended(said: str, code: int | None) -> str:
    """Return why a step ended or waits, from srun's standard error and exit code; empty if they give no reason."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for line in reversed(lines):
        if found := _UNABLE.search(line):
            return _SLURM_SAYS.get(found[1], f"no step in the job: {shown(found[1])}")
        if "has expired" in line or "Expired or invalid job" in line:
            return "the job has ended"
        if "step creation temporarily disabled" in line or "step creation still disabled" in line:
            return f"{WAITS}: {shown(line.rpartition('(')[2].rstrip(')'), 60)}"
        if "STEP" in line and "CANCELLED" in line:
            return CANCELLED
        if _OUT_OF_MEMORY.search(line):
            return MEMORY_FULL
        if found := _NOT_LAUNCHED.search(line):
            return _SLURM_SAYS.get(found[1], f"the step did not start: {shown(found[1], 80)}")
        if found := _OUR_MESSAGE.match(line):
            return shown(found[2], 120)
    last = next((line for line in reversed(lines) if not _TASK_ENDED.match(line)), lines[-1] if lines else "")
    if code is None:
        return shown(last.removeprefix("srun: "), 100) if last else ""
    if code == 0:
        return ""
    how = f"srun was ended by signal {-code}" if code < 0 else f"srun ended with {code}"
    return f"{how}: {shown(last.removeprefix('srun: ').removeprefix('error: '), 100)}" if last else how


def ended_nodes(said: str) -> dict[str, str]:
    """Return the nodes on which the sampler has ended, and why, from srun's standard error."""
    found: dict[str, str] = {}
    for line in map(str.strip, said.splitlines()):
        if told := _OUR_MESSAGE.match(line):
            found[told[1]] = shown(told[2], 120)
        elif ended := _TASK_ENDED.match(line):
            how = f"the sampler {shown(ended[2][:1].lower() + ended[2][1:], 60)}"
            with contextlib.suppress(UsageError):
                for node in nodelist.parse(ended[1]):
                    found.setdefault(node, MEMORY_FULL if _OUT_OF_MEMORY.search(line) else how)
    return found
