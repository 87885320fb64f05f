"""Which actions are possible, and what exactly they do. Pure: values in, questions and reasons out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from slurm_share.core import terminal
from slurm_share.core.errors import SlurmShareError, UsageError, shown
from slurm_share.core.records import ProcessIdentity
from slurm_share.core.text import natural
from slurm_share.load import Survey
from slurm_share.mps.records import MPS_NAME
from slurm_share.share import ChosenJob, queue
from slurm_share.slurm import signals as slurm_signals
from slurm_share.slurm.records import QueuedJob

from .location import JobPlace

Action = Literal["cancel", "signal", "output"]
NAME_MOST = 40
"""Most characters of a job's or process's name in a question."""
_VERBS: dict[Action, str] = {"cancel": "cancel", "signal": "signal", "output": "show"}
_STEP = re.compile(r"[0-9]{1,10}")
_NODE = re.compile(r"[A-Za-z0-9._-]{1,255}")


class DashboardUser(Struct, frozen=True):
    """The user of the dashboard."""

    name: str
    uid: int


def is_operator(survey: Survey, me: DashboardUser) -> bool:
    """Return whether the source shows other users' work to the viewer. Slurm and the kernel check an action again."""
    return survey.everybody or survey.user != me.name


def why_not(
    action: Action, targets: Sequence[JobPlace], survey: Survey | None, me: DashboardUser, *, readonly: bool
) -> str:
    """Return why an action is not possible, as a sentence; empty: it is."""
    verb = _VERBS[action]
    if readonly and action != "output":
        return f"this dashboard is read-only: it does not {verb} anything"
    if survey is None:
        return "there is no survey yet: wait for the first one"
    if survey.source == "demo":
        return f"cannot {verb} in a demonstration: its jobs are not real"
    if survey.source == "replay":
        return f"cannot {verb} in a recording: its jobs have ended"
    if not targets:
        return f"no single job of yours to {verb} here: put the cursor on a job or on one of its processes"
    if action != "cancel" and len(targets) > 1:
        return f"{verb} one at a time: {len(targets)} rows are marked, u unmarks them"
    for one in targets:
        if one.owner != me.name and not is_operator(survey, me):
            return f"{_called(one)} belongs to {terminal.shortened(one.owner, NAME_MOST)}: you may {verb} your own"
        if action != "signal" and not one.job:
            return f"{_called(one)} is in no job of Slurm: nothing to {verb}"
    if action == "signal" and not scopes(targets[0], survey, me):
        return _unreachable(targets[0])
    return ""


def _called(target: JobPlace) -> str:
    if target.process is not None and not target.job:
        return f"process {target.process.pid} on {terminal.safe(target.node)}"
    return f"job {terminal.shortened(target.job, NAME_MOST)}"


def _is_mps(target: JobPlace) -> bool:
    """Return whether the process serves all tasks on its GPU: it must not be ended by accident."""
    return target.process is not None and target.process_name.startswith(MPS_NAME)


def _unreachable(target: JobPlace) -> str:
    if _is_mps(target):
        return f"{terminal.safe(target.process_name)} serves every task on its GPU: cancel the job instead"
    if target.process is not None and target.process.start_ticks is None:
        return f"the start time of process {target.process.pid} is unknown: its PID may soon belong to another process"
    return f"{_called(target)} cannot be reached from here: it is in no job of yours; log in to {target.node}"


class Cancel(Struct, frozen=True):
    jobs: tuple[ChosenJob, ...]


class ToProcess(Struct, frozen=True):
    """Sends a signal to one process."""

    name: str
    process: ProcessIdentity
    argv: tuple[str, ...]
    """The command that reaches the process on its node; empty: it is on this host."""
    job: QueuedJob | None
    """The job whose allocation the command uses."""


class ToTasks(Struct, frozen=True):
    """Sends a signal to all tasks of a step or job."""

    name: str
    argv: tuple[str, ...]
    job: QueuedJob


class PlannedAction(Struct, frozen=True, kw_only=True):
    """An action that waits for confirmation. It does not change between the question and the answer."""

    title: str
    lines: tuple[str, ...]
    """Jobs and processes that the action affects, one line each, safe to draw."""
    command: str
    """The command that runs, quoted for a shell."""
    yes: str
    """Label of the confirming answer."""
    act: Cancel | ToProcess | ToTasks


def wanted(targets: Iterable[JobPlace]) -> tuple[queue.JobTarget, ...]:
    """Return the jobs of these targets as scancel names them, each once. Raises UsageError for an invalid job id."""
    # Slurm cancels whole heterogeneous jobs, and the limit of elements that run at once is not part of an id.
    ids = [re.sub(r"%[0-9]+(?=\]$)", "", one.job.partition("+")[0]) for one in targets]
    return tuple(dict.fromkeys(found for id in ids for found in queue.parse_targets(id)))


def cancelling(targets: Sequence[JobPlace], jobs: Sequence[QueuedJob], me: DashboardUser) -> PlannedAction:
    """Return the question before jobs are cancelled. `jobs`: Slurm's present records. Raises SlurmShareError if all
    have ended, or if one does not belong to the user shown on the screen."""
    chosen: dict[str, ChosenJob] = {}
    for target in targets:
        found = [one for each in wanted([target]) for one in queue.choose(each, jobs)]
        for one in found:
            _check_owner(one.job, target, me)
        chosen |= {one.id: one for one in sorted(found, key=lambda one: natural(one.id))}
    if not chosen:
        names = ", ".join(_called(one).removeprefix("job ") for one in targets[:3])
        raise SlurmShareError(f"Slurm's queue has no job {names}{' ...' * (len(targets) > 3)}: it has ended")
    count = len(chosen)
    only = next(iter(chosen.values()))
    return PlannedAction(
        title=f"Cancel job {only.id}?" if count == 1 else f"Cancel {count} jobs?",
        lines=tuple(job_text(one.job, one.id, me) for one in chosen.values()),
        command=shlex.join(["scancel", "--", *chosen]),
        yes="cancel",
        act=Cancel(tuple(chosen.values())),
    )


def job_text(job: QueuedJob, id: str, me: DashboardUser) -> str:
    """Return a job in a line: id, owner, state, nodes, and its name in quotation marks, since it may be any text."""
    owner = "your own" if job.uid == me.uid else f"OF {terminal.shortened(job.user, NAME_MOST)}"
    state = " ".join(job.states).lower()
    where = f"on {terminal.shortened(job.nodes, NAME_MOST)}" if job.nodes else "waiting"
    return f'{id}  {owner}  {terminal.safe(state)}, {where}  "{terminal.shortened(job.name, NAME_MOST)}"'


def _check_owner(job: QueuedJob, target: JobPlace, me: DashboardUser) -> None:
    if not (job.uid == me.uid if target.owner == me.name else job.user == target.owner):
        owners = f"{terminal.safe(job.user)}, not to {terminal.safe(target.owner)}"
        raise SlurmShareError(f"job {job.id} belongs to {owners}: nothing is done")


MEANINGS = {
    "TERM": "end in an orderly way",
    "INT": "like Ctrl-C",
    "HUP": "many programs reload their settings, others end",
    "QUIT": "end, with a core file",
    "USR1": "the program's own, such as: save a checkpoint; others end",
    "USR2": "the program's own; others end",
    "STOP": "pause",
    "CONT": "resume",
    "KILL": "end at once, without saving",
}
"""The effect of each signal."""
PARTS: dict[str, Literal["steps", "script", "all"]] = {"step": "script", "job": "steps", "script": "all"}
"""The part of a job that scancel signals, by scope. A step here is the batch step."""


class SignalScope(Struct, frozen=True):
    """The processes that get a signal."""

    of: Literal["process", "step", "job", "script"]
    target_text: str

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that make sense: a job is cancelled, not killed."""
        may_kill = self.of in ("process", "step")
        return tuple(name for name in slurm_signals.NAMES if name != "KILL" or may_kill)


def scopes(target: JobPlace, survey: Survey, me: DashboardUser) -> tuple[SignalScope, ...]:
    """Return the scopes that a signal can have, the smallest first."""
    found = []
    job = terminal.shortened(target.job, NAME_MOST)
    process = target.process
    # srun reaches only the user's own jobs.
    is_reached = survey.source == "local" or (target.owner == me.name and target.job_id is not None)
    is_there = _NODE.fullmatch(target.node) and any(node.name == target.node for node in survey.nodes)
    if process is not None and process.start_ticks is not None and is_reached and is_there and not _is_mps(target):
        found.append(SignalScope("process", process_text(target, me)))
    if process is not None and target.job_id is not None and (_STEP.fullmatch(target.step) or target.step == "batch"):
        what = "the script" if target.step == "batch" else f"every task of step {target.step}"
        found.append(SignalScope("step", f"{what} of job {job}, on all of its nodes"))
    if target.job_id is not None:
        found.append(SignalScope("job", f"every task of every step of job {job}, not its script"))
        script = f"every task of every step of job {job}, and its script and all that this started"
        found.append(SignalScope("script", script))
    return tuple(found)


def process_text(target: JobPlace, me: DashboardUser) -> str:
    """Return a process in a line: PID, node, owner, and its name in quotation marks."""
    assert target.process is not None
    of = "your own" if target.owner == me.name else f"OF {terminal.shortened(target.owner, NAME_MOST)}"
    of += f", task {target.task}" if target.task is not None else ""
    of += f" of step {shown(target.step)}" if target.step else ""
    of += f" of job {terminal.shortened(target.job, NAME_MOST)}" if target.job else ", in no job"
    name = terminal.shortened(target.process_name, NAME_MOST)
    return f'process {target.process.pid} on {terminal.safe(target.node)}, {of}  "{name}"'


def signalling(
    target: JobPlace,
    scope: SignalScope,
    name: str,
    job: QueuedJob | None,
    survey: Survey,
    me: DashboardUser,
    program: Sequence[str],
    *,
    uid: int | None,
) -> PlannedAction:
    """Return the question before a signal is sent. `job`: Slurm's present record of its job; `uid`: the required owner
    of the process, None: unknown on this host. Raises SlurmShareError if that is unknown, or if the job has ended, does
    not run, or does not belong to the user shown on the screen."""
    if name not in scope.signals:
        raise UsageError(f"{shown(name)} cannot be sent here; choose one of {', '.join(scope.signals)}")
    is_here = scope.of == "process" and survey.source == "local"
    if not is_here or job is not None:
        if job is None:
            raise SlurmShareError(f"Slurm's queue has no {_called(target)}: it has ended; nothing is sent")
        _check_owner(job, target, me)
        if "RUNNING" not in job.states and "SUSPENDED" not in job.states:
            raise SlurmShareError(f"job {job.id} is not running: {' '.join(job.states).lower()}; nothing is sent")
    act: ToProcess | ToTasks
    if scope.of == "process":
        act = _to_process(target, name, job, uid, () if is_here else program)
        lines = [process_text(target, me)]
        command = shlex.join(act.argv) or f"kill -{name} {act.process.pid}"
    else:
        assert job is not None
        act = ToTasks(name, tuple(_scancel(target, scope, name, job)), job)
        lines = [scope.target_text, job_text(job, job.id, me)]
        command = shlex.join(act.argv)
    lines.append(f"SIG{name}: {MEANINGS[name]}")
    return PlannedAction(title=f"Send SIG{name}?", lines=tuple(lines), command=command, yes="send", act=act)


def _to_process(
    target: JobPlace, name: str, job: QueuedJob | None, uid: int | None, program: Sequence[str]
) -> ToProcess:
    process = target.process
    assert process is not None
    assert process.start_ticks is not None
    if uid is None:
        raise SlurmShareError("this host does not know the user of that process; nothing is sent")
    known = ProcessIdentity(process.pid, process.start_ticks, uid)
    if not program:
        return ToProcess(name, known, (), job)
    assert job is not None
    number, component = job.het or (job.job_id, None)
    argv = slurm_signals.step_argv(
        job=number, component=component, of_job=job.job_id, node=target.node,
        pid=process.pid, start_ticks=process.start_ticks, name=name, program=program,
    )  # fmt: skip
    return ToProcess(name, known, tuple(argv), job)


def _scancel(target: JobPlace, scope: SignalScope, name: str, job: QueuedJob) -> list[str]:
    if scope.of == "step" and target.step != "batch":
        return slurm_signals.scancel_argv(f"{job.job_id}.{target.step}", name)
    return slurm_signals.scancel_argv(str(job.job_id), name, part=PARTS[scope.of])
