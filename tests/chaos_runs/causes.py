"""What each action can do to a job: to which state it may bring it, with which exit codes, what is then said, and
when.

A job that did not complete is explained by an action only if the action can end a job so, befell a node of the job's
while the job was there, and is what slurmctld's log or the job's output tells of. How long an action goes on is said
by the log, too, and not by the clock: a busy machine takes its time. What no action explains is lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .evidence import Evidence
from .plan import Event

UNREGISTERED_S = 60.0
"""For how long a node, or the controller, is away after an action where the log does not say when it was back."""
BROKEN = r"(?!69:)\d+:\d+"
"""Whatever ends a job that its node does not carry on with, but not slurm-share's own refusal."""
REFUSED = r"69:0"
GIVES_UP = {"NODE_FAIL": BROKEN, "FAILED": BROKEN}
"""What Slurm makes of a job that it cannot carry on with. CANCELLED is what its user makes of it."""
CUDA = r"CUDA_ERROR_\w+|the MPS daemon of \S+ is gone|cannot lease a slot"
"""What a task says whose MPS has gone, or the plugin, which does not start one."""
AWAY = (
    r"due to failure of node|[Nn]ode failure|NODE FAILURE|missing from (batch )?node|non-startable|[Ll]aunch .*fail|"
    r"nodes not responding|on failed node|"
    r"[Cc]ommunication connection failure|[Tt]imed out|[Uu]nable to (contact|confirm|create step)|"
    r"Connection (refused|reset)|[Bb]roken pipe|Orphan|Invalid job id|could not find JobId|unexpectedly rebooted"
)
"""What slurmctld, or srun, says when a node or the controller does not answer, or knows a job no more."""
STALE = r"Orphan|cancelled by interactive user|Registered PENDING|on wrong node|invalid JobId|could not find JobId"
"""What slurmctld says when it goes on from a state that is older than what has happened."""
STALE_ENDS = ("CANCELLED", "FAILED", "NODE_FAIL")
FULL = r"No space left on device|cannot be written"
NO_PLAN = r"has no plan for it: its Prolog could not make one|does not share them: .* or its Prolog's log says why"
"""What the plugin says to a task, and to an srun inside an allocation."""
NO_DEVICE = r"Slurm granted the job no GPU here"
NEIGHBOUR = r"\bjob (\d+) of \w+ is still on it"
SLURMS_OWN = ("cut_network", "cut_power", "reboot", "kill_slurmd", "kill_slurmctld")
"""Actions after which Slurm gives a job's place to another while the job may be there still."""


@dataclass(frozen=True)
class Done:
    """An event, when it really was, and what it did."""

    event: Event
    began: float
    ended: float
    said: str


@dataclass(frozen=True)
class Case:
    """A job that did not complete, and what is said of it. start, end: of its last run."""

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
    """False: as if all that any action makes a job say had been said, for the question how sharp the verdict is
    then."""
    tasks: Mapping[int, str] = field(default_factory=dict)
    """The pids of its tasks, and the nodes they were on."""
    taken: float = 0.0
    """When it was submitted."""
    array: int = 0
    """The number of the array that it is an element of."""


@dataclass(frozen=True)
class Effect:
    """What an action can do to jobs."""

    ends: Mapping[str, str]
    """The states that it may bring a job to, with a pattern for `code:signal`."""
    says: str = ""
    """What is then said of the job."""
    lasts: bool = False
    """Whether a job is touched, too, that starts after it, until the node has registered again."""
    after_s: float = 0.0
    """How long after its end it may still befall a job that starts."""
    hits_user: bool = False
    """Only jobs of the user whose process it killed."""


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
"""By action, all of hosts.py. It counts what an action is known to be able to do; what turns up beyond it is to be
understood before it is entered here."""
ROUND_S = 1.0
"""Slurm's records have whole seconds."""
_KILLED = re.compile(r"killed \S+ (\d+) of ([\w-]+)(?:, job (\d+))?")


def explains(done: Done, case: Case, evidence: Evidence) -> bool:
    """Whether this action can have brought the job to its end."""
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
    said = evidence.of(case.tag, case.job, max(case.taken, done.began) - ROUND_S)
    if case.is_told and not re.search(effect.says, said):
        return False
    if effect.hits_user and (killed := _KILLED.match(done.said)) is not None and killed[2] != case.user:
        return False
    over = _over(done, case, evidence) if effect.lasts else done.ended + effect.after_s
    return done.began <= case.end + ROUND_S and case.start <= over + ROUND_S


def _over(done: Done, case: Case, evidence: Evidence) -> float:
    """When the last of those concerned, the node or, of the controller, the job's nodes, had registered again."""
    nodes = case.nodes if done.event.actor == "ctl" else {done.event.actor}
    away = done.began + done.event.lasts_s
    back = [evidence.registered(node, away) or done.ended + UNREGISTERED_S for node in nodes]
    return max(back, default=done.ended + UNREGISTERED_S)


def is_cancelled(done: Done, case: Case, evidence: Evidence) -> bool:
    """Whether its user's command brought slurmctld to cancel it, or its array; whatever the command itself said, which
    may have lost its connection."""
    if done.event.action != "cancel" or done.event.actor != case.user or case.state != "CANCELLED":
        return False
    begin, end = done.began - ROUND_S, done.ended + ROUND_S
    said = [*evidence.about(case.job, begin, end), *evidence.about(case.array, begin, end)]
    return any("REQUEST_KILL_JOB" in text for text in said)


def _is_own_task(done: Done, case: Case) -> bool:
    """srun ends with 128 + 9, llsub with 1, since a task has failed; the task was the job's own."""
    killed = _KILLED.match(done.said)
    if killed is None or case.state != "FAILED" or not re.fullmatch(r"(137|1):0", case.code):
        return False
    return case.tasks.get(int(killed[1])) == done.event.actor and _is_within(done, case)


def _is_own_hook(done: Done, case: Case, evidence: Evidence) -> bool:
    """The Prolog of this job. Where Slurm does not requeue it, it ends as one whose node failed; one that must not be
    requeued slurmctld cancels in root's name."""
    killed = _KILLED.match(done.said)
    if killed is None or killed[3] is None or int(killed[3]) != case.job:
        return False
    if case.state == "CANCELLED":
        return any("Prolog launch failure" in text for text in evidence.about(case.job, done.began))
    pattern = GIVES_UP.get(case.state)
    return pattern is not None and re.fullmatch(pattern, case.code) is not None and _is_within(done, case)


def job_of_hook(done: Done) -> int:
    """The job whose Prolog or Epilog it killed; 0: of none."""
    killed = _KILLED.match(done.said) if done.event.action == "kill_hook" else None
    return int(killed[3] or 0) if killed is not None else 0


def _is_within(done: Done, case: Case) -> bool:
    return done.began <= case.end + ROUND_S and case.start <= done.ended + ROUND_S


def _was_known_otherwise(done: Done, case: Case, evidence: Evidence) -> bool:
    """Whether slurmctld, started anew, went on with this job from a state that was older than what had happened: it
    says so when the job's node, or its end, tells it something else. It may end the job, or run it once more."""
    if not case.is_told or case.state not in STALE_ENDS or re.fullmatch(REFUSED, case.code):
        return False
    if not case.taken <= done.ended <= case.end + ROUND_S:
        return False
    return any(re.search(STALE, text) for text in evidence.about(case.job, done.began))


def _gave_up_the_neighbour(done: Done, case: Case, evidence: Evidence) -> bool:
    """Whether the job was refused since another's was on the node still, which slurmctld had given up, or forgotten,
    after this action and before the job came."""
    if case.state != "FAILED" or not re.fullmatch(REFUSED, case.code) or not case.is_told:
        return False
    there = re.search(NEIGHBOUR, evidence.outputs.get((case.tag, case.job), ""))
    if there is None or done.began > case.start + ROUND_S:
        return False
    said = evidence.about(int(there[1]), done.began, case.start + ROUND_S)
    return any(re.search(rf"{AWAY}|Requeuing", text) for text in said)
