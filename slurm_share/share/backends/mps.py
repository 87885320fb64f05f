"""MPS: the tasks of a GPU run concurrently, through one daemon for each user and GPU, each with its own caps.

The daemon runs as the user. It starts before the first task and ends with the last job on the GPU.
"""

from __future__ import annotations

import os

from ...core.records import Owner
from ...mps.records import MPS_NAME, MpsPlace
from .. import user_folder
from ..records import Assignment, Limits
from ..rules import mps as rules
from .base import Backend, CleanedUp, Health, PreparedGpu, PreparedGpus, UserRemains

TYPE_CHECKING = False  # the modules that talk to daemons are imported when needed: not every shared job has a daemon
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ...core.paths import Paths
    from ...core.process import Deadline
    from ...core.records import ProcessIdentity
    from ...mps.records import MpsFailed, MpsProcess, MpsStarted, MpsStopped, Namespace
    from ...node.records import Gpu
    from ..records import Slot
    from .base import BackendCheck, Examination, Host, Leftovers, UserGpu

RUN_IN_JOB = (
    "PrologFlags=RunInJob ends the Prolog's daemons before the job; an administrator must remove it from slurm.conf"
)
SHARED_MEMORY = "/dev/shm"
"""The folder through which an MPS server and its clients share memory."""
ASK_S = 3.0
"""The time limit of a query about a daemon's clients, in seconds."""
RETRY_S = 1.0
"""The most time for the daemons of a user of whom an earlier hook could not remove everything, in seconds: enough to
remove tens of thousands of files."""
STOP_RATIO = 0.75
"""The part of the remaining time for stopping one user's daemons."""


class Mps(Backend):
    """One MPS control daemon for each user and GPU, run as the user."""

    name = "mps"
    title = "MPS"
    effect = "its tasks run side by side"
    process_name = MPS_NAME
    has_gpu_alone = True
    modules = (
        "slurm_share.mps.daemons",
        "slurm_share.node.termination",
        "slurm_share.node.processes",
    )

    @property
    def checks(self) -> tuple[BackendCheck, ...]:
        from . import mps_checks

        return mps_checks.CHECKS

    # ---- Limits ----

    def limits(self, driver: str | None, host: Host | None = None, *, connections: int | None = None) -> Limits:
        why_not, is_missing, required_by = None, False, ""
        if host is not None:
            program = host.settings.mps_control
            why_not = rules.why_no_program(program, is_executable=os.access(program, os.X_OK))
            if host.own_folder is None:
                is_missing = bool(program) and why_not is not None
                required_by = "mps_required" if host.settings.mps_required else ""
                why_not = why_not or _why_no_daemon_of_hooks(host, program)
        protocol, why_protocol = 2, ""
        if host is not None and host.own_folder is None:
            protocol, why_protocol = rules.protocol(driver, host.settings)
        most = rules.clients_with(rules.clients(driver), connections)
        return Limits(
            self.name,
            self.title,
            client_limit=most,
            connections=max(rules.CONNECTIONS, connections or 0),
            enforces_caps=True,
            serves_mig=False,
            why_not=why_not,
            is_missing=is_missing,
            required_by=required_by,
            effect=self.effect,
            why_no_partitions=rules.why_no_partitions(driver),
            has_own_faults=rules.has_own_faults(driver),
            why_no_limits=rules.why_no_limits(driver),
            mps_protocol=protocol,
            why_protocol=why_protocol,
        )

    # ---- Prepare ----

    def prepare(
        self,
        host: Host,
        owner: Owner,
        gpus: Sequence[Gpu],
        in_use: Collection[str],
        deadline: Deadline,
        *,
        partitions: int = 0,
        namespaces: Mapping[str, tuple[Namespace, ...]] | None = None,
    ) -> PreparedGpus:
        # All at the same time. An unhealthy daemon that no other job uses is replaced.
        from ...mps import control as mp_control
        from ...mps import daemons

        owner = daemons.owner(owner.uid, owner.gid)
        if host.own_folder is not None:
            return _prepare_own(host, owner, gpus, deadline, partitions)
        places = [
            mp_control.node_place(
                host.paths,
                host.settings.mps_control,
                owner,
                gpu.uuid,
                minor=gpu.minor,
                settings=host.settings,
                namespaces=(namespaces or {}).get(gpu.uuid, ()),
            )
            for gpu in gpus
        ]
        used = [place for place in places if place.gpu in in_use]
        unused = [place for place in places if place.gpu not in in_use]
        found = _join(
            _start(host, unused, deadline, partitions, replace=True), _start(host, used, deadline, partitions)
        )
        if partitions:
            _remember_chunks(host, found)
        return found

    # ---- Environment ----

    def environment(self, slot: Slot) -> tuple[Assignment, ...]:
        return rules.client_environment(slot)

    # ---- Clean up ----

    def clean_up(self, host: Host, leftovers: Leftovers, deadline: Deadline) -> CleanedUp:
        if leftovers.only is not None:
            return _stop_only(host, leftovers, leftovers.only, deadline)
        if host.own_folder is not None:
            return _stop_own(host, leftovers, deadline)
        traces = read_traces(host.paths)
        if not traces:
            return CleanedUp()
        kept = _folders(leftovers.read_kept(), host.paths)
        idle = [(uid, folder) for uid, folder in traces if folder not in kept]
        gpus = {str(host.paths.mps_pipe(uid, gpu)): gpu for uid, gpu in leftovers.known}
        known = leftovers.read_known() if idle else frozenset()
        done = []
        for uid in sorted({uid for uid, _ in idle}):
            until = deadline.at_most(RETRY_S) if uid in known else deadline
            done.append(_stop_users(host, uid, [one for its, one in idle if its == uid], gpus, leftovers, until))
        return CleanedUp(
            log=tuple(line for one in done for line in one.log),
            remains=tuple(one for each in done for one in each.remains),
            left=tuple(process for one in done for process in one.left),
        )

    # ---- Health ----

    def health(
        self,
        host: Host,
        of: Collection[UserGpu] | None = None,
        *,
        folders: Collection[str] = (),
        with_processes: bool = False,
        examination: Examination | None = None,
    ) -> Health:
        wanted = _wanted(host, of, folders)
        if with_processes:
            # The user can remove the folder's files, but not root's lock.
            wanted = [one for one in wanted if os.path.lexists(one[1]) or os.path.lexists(f"{one[1]}.lock")]
        if not wanted and examination is None:
            return Health()
        from . import mps_health

        return mps_health.read(host, wanted, with_processes=with_processes, examination=examination)


def _wanted(host: Host, of: Collection[UserGpu] | None, folders: Collection[str]) -> list[tuple[int, str]]:
    """Return (uid, pipe directory) of the daemons that `Mps.health` was asked about."""
    if folders:
        return [(os.getuid(), folder) for folder in folders]
    if of is None:
        return list(read_traces(host.paths, with_groups=False))
    return [(uid, str(host.paths.mps_pipe(uid, gpu))) for uid, gpu in of]


# ---- Where daemons are ----


def read_traces(paths: Paths, *, with_groups: bool = True) -> tuple[tuple[int, str], ...]:
    """Return (uid, pipe directory) of every daemon on this node, running or not, that has left anything: its folder,
    its lock, a folder that is partly removed, or (with_groups) a cgroup."""
    found: set[tuple[int, str]] = set()
    for uid in user_folder.read_uids(paths):
        folder = paths.user_of(uid)
        found |= {(uid, f"{folder}/{leaf}") for leaf in map(_leaf, _names_in(str(folder))) if leaf}
    if with_groups:
        from ...core import cgroup_paths

        found |= {
            (group.uid, str(paths.mps / str(group.uid) / group.name))
            for group in cgroup_paths.read_groups(str(paths.cgroup))
        }
    return tuple(sorted(found))


def _names_in(folder: str) -> list[str]:
    """Return the names in a folder; none if it does not exist, as after the user's last daemon is removed."""
    try:
        return os.listdir(folder)  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []


def _leaf(name: str) -> str:
    """Return the name of the daemon's folder to which a file or folder belongs; empty: to none.

    `5131194a-9e2f6f`, also followed by `.lock` or `.ui`, or as named during its removal (see mps/folders.py).
    """
    stem = name.removeprefix(".").partition(".")[0]
    first, dash, last = stem.partition("-")
    is_leaf = dash and first.isascii() and first.isalnum() and last.isascii() and last.isalnum()
    return stem if is_leaf else ""


def _folders(of: Iterable[UserGpu], paths: Paths) -> frozenset[str]:
    return frozenset(str(paths.mps_pipe(uid, gpu)) for uid, gpu in of)


def _why_unreachable() -> str:
    """Return why the clients of a job cannot reach a daemon outside of it; "": they can. MPS uses files in /dev/shm."""
    slurm_conf = os.environ.get("SLURM_CONF", "")
    if not slurm_conf.startswith("/"):
        return ""
    from pathlib import Path

    from ...slurm import job_folders

    file, folders = job_folders.read_private(Path(slurm_conf), os.environ.get("SLURMD_NODENAME", ""))
    hidden = job_folders.hides(folders, SHARED_MEMORY)
    if not hidden:
        return ""
    return (
        f"every job has its own {hidden} here, through which MPS reaches its clients; an administrator must take it "
        f"out of the folders in {file}"
    )


def _why_no_daemon_of_hooks(host: Host, program: str) -> str | None:
    """Return why hooks cannot start daemons here: Slurm ends what a Prolog starts, or the node's administrators run a
    daemon of their own. Daemons started by users are ignored."""
    from ...mps import processes as mp_processes
    from ...node import processes as node_processes
    from ..rules.leftovers import FIRST_ORDINARY_UID

    if node_processes.read_runs_in_job():
        return RUN_IN_JOB
    if why := _why_unreachable():
        return why
    files = None
    for one in mp_processes.foreign_daemons(mp_processes.read_processes(uids=()), str(host.paths.root)):
        files = files or mp_processes.read_program_files(program)
        if mp_processes.is_systems(one, files, FIRST_ORDINARY_UID):
            return f"an MPS daemon of this node's administrators runs already (process {one.identity.pid}, {one.pipe})"
    return None


# ---- Start ----


def _prepare_own(host: Host, owner: Owner, gpus: Sequence[Gpu], deadline: Deadline, partitions: int) -> PreparedGpus:
    """Start daemons for a launcher's own tasks."""
    from ...mps import folders as mp_folders

    assert host.own_folder is not None
    try:
        host.own_folder.mkdir(mode=0o700)
    except OSError:
        pass  # starting the daemon checks the folder and reports what is wrong
    places = _own_places(host, owner, [gpu.uuid for gpu in gpus])
    prepared = _start(host, places, deadline, partitions, replace=True)
    if places and not prepared.served:
        mp_folders.remove_user(places[0])
    return prepared


def _own_places(host: Host, owner: Owner, uuids: Iterable[str]) -> list[MpsPlace]:
    program, paths = host.settings.mps_control, host.paths
    return [
        MpsPlace(program, f"{host.own_folder}/{paths.mps_pipe(owner.uid, uuid).name}", uuid, owner) for uuid in uuids
    ]


def _remember_chunks(host: Host, found: PreparedGpus) -> None:
    """Write down how the driver divides the GPUs, for `slurm-share doctor`."""
    from ...mps import partitions

    try:
        partitions.write_known(
            host.paths.root, [one.partitions.of for one in found.served.values() if one.partitions is not None]
        )
    except OSError:
        pass  # a full disk; nothing depends on it


def _start(
    host: Host, places: Sequence[MpsPlace], deadline: Deadline, partitions: int, *, replace: bool = False
) -> PreparedGpus:
    """Start daemons with so many static partitions, or join them. Where they cannot be had, start or join the daemon
    without any, since a task without a partition cannot use a daemon that has some."""
    from ...core.errors import MpsPartitionError
    from ...mps import daemons
    from ...mps.records import MpsFailed

    if not partitions:
        return _prepared(daemons.start_many(places, deadline, replace=replace))
    from msgspec import structs

    from ...mps.partitions import read_known

    known = {one.gpu: one.total_chunks for one in read_known(host.paths.root)}
    divided = [
        structs.replace(place, partitions=partitions, protocol=2, namespaces=(), chunks=known.get(place.gpu, 0))
        for place in places
    ]
    outcomes = daemons.start_many(divided, deadline, replace=replace)
    failed = {
        one.place.gpu: one.why.removeprefix(f"MPS in {one.place.pipe}: ")
        for one in outcomes
        if isinstance(one, MpsFailed) and one.kind == MpsPartitionError.__name__
    }
    rest = [place for place in places if place.gpu in failed]
    others = _prepared(one for one in outcomes if one.place.gpu not in failed)
    found = _join(others, _prepared(daemons.start_many(rest, deadline, replace=replace)))
    return structs.replace(found, undivided=failed)


def _join(one: PreparedGpus, other: PreparedGpus) -> PreparedGpus:
    return PreparedGpus(
        {**one.served, **other.served},
        {**one.failures, **other.failures},
        (*one.log, *other.log),
        {**one.undivided, **other.undivided},
    )


def _prepared(outcomes: Iterable[MpsStarted | MpsFailed]) -> PreparedGpus:
    from ...mps.records import MpsStarted

    served: dict[str, PreparedGpu] = {}
    failures: dict[str, str] = {}
    log: list[str] = []
    for one in outcomes:
        if isinstance(one, MpsStarted):
            served[one.place.gpu] = PreparedGpu(
                mps_directory=one.place.pipe, partitions=one.partitions, has_namespaces=one.protocol == 3
            )
            how = "joined" if one.joined else "started"
            notes = "".join(f"; {note}" for note in one.notes)
            if one.protocol == 3:
                notes = f" with protocol 3{notes}"
            if one.partitions is not None:
                notes = f" with {len(one.partitions.names)} partitions of {one.partitions.sm_count} SM{notes}"
            log.append(f"MPS daemon {one.daemon.pid} of {one.place.gpu} {how} in {one.seconds:.3f} s{notes}")
        else:
            failures[one.place.gpu] = one.why
            log.append(f"MPS on {one.place.gpu} failed: {one.why}")
    return PreparedGpus(served, failures, tuple(log))


# ---- Stop ----


def stop_sentence(outcome: MpsStopped | MpsFailed) -> str:
    """Return the log's sentence about the stop of a daemon."""
    from ...mps.records import MpsFailed

    if isinstance(outcome, MpsFailed):
        return outcome.why
    clients = f", {len(outcome.clients)} clients ended" if outcome.clients else ""
    return f"{outcome.how} in {outcome.seconds:.3f} s{clients}" + "".join(f"; {note}" for note in outcome.notes)


def _stop_users(
    host: Host, uid: int, folders: Sequence[str], gpus: Mapping[str, str], leftovers: Leftovers, deadline: Deadline
) -> CleanedUp:
    """Stop one user's daemons. gpus: folder -> GPU; if no job names the GPU, the folder's name replaces it."""
    from ...mps import control as mp_control
    from ...mps import daemons
    from ...mps import processes as mp_processes
    from ...mps.records import MpsFailed

    def is_in_use(gpu: str) -> bool:
        return str(host.paths.mps_pipe(uid, gpu)) in _folders(leftovers.read_in_use(), host.paths)

    owner, program = daemons.owner_by_name(uid), host.settings.mps_control
    places = [
        mp_control.node_place(host.paths, program, owner, gpus.get(one, _gpu_of(one)), pipe=one) for one in folders
    ]
    before = mp_processes.read_processes(uids=(uid,))
    outcomes = daemons.stop_many(places, deadline.part(STOP_RATIO), unless=is_in_use)
    log = [
        f"MPS on {one.place.gpu} of uid {uid}: {stop_sentence(one)}"
        for one in outcomes
        if not isinstance(one, MpsFailed) and (one.how not in ("was not there", "in use") or one.notes)
    ]
    stopped = [one.place for one in outcomes if isinstance(one, MpsFailed) or one.how != "in use"]
    rest = end_rest(stopped, before, deadline)
    remains = tuple(
        UserRemains(uid, one.why, gpu=gpus.get(one.place.pipe)) for one in outcomes if isinstance(one, MpsFailed)
    )
    return CleanedUp(log=(*log, *rest.log), remains=remains, left=rest.left)


def _gpu_of(folder: str) -> str:
    return f"GPU-{folder.rpartition('/')[2]}"


def end_rest(places: Sequence[MpsPlace], before: Iterable[MpsProcess], deadline: Deadline) -> CleanedUp:
    """End the remaining processes of stopped daemons, such as one whose user removed its lock. End only processes in
    `before`, which was read before the stop: a newer daemon in the same place can be the next job's."""
    from ...mps import processes as mp_processes
    from ...node import termination
    from ...node.records import NodeProcess

    known = {place.pipe: place.owner.uid for place in places}
    old = {one.identity for one in before}
    rest = [
        NodeProcess(one.identity, None)
        for one in (mp_processes.read_processes(uids=set(known.values())) if known else ())
        if one.role != "front end" and _owner_of(one, known) == one.identity.uid and one.identity in old
    ]
    left = termination.end_processes(rest, deadline.at_most(2 * termination.GRACE_S))
    log = [
        f"process {one.identity.pid} ({one.identity.name}) of uid {one.identity.uid} outlived the stop of its MPS "
        f"daemon: {'not ended yet' if one in left else 'ended'}"
        for one in rest
    ]
    return CleanedUp(log=tuple(log), left=tuple(one.identity for one in left))


def _owner_of(one: MpsProcess, known: Mapping[str, int]) -> int | None:
    """Return the owner of the daemon to which a process belongs; None: it is none of the `known` ones."""
    from ...mps import processes as mp_processes

    return next((uid for pipe, uid in known.items() if mp_processes.is_of(one.pipe, pipe)), None)


def _stop_own(host: Host, leftovers: Leftovers, deadline: Deadline) -> CleanedUp:
    """End a launcher's own daemons."""
    from ...mps import daemons
    from ...mps import folders as mp_folders
    from ...mps.records import MpsFailed

    owner = daemons.owner(os.getuid(), os.getgid())
    places = _own_places(host, owner, sorted(gpu for _, gpu in leftovers.known))
    if not places:
        return CleanedUp()
    problems = []
    for one in daemons.stop_many(places, deadline):
        if isinstance(one, MpsFailed):
            problems.append(f"MPS in {one.place.pipe} could not be ended: {one.why}")
        elif one.left:
            pids = ", ".join(str(process.pid) for process in one.left)
            problems.append(f"MPS on {one.place.gpu} outlives every signal (process {pids}): the GPU is not free")
    mp_folders.remove_user(places[0])
    return CleanedUp(problems=tuple(problems))


def _stop_only(host: Host, leftovers: Leftovers, only: tuple[int, str], deadline: Deadline) -> CleanedUp:
    """Stop one daemon that belongs to no job, unless a program uses it."""
    from ...core.process import Deadline
    from ...mps import control as mp_control
    from ...mps import daemons
    from ...mps.records import MpsFailed
    from . import mps_health

    uid, folder = only
    place = mp_control.node_place(
        host.paths, host.settings.mps_control, mps_health.owner_of(uid), _gpu_of(folder), pipe=folder
    )
    jobs: list[int] = []
    users: list[ProcessIdentity] = []

    def is_in_use(gpu: str) -> bool:
        jobs.extend(
            job_id
            for (its, gpu), job_id in leftovers.read_in_use().items()
            if folder == str(host.paths.mps_pipe(its, gpu))
        )
        users.extend(() if jobs else mps_health.read_users(place, Deadline.after(ASK_S)))
        return bool(jobs or users)

    (outcome,) = daemons.stop_many([place], deadline, unless=is_in_use)
    failed = (outcome.why,) if isinstance(outcome, MpsFailed) else ()
    return CleanedUp(problems=failed, job_id=jobs[0] if jobs else None, users=tuple(users))
