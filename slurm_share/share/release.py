"""Clean up after a shared job: end its daemons and processes, restore what was changed, remove its folder.

The ledger is written first: the job's entry moves to the jobs that are leaving, together with the identity of this
hook. A job that arrives meanwhile finds the GPUs free. The folder and the entry are removed last. So a hook that is
killed at any moment leaves an entry that says what is still to be done, and the next hook does it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from slurm_share.core import log, process
from slurm_share.core.errors import DriverError
from slurm_share.core.paths import Paths
from slurm_share.core.process import Deadline
from slurm_share.core.records import ProcessIdentity
from slurm_share.core.settings import Settings
from slurm_share.node import processes as node_processes
from slurm_share.node import scratch, termination
from slurm_share.node.gpus import driver as nvml
from slurm_share.node.records import GpuReading, LiveJob, NodeProcess
from slurm_share.share import memory_limits, option, state, user_folder
from slurm_share.share.backends import registry
from slurm_share.share.backends.base import Host, Leftovers, UserGpu
from slurm_share.share.records import Ledger, LedgerJob, UserRemains
from slurm_share.share.rules import drain, leftovers, owners, reconcile
from slurm_share.slurm import hook_env

from . import hook

TYPE_CHECKING = False  # mypy takes it for True; importing `typing` takes time
if TYPE_CHECKING:
    from typing import TypeVar

    Work = TypeVar("Work")

WHO = "epilog"
SLACK_S = 5.0
"""Seconds beyond release_deadline_s after which the watchdog ends an Epilog. Each stage may wait a moment beyond its
deadline for processes that it has just killed."""
DAEMONS_RATIO, LEFTOVERS_RATIO, DYING_RATIO, LAST_RATIO = 0.5, 0.5, 0.5, 0.5
"""The part of the remaining time that a stage may use: stopping daemons (DAEMONS), ending processes on GPUs
(LEFTOVERS), waiting for killed processes (DYING), ending the processes and removing the files of a user whose last job
has ended (LAST). The next hook continues if a stage runs out of time."""
LIST_S, ASIDE_S, REMOVE_S = 2.0, 1.0, 5.0
"""The most time for listing a user's files, for moving them aside, and for removing them. Moving is done under the
ledger's lock. ASIDE_S is also for removing what users left in the folders of their launchers."""
LEDGER_S = 2.0
"""The most time to wait for the ledger's lock. Its holders need milliseconds."""
OUTLIVES_S = 2.0
"""A process that is still there this long after SIGKILL counts as one that SIGKILL does not end. One that was killed
more recently may only need time: the kernel takes a second or more to free a large memory."""
FUSE_S = 0.5
"""A process that is still there this long after SIGKILL may wait for a file system of its user's."""
ROUNDS = 3
"""How often leftover processes are ended, when something starts them again, before every process of their user is
ended at once."""


def release_job(environ: Mapping[str, str], paths: Paths, settings: Settings, now: float) -> bool:
    """Undo what `admission.admit_job` did; return False if the node must be drained. A second call does nothing.

    Raises HookEnvError for an environment that is not slurmd's, StateError, OSError if state cannot be written.
    """
    job = hook_env.read(environ, option.parse)
    deadline = Deadline.after(settings.release_deadline_s)
    work = CleanUp(paths, settings, WHO)
    state.prepare(paths)
    with state.exclusive(paths, deadline):
        ledger = hook.read_ledger(paths, WHO)
        entry = reconcile.find(ledger, job.job_id)
        if entry is not None and entry.uid != job.uid and not (job.uid == 0 and is_given_up(entry, now)):
            hook.report(WHO, f"job {job.job_id} belongs to uid {entry.uid} here, not to uid {job.uid}: nothing is done")
            return True
        if reconcile.is_late(entry, job):
            hook.report(WHO, f"job {job.job_id} runs here again: this Epilog of its earlier run does nothing")
            return True
        over, ledger = work.take_over(ledger, () if entry is None else (entry,))
        if entry is None and any(one.job.job_id == job.job_id and one.job not in over for one in ledger.leaving):
            hook.report(WHO, f"job {job.job_id}: another Epilog is cleaning up after it")
            return True
        was_loaded = None if entry is None else state.was_plugin_loaded(paths, job.job_id)
        if not any(one.job_id == job.job_id for one in over):
            work.remove_folder(job.job_id, job.uid)  # it was refused, or its Prolog never ran
    causes = work.clear(over, deadline)
    well = not drain.drains(causes)
    # slurmd may have given root as the job's user: see is_given_up.
    uid = job.uid if entry is None else entry.uid
    remaining = entry is not None and reconcile.remaining(entry, work.remains)
    hook.report(WHO, f"job {job.job_id} of uid {uid}: {outcome(causes, has_remains=bool(remaining))}")
    if entry is not None and was_loaded is not None and (not was_loaded or ledger.without_plugin):
        from . import plugin_use  # needed only if the plugin was not loaded just now or before

        plugin_use.judge(environ, paths, settings, entry, was_loaded=was_loaded, now=now)
    return well


def outcome(causes: Collection[str], *, has_remains: bool) -> str:
    """Return the sentence that an Epilog logs at its end."""
    said = "its share is removed"
    if has_remains:
        said += ", but not all that it left: the next hook, or slurm-share doctor --fix, continues"
    unwell = sorted(cause for cause in causes if drain.drains([cause]))
    return said + (f"; {log.UNWELL}: {', '.join(unwell)}" if unwell else "")


def running_jobs() -> tuple[LiveJob, ...]:
    """Return the jobs that have live tasks on this node."""
    return owners.running(node_processes.read_live_jobs())


def is_given_up(entry: LedgerJob, now: float) -> bool:
    """Return whether an Epilog that runs with SLURM_JOB_UID=0 is to clean up after this job of another user.

    slurmd runs such an Epilog after it has ended a job that slurmctld no longer knows, or has started on another node
    meanwhile (seen on 26.05). While the job has a step here or is about to get its first one, the answer is no: the job
    was started again under the same number, and the Epilog belongs to its earlier run.
    """
    alive = any(one.job_id == entry.job_id for one in running_jobs())
    return not alive and not reconcile.is_starting(entry, now)


def _others(ledger: Ledger, over: Collection[LedgerJob]) -> list[LedgerJob]:
    return [entry for entry in ledger.jobs if entry not in over]


def _users_here(ledger: Ledger) -> frozenset[int]:
    """Return the users of all jobs in the ledger, also of those that a hook cleans up after."""
    return frozenset(entry.uid for entry in (*ledger.jobs, *(one.job for one in ledger.leaving)))


def _gpus_of(entries: Iterable[LedgerJob]) -> dict[UserGpu, int]:
    return {(entry.uid, gpu): entry.job_id for entry in entries for gpu in entry.gpus}


def _named(one: NodeProcess) -> str:
    identity = one.identity
    return f"process {identity.pid} ({identity.name}) of uid {identity.uid}"


def _fate(one: NodeProcess, left: Collection[NodeProcess]) -> str:
    return "not ended yet" if one in left else "ended"


def _evenly(work: Sequence[Work], until: Deadline) -> Iterator[tuple[Work, Deadline]]:
    """Yield each piece of work with its part of the time that is left, so that no user takes that of the others."""
    for number, one in enumerate(work):
        yield one, until.part(1 / (len(work) - number))


class CleanUp:
    """One hook's clean-up: the causes of share/rules/drain.py that it found, the processes that it killed, and what it
    could not remove of whom. That keeps the entries of its users only: everybody else's work goes on."""

    def __init__(self, paths: Paths, settings: Settings, who: str) -> None:
        self.paths = paths
        self.settings = settings
        self.who = who
        self.host = Host(paths=paths, settings=settings)
        self.causes: set[str] = set()
        self.remains: list[UserRemains] = []
        self.dying: dict[ProcessIdentity, float] = {}
        """Processes that got SIGKILL and had not ended -> when they got it, on the monotonic clock."""

    def say(self, text: str) -> None:
        """Write a line to the hooks' log."""
        hook.report(self.who, text)

    def killed(self, identities: Iterable[ProcessIdentity]) -> None:
        """Record processes that got SIGKILL just now and have not ended yet."""
        self.dying |= dict.fromkeys(identities, time.monotonic())

    def leave(self, remains: Iterable[UserRemains]) -> None:
        """Record what could not be removed."""
        for one in remains:
            self.causes.add(drain.REMAINS)
            self.remains.append(one)

    def take_over(self, ledger: Ledger, over: Iterable[LedgerJob]) -> tuple[tuple[LedgerJob, ...], Ledger]:
        """Write into the ledger that this hook cleans up after the jobs in `over`, and after those of hooks that were
        killed; return all these jobs and the new ledger. The caller holds the ledger's lock and has read `ledger`."""
        state.remove_remains(self.paths, _users_here(ledger))
        living = [one.hook for one in ledger.leaving if process.is_same(one.hook)]
        abandoned, noted = reconcile.abandoned(ledger, living), reconcile.with_noted_remains(ledger)
        for entry in abandoned:
            if entry not in noted:  # the log has said why the others are here
                self.say(f"job {entry.job_id} of uid {entry.uid}: its clean-up is not finished: continuing it")
        over = (*over, *abandoned)
        if over:
            ledger = reconcile.begin_leaving(ledger, over, hook.myself())
            self._write(ledger)
        return over, ledger

    def clear(self, over: Sequence[LedgerJob], deadline: Deadline) -> frozenset[str]:
        """Clean up after the jobs that `take_over` returned, and stop our daemons that no job here uses; return the
        causes that were found.

        Each stage has a part of the one deadline. A job of which something remains, for want of time or because it
        cannot be removed, keeps its entry and folder, and the next hook continues.
        """
        for entry in over:
            self.end_limits(entry, deadline)
        self.end_daemons(over, deadline.part(DAEMONS_RATIO))
        self.restore_modes(deadline)
        if over:
            self.end_leftovers(over, deadline.part(LEFTOVERS_RATIO))
        self.await_dying(deadline.part(DYING_RATIO))
        if over:
            last = self.let_go(over, deadline)
            if last:
                self.clean_up_after(last, deadline)
                self.await_dying(deadline.part(DYING_RATIO))
            if last or self.remains:
                with state.exclusive(self.paths, deadline.at_most(LEDGER_S)):
                    self.forget(last, hook.read_ledger(self.paths, self.who), over)
        for line in state.remove_asides(self.paths, deadline.at_most(ASIDE_S)):
            if over:  # otherwise an earlier hook has said it
                self.say(line)
        if uids := user_folder.read_uids(self.paths):  # of users whose daemons or files were in the way until now, too
            with state.exclusive(self.paths, deadline.at_most(LEDGER_S)):
                self.release_users(uids, hook.read_ledger(self.paths, self.who))
        return frozenset(self.causes)

    def await_dying(self, deadline: Deadline) -> None:
        """Wait until the killed processes are gone; add a cause for each that is not.

        A user can keep his process alive with a file system of his own that does not answer: it is ended.
        """
        left = process.wait_gone(self.dying, deadline.at_most(FUSE_S))
        if left:
            from slurm_share.node import fuse  # rarely needed

            for sentence in fuse.end_waited_for({one.uid for one in left if one.uid is not None}):
                self.say(sentence)
            left = process.wait_gone(left, deadline)
        for identity in left:
            if time.monotonic() - self.dying[identity] >= OUTLIVES_S:
                self.causes.add(drain.OUTLIVES_SIGKILL)
                self.say(f"process {identity.pid} ({identity.name}) of uid {identity.uid} outlives SIGKILL")
            else:
                why = f"process {identity.pid} ({identity.name}) of uid {identity.uid} has not ended yet"
                self.say(why)
                self.leave([UserRemains(identity.uid, why)] if identity.uid is not None else ())
        self.dying.clear()

    def let_go(self, over: Sequence[LedgerJob], deadline: Deadline) -> tuple[LedgerJob, ...]:
        """Remove folders and entries of the jobs; return the jobs whose entries must stay for now.

        Those are the last jobs of their users here: their entries stay until their users' processes and files are
        removed, too. If hooks of several jobs of a user get here at the same time, only the last one finds that the
        user has left. Jobs whose files an earlier hook moved aside and did not remove are returned as well.
        """
        live = running_jobs() if any(entry.clean_up for entry in over) else ()
        with state.exclusive(self.paths, deadline.at_most(LEDGER_S)):
            ledger = hook.read_ledger(self.paths, self.who)
            departed = owners.departed(over, ledger, live)
            last = tuple(
                entry
                for entry in over
                if (entry.uid in departed and entry.clean_up) or reconcile.asides_of(ledger, (entry,))
            )
            self.forget([entry for entry in over if entry not in last], ledger)
        return last

    def forget(self, done: Sequence[LedgerJob], ledger: Ledger, over: Sequence[LedgerJob] = ()) -> None:
        """Remove folder and entry of the jobs in `done` of which nothing remains; record in the ledger what remains of
        those in `over`. The caller holds the ledger's lock."""
        gone, noted = [], reconcile.with_noted_remains(ledger)
        for entry in (one for one in done if not reconcile.remaining(one, self.remains)):
            is_again = reconcile.find(ledger, entry.job_id) not in (None, entry)
            if is_again or self.remove_folder(entry.job_id, entry.uid):
                gone.append(entry)
                if entry in noted:
                    self.say(f"job {entry.job_id} of uid {entry.uid}: what it left is removed now")
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        ledger, said = reconcile.note_remains(reconcile.end_leaving(ledger, gone), over, self.remains, now)
        for one in said:
            who = f"job {one.job.job_id} of uid {one.job.uid}" + (f" ({one.job.user})" if one.job.user else "")
            self.say(f"{who}: not all is removed: {one.why}; every hook tries again")
        for line in state.set_launchers_aside(self.paths, _users_here(ledger)):
            self.say(line)
        self._write(ledger)
        self.release_users({entry.uid for entry in gone}, ledger)

    def release_users(self, uids: Iterable[int], ledger: Ledger) -> None:
        """Unmount the file systems of these users if they have no job here. The caller holds the ledger's lock."""
        for uid in set(uids) - _users_here(ledger):
            user_folder.release_own(self.paths, uid)

    def remove_folder(self, job_id: int, uid: int) -> bool:
        """Remove the job's folder; return False if that is not possible, after recording why."""
        try:
            notes = state.remove_job(self.paths, job_id)
        except OSError as error:
            self.leave([UserRemains(uid, f"its folder cannot be removed: {error.strerror}", job_id=job_id)])
            return False
        for note in notes:
            self.say(f"job {job_id} of uid {uid}: {note}")
        return True

    def end_limits(self, entry: LedgerJob, deadline: Deadline) -> None:
        """End the keeper of the job's memory limits, and remove the cgroups that it made."""
        if why := memory_limits.end(self.paths, entry.job_id, deadline):
            self.leave([UserRemains(entry.uid, f"its memory limits are not removed: {why}", job_id=entry.job_id)])

    def end_daemons(self, over: Sequence[LedgerJob], deadline: Deadline) -> None:
        """Stop the backends' daemons on GPUs that no job here uses, except where another hook cleans up."""

        def read_kept() -> frozenset[UserGpu]:
            ledger = self._read(deadline)
            theirs = [one.job for one in ledger.leaving if one.job not in over and process.is_same(one.hook)]
            # If two jobs leave a GPU at the same time, both hooks stop its daemon: neither can rely on the other.
            return frozenset(_gpus_of(_others(ledger, over))) | (_gpus_of(theirs).keys() - _gpus_of(over).keys())

        def read_known() -> frozenset[int]:
            noted = reconcile.with_noted_remains(self._read(deadline))
            return frozenset(one.uid for one in noted) - {one.uid for one in over if one not in noted}

        leftovers = Leftovers(
            read_kept,
            read_known=read_known,
            known=frozenset(_gpus_of(over)),
            read_in_use=lambda: _gpus_of(_others(self._read(deadline), over)),
        )
        for backend in registry.every():
            done = backend.clean_up(self.host, leftovers, deadline)
            for line in done.log:
                self.say(line)
            self.leave(done.remains)
            for one in done.remains:
                if not any(reconcile.remaining(entry, [one]) for entry in over):
                    self.say(f"uid {one.uid}: not all is removed: {one.why}")
            self.killed(done.left)

    def restore_modes(
        self, deadline: Deadline, gpus: Collection[str] | None = None, except_job: int | None = None
    ) -> None:
        """Restore the compute mode of the GPUs (or of `gpus` among them) that no job except `except_job` uses.

        If the driver refuses, log it and keep the recorded mode in the ledger for the next hook.
        """
        with state.exclusive(self.paths, deadline.at_most(LEDGER_S)):
            ledger = hook.read_ledger(self.paths, self.who)
            kept = ledger
            for before in ledger.modes:
                if (gpus is not None and before.gpu not in gpus) or reconcile.is_in_use(ledger, before.gpu, except_job):
                    continue
                try:
                    hook.ask_driver(nvml.set_compute_mode, before.gpu, before.mode)
                except DriverError as error:
                    self.say(f"compute mode of {before.gpu} is not restored to {before.mode}: {error}")
                    continue
                kept = reconcile.forget_mode(kept, before.gpu)
            if kept != ledger:
                self._write(kept)

    def clean_up_after(self, last: Sequence[LedgerJob], deadline: Deadline) -> None:
        """End the processes and remove the files that users left on the node after the `last` job of each, as far as
        the site's settings wanted that when the job came. Only a process on a GPU that does not end can drain the node;
        everything else is logged.

        A user's next job can come at any moment, and must lose nothing. So processes and files are listed first, and
        users who have a job after that are left out.
        """
        users = {entry.uid for entry in last}
        wanted = {uid: {kind for entry in last if entry.uid == uid for kind in entry.clean_up} for uid in users}
        on_gpus = self._processes_on_gpus([uid for uid in wanted if "gpu_processes" in wanted[uid]])
        everywhere = [uid for uid in sorted(wanted) if "processes" in wanted[uid]]
        seen = (*on_gpus, *(one for uid in everywhere for one in node_processes.read_processes_of(uid)))
        places = [
            (uid, folder)
            for uid in sorted(wanted)
            for kind, folder in (("shm", str(self.paths.shm)), ("tmp", str(self.paths.tmp)))
            if kind in wanted[uid]
        ]
        until = deadline.part(LAST_RATIO).at_most(LIST_S)
        files = {(uid, folder): scratch.read_owned(folder, uid, part) for (uid, folder), part in _evenly(places, until)}
        with state.exclusive(self.paths, deadline.at_most(LEDGER_S)):
            live = running_jobs()
            ledger = hook.read_ledger(self.paths, self.who)
            gone = owners.without_job(wanted, ledger, live)
            files = {(uid, folder): owned for (uid, folder), owned in files.items() if uid in gone}
            new = {where: scratch.new_aside(where[1]) for where, owned in files.items() if owned.names}
            for (uid, _), aside in new.items():
                ledger = reconcile.name_aside(ledger, next(entry for entry in last if entry.uid == uid), aside)
            if new:
                self._write(ledger)
            until = deadline.part(LAST_RATIO).at_most(ASIDE_S)
            for ((uid, folder), owned), part in _evenly(tuple(files.items()), until):
                if not owned.is_whole:
                    self.leave(
                        [UserRemains(uid, f"not all of {folder} was searched for the user's files: it has too many")]
                    )
                if owned.names:
                    taken = scratch.set_aside(folder, owned.names, uid, new[uid, folder], part)
                    what = f"removed {taken.count} files of uid {uid} in {folder}"
                    self.say(f"{what}: the user has no job here any more")
                    for problem in taken.problems:
                        self.say(problem)
                    if not taken.is_whole:
                        self.leave(
                            [UserRemains(uid, f"the user's files in {folder} are too many to be set aside at once")]
                        )
        jobs = {one.job_id: one.uid for one in live}
        without_job = {one.identity: one for uid in sorted(gone) for one in leftovers.of_departed(seen, uid, jobs)}
        left = termination.end_processes(
            without_job.values(), deadline.part(LAST_RATIO).at_most(2 * termination.GRACE_S)
        )
        for one in without_job.values():
            where = "on a GPU " if one in on_gpus else ""
            self.say(f"leftover {_named(one)} {where}who has no job here any more: {_fate(one, left)}")
        for entry, part in _evenly(last, deadline.part(1 - LAST_RATIO / 2).at_most(REMOVE_S)):
            rest = scratch.remove(reconcile.asides_of(ledger, (entry,)), part)
            if rest is not None:
                why = f"the user's files that were set aside are not all removed yet: {rest}"
                self.leave([UserRemains(entry.uid, why, job_id=entry.job_id)])
        self.killed(one.identity for one in left if one in on_gpus)

    def _processes_on_gpus(self, users: Collection[int]) -> tuple[NodeProcess, ...]:
        if not users:
            return ()
        try:
            readings = hook.ask_driver(nvml.read_gpu_readings)
        except DriverError as error:
            # A listed node can be without GPUs. A share's own GPUs were searched before (end_leftovers).
            self.say(f"leftover processes on GPUs are not searched for: {error}")
            return ()
        found = node_processes.read_processes(sorted({one.pid for reading in readings for one in reading.processes}))
        return tuple(one for one in found if one.identity.uid in users)

    def end_leftovers(self, over: Sequence[LedgerJob], deadline: Deadline) -> None:
        """End the processes on the GPUs that the ended jobs had. Jobs without a share have no GPUs in the ledger.

        Repeats until nothing is left to end: a script may start its program again whenever it dies.
        """
        over = [entry for entry in over if entry.gpus]
        rounds = 0
        while over:
            try:
                readings = hook.ask_driver(nvml.read_gpu_readings)
            except DriverError as error:
                self.say(f"the processes on the GPUs cannot be read: {error}")
                self.causes.add(drain.DRIVER_UNREADABLE)
                return
            unread = leftovers.unread(readings, (gpu for entry in over for gpu in entry.gpus))
            if unread and drain.DRIVER_UNREADABLE not in self.causes:
                self.say(f"the processes on {unread} cannot be read")
                self.causes.add(drain.DRIVER_UNREADABLE)
            others = _others(self._read(deadline), over)
            ended, left = self.end_leftovers_once(over, others, readings, deadline, again=rounds > 0)
            self.killed(one.identity for one in left)
            if left or not ended:
                return
            rounds += 1
            if deadline.left() <= 0:
                why = "leftover processes are started again as fast as they are ended"
                self.leave(UserRemains(uid, why) for uid in {one.identity.uid for one in ended} if uid is not None)
                return
            if rounds >= ROUNDS:
                self.end_users(ended, others)

    def end_users(self, ended: Iterable[NodeProcess], others: Iterable[LedgerJob]) -> None:
        """End every process of the users whose leftover processes are started again, if they have no job here."""
        live = {one.uid for one in running_jobs()} | {entry.uid for entry in others}
        users = {one.identity.uid for one in ended}
        for uid in sorted(uid for uid in users - live if uid is not None and uid >= leftovers.FIRST_ORDINARY_UID):
            if None not in live:  # None: a step of an unknown user
                self.say(
                    f"leftover processes of uid {uid} are started again: every process of that user here is ended",
                )
                termination.end_all_of(uid, uid)

    def end_leftovers_once(
        self,
        over: Sequence[LedgerJob],
        others: Sequence[LedgerJob],
        readings: Sequence[GpuReading],
        deadline: Deadline,
        *,
        again: bool,
    ) -> tuple[tuple[NodeProcess, ...], tuple[NodeProcess, ...]]:
        """End the leftover processes on the GPUs once; return them, and those of them that are still there after
        SIGKILL. Skip GPUs that another job of the same user has.

        `again`: not the first round, so something starts the processes; end their ancestors as well.
        """
        live = {one.job_id: one.uid for one in running_jobs()} | {entry.job_id: entry.uid for entry in others}
        ours = self._pids_of_backends(others) if others else frozenset()
        taken = {gpu for other in others for gpu in other.gpus}
        ended: list[NodeProcess] = []
        remain: list[NodeProcess] = []
        for entry in over:
            its_own = {gpu for other in others if other.uid == entry.uid for gpu in other.gpus}
            on = {
                reading.gpu.uuid: [one.pid for one in reading.processes if one.pid not in ours]
                for reading in readings
                if reading.gpu.uuid not in its_own
            }
            here = node_processes.read_processes(sorted({pid for gpu in entry.gpus for pid in on.get(gpu, ())}))
            elsewhere = node_processes.read_processes(
                sorted({pid for gpu in on if gpu not in entry.gpus for pid in on[gpu]})
            )
            sweep = leftovers.sweep(here, entry.uid, entry.job_id, live, self.settings)
            free = {pid for gpu in entry.gpus if gpu not in taken for pid in on.get(gpu, ())}
            without_job = [one for one in sweep.without_job if one.identity.pid in free]
            end = (*sweep.end, *leftovers.escaped(elsewhere, entry.uid, live), *without_job)
            # Their ancestors are ended first, so that they start no others.
            ancestors = node_processes.read_ancestors(end) if again else ()
            above = leftovers.sweep(ancestors, entry.uid, entry.job_id, live, self.settings).end
            left = termination.end_processes((*above, *end), deadline.at_most(2 * termination.GRACE_S))
            for one in (*above, *end):
                where = "on a GPU" if one in end else "that started one"
                where += " that no job has" if one in without_job else ""
                self.say(f"job {entry.job_id}: leftover {_named(one)} {where}: {_fate(one, left)}")
            for one in sweep.foreign:
                if one.identity.pid in free and not again:
                    self.say(f"job {entry.job_id}: {_named(one)} is on a GPU that no job has; it is not ended")
            ended += end
            remain += left
        return tuple(ended), tuple(remain)

    def _pids_of_backends(self, entries: Iterable[LedgerJob]) -> frozenset[int]:
        """Return the pids of the daemons and servers that serve these jobs."""
        of = frozenset(_gpus_of(entries))
        healths = [one.health(self.host, of, with_processes=True) for one in registry.every()]
        return frozenset(pid for health in healths for daemon in health.daemons for pid in daemon.pids)

    def _read(self, deadline: Deadline) -> Ledger:
        with state.exclusive(self.paths, deadline.at_most(LEDGER_S)):
            return hook.read_ledger(self.paths, self.who)

    def _write(self, ledger: Ledger) -> None:
        """Write the ledger; log a failure, most likely because a job filled the state folder, and continue: the Epilog
        frees space there. The job's entry stays until a later hook can write."""
        try:
            state.write_ledger(self.paths, ledger, self.settings)
        except OSError as error:
            self.say(f"{self.paths.ledger} is not written: {error.strerror}")
