"""What each deed can do to a job: to which state it may bring it, with which exit codes, and when.

A job that did not complete is explained by a deed only if the deed can end a job so, befell a node of the job's, and
did so while the job ran, or within the deed's own time before that. What no deed explains is lost.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from .plan import Event

BACK_S = 20.0
"""Until a node that was away takes work again: its slurmd has to register. SlurmdTimeout is as long here."""
GIVEN_UP_S = 45.0
"""How long a node that was out of sight may still have what slurmctld has given up there: both of the above, and
KillWait. A job that gets the node meanwhile is refused."""
UNSEEN_S = 10.0
"""A node that was out of sight for less has nothing that was given up: slurmctld asks it every 6.7 s, a third of
SlurmdTimeout, and gives up a node that was silent for 20 s."""
SAVES_S = 10.0
"""What a slurmctld that is killed may have forgotten: it saves its state some seconds after a change."""
BROKEN = r"(?!69:)\d+:\d+"
"""Whatever ends a job that its node does not carry on with, but not slurm-share's own refusal."""
REFUSED = r"69:0"
GIVES_UP = {"NODE_FAIL": BROKEN, "FAILED": BROKEN}
"""What Slurm makes of a job that it cannot carry on with. CANCELLED is what its user makes of it."""


@dataclass(frozen=True)
class Done:
    """An event, when it really was, and what it did."""

    event: Event
    began: float
    ended: float
    said: str


@dataclass(frozen=True)
class Effect:
    """What a deed can do to jobs."""

    ends: dict[str, str]
    """The states that it may bring a job to, with a pattern for `code:signal`."""
    after_s: float = 0.0
    """How long after its end it may still befall a job that starts."""
    before_s: float | None = None
    """Only a job is touched that starts later than so many seconds before it; None: whatever runs."""
    least_s: float = 0.0
    """Only where the deed lasted that long."""


EFFECTS: dict[str, tuple[Effect, ...]] = {
    # srun ends with 128 + 9, llsub with 1, since a task has failed.
    "kill_task": (Effect({"FAILED": r"(137|1):0"}),),
    # What is under way fails in CUDA; a task that begins then is refused.
    "kill_daemon": (Effect({"FAILED": r"[1-9]\d*:0"}),),
    "kill_server": (Effect({"FAILED": r"[1-9]\d*:0"}),),
    # The Prolog of this job, which is at its start; an Epilog's job has its state already. Where Slurm does not requeue
    # it, it ends as one whose node failed.
    "kill_hook": (Effect(GIVES_UP, before_s=30.0),),
    # Steps that were to be launched are not.
    "kill_slurmd": (Effect(GIVES_UP, after_s=10.0),),
    "kill_slurmctld": (Effect({**GIVES_UP, "FAILED": r"\d+:\d+"}, after_s=SAVES_S, before_s=SAVES_S),),
    "cut_network": (
        Effect(GIVES_UP, after_s=BACK_S),
        Effect({"FAILED": REFUSED}, after_s=GIVEN_UP_S, before_s=0.0, least_s=UNSEEN_S),
    ),
    # No process of before lives on: nobody is refused.
    "cut_power": (Effect(GIVES_UP, after_s=BACK_S),),
    "reboot": (Effect(GIVES_UP, after_s=BACK_S),),
    # Nothing can be given to a job whose Prolog is then, nor to a task that is launched then.
    "fill_state": (Effect({"FAILED": r"[1-9]\d*:0"}, after_s=2.0),),
    "fill_log": (),
    # The batch script cannot be kept, nor a program's own file in /tmp.
    "fill_spool": (Effect(GIVES_UP, after_s=5.0),),
}
"""By deed, all of hosts.py. It counts what a deed is known to be able to do; what turns up beyond it is to be
understood before it is entered here."""
ROUND_S = 1.0
"""Slurm's records have whole seconds."""


def explains(done: Done, state: str, code: str, nodes: Collection[str], start: float, end: float) -> bool:
    """Whether this deed can have brought a job of that time and place to that end. start, end: of its last run."""
    if done.said == "there was none" or (done.event.actor != "ctl" and done.event.actor not in nodes):
        return False
    return any(_fits(one, done, state, code, start, end) for one in EFFECTS.get(done.event.deed, ()))


def _fits(effect: Effect, done: Done, state: str, code: str, start: float, end: float) -> bool:
    pattern = effect.ends.get(state)
    if pattern is None or not re.fullmatch(pattern, code) or done.ended - done.began < effect.least_s:
        return False
    begins = effect.before_s is None or start >= done.began - effect.before_s - ROUND_S
    return begins and done.began <= end + ROUND_S and start <= done.ended + effect.after_s + ROUND_S
