"""Carry out the dashboard's actions; no other module of it changes anything.

Each action first reads what it would affect, for the user to confirm, and reads it again before it acts: meanwhile a
job may have ended and its number may belong to another job.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from slurm_share.core import terminal
from slurm_share.core.errors import CommandError, SlurmShareError, UsageError
from slurm_share.load import Survey
from slurm_share.node import processes
from slurm_share.share import queue
from slurm_share.slurm import jobs as slurm_jobs
from slurm_share.slurm import signals
from slurm_share.slurm.records import QueuedJob
from slurm_share.triples import LogFile, Tail, job_output

from . import action_rules
from .action_rules import Action, Cancel, DashboardUser, PlannedAction, SignalScope, ToProcess, ToTasks
from .location import JobPlace

QUEUE_TIMEOUT_S = 30.0


class JobActions:
    """The actions, with the rights of the user. Every method but `why_not` and `scopes` may block: do not call them in
    the thread that draws."""

    def __init__(self, *, readonly: bool = False, me: DashboardUser | None = None) -> None:
        self.readonly = readonly
        self.me = me or DashboardUser(processes.read_user_name(os.getuid()), os.getuid())

    def why_not(self, action: Action, targets: Sequence[JobPlace], survey: Survey | None) -> str:
        return action_rules.why_not(action, targets, survey, self.me, readonly=self.readonly)

    def scopes(self, target: JobPlace, survey: Survey) -> tuple[SignalScope, ...]:
        return action_rules.scopes(target, survey, self.me)

    def ask_cancel(self, targets: Sequence[JobPlace], survey: Survey) -> PlannedAction:
        """Return which jobs would be ended. Raises SlurmShareError, with the reason, if none can be."""
        self._check("cancel", targets, survey)
        return action_rules.cancelling(targets, self._queue(action_rules.wanted(targets)), self.me)

    def ask_signal(self, target: JobPlace, scope: SignalScope, name: str, survey: Survey) -> PlannedAction:
        """Return which signal would be sent to what. Raises SlurmShareError as `ask_cancel` does."""
        self._check("signal", [target], survey)
        if scope not in self.scopes(target, survey):
            raise UsageError("this can no longer be signalled from here; nothing is sent")
        is_here = survey.source == "local" and scope.of == "process"
        job = None if is_here else self._record(target)
        from slurm_share.load import srun

        uid = processes.read_user_id(target.owner) if is_here and target.owner != self.me.name else self.me.uid
        return action_rules.signalling(target, scope, name, job, survey, self.me, srun.PROGRAM, uid=uid)

    def ask_output(self, target: JobPlace, survey: Survey) -> tuple[LogFile, ...]:
        """Return the files with the target's output, the likeliest first. Raises SlurmShareError if there is none."""
        self._check("output", [target], survey)
        job = self._record(target)
        # A job that has just ended is not in the queue, but Slurm still knows its output files.
        job_id = target.job_id if job is None else job.job_id
        if job_id is None:
            raise SlurmShareError(f"Slurm's queue has no job {terminal.safe(target.job)}; it has ended")
        files = job_output.read_files(job_id)
        self._check_files(files, target)
        owner = files.uid if os.geteuid() == 0 else None
        found = job_output.choose(files, node=target.node, local=_slot(target, survey), owner=owner)
        if not found:
            raise SlurmShareError(f"job {target.job} writes to a terminal, not to a file")
        return found

    def open_output(self, file: LogFile, target: JobPlace) -> Tail:
        """Return the tail of one of these files, not opened yet."""
        if os.geteuid() != 0:
            return Tail(file.path, None)
        owner = self.me.uid if target.owner == self.me.name else processes.read_user_id(target.owner)
        if owner is None:
            name = terminal.safe(target.owner)
            raise SlurmShareError(f"this host knows no user {name}; root opens no file without a known owner")
        return Tail(file.path, owner)

    def carry_out(self, planned: PlannedAction) -> tuple[str, ...]:
        """Carry out a confirmed action and return what was done, as sentences. Raises SlurmShareError, with the reason,
        if nothing was done or the result is unknown."""
        if self.readonly:
            raise UsageError("this dashboard is read-only: nothing is done")
        act = planned.act
        if isinstance(act, Cancel):
            return self._cancel(act)
        if act.job is not None:
            self._check_still(act.job)
        if isinstance(act, ToTasks):
            signals.through_scancel(act.argv)
            return (f"Slurm was told: SIG{act.name} to {planned.lines[0]}",)
        if not act.argv:
            signals.send(act.process, act.name)
        else:
            self._through_srun(act)
        return (f"SIG{act.name} sent to process {act.process.pid}",)

    def _cancel(self, act: Cancel) -> tuple[str, ...]:
        agreed = {one.id: one.job for one in act.jobs}
        targets = [each for id in agreed for each in queue.parse_targets(id)]
        now = self._queue(targets)
        ids: dict[str, None] = {}
        gone: list[str] = []
        for id, job in agreed.items():
            there = [one for each in queue.parse_targets(id) for one in queue.choose(each, now)]
            left = [one.id for one in there if one.job.uid == job.uid and not _is_anew(job, one.job)]
            gone += [] if left else [id]
            ids |= dict.fromkeys(left)
        refused = signals.cancel(tuple(ids)) if ids else {}
        done = [id for id in ids if id not in refused]
        said = [f"cancelled {_some(done)}"] if done else []
        said += [f"{_some(gone)} had ended"] if gone else []
        said += [f"{id} was not cancelled; Slurm says: {terminal.shortened(why, 200)}" for id, why in refused.items()]
        if refused and not done:
            raise SlurmShareError("; ".join(said))
        return tuple(said)

    @staticmethod
    def _through_srun(act: ToProcess) -> None:
        from slurm_share.load import srun_environment

        try:
            signals.through_srun(act.argv, srun_environment(os.environ))
        except CommandError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise SlurmShareError("there is no srun on this host; nothing was sent") from error
            raise SlurmShareError(f"srun failed ({error.stderr}): it is unknown whether the signal was sent") from error

    def _check(self, action: Action, targets: Sequence[JobPlace], survey: Survey) -> None:
        if why := self.why_not(action, targets, survey):
            raise UsageError(why)

    @staticmethod
    def _queue(targets: Sequence[queue.JobTarget]) -> tuple[QueuedJob, ...]:
        jobs = sorted({target.job for target in targets})
        return slurm_jobs.read_queue(jobs=jobs, timeout_s=QUEUE_TIMEOUT_S)[1] if jobs else ()

    def _record(self, target: JobPlace) -> QueuedJob | None:
        """Return Slurm's record of the job; None: it has ended. Raises UsageError if there are several: an array in one
        line."""
        targets = action_rules.wanted([target])
        now = self._queue(targets)
        jobs = [one.job for each in targets for one in queue.choose(each, now)]
        if target.process is not None:
            return next((job for job in jobs if job.job_id == target.job_id), None)
        exact = [job for job in jobs if job.id == target.job] or jobs
        if len(exact) > 1:
            raise UsageError(f"{terminal.safe(target.job)} has {len(exact)} parts in the queue: choose one of them")
        return exact[0] if exact else None

    def _check_still(self, known: QueuedJob) -> None:
        now = slurm_jobs.read_queue(jobs=[known.job_id], timeout_s=QUEUE_TIMEOUT_S)[1]
        job = next((job for job in now if job.job_id == known.job_id), None)
        if job is None or (job.uid, job.start) != (known.uid, known.start):
            raise SlurmShareError(f"job {known.id} has ended meanwhile; nothing is sent")

    def _check_files(self, files: job_output.JobFiles, target: JobPlace) -> None:
        if not (files.uid == self.me.uid if target.owner == self.me.name else files.user == target.owner):
            owners = f"{terminal.safe(files.user)}, not to {terminal.safe(target.owner)}"
            raise SlurmShareError(f"job {target.job} belongs to {owners}")


def _slot(target: JobPlace, survey: Survey) -> int | None:
    """Return the slot of a process: which of its node's tasks it is."""
    if target.process is None:
        return None
    wanted = (target.process.pid, target.process.start_ticks)
    snapshots = (node.snapshot for node in survey.nodes if node.name == target.node and node.snapshot is not None)
    there = (one.slot for snapshot in snapshots for one in snapshot.processes if (one.pid, one.start_ticks) == wanted)
    return next(there, None)


def _is_anew(known: QueuedJob, now: QueuedJob) -> bool:
    """Return whether the job was requeued or started again since: another run, which the user did not confirm. The
    start of a waiting job is Slurm's guess and does not count."""
    return "PENDING" not in known.states and now.start != known.start


def _some(ids: Sequence[str]) -> str:
    some = ", ".join(ids[:5])
    return f"{some} and {len(ids) - 5} more" if len(ids) > 5 else some
