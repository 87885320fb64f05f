"""Decide which user has a node: one at a time, always for shared jobs, for others on the nodes that the site lists.

Slurm (Exclusive of the partition or job) and job_submit.lua ensure this before. Here a job is refused only if another
user's job is proved to be alive on the node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ...core.settings import Settings
from ...node.records import LiveJob
from ...slurm.records import JobContext
from ..records import Ledger, LedgerJob, Refusal
from . import drain, reconcile
from .leftovers import FIRST_ORDINARY_UID


def running(live: Iterable[LiveJob]) -> tuple[LiveJob, ...]:
    """Return the jobs that run: their slurmstepd has a child process, or is about to start one.

    A slurmstepd whose tasks have ended reports to slurmctld, and retries for up to hours if that does not answer or no
    longer knows the job (seen on 26.05). Nothing of its job runs here any more.
    """
    return tuple(one for one in live if one.without_task_s < reconcile.STARTING_S)


def others(job: JobContext, ledger: Ledger, live: Iterable[LiveJob], now: float) -> tuple[LiveJob, ...]:
    """Return the jobs of other users that are alive on this node, including one of the same number; empty if `job` is
    a system user's.

    A job is alive if it has a step here, in the ledger or not, or if its Prolog ran a moment ago. `ledger`: without the
    jobs that `job`'s arrival proves to have ended.
    """
    if job.uid < FIRST_ORDINARY_UID:
        return ()
    alive = _owners(live, ledger)
    alive |= {entry.job_id: entry.uid for entry in ledger.jobs if reconcile.is_starting(entry, now)}
    return tuple(
        LiveJob(job_id, uid)
        for job_id, uid in sorted(alive.items())
        if uid is not None and uid != job.uid and uid >= FIRST_ORDINARY_UID
    )


def refuse(job: JobContext, others: Collection[LiveJob], shown: Mapping[int, str]) -> Refusal:
    """Return the Refusal for a job on another user's node. `shown`: the names of the users whom Slurm shows to the
    job's user; of others the sentence does not even have the job's number."""
    told = [f"job {one.job_id} of {shown[one.uid]}" for one in others if one.uid is not None and one.uid in shown]
    there = ", ".join(told[:3]) if told else "a job of another user"
    why = (
        f"job {job.job_id} cannot run on {job.node}: slurm-share keeps this node to one user at a time, and {there} is "
        f"still on it; submit it again, with --exclude={job.node} if it comes back here. Slurm should not have chosen "
        "this node: tell your administrators"
    )
    # The other user controls how long his job lives, so this must never drain the node.
    return Refusal(job.job_id, job.uid, job.node, why, drain.OTHER_USER)


def departed(over: Iterable[LedgerJob], ledger: Ledger, live: Iterable[LiveJob]) -> frozenset[int]:
    """Return the users of ended jobs who have no job on this node any more, nor one that another hook is cleaning up
    after; empty if a step of an unknown user is here."""
    over = tuple(over)
    ended = {entry.job_id for entry in over}
    rest = [one for one in live if one.job_id not in ended]
    leaving = {one.job.uid for one in ledger.leaving if one.job not in over}
    users = {entry.uid for entry in over if entry.uid >= FIRST_ORDINARY_UID} - leaving
    return without_job(users, reconcile.without(ledger, over), rest)


def without_job(users: Collection[int], ledger: Ledger, live: Iterable[LiveJob]) -> frozenset[int]:
    """Return those of `users` without a job on this node: no entry in the ledger and no step."""
    running = set(_owners(live, ledger).values())
    if None in running:
        return frozenset()
    return frozenset(users) - running - {entry.uid for entry in ledger.jobs}


def _owners(live: Iterable[LiveJob], ledger: Ledger) -> dict[int, int | None]:
    """Return job -> uid of its user, from its tasks, else from the ledger; None: unknown."""
    known = {entry.job_id: entry.uid for entry in ledger.jobs}
    return {one.job_id: known.get(one.job_id) if one.uid is None else one.uid for one in live}


def clean_up(job: JobContext, settings: Settings, *, is_listed: bool) -> tuple[str, ...]:
    """Return the kinds of things of the job's user to remove after his last job here.

    Include files only if every job of his on the node is known: this one has the whole node, or the node's ordinary
    jobs are in the ledger, too. A job between two steps can be seen nowhere else, and its files must stay.
    """
    knows_all = is_listed or job.exclusive == "node"
    return tuple(kind for kind in settings.clean_up if knows_all or kind in ("gpu_processes", "processes"))
