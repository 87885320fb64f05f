"""Start and stop MPS control daemons: one per user and GPU, run as the user.

Every result is verified: a daemon runs if the kernel names it as the holder of its lock, and has ended if its process
has. Exit codes of the control program prove nothing (see control.py). Every call has a deadline; each daemon is started
and stopped under its own lock. No value of a daemon is changed: a slot's limits are in its tasks' environment, which
takes effect when a client connects (docs.nvidia.com/deploy/mps, v2 interface).
"""

from __future__ import annotations

import os
import pwd
import resource
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from msgspec import Struct

from ..core import cgroup_paths, process, user_process
from ..core.errors import (
    CommandError,
    MpsError,
    MpsForeignError,
    MpsGoneError,
    MpsPartitionError,
    MpsRefusedError,
    MpsServerError,
    MpsSilentError,
    shown,
)
from ..core.process import Deadline
from ..core.records import DaemonGroup, Owner, ProcessIdentity
from . import cgroups, control, folders, front_ends, processes
from .records import (
    MPS_NAME,
    EqualPartitions,
    MpsFailed,
    MpsHealth,
    MpsPlace,
    MpsServer,
    MpsStarted,
    MpsStopped,
)

HEALTH_S = 3.0
"""The time limit of an unused daemon's answer about its state; after that it counts as silent and is replaced. A daemon
that other jobs use cannot be replaced, so its answer is waited for until the deadline: without it, the share would run
without MPS to its end, only because the node was busy for some seconds."""
UNDO_S = 3.0
"""The time beyond its deadline in which a failed start is undone."""
KILL_S = 0.5
"""The time that SIGKILL may take beyond a deadline; a process that takes longer hangs in the driver."""
REMOVE_RATIO = 0.25
"""The part of the time for stopping a daemon in which the files in its folder are removed."""
EMPTY_S, EMPTY_ANSWERS = 0.5, 8
"""A server has ended if none is listed this long after start_server and in this many answers in a row. (A dying one is
listed for a moment, too.) The time alone proves nothing on a busy node; each answer takes a turn of the daemon."""
ASK_LESS_S = 0.5
"""The longest pause between two questions about a server that is starting; it is as long as the answer before took."""
NOFILE = 16384
"""The open files that a server needs for its shared memory segments (docs.nvidia.com/deploy/mps, "Limitations")."""
NO_GROUP = 65534
"""The kernel's overflow group (/proc/sys/kernel/overflowgid), which has no members."""

TYPE_CHECKING = False  # mypy takes it for True; importing `typing` takes time
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Literal, TypeVar

    _Outcome = TypeVar("_Outcome", MpsStarted, MpsStopped)


def owner(uid: int, gid: int) -> Owner:
    """Return the user with his supplementary groups, one of which may be able to open /dev/nvidia*."""
    try:
        groups = os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except (KeyError, OSError):
        groups = [gid]
    return Owner(uid, gid, tuple(groups))


def owner_by_name(uid: int) -> Owner:
    """Return the user with his primary group, for work without a job that tells the group.

    A uid without a name gets NO_GROUP: a group with the same number can be any user's.
    """
    try:
        return owner(uid, pwd.getpwuid(uid).pw_gid)
    except (KeyError, OSError):
        return owner(uid, NO_GROUP)


# ---- Start ----


def start(place: MpsPlace, deadline: Deadline, *, replace: bool = False) -> MpsStarted:
    """Return a daemon that answers and has a server that accepts clients; start one if needed.

    replace: no job uses the daemon, so replace one that is silent or in FAULT with clients. Otherwise that is an error,
    since work may depend on it.

    A daemon with static partitions serves only clients that have one, and one without them serves no such client. So a
    daemon of the other kind, or with other partitions, is replaced if no job uses it.

    Raises MpsMissingError (this node has no MPS), MpsFolderError, MpsForeignError, MpsServerError, MpsSilentError,
    MpsRefusedError, MpsPartitionError, after undoing what was begun.
    """
    began = time.monotonic()
    control.check_pipe(place.pipe)
    if place.protocol == 3:
        _v3().check_sockets(place)
    if not os.access(place.program, os.X_OK):
        raise control.missing(place)
    with _alone(place, deadline):
        health = front_ends.read_health(place, deadline.at_most(HEALTH_S) if replace else deadline)
        notes = [f"{name} was too large and was emptied" for name in folders.bound_logs(place)]
        joined = health.condition in ("fine", "no server")
        found: EqualPartitions | None = None
        if joined and replace and _protocol(health.daemon) != place.protocol:
            joined = False  # the site's setting, or what the job asks for, has changed
        if joined:
            try:
                found = _joined_partitions(place, health, deadline)
            except MpsPartitionError:
                if not replace:
                    raise
                joined = False
        if joined:
            servers = health.servers if health.condition == "fine" else _ready_server(place, deadline)
            daemon = health.daemon
        else:
            notes += _make_room(place, health, replace, deadline)
            daemon, servers, found = _start_or_undo(place, notes, deadline)
        protocol = _protocol(daemon)
        if joined and protocol == 3 and not place.namespaces:
            raise MpsServerError(place.pipe, "its daemon, which your other jobs there use, has protocol 3")
        if joined and protocol == 3:
            notes += _v3().ensure(place, deadline)
    assert daemon is not None, "a daemon that answered has a process"
    return MpsStarted(place, daemon, servers, joined, time.monotonic() - began, tuple(notes), found, protocol)


def start_many(
    places: Sequence[MpsPlace], deadline: Deadline, *, replace: bool = False
) -> tuple[MpsStarted | MpsFailed, ...]:
    """Start daemons on several GPUs in parallel; return their results in order. Undoing may take UNDO_S more."""
    work = [lambda place=place: start(place, deadline, replace=replace) for place in places]
    return tuple(_side_by_side(places, work, deadline.left() + UNDO_S))


def _start_or_undo(
    place: MpsPlace, notes: list[str], deadline: Deadline
) -> tuple[ProcessIdentity, tuple[MpsServer, ...], EqualPartitions | None]:
    try:
        folders.make(place, _v3().start_files(place) if place.protocol == 3 else {})
        group = _group(place)
        if group is not None:
            notes += cgroups.make(group, deadline)
        daemon = _start_daemon(place, notes, deadline)
        if group is not None:
            notes += _what_does_not_hold(daemon, group)
        _raise_nofile(daemon, notes)
        _share_oom_fate(daemon)
        found = _partitions(place, deadline, is_new=True) if place.partitions else None
        servers = _ready_server(place, deadline)
        if place.protocol == 3:
            _v3().ensure(place, deadline)  # finds them as the file has them
        return daemon, servers, found
    except BaseException:
        undo = Deadline.after(UNDO_S)
        if not _end_whole(place, undo).left:
            folders.remove(place, undo)
        raise


def _joined_partitions(place: MpsPlace, health: MpsHealth, deadline: Deadline) -> EqualPartitions | None:
    """Return the partitions of a running daemon; create them again if its server was restarted without them; None: it
    is to have none. Raises MpsPartitionError if the daemon is of the other kind, or divides the GPU otherwise."""
    assert health.daemon is not None, "a daemon that answered has a process"
    is_static = processes.is_static(health.daemon.pid)
    if is_static is None or is_static == bool(place.partitions):
        return _partitions(place, deadline) if place.partitions else None
    if is_static:
        why = "its daemon, which your other jobs there use, serves only tasks with a static partition (sm=static)"
    else:
        why = "its daemon, which your other jobs there use, was started without static partitions"
    raise MpsPartitionError(place.pipe, why)


def _partitions(place: MpsPlace, deadline: Deadline, *, is_new: bool = False) -> EqualPartitions:
    from . import partitions  # few shares need it

    return partitions.ensure(place, deadline, is_new=is_new)


def _v3() -> ModuleType:
    from . import control_v3  # few nodes have it

    return control_v3


def _protocol(daemon: ProcessIdentity | None) -> int:
    return 2 if daemon is None else processes.read_protocol(daemon.pid)


def _start_daemon(place: MpsPlace, notes: list[str], deadline: Deadline) -> ProcessIdentity:
    try:
        finished = process.exchange(
            [place.program, *_start_options(place)],
            timeout_s=deadline.left(),
            env=control.environment(place, str(place.protocol)),
            owner=place.owner,
            group=place.group,
        )
    except CommandError as error:
        if isinstance(error.__cause__, OSError):
            raise control.missing(place) from error
        raise MpsSilentError(place.pipe, f"its daemon did not start in time ({error.stderr})") from error
    said = finished.stdout.strip() or finished.stderr.strip()
    daemon = processes.lock_holder(place)
    if daemon is not None and not processes.is_daemon(daemon, place):
        raise MpsForeignError(place.pipe, processes.describe_foreign(daemon))
    if daemon is None or finished.code != 0:
        raise MpsRefusedError(
            place.pipe, f"its daemon does not start: {shown(said, 300) if said else _why_silent(place, finished.code)}"
        )
    if "No logs will be available" in said:
        notes.append(f"its daemon writes no logs: {place.logs} is not writable")
    return daemon


def _start_options(place: MpsPlace) -> list[str]:
    if place.protocol == 3:
        options: list[str] = _v3().start_options(place)
        return options
    return ["-d", *((processes.STATIC_OPTION,) if place.partitions else ())]


def _why_silent(place: MpsPlace, code: int) -> str:
    """Return why a daemon may have ended that printed nothing."""
    for folder in (place.pipe, place.logs):
        try:
            room = os.statvfs(folder)
        except OSError as error:
            return f"{folder}: {error.strerror}"
        if not room.f_bavail:
            return f"the file system of {folder} is full"
        if room.f_files and not room.f_favail:
            return f"the file system of {folder} has no room for further files (inodes)"
    return f"it ended with exit code {code} and printed no reason; its logs are in {place.logs}"


def _group(place: MpsPlace) -> DaemonGroup | None:
    """Return the cgroup of a daemon that root starts for a user; None: the daemon stays in the caller's."""
    return place.group if os.geteuid() == 0 and place.owner.uid != 0 else None


def _what_does_not_hold(daemon: ProcessIdentity, group: DaemonGroup) -> list[str]:
    """Return sentences about protections that the started daemon lacks."""
    notes = []
    if user_process.is_untraceable(daemon.pid) is False:
        notes.append("its user can trace it: it could not be given CAP_WAKE_ALARM")
    if cgroup_paths.exists(group) and daemon.pid not in cgroup_paths.read_pids(group):
        notes.append("it is not in its cgroup, so no limit applies to it")
    return notes


def _raise_nofile(daemon: ProcessIdentity, notes: list[str]) -> None:
    """Raise the daemon's limit of open files before it starts its server, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # the daemon has inherited these
    if soft >= NOFILE:
        return
    for limits in ((NOFILE, max(hard, NOFILE)), (hard, hard)):
        try:
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
            break
        except (OSError, ValueError):
            continue  # without the right to raise the hard limit, raise the soft one up to it
    else:
        hard = soft
    if hard < NOFILE:
        notes.append(f"its open files are limited to {hard}; MPS needs {NOFILE}")


def _share_oom_fate(daemon: ProcessIdentity) -> None:
    """Reset the daemon's OOM score adjustment: slurmd's unit protects slurmd and the hooks from the kernel's
    out-of-memory killer (OOMScoreAdjust), and a user's daemon must not inherit that."""
    file = Path(f"/proc/{daemon.pid}/oom_score_adj")
    try:
        if int(file.read_text()) < 0:
            file.write_text("0")
    except (OSError, ValueError):
        pass  # the caller is not root, or the daemon has just ended


def _ready_server(place: MpsPlace, deadline: Deadline) -> tuple[MpsServer, ...]:
    """Start the server before the first client connects, so that a failure is known before a task starts.

    Raises MpsServerError if the server ends, is in FAULT, or is not ready in time.
    """
    front_end = front_ends.of(place)
    front_end.start_server(place, deadline)
    began, pause, seen, empty = time.monotonic(), 0.005, set[int](), 0
    while True:
        asked = time.monotonic()
        servers = front_end.read_servers(place, deadline)
        took_s = time.monotonic() - asked
        # A release without get_server_status also lists a dying server: with it, wait until it is listed twice.
        ready = [one for one in servers if one.status == "ACTIVE" or (one.status is None and one.pid in seen)]
        if ready:
            return servers
        seen |= {one.pid for one in servers}
        empty = 0 if servers else empty + 1
        gone = empty >= EMPTY_ANSWERS and time.monotonic() - began > EMPTY_S
        if gone or any(one.status == "FAULT" for one in servers) or deadline.left() <= pause:
            raise MpsServerError(place.pipe, _why_no_server(place, servers))
        time.sleep(max(pause, min(took_s, ASK_LESS_S)))  # on a busy node, questions would slow the server's start down
        pause = min(0.1, pause * 2)


def _why_no_server(place: MpsPlace, servers: tuple[MpsServer, ...]) -> str:
    how = f"is {servers[0].status or 'not ready'} and accepts no clients" if servers else "ended as soon as it started"
    last = folders.last_log_line(place, "server.log")
    return f"its server {how}; server.log ends: {shown(last, 300) if last else 'empty'}"


def _make_room(place: MpsPlace, health: MpsHealth, replace: bool, deadline: Deadline) -> list[str]:
    """Remove an old daemon or folder from the place where a daemon is to start; return notes. Raises MpsError if it
    belongs to another user or is in use."""
    notes: list[str] = []
    holder = health.daemon
    if health.condition == "foreign" and holder is not None:
        if holder.name == MPS_NAME:
            raise MpsForeignError(place.pipe, health.why)
        # Any user who can reach the file, whose mode is 0666, can lock it. A new folder has a new file.
        notes.append(f"{health.why}; the folder was replaced")
    if not replace and health.condition == "silent":
        raise MpsSilentError(place.pipe, health.why)
    if not replace and health.condition == "fault" and _clients(place, health.servers, deadline):
        raise MpsServerError(place.pipe, health.why)
    if not os.path.lexists(place.pipe):
        return notes
    ended = _end_whole(place, deadline.part(0.5))
    if ended.left:
        raise MpsServerError(place.pipe, f"process {ended.left[0].pid} of its former daemon does not end")
    notes += folders.remove(place, deadline)
    return notes


def _clients(place: MpsPlace, servers: Sequence[MpsServer], deadline: Deadline) -> dict[int, tuple[int, ...]]:
    front_end = front_ends.of(place)
    found = {one.pid: front_end.read_clients(place, one.pid, deadline) for one in servers}
    return {server: clients for server, clients in found.items() if clients}


# ---- Stop ----


def _never(gpu: str) -> bool:
    return False


def stop(place: MpsPlace, deadline: Deadline, unless: Callable[[str], bool] = _never) -> MpsStopped:
    """End the daemon with its servers, and remove its folder. Do nothing if there is no daemon.

    Terminate the clients, send `quit`, then SIGTERM, then SIGKILL, each with a part of the time. Signals are sent only
    to processes that are verified to be the owner's daemon or its servers. Processes that outlive all of it are
    returned in `left`, and the folder stays.

    unless: a function of the daemon's GPU, called under the daemon's lock, when no job can join it any more. If it
    returns True, the daemon is not stopped.

    Raises MpsFolderError, and MpsSilentError if another program holds the daemon's lock until the deadline.
    """
    began = time.monotonic()
    control.check_pipe(place.pipe)
    try:
        with _found(place, deadline):
            if unless(place.gpu):
                return MpsStopped(place, "in use", (), (), time.monotonic() - began)
            mounted = folders.uncover(place)
            ended = _end_whole(place, deadline.part(1 - REMOVE_RATIO))
            notes = [*mounted, *ended.notes]
            if not ended.left:
                notes += folders.remove(place, deadline)
                _forget_locks(place)
    except MpsGoneError:
        ended, notes = _Ended("was not there"), []
    return MpsStopped(place, ended.how, ended.clients, ended.left, time.monotonic() - began, tuple(notes))


def stop_many(
    places: Sequence[MpsPlace], deadline: Deadline, unless: Callable[[str], bool] = _never
) -> tuple[MpsStopped | MpsFailed, ...]:
    """Stop several daemons in parallel; return their results in order."""
    work = [lambda place=place: stop(place, deadline, unless) for place in places]
    return tuple(_side_by_side(places, work, deadline.left() + 2 * KILL_S))


class _Ended(Struct):
    """The result of ending the processes of a daemon."""

    how: Literal["was not there", "quit", "SIGTERM", "SIGKILL", "still there"]
    clients: tuple[int, ...] = ()
    left: tuple[ProcessIdentity, ...] = ()
    notes: list[str] = []


def _end_whole(place: MpsPlace, deadline: Deadline) -> _Ended:
    """End every process of the daemon, then all others in its cgroup, and remove the cgroup. The folder stays."""
    ended = _end(place, deadline)
    group = _group(place)
    if group is not None:
        more = set(cgroup_paths.read_pids(group)) - {one.pid for one in ended.left}
        if more:
            ended.notes.append(f"other processes in its cgroup were killed: {', '.join(map(str, sorted(more)))}")
        ended.left = tuple({*ended.left, *cgroups.end(group, deadline)})
        ended.left = tuple(one for one in ended.left if process.is_same(one))
    return ended


def _end(place: MpsPlace, deadline: Deadline) -> _Ended:
    """End the daemon and its servers."""
    holder = processes.lock_holder(place)
    daemon = holder if holder is not None and processes.is_daemon(holder, place) else None
    if daemon is None:
        ended = _Ended("was not there")
        if holder is not None:
            ended.notes.append(f"{processes.describe_foreign(holder)}; it was not ended")
        _end_servers(_servers(place), ended, deadline)
        return ended
    ended = _Ended("quit")
    servers = _quit(place, ended, deadline.part(0.5))
    if process.wait_gone([daemon], deadline.at_most(0.2)):
        ended.how = _signal_daemon(daemon, deadline)
        # Its list of its servers may be missing or wrong.
        servers = {*servers, *_servers(place)}
        if process.is_same(daemon):
            ended.left = (daemon,)
    process.wait_gone(servers, deadline.at_most(0.2))
    _end_servers(tuple(servers), ended, deadline)
    return ended


def _servers(place: MpsPlace) -> tuple[ProcessIdentity, ...]:
    """Return the daemon's servers, whether or not it is alive: from its cgroup, which they cannot leave; without a
    cgroup from all processes of the node."""
    group = _group(place)
    if group is None or not cgroup_paths.exists(group):
        return processes.servers_of(processes.read_processes(uids=(place.owner.uid,)), place)
    found = (processes.read_process(pid) for pid in cgroup_paths.read_pids(group))
    return processes.servers_of(tuple(one for one in found if one is not None), place)


def _quit(place: MpsPlace, ended: _Ended, deadline: Deadline) -> set[ProcessIdentity]:
    """Terminate the clients, for which `quit` would wait, and send `quit`; return the servers that the daemon listed.

    Errors are only noted in `ended`: the caller then sends signals.
    """
    servers: set[ProcessIdentity] = set()
    try:
        front_end = front_ends.of(place)
        listed = front_end.read_servers(place, deadline.part(0.5))
        for server in listed:
            identity = process.identify(server.pid)
            if identity is not None and processes.is_daemon(identity, place):
                servers.add(identity)
        for server_pid, clients in _clients(place, listed, deadline).items():
            for client in clients:
                if front_end.terminate_client(place, server_pid, client, deadline):
                    ended.clients += (client,)
        front_end.tell_quit(place, deadline)
    except MpsError as error:
        ended.notes.append(f"it did not quit: {error.why}")
    return servers


def _signal_daemon(daemon: ProcessIdentity, deadline: Deadline) -> Literal["SIGTERM", "SIGKILL", "still there"]:
    process.end(daemon, signal.SIGTERM)
    if not process.wait_gone([daemon], deadline.part(0.5)):
        return "SIGTERM"
    process.end(daemon, signal.SIGKILL)
    return "still there" if process.wait_gone([daemon], _killed(deadline)) else "SIGKILL"


def _end_servers(servers: Collection[ProcessIdentity], ended: _Ended, deadline: Deadline) -> None:
    """End the servers that outlived their daemon; add those that remain to `ended.left`."""
    living = [one for one in servers if process.is_same(one)]
    for number, patience in ((signal.SIGTERM, deadline.part(0.5)), (signal.SIGKILL, None)):
        for one in living:
            if process.end(one, number):
                ended.notes.append(f"server {one.pid} outlived its daemon and got {number.name}")
        living = list(process.wait_gone(living, patience or _killed(deadline)))
    ended.left += tuple(living)


# ---- Locks and threads ----


def _alone(place: MpsPlace, deadline: Deadline) -> ExitStack:
    """Return a context that holds the daemon's own lock, which is made with its folder if it is missing."""
    while True:
        folders.make_parents(place)
        stack = ExitStack()
        try:
            stack.enter_context(control.held(_life_lock(place), place, deadline, theirs=False))
            return stack
        except MpsGoneError:
            # Another hook has removed the folder in the meantime, after stopping the user's last daemon.
            if deadline.left() <= 0:
                raise


def _found(place: MpsPlace, deadline: Deadline) -> AbstractContextManager[object]:
    """Return a context that holds the daemon's own lock; entering it raises MpsGoneError if nothing of the daemon is
    left. If its folder was removed, its cgroup can still be there."""
    group = _group(place)
    if group is not None and cgroup_paths.exists(group):
        return _alone(place, deadline)
    return control.held(_life_lock(place), place, deadline, theirs=False)


def _forget_locks(place: MpsPlace) -> None:
    """Remove the daemon's lock files; the caller holds its own one. A process that waits for one makes it again."""
    ui_lock = control.ui_lock(place)
    try:
        with control.held(ui_lock, place, Deadline.after(0.5)):
            control.forget(ui_lock)
    except MpsError:
        pass  # a program of the user holds it: an empty file stays
    control.forget(_life_lock(place))
    folders.remove_user(place)


def _life_lock(place: MpsPlace) -> str:
    """Return the path of the lock for starting and stopping. The user cannot open it, and so cannot delay a hook."""
    return f"{place.pipe}.lock"


def _killed(deadline: Deadline) -> Deadline:
    """Return a deadline at least KILL_S from now, so that a process that is just dying does not count as left."""
    return Deadline.after(max(KILL_S, deadline.left()))


def _side_by_side(
    places: Sequence[MpsPlace], work: Sequence[Callable[[], _Outcome]], patience_s: float
) -> list[_Outcome | MpsFailed]:
    """Call each function in a thread; return the results, with MpsFailed for an MpsError or a call that does not end.
    Raise any other error, which is a defect of ours."""
    outcomes: list[_Outcome | MpsFailed] = [
        MpsFailed(place, MpsSilentError.__name__, "it did not end in time") for place in places
    ]
    defects: list[BaseException] = []

    def carry_out(number: int) -> None:
        try:
            outcomes[number] = work[number]()
        except MpsError as error:
            outcomes[number] = MpsFailed(places[number], type(error).__name__, str(error))
        except BaseException as error:  # noqa: BLE001  (handed to the caller below)
            defects.append(error)

    threads = [threading.Thread(target=carry_out, args=(number,), daemon=True) for number in range(len(work))]
    end = Deadline.after(patience_s)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(end.left())
    if defects:
        raise defects[0]
    return list(outcomes)
