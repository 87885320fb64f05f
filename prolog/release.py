"""A shared job has left this node: end its daemons and leftovers, put back what was changed, remove its folder.

The ledger comes first: the job's line moves to those that are leaving, with the hook that is at it, so that a job which
comes meanwhile finds its GPUs free. The folder and that line go last. So a hook that is killed at any moment leaves a
line which says what is still to be done, and the next hook does it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from slurm_share import mps_control, process
from slurm_share.actuators import devices, mps, processes, scratch, state
from slurm_share.decide import leftovers, owners, reconcile
from slurm_share.errors import DriverError
from slurm_share.node import driver as nvml
from slurm_share.paths import Paths
from slurm_share.process import Deadline
from slurm_share.readers import hook_env, proc
from slurm_share.readers import mps as mps_reader
from slurm_share.readers import scratch as scratch_reader
from slurm_share.records import (
    GpuReading,
    Ledger,
    LedgerJob,
    LiveJob,
    MpsFailed,
    MpsPlace,
    MpsProcess,
    MpsStopped,
    NodeProcess,
)
from slurm_share.settings import Settings

from . import hook

WHO = "epilog"
SLACK_S = 10.0
"""What an Epilog may take beyond release_deadline_s before it is given up: undoing, and a last look at the ledger."""
LIST_S, ASIDE_S, REMOVE_S = 2.0, 1.0, 5.0
"""For listing a user's files, setting them aside, which is done under the ledger's lock, and removing them. What takes
longer stays until a user's last job leaves again."""
LEDGER_S = 2.0
"""For the ledger where the time is up already: whoever holds it needs milliseconds."""


def release_job(environ: Mapping[str, str], paths: Paths, settings: Settings, now: float) -> bool:
    """Undo what `admission.admit_job` did. Answers whether the node is well; does nothing the second time.

    Raises HookEnvError for an environment that is not slurmd's, StateError, OSError where state cannot be written.
    """
    job = hook_env.read(environ)
    deadline = Deadline.after(settings.release_deadline_s)
    state.prepare(paths)
    with state.exclusive(paths, deadline):
        ledger = hook.read_ledger(paths, WHO)
        entry = reconcile.find(ledger, job.job_id)
        if entry is not None and entry.uid != job.uid and not (job.uid == 0 and is_given_up(entry, now)):
            hook.report(
                WHO, f"job {job.job_id} is of uid {entry.uid} here, not of uid {job.uid}: nothing is done for it"
            )
            return True
        if reconcile.is_late(entry, job):
            hook.report(WHO, f"job {job.job_id}: this Epilog is of an earlier run of it, which is here again")
            return True
        over, _ = take_over(ledger, () if entry is None else (entry,), paths, settings, WHO)
        if entry is None and any(one.job.job_id == job.job_id and one.job not in over for one in ledger.leaving):
            hook.report(WHO, f"job {job.job_id}: another Epilog of it is at work")
            return True
        if not any(one.job_id == job.job_id for one in over):
            state.remove_job(paths, job.job_id)  # it was refused, or its Prolog never ran
    stuck, foreign = clear(over, paths, settings, deadline, WHO)
    well = not stuck and not foreign
    # slurmd may have said root of it: see is_given_up.
    uid = job.uid if entry is None else entry.uid
    hook.report(WHO, f"job {job.job_id} of uid {uid}: its share is removed" + ("" if well else "; NODE UNWELL"))
    return well


def jobs_at_work() -> tuple[LiveJob, ...]:
    """The jobs that are alive on this node."""
    return owners.at_work(proc.read_live_jobs())


def is_given_up(entry: LedgerJob, now: float) -> bool:
    """Whether an Epilog that says root of somebody's job is the job's. slurmd runs one with SLURM_JOB_UID=0 when it has
    ended a job that slurmctld does not know any more, or has started elsewhere meanwhile (seen on 26.05). It is not
    believed of a job with a step here, nor of one that is about to get its first: that is the number's next run."""
    alive = any(one.job_id == entry.job_id for one in jobs_at_work())
    return not alive and not reconcile.is_starting(entry, now)


def take_over(
    ledger: Ledger, over: Iterable[LedgerJob], paths: Paths, settings: Settings, who: str
) -> tuple[tuple[LedgerJob, ...], Ledger]:
    """Write into the ledger, which the caller holds and has read, that this hook is at what these jobs left, and at
    what a killed hook did not get done; answers with all of them, and the new ledger."""
    living = [one.hook for one in ledger.leaving if process.is_same(one.hook)]
    abandoned = reconcile.abandoned(ledger, living)
    for entry in abandoned:
        hook.report(who, f"the hook that cleared up after job {entry.job_id} of uid {entry.uid} was ended: going on")
    over = (*over, *abandoned)
    if over:
        ledger = reconcile.begin_leaving(ledger, over, hook.myself())
        _write(ledger, paths, settings, who)
    return over, ledger


def clear(
    over: Sequence[LedgerJob], paths: Paths, settings: Settings, deadline: Deadline, who: str
) -> tuple[bool, bool]:
    """Take away what jobs that `take_over` named left, and daemons of ours that no job here has at all.

    Two answers: whether a process outlived every signal, and whether somebody else's is on a GPU that nobody has.
    """
    stuck = not end_daemons(over, paths, settings, deadline.at_most(0.6 * deadline.left()), who)
    restore_modes(paths, settings, who)
    foreign = False
    if over:
        left, foreign = end_leftovers(over, paths, settings, deadline, who)
        stuck = stuck or left
        last = let_go(over, paths, settings, who)
        if last:
            stuck = clean_up_after(last, paths, deadline, who) or stuck
            with state.exclusive(paths, Deadline.after(LEDGER_S)):
                forget(last, hook.read_ledger(paths, who), paths, settings, who)
    return stuck, foreign


def let_go(over: Sequence[LedgerJob], paths: Paths, settings: Settings, who: str) -> tuple[LedgerJob, ...]:
    """Remove what tells of the jobs on this node; answers with those that were their user's last here, whose lines stay
    until their user's things are cleared away, too. Of jobs that leave at once that is one: the last to come here."""
    live = jobs_at_work() if any(entry.clean_up for entry in over) else ()
    with state.exclusive(paths, Deadline.after(LEDGER_S)):
        ledger = hook.read_ledger(paths, who)
        departed = owners.departed(over, ledger, live)
        last = tuple(entry for entry in over if entry.uid in departed and entry.clean_up)
        forget([entry for entry in over if entry not in last], ledger, paths, settings, who)
    return last


def forget(done: Sequence[LedgerJob], ledger: Ledger, paths: Paths, settings: Settings, who: str) -> None:
    """Remove folder and line of jobs of which nothing is left. The caller holds the ledger."""
    for entry in done:
        if reconcile.find(ledger, entry.job_id) in (None, entry):  # not here again under the same number
            state.remove_job(paths, entry.job_id)
    _write(reconcile.end_leaving(ledger, done), paths, settings, who)


def end_daemons(over: Sequence[LedgerJob], paths: Paths, settings: Settings, deadline: Deadline, who: str) -> bool:
    """Stop every daemon of ours that no job here has; whether all of them went. What another hook is at, is its."""
    pipes = tuple(sorted({*mps_reader.read_pipes(paths), *mps_reader.read_group_pipes(paths)}))
    if not pipes:
        return True
    ledger = _read(paths, who)
    theirs = [one.job for one in ledger.leaving if one.job not in over and process.is_same(one.hook)]
    # Of two jobs that leave one GPU at once neither may rely on the other's hook.
    kept = _pipes(_others(ledger, over), paths) | (_pipes(theirs, paths) - _pipes(over, paths))
    gpus = {str(paths.mps_pipe(entry.uid, gpu)): gpu for entry in over for gpu in entry.gpus}
    gone = True
    for uid in sorted({uid for uid, pipe in pipes if pipe not in kept}):

        def taken(gpu: str, uid: int = uid) -> bool:
            return str(paths.mps_pipe(uid, gpu)) in _pipes(_others(_read(paths, who), over), paths)

        owner = mps.owner_by_name(uid)
        # Of a daemon that no job tells of, the name of its folder will do for that of its GPU.
        places = [
            mps_control.node_place(
                paths, settings.mps_control, owner, gpus.get(pipe, f"GPU-{pipe.rpartition('/')[2]}"), pipe=pipe
            )
            for its, pipe in pipes
            if its == uid and pipe not in kept
        ]
        before = mps_reader.read_processes()
        outcomes = mps.stop_many(places, deadline, unless=taken)
        for outcome in outcomes:
            if isinstance(outcome, MpsFailed) or outcome.how not in ("was not there", "in use") or outcome.notes:
                hook.report(who, f"MPS on {outcome.place.gpu} of uid {uid}: {stop_sentence(outcome)}")
        stopped = [one.place for one in outcomes if isinstance(one, MpsFailed) or one.how != "in use"]
        gone &= _end_rest(stopped, before, who)
    return gone


def _end_rest(places: Sequence[MpsPlace], before: Iterable[MpsProcess], who: str) -> bool:
    """End what is still there of daemons that were to stop, such as one whose user removed its lock; whether all of it
    went. Only what was there `before` the stop: a daemon in the same place now may be the next job's.
    """
    known = {place.pipe: place.owner.uid for place in places}
    old = {one.identity for one in before}
    rest = [
        NodeProcess(one.identity, None)
        for one in (mps_reader.read_processes() if known else ())
        if one.role != "front end" and one.pipe in known and one.identity.uid == known[one.pipe] and one.identity in old
    ]
    left = processes.end_processes(rest, Deadline.after(2 * processes.GRACE_S))
    for one in rest:
        hook.report(who, f"{_named(one)} outlived its MPS daemon's stop: {_fate(one, left)}")
    return not left


def stop_sentence(outcome: MpsStopped | MpsFailed) -> str:
    """How a daemon went, for the log."""
    if isinstance(outcome, MpsFailed):
        return outcome.why
    clients = f", {len(outcome.clients)} clients ended" if outcome.clients else ""
    return f"{outcome.how} in {outcome.seconds:.3f} s{clients}" + "".join(f"; {note}" for note in outcome.notes)


def restore_modes(
    paths: Paths, settings: Settings, who: str, gpus: Collection[str] | None = None, besides: int | None = None
) -> None:
    """Put back the compute mode of GPUs (all, or of `gpus`) that no job has, or none `besides` one.

    A driver that refuses is said; what was remembered stays, for the next hook.
    """
    with state.exclusive(paths, Deadline.after(LEDGER_S)):
        ledger = hook.read_ledger(paths, who)
        kept = ledger
        for before in ledger.modes:
            if (gpus is not None and before.gpu not in gpus) or reconcile.is_in_use(ledger, before.gpu, besides):
                continue
            try:
                devices.set_compute_mode(before.gpu, before.mode)
            except DriverError as error:
                hook.report(who, f"compute mode of {before.gpu} is not put back to {before.mode}: {error}")
                continue
            kept = reconcile.forget_mode(kept, before.gpu)
        if kept != ledger:
            _write(kept, paths, settings, who)


def clean_up_after(last: Sequence[LedgerJob], paths: Paths, deadline: Deadline, who: str) -> bool:
    """Clear away what users left on the node whose `last` jobs these were, as the site wanted it when they came.
    Whether a process on a GPU outlived every signal; what else cannot be cleared is said, and makes no node unwell.

    A job of theirs may come at any moment. What is taken was there before they had one again: it is listed first, then
    looked once more whether they have a job.
    """
    wanted = {uid: {word for entry in last if entry.uid == uid for word in entry.clean_up} for uid in _uids(last)}
    on_gpus = _processes_on_gpus([uid for uid in wanted if "gpu_processes" in wanted[uid]], who)
    everywhere = [uid for uid in sorted(wanted) if "processes" in wanted[uid]]
    found = (*on_gpus, *(one for uid in everywhere for one in proc.read_processes_of(uid)))
    files = {
        (uid, folder): scratch_reader.read_owned(folder, uid, deadline.at_most(LIST_S))
        for uid in sorted(wanted)
        for word, folder in (("shm", paths.shm), ("tmp", paths.tmp))
        if word in wanted[uid]
    }
    with state.exclusive(paths, Deadline.after(LEDGER_S)):
        live = jobs_at_work()
        gone = owners.without_job(wanted, hook.read_ledger(paths, who), live)
        until = deadline.at_most(ASIDE_S)
        for (uid, folder), names in files.items():
            if names and uid in gone:
                taken, problems = scratch.set_aside(folder, names, uid, until)
                hook.report(who, f"{taken} of uid {uid} in {folder} removed, who has no job here any more")
                for problem in problems:
                    hook.report(who, problem)
    jobs = {one.job_id: one.uid for one in live}
    strays = {one.identity: one for uid in sorted(gone) for one in leftovers.of_departed(found, uid, jobs)}
    left = processes.end_processes(strays.values(), Deadline.after(2 * processes.GRACE_S))
    for one in strays.values():
        where = "on a GPU " if one in on_gpus else ""
        hook.report(who, f"leftover {_named(one)} {where}who has no job here any more: {_fate(one, left)}")
    rest = scratch.remove((paths.shm, paths.tmp), deadline.at_most(REMOVE_S))
    if rest is not None:
        hook.report(who, f"not all of it is removed yet: {rest}")
    return any(one in on_gpus for one in left)


def _uids(entries: Iterable[LedgerJob]) -> set[int]:
    return {entry.uid for entry in entries}


def _processes_on_gpus(users: Collection[int], who: str) -> tuple[NodeProcess, ...]:
    if not users:
        return ()
    try:
        readings = nvml.read_gpu_readings()
    except DriverError as error:
        hook.report(who, f"leftover processes are not looked for: {error}")
        return ()
    found = proc.read_processes(sorted({one.pid for reading in readings for one in reading.processes}))
    return tuple(one for one in found if one.identity.uid in users)


def end_leftovers(
    over: Sequence[LedgerJob], paths: Paths, settings: Settings, deadline: Deadline, who: str
) -> tuple[bool, bool]:
    """End the ended jobs' users' processes on the GPUs they had; answers as `clear` does. The GPUs of a job without a
    share are its own business.

    Looked at again until a look finds nothing to end: a script may start its program anew whenever it dies.
    """
    over = [entry for entry in over if entry.gpus]
    if not over:
        return False, False
    deadline = Deadline.after(max(deadline.left(), 2 * processes.GRACE_S))
    foreign = again = False
    while True:
        try:
            readings = nvml.read_gpu_readings()
        except DriverError as error:
            hook.report(who, f"leftover processes are not looked for: {error}")
            return False, foreign
        found, left, foreign = end_leftovers_once(over, readings, paths, settings, deadline, who, again=again)
        if left or not found:
            return left, foreign
        again = True
        if deadline.left() <= 0:
            hook.report(who, "leftover processes come back as fast as they are ended")
            return True, foreign


def end_leftovers_once(
    over: Sequence[LedgerJob],
    readings: Sequence[GpuReading],
    paths: Paths,
    settings: Settings,
    deadline: Deadline,
    who: str,
    *,
    again: bool,
) -> tuple[bool, bool, bool]:
    """One look: whether there was something to end, whether some of it outlived every signal, and whether somebody
    else's process is on a GPU that nobody has. A GPU that another job of the same user has is that job's to clear.

    again: some were ended a moment ago, so what started these goes with them.
    """
    others = _others(_read(paths, who), over)
    live = {one.job_id: one.uid for one in jobs_at_work()} | {entry.job_id: entry.uid for entry in others}
    ours = _pids_of_mps(others, paths) if others else frozenset()
    found = stuck = foreign = False
    for entry in over:
        its_own = {gpu for other in others if other.uid == entry.uid for gpu in other.gpus}
        taken = {gpu for other in others for gpu in other.gpus}
        on = {
            reading.gpu.uuid: [one.pid for one in reading.processes if one.pid not in ours]
            for reading in readings
            if reading.gpu.uuid not in its_own
        }
        here = proc.read_processes(sorted({pid for gpu in entry.gpus for pid in on.get(gpu, ())}))
        elsewhere = proc.read_processes(sorted({pid for gpu in on if gpu not in entry.gpus for pid in on[gpu]}))
        sweep = leftovers.sweep(here, entry.uid, entry.job_id, live, settings)
        end = (*sweep.end, *leftovers.escaped(elsewhere, entry.uid, live))
        # Who started them goes first, and starts no other.
        ancestors = proc.read_ancestors(end) if again else ()
        above = leftovers.sweep(ancestors, entry.uid, entry.job_id, live, settings).end
        left = processes.end_processes((*above, *end), deadline.at_most(2 * processes.GRACE_S))
        for one in (*above, *end):
            where = "on a GPU" if one in end else "that started one"
            hook.report(who, f"job {entry.job_id}: leftover {_named(one)} {where}: {_fate(one, left)}")
        free = {pid for gpu in entry.gpus if gpu not in taken for pid in on.get(gpu, ())}
        for one in sweep.foreign:
            if one.identity.pid in free:
                hook.report(
                    who, f"job {entry.job_id}: {_named(one)} is on a GPU that no job of its user has; not touched"
                )
                foreign = True
        found, stuck = found or bool(end), stuck or bool(left)
    return found, stuck, foreign


def _others(ledger: Ledger, over: Collection[LedgerJob]) -> list[LedgerJob]:
    return [entry for entry in ledger.jobs if entry not in over]


def _pipes(entries: Iterable[LedgerJob], paths: Paths) -> frozenset[str]:
    return frozenset(str(paths.mps_pipe(entry.uid, gpu)) for entry in entries for gpu in entry.gpus)


def _pids_of_mps(entries: Iterable[LedgerJob], paths: Paths) -> frozenset[int]:
    """Of the jobs' own users: anybody may name his program so, and another's pipe directory."""
    users = {str(paths.mps_pipe(entry.uid, gpu)): entry.uid for entry in entries for gpu in entry.gpus}
    found = mps_reader.read_processes()
    return frozenset(one.identity.pid for one in found if one.pipe in users and one.identity.uid == users[one.pipe])


def _read(paths: Paths, who: str) -> Ledger:
    with state.exclusive(paths, Deadline.after(LEDGER_S)):
        return hook.read_ledger(paths, who)


def _write(ledger: Ledger, paths: Paths, settings: Settings, who: str) -> None:
    """A ledger that cannot be written, most likely because a job filled the state folder, keeps no Epilog from making
    room there: its job's line stays until it is written."""
    try:
        state.write_ledger(paths, ledger, settings)
    except OSError as error:
        hook.report(who, f"{paths.ledger} is not written: {error.strerror}")


def _named(one: NodeProcess) -> str:
    identity = one.identity
    return f"process {identity.pid} ({identity.name}) of uid {identity.uid}"


def _fate(one: NodeProcess, left: Collection[NodeProcess]) -> str:
    return "IT DOES NOT END" if one in left else "ended"
