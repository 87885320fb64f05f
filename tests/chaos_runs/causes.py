"""The effects of each action on a job: end states, exit codes, log lines and times.

An action explains a job that did not complete only if it can end a job so, if it hit a node of the job's while the job
was there, and if slurmctld's log or the job's output reports it. The log also says how long an action lasts: on a busy
machine the clock does not. A job that no action explains is lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .evidence import Evidence
from .plan import Event

UNREGISTERED_S = 60.0
"""How long a node or the controller is away after an action if the log does not show when it was back."""
BROKEN = r"(?!69:)\d+:\d+"
"""The end of a job that its node no longer runs, without slurm-share's own refusal."""
REFUSED = r"69:0"
GIVES_UP = {"NODE_FAIL": BROKEN, "FAILED": BROKEN}
"""The states of a job that Slurm can no longer run. Its user's command makes it CANCELLED."""
CUDA = r"CUDA_ERROR_\w+|the MPS daemon of \S+ is gone|cannot lease a slot"
"""The output of a task if its MPS is gone, or the plugin, which does not start one."""
AWAY = (
    r"(?m:^(?!slurm-share: ).*?(?:"
    r"due to failure of node|[Nn]ode failure|NODE FAILURE|missing from (batch )?node|non-startable|[Ll]aunch .*fail|"
    r"nodes not responding|on failed node|"
    r"[Cc]ommunication connection failure|[Tt]imed out|[Uu]nable to (contact|confirm|create step)|"
    r"Connection (refused|reset)|[Bb]roken pipe|Orphan|Invalid job id|could not find JobId|unexpectedly rebooted))"
)
"""The messages of slurmctld or srun, not of slurm-share, if a node or the controller does not answer, or no longer
knows a job."""
STALE = r"Orphan|cancelled by interactive user|Registered PENDING|on wrong node|invalid JobId|could not find JobId"
"""The log line of slurmctld when it continues from an outdated state."""
ASKED = "REQUEST_KILL_JOB"
"""The log line of slurmctld about a command that cancels a job."""
STALE_ENDS = ("CANCELLED", "FAILED", "NODE_FAIL")
FULL = r"No space left on device|cannot be written"
NO_PLAN = (
    r"has no plan for it: its (Prolog (made none|could not make one)|tasks here have no slot)|"
    r"does not share them: .* or its Prolog's log says why"
)
"""The plugin's messages to a task, and to an srun inside an allocation."""
NOT_REQUEUED = (
    r"Prolog launch failure|Requeue of JobId=\S+ returned an error: "
    r"(Requested operation is presently disabled|Only batch jobs are accepted or processed)"
)
"""Lines of slurmctld about a job whose Prolog failed and that may not be requeued, or that salloc made."""
NO_DEVICE = r"Slurm granted the job no GPU here"
NEIGHBOUR = r"\bjob (\d+) of \w+ is still on it"
"""slurm-share's message about the job of another user that is on the node."""
LEARNED = r"(Registered PENDING|Orphan) JobId=.* on node "
"""The log line of slurmctld when a node reports a step of a job that slurmctld does not know to be there."""
SLURMS_OWN = ("cut_network", "cut_power", "reboot", "kill_slurmd", "kill_slurmctld")
"""Actions after which Slurm gives a job's nodes to another job while the first may still be there."""


@dataclass(frozen=True)
class Done:
    """An event with its actual time and result."""

    event: Event
    began: float
    ended: float
    said: str


@dataclass(frozen=True)
class Case:
    """A job that did not complete, and what is logged about it. start, end: of its last run."""

    tag: str
    job: int
    user: str
    state: str
    code: str
    """The exit code and the signal, `69:0`."""
    nodes: frozenset[str]
    start: float
    end: float
    is_told: bool = True
    """False: assume that everything which any action makes a job print was printed. This measures how sharp the verdict
    is."""
    tasks: Mapping[int, str] = field(default_factory=dict)
    """The PIDs of its tasks, and their nodes."""
    taken: float = 0.0
    """When the job was submitted."""
    array: int = 0
    """The number of the job's array."""


@dataclass(frozen=True)
class Effect:
    """The effects of an action on jobs."""

    ends: Mapping[str, str]
    """The states in which a job may end, with a pattern for `code:signal`."""
    says: str = ""
    """The pattern of what is then logged or printed about the job."""
    lasts: bool = False
    """Whether it also hits a job that starts later, until the node has registered again."""
    after_s: float = 0.0
    """How long after its end it may still hit a job that starts."""
    hits_user: bool = False
    """Only jobs of the user whose process was killed."""


EFFECTS: dict[str, tuple[Effect, ...]] = {
    "kill_task": (),  # see `_is_own_task`
    "kill_daemon": (Effect({"FAILED": r"[1-9]\d*:0"}, CUDA, hits_user=True),),
    "kill_server": (Effect({"FAILED": r"[1-9]\d*:0"}, CUDA, hits_user=True),),
    "kill_hook": (),  # see `_is_own_hook`
    "kill_helper": (),  # its hooks run again
    "kill_slurmd": (Effect(GIVES_UP, AWAY, lasts=True),),
    "kill_slurmctld": (
        Effect(GIVES_UP, f"{AWAY}|{STALE}", lasts=True),
        Effect({"CANCELLED": BROKEN}, STALE, lasts=True),
        Effect({"FAILED": REFUSED}, NO_DEVICE, lasts=True),
    ),
    "cut_network": (
        Effect(GIVES_UP, AWAY, lasts=True),
        Effect({"CANCELLED": BROKEN}, r"REQUEST_LAUNCH_PROLOG notification failed", lasts=True),
    ),
    "cut_power": (Effect(GIVES_UP, AWAY, lasts=True),),
    "reboot": (Effect(GIVES_UP, AWAY, lasts=True),),
    # Nothing can be given to a job whose Prolog is then, nor to a task that is launched then.
    "fill_state": (Effect({"FAILED": r"[1-9]\d*:0"}, f"{FULL}|{NO_PLAN}|{CUDA}", after_s=2.0),),
    "fill_log": (),
    # The batch script cannot be kept, nor a program's own file in /tmp. slurmd gives back a job that it cannot keep,
    # and has one cancelled that must not be requeued.
    "fill_spool": (
        Effect(GIVES_UP, f"{FULL}|{AWAY}", after_s=5.0),
        Effect({"CANCELLED": BROKEN}, r"Requeue of JobId=\S+ returned an error", after_s=5.0),
    ),
}
"""The known effects by action, for every action of hosts.py. Add an effect only when it is understood."""
ROUND_S = 1.0
"""The resolution of times in Slurm's records."""
_KILLED = re.compile(r"killed \S+ (\d+) of ([\w-]+)(?:, job (\d+))?")
_KILLED_HOOK = re.compile(r"killed slurm-share-(pro|epi) ")
_REFUSED_ON = re.compile(r"cannot run on (\w+):")


def explains(done: Done, case: Case, evidence: Evidence) -> bool:
    """Return whether this action can have brought the job to its end."""
    if done.said == "there was none" or (done.event.actor != "ctl" and done.event.actor not in case.nodes):
        return False
    action = done.event.action
    if action == "kill_task":
        return _is_own_task(done, case)
    if action == "kill_hook":
        return _is_own_hook(done, case, evidence)
    if action in SLURMS_OWN and _gave_up_the_neighbour(done, case, evidence):
        return True
    if action == "kill_slurmctld" and _was_known_otherwise(done, case, evidence):
        return True
    return any(_fits(one, done, case, evidence) for one in EFFECTS.get(action, ()))


def _fits(effect: Effect, done: Done, case: Case, evidence: Evidence) -> bool:
    pattern = effect.ends.get(case.state)
    if pattern is None or not re.fullmatch(pattern, case.code):
        return False
    since = max(case.taken, done.began) - ROUND_S  # slurmctld gives a number that it forgot again
    said = evidence.of(case.tag, case.job, since, case.end + UNREGISTERED_S)
    if case.is_told and not re.search(effect.says, said):
        return False
    if case.is_told and case.state == "CANCELLED" and _is_asked(said):
        return False
    if effect.hits_user and (killed := _KILLED.match(done.said)) is not None and killed[2] != case.user:
        return False
    over = _over(done, case, evidence) if effect.lasts else done.ended + effect.after_s
    return done.began <= case.end + ROUND_S and case.start <= over + ROUND_S


def _over(done: Done, case: Case, evidence: Evidence) -> float:
    """Return when the last node concerned had registered again. For the controller these are the job's nodes."""
    nodes = case.nodes if done.event.actor == "ctl" else {done.event.actor}
    away = done.began + done.event.lasts_s
    back = [evidence.registered(node, away) or done.ended + UNREGISTERED_S for node in nodes]
    return max(back, default=done.ended + UNREGISTERED_S)


def is_cancelled(done: Done, case: Case, evidence: Evidence) -> bool:
    """Return whether the user's command made slurmctld cancel the job or its array. What the command printed does not
    count: it may have lost its connection. A slurmctld that is killed then may forget the command, and have the job
    FAILED when the node reports its end."""
    if done.event.action != "cancel" or done.event.actor != case.user:
        return False
    begin, end = done.began - ROUND_S, done.ended + ROUND_S
    may_be_forgotten = case.is_told and evidence.restarted(begin, case.end + ROUND_S)
    is_broken = case.state == "FAILED" and re.fullmatch(BROKEN, case.code) is not None
    if case.state != "CANCELLED" and not (is_broken and may_be_forgotten):
        return False
    said = [*evidence.about(case.job, begin, end), *evidence.about(case.array, begin, end)]
    return any(ASKED in text for text in said)


def _is_own_task(done: Done, case: Case) -> bool:
    """Return whether the killed task was the job's own. srun then ends with 128 + 9, llsub with 1, because a task has
    failed."""
    killed = _KILLED.match(done.said)
    if killed is None or case.state != "FAILED" or not re.fullmatch(r"(137|1):0", case.code):
        return False
    return case.tasks.get(int(killed[1])) == done.event.actor and _is_within(done, case)


def _is_own_hook(done: Done, case: Case, evidence: Evidence) -> bool:
    """Return whether the killed Prolog was this job's. Where Slurm does not requeue the job, it ends as if its node had
    failed; if it must not be requeued, slurmctld cancels it in root's name when it hears of the Prolog."""
    if killed_hook(done) != "prolog" or job_of_hook(done) != case.job:
        return False
    if case.state == "CANCELLED":
        said = evidence.about(case.job, done.began, done.ended + UNREGISTERED_S)
        return any(re.search(NOT_REQUEUED, text) for text in said)
    pattern = GIVES_UP.get(case.state)
    return pattern is not None and re.fullmatch(pattern, case.code) is not None and _is_within(done, case)


def killed_hook(done: Done) -> str:
    """Return the hook that the action killed, as Slurm's reason for a drain names it; empty: none."""
    killed = _KILLED_HOOK.match(done.said) if done.event.action == "kill_hook" else None
    return f"{killed[1]}log" if killed is not None else ""


def job_of_hook(done: Done) -> int:
    """Return the job whose Prolog or Epilog the action killed; 0: none."""
    killed = _KILLED.match(done.said) if done.event.action == "kill_hook" else None
    return int(killed[3] or 0) if killed is not None else 0


def _is_within(done: Done, case: Case) -> bool:
    return done.began <= case.end + ROUND_S and case.start <= done.ended + ROUND_S


def _was_known_otherwise(done: Done, case: Case, evidence: Evidence) -> bool:
    """Return whether a restarted slurmctld continued this job from an outdated state. It logs that when the job's node,
    or its end, reports something else. It may end the job or run it once more."""
    if not case.is_told or case.state not in STALE_ENDS or re.fullmatch(REFUSED, case.code):
        return False
    if not case.taken <= done.ended <= case.end + ROUND_S:
        return False
    said = evidence.about(case.job, done.began, case.end + UNREGISTERED_S)
    if case.state == "CANCELLED" and _is_asked("\n".join(said)):
        return False
    return any(re.search(STALE, text) for text in said)


def _is_asked(said: str) -> bool:
    """Return whether a command cancelled the job. slurmd asks for that, too, if the job must not be requeued."""
    return ASKED in said and re.search(r"Requeue of JobId=\S+ returned an error", said) is None


def _gave_up_the_neighbour(done: Done, case: Case, evidence: Evidence) -> bool:
    """Return whether the job was refused because another job was still on the node, which slurmctld had given up or
    forgotten after this action and a moment before the job came. What it had given up before it gave that node to the
    other job does not count. A restarted slurmctld learns what it had forgotten only when the node registers, which
    may be after the refusal."""
    if case.state != "FAILED" or not re.fullmatch(REFUSED, case.code) or not case.is_told:
        return False
    said = evidence.outputs.get((case.tag, case.job), "")
    there, place = re.search(NEIGHBOUR, said), _REFUSED_ON.search(said)
    if there is None or place is None or done.began > case.start + ROUND_S:
        return False
    neighbour, node, came = int(there[1]), place[1], case.start + ROUND_S
    since = max(done.began, case.start - UNREGISTERED_S, evidence.given(neighbour, node, came))
    if any(re.search(rf"{AWAY}|Requeuing", text) for text in evidence.about(neighbour, since, came)):
        return True
    learned = evidence.about(neighbour, since, case.end + UNREGISTERED_S)
    return done.event.action == "kill_slurmctld" and any(re.search(rf"{LEARNED}{node}\b", text) for text in learned)
