"""Start, set and stop MPS control daemons: one per user and GPU, run as the user.

Nothing is believed that was only said: a daemon is there when the kernel names it as the holder of its lock, a value is
set when it reads back, a daemon is gone when that very process is. Exit codes of the control program prove nothing
(see control.py). Every call has a deadline; starting and stopping one daemon happen under a lock of its own.

What takes effect when (docs.nvidia.com/deploy/mps, v2 interface):

* defaults (percentage, pinned memory) hold for servers that start later, and are lost when the daemon ends;
* a server's own values hold for clients that connect later;
* a client's environment (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT) can only tighten them,
  when it connects. Nothing reaches a client that is connected.
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
    MpsRefusedError,
    MpsServerError,
    MpsSilentError,
    shown,
)
from ..core.process import Deadline
from ..core.records import DaemonGroup, Owner, ProcessIdentity
from . import cgroups, control, folders, processes
from .control import ask
from .records import (
    MPS_NAME,
    MpsDefaults,
    MpsFailed,
    MpsHealth,
    MpsPlace,
    MpsServer,
    MpsStarted,
    MpsStopped,
)

HEALTH_S = 3.0
"""How long a daemon that lives may take to say how it is before it counts as silent."""
UNDO_S = 3.0
"""What taking back a start that failed may cost beyond its deadline."""
KILL_S = 0.5
"""What SIGKILL may take beyond a deadline; a process that takes longer sits in the driver."""
REMOVE_RATIO = 0.25
"""The part of the time for stopping a daemon that may be used for removing the files in its folder."""
EMPTY_S = 0.5
"""If there is no server this long after start_server, it has ended. (The list names a dying one for a moment, too.)"""
NOFILE = 16384
"""Below, a server cannot make its shared memory segments (docs.nvidia.com/deploy/mps, "Limitations")."""

NO_GROUP = 65534
"""The kernel's overflow group (/proc/sys/kernel/overflowgid): nobody is in it."""

NO_DEFAULTS = MpsDefaults()

TYPE_CHECKING = False  # as mypy knows it, without the import of `typing`
if TYPE_CHECKING:
    from typing import Literal, TypeVar

    _Outcome = TypeVar("_Outcome", MpsStarted, MpsStopped)


def owner(uid: int, gid: int) -> Owner:
    """Return the user with all groups of his, one of which may open /dev/nvidia*; a uid without a name has none."""
    try:
        groups = os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except (KeyError, OSError):
        groups = [gid]
    return Owner(uid, gid, tuple(groups))


def owner_by_name(uid: int) -> Owner:
    """Return the user with his primary group, for work in his name when no job says its group.

    A uid without a name has no group of his own: a group with the same number may be anybody's.
    """
    try:
        return owner(uid, pwd.getpwuid(uid).pw_gid)
    except (KeyError, OSError):
        return owner(uid, NO_GROUP)


# ---- Start ----


def start(
    place: MpsPlace, deadline: Deadline, defaults: MpsDefaults = NO_DEFAULTS, *, replace: bool = False
) -> MpsStarted:
    """Return a daemon that answers, with a server that takes clients; start one if needed. A daemon that is well is
    used as it is set.

    replace: the caller knows that nobody uses the daemon, so one that is silent, or in FAULT with clients, is stopped
    and started anew. Without it those are errors, since somebody's work may hang on them.

    Raises MpsMissingError (this node has no MPS), MpsFolderError, MpsForeignError, MpsServerError, MpsSilentError,
    MpsRefusedError. What was begun is undone then.
    """
    began = time.monotonic()
    control.check_pipe(place.pipe)
    if not os.access(place.program, os.X_OK):
        raise control.missing(place)
    with _alone(place, deadline):
        health = control.read_health(place, _part(deadline, HEALTH_S))
        notes = [f"{name} was too long and was emptied" for name in folders.bound_logs(place)]
        joined = health.condition in ("fine", "no server")
        if joined:
            servers = health.servers if health.condition == "fine" else _ready_server(place, deadline)
            daemon = health.daemon
        else:
            notes += _make_room(place, health, replace, deadline)
            daemon, servers = _start_or_undo(place, defaults, notes, deadline)
    assert daemon is not None, "a daemon that answered has a process"
    return MpsStarted(place, daemon, servers, joined, time.monotonic() - began, tuple(notes))


def start_many(
    places: Sequence[MpsPlace], deadline: Deadline, defaults: MpsDefaults = NO_DEFAULTS, *, replace: bool = False
) -> tuple[MpsStarted | MpsFailed, ...]:
    """Start daemons on several GPUs at once; return each outcome, in order. Undoing may take UNDO_S more."""
    work = [lambda place=place: start(place, deadline, defaults, replace=replace) for place in places]
    return tuple(_side_by_side(places, work, deadline.left() + UNDO_S))


def _start_or_undo(
    place: MpsPlace, defaults: MpsDefaults, notes: list[str], deadline: Deadline
) -> tuple[ProcessIdentity, tuple[MpsServer, ...]]:
    try:
        folders.make(place)
        group = _group(place)
        if group is not None:
            notes += cgroups.make(group, deadline)
        daemon = _start_daemon(place, notes, deadline)
        if group is not None:
            notes += _what_does_not_hold(daemon, group)
        _raise_nofile(daemon, notes)
        _share_oom_fate(daemon)
        set_defaults(place, defaults, deadline)
        return daemon, _ready_server(place, deadline)
    except BaseException:
        undo = Deadline.after(UNDO_S)
        if not _end_whole(place, undo).left:
            folders.remove(place, undo)
        raise


def _start_daemon(place: MpsPlace, notes: list[str], deadline: Deadline) -> ProcessIdentity:
    try:
        finished = process.exchange(
            [place.program, "-d", *place.options],
            timeout_s=deadline.left(),
            env=control.environment(place),
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
        raise MpsRefusedError(place.pipe, f"its daemon does not start: {shown(said or 'no message', 300)}")
    if "No logs will be available" in said:
        notes.append(f"its daemon writes no logs: {place.logs} is not writable")
    return daemon


def _group(place: MpsPlace) -> DaemonGroup | None:
    """Return the cgroup of a daemon that root starts for a user; None: it stays in the caller's."""
    return place.group if os.geteuid() == 0 and place.owner.uid != 0 else None


def _what_does_not_hold(daemon: ProcessIdentity, group: DaemonGroup) -> list[str]:
    """Return what of the daemon's cgroup does not hold. It is read back: the daemon cannot be asked where it is."""
    notes = []
    if user_process.is_untraceable(daemon.pid) is False:
        notes.append("its user can trace it: it could not be given CAP_WAKE_ALARM")
    if cgroup_paths.exists(group) and daemon.pid not in cgroup_paths.read_pids(group):
        notes.append("it is not in its cgroup, so that no limit holds for it")
    return notes


def _raise_nofile(daemon: ProcessIdentity, notes: list[str]) -> None:
    """Raise the limit of open files before the daemon starts its server, which inherits it. On the running daemon,
    so that no other process changes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # the daemon's own, too: it inherited them
    if soft >= NOFILE:
        return
    for limits in ((NOFILE, max(hard, NOFILE)), (hard, hard)):
        try:
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
            break
        except (OSError, ValueError):
            continue  # not ours to raise: the hard limit first, then any
    else:
        hard = soft
    if hard < NOFILE:
        notes.append(f"its open files are limited to {hard}; MPS wants {NOFILE}")


def _share_oom_fate(daemon: ProcessIdentity) -> None:
    """Give the daemon an ordinary OOM score. slurmd's unit protects slurmd, and so every hook, from the kernel's
    out-of-memory killer (OOMScoreAdjust); a user's daemon must not inherit that."""
    file = Path(f"/proc/{daemon.pid}/oom_score_adj")
    try:
        if int(file.read_text()) < 0:
            file.write_text("0")
    except (OSError, ValueError):
        pass  # an ordinary user's daemon, or one that is just gone


def _ready_server(place: MpsPlace, deadline: Deadline) -> tuple[MpsServer, ...]:
    """Start the server before the first client, so that a GPU on which none starts is known before a task is sent
    there.

    Raises MpsServerError when it ends, is in FAULT, or is not ready in time.
    """
    ask(place, f"start_server -uid {place.owner.uid}", deadline)
    began, pause, seen = time.monotonic(), 0.005, set[int]()
    while True:
        servers = control.read_servers(place, deadline)
        # A release without get_server_status lists a dying server, too: there it has to be listed twice.
        ready = [one for one in servers if one.status == "ACTIVE" or (one.status is None and one.pid in seen)]
        if ready:
            return servers
        seen |= {one.pid for one in servers}
        gone = not servers and time.monotonic() - began > EMPTY_S
        if gone or any(one.status == "FAULT" for one in servers) or deadline.left() <= pause:
            raise MpsServerError(place.pipe, _why_no_server(place, servers))
        time.sleep(pause)
        pause = min(0.1, pause * 2)


def _why_no_server(place: MpsPlace, servers: tuple[MpsServer, ...]) -> str:
    how = f"is {servers[0].status or 'not ready'} and takes no clients" if servers else "ended as soon as it started"
    last = folders.last_log_line(place, "server.log")
    return f"its server {how}; server.log ends: {shown(last, 300) if last else 'empty'}"


def _make_room(place: MpsPlace, health: MpsHealth, replace: bool, deadline: Deadline) -> list[str]:
    """Clear away what stands where a daemon is to start. Raises MpsError where that belongs to somebody else, or is
    in use."""
    notes: list[str] = []
    holder = health.daemon
    if health.condition == "foreign" and holder is not None:
        if holder.name == MPS_NAME:
            raise MpsForeignError(place.pipe, health.why)
        # Anybody who reaches the 0666 file can lock it. The lock moves away with its file.
        notes.append(f"{health.why}; the folder was made anew")
    if not replace and health.condition == "silent":
        raise MpsSilentError(place.pipe, health.why)
    if not replace and health.condition == "fault" and _clients(place, health.servers, deadline):
        raise MpsServerError(place.pipe, health.why)
    if not os.path.lexists(place.pipe):
        return notes
    ended = _end_whole(place, _part(deadline, deadline.left() / 2))
    if ended.left:
        raise MpsServerError(place.pipe, f"process {ended.left[0].pid} of its former daemon does not end")
    folders.remove(place, deadline)
    return notes


def _clients(place: MpsPlace, servers: Sequence[MpsServer], deadline: Deadline) -> dict[int, tuple[int, ...]]:
    found = {one.pid: control.read_clients(place, one.pid, deadline) for one in servers}
    return {server: clients for server, clients in found.items() if clients}


# ---- Values ----


def set_defaults(place: MpsPlace, defaults: MpsDefaults, deadline: Deadline) -> None:
    """Set every default that is given, and read each back. Raises as the single setters do."""
    if defaults.thread_percent is not None:
        set_default_percent(place, defaults.thread_percent, deadline)
    if defaults.memory_mib is not None:
        set_default_memory_mib(place, 0, defaults.memory_mib, deadline)
    if defaults.client_priority is not None:
        set_default_priority(place, defaults.client_priority, deadline)


def set_default_percent(place: MpsPlace, percent: float, deadline: Deadline) -> None:
    """Set the active thread percentage of servers that start from now on.

    Raises MpsRefusedError where it does not read back, ValueError outside (0, 100]: the daemon would keep the old one
    and report that in its log only.
    """
    _check_percent(percent)
    ask(place, f"set_default_active_thread_percentage {percent:g}", deadline)
    _expect_percent(place, control.read_default_percent(place, deadline), percent)


def set_percent(place: MpsPlace, server_pid: int, percent: float, deadline: Deadline) -> None:
    """Set the active thread percentage of clients that connect to this server from now on. Raises as
    `set_default_percent` does."""
    _check_percent(percent)
    ask(place, f"set_active_thread_percentage {server_pid} {percent:g}", deadline)
    _expect_percent(place, control.read_percent(place, server_pid, deadline), percent)


def set_default_memory_mib(place: MpsPlace, device: int, mib: int, deadline: Deadline) -> None:
    """Set the pinned memory of one client, for servers that start from now on, on the daemon's device of that
    number.

    Written as a whole number of M: the daemon takes 1.5G for 1M, and 0G for no limit (measured on 535, 550 and 555).
    Raises MpsRefusedError where it does not read back, ValueError below 1.
    """
    _check_memory(mib)
    ask(place, f"set_default_device_pinned_mem_limit {device} {mib}M", deadline)
    _expect_memory(place, control.read_default_memory_mib(place, device, deadline), mib)


def set_memory_mib(place: MpsPlace, server_pid: int, device: int, mib: int, deadline: Deadline) -> None:
    """Set the pinned memory of clients that connect to this server from now on. Raises as `set_default_memory_mib`
    does."""
    _check_memory(mib)
    ask(place, f"set_device_pinned_mem_limit {server_pid} {device} {mib}M", deadline)
    _expect_memory(place, control.read_memory_mib(place, server_pid, device, deadline), mib)


def set_default_priority(place: MpsPlace, priority: int, deadline: Deadline) -> None:
    """Set the priority of clients that connect from now on: 0 normal, 1 below normal. Raises MpsRefusedError,
    ValueError."""
    if priority not in (0, 1):
        raise ValueError(f"a client priority is 0 or 1, not {priority}")
    command = f"set_default_client_priority {priority}"
    answer = ask(place, command, deadline)
    if control.is_unknown(answer):
        raise MpsRefusedError(place.pipe, f"{command}: this release has no priorities")
    read_back = ask(place, "get_default_client_priority", deadline).split()
    if read_back and read_back[-1].isdecimal() and int(read_back[-1]) != priority:
        raise MpsRefusedError(place.pipe, f"its client priority is {read_back[-1]}, not {priority}")


def terminate_client(place: MpsPlace, server_pid: int, client_pid: int, deadline: Deadline) -> bool:
    """End one client's work on the GPU; its next CUDA call returns error 810. False: no such client, or server.

    Before its process is killed: SIGKILL with work in flight leaves the server and all its clients undefined
    (docs.nvidia.com/deploy/mps, "Client early termination"). Raises as mps_control.ask does.
    """
    return "not found" not in ask(place, f"terminate_client {server_pid} {client_pid}", deadline)


def _check_percent(percent: float) -> None:
    if not 0 < percent <= 100:
        raise ValueError(f"an active thread percentage is above 0 and at most 100, not {percent}")


def _expect_percent(place: MpsPlace, got: float, wanted: float) -> None:
    if abs(got - wanted) > 0.06:  # it answers with one digit behind the point
        raise MpsRefusedError(place.pipe, f"its active thread percentage is {got}, not {wanted}")


def _check_memory(mib: int) -> None:
    if mib < 1:
        raise ValueError(f"a memory limit is at least 1 MiB, not {mib}")


def _expect_memory(place: MpsPlace, got: int | None, wanted: int) -> None:
    if got != wanted:
        raise MpsRefusedError(place.pipe, f"its memory limit is {got} MiB, not {wanted} MiB")


# ---- Stop ----


def _never(gpu: str) -> bool:
    return False


def stop(place: MpsPlace, deadline: Deadline, unless: Callable[[str], bool] = _never) -> MpsStopped:
    """End the daemon with its servers, and remove its folder. Nothing to do where there is none; can be done twice.

    Every client is terminated, then `quit`, then SIGTERM, then SIGKILL, each with a part of the time. A signal goes
    only to the process that was found to be the owner's daemon or its server, and still is that very one. What outlives
    all of it is in `left`, and the folder stays then.

    unless: asked with the daemon's GPU under the daemon's own lock, where nobody can join it any more; True leaves it.

    Raises MpsFolderError, and MpsSilentError when another program holds the daemon's lock for all that time.
    """
    began = time.monotonic()
    control.check_pipe(place.pipe)
    try:
        with _found(place, deadline):
            if unless(place.gpu):
                return MpsStopped(place, "in use", (), (), time.monotonic() - began)
            ended = _end_whole(place, deadline.part(1 - REMOVE_RATIO))
            notes = list(ended.notes)
            if not ended.left:
                folders.remove(place, deadline)
                _forget_locks(place)
    except MpsGoneError:
        ended, notes = _Ended("was not there"), []
    return MpsStopped(place, ended.how, ended.clients, ended.left, time.monotonic() - began, tuple(notes))


def stop_many(
    places: Sequence[MpsPlace], deadline: Deadline, unless: Callable[[str], bool] = _never
) -> tuple[MpsStopped | MpsFailed, ...]:
    """Stop several daemons at once; return each outcome, in order."""
    work = [lambda place=place: stop(place, deadline, unless) for place in places]
    return tuple(_side_by_side(places, work, deadline.left() + 2 * KILL_S))


class _Ended(Struct):
    """How the processes of a daemon went."""

    how: Literal["was not there", "quit", "SIGTERM", "SIGKILL", "still there"]
    clients: tuple[int, ...] = ()
    left: tuple[ProcessIdentity, ...] = ()
    notes: list[str] = []


def _end_whole(place: MpsPlace, deadline: Deadline) -> _Ended:
    """End every process of the daemon, by ever stronger means, and at last all that is in its cgroup, which is
    removed. The folder stays."""
    ended = _end(place, deadline)
    group = _group(place)
    if group is not None:
        more = set(cgroup_paths.read_pids(group)) - {one.pid for one in ended.left}
        if more:
            ended.notes.append(f"what else was in its cgroup was killed: {', '.join(map(str, sorted(more)))}")
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
            ended.notes.append(f"{processes.describe_foreign(holder)}; it was left alone")
        known = _servers(place)  # of a daemon that was killed
        _end_servers(known, ended, deadline)
        return ended
    ended = _Ended("quit")
    servers = _quit(place, ended, _part(deadline, deadline.left() * 0.5))
    if process.wait_gone([daemon], _part(deadline, 0.2)):
        ended.how = _signal_daemon(daemon, deadline)
        # It could not say, or not truly, which servers it has.
        servers = {*servers, *_servers(place)}
        if process.is_same(daemon):
            ended.left = (daemon,)
    process.wait_gone(servers, _part(deadline, 0.2))
    _end_servers(tuple(servers), ended, deadline)
    return ended


def _servers(place: MpsPlace) -> tuple[ProcessIdentity, ...]:
    """Return those of its processes that are servers, whether or not it lives: from its cgroup, which none of them
    can leave; from all processes of the node only where it has no cgroup."""
    group = _group(place)
    if group is None or not cgroup_paths.exists(group):
        return processes.servers_of(processes.read_processes(uids=(place.owner.uid,)), place)
    found = (processes.read_process(pid) for pid in cgroup_paths.read_pids(group))
    return processes.servers_of(tuple(one for one in found if one is not None), place)


def _quit(place: MpsPlace, ended: _Ended, deadline: Deadline) -> set[ProcessIdentity]:
    """Ask it nicely, clients first, because `quit` waits for them. Its servers, as far as it named them.

    A daemon that does not do it gets signals, so no error leaves.
    """
    servers: set[ProcessIdentity] = set()
    try:
        listed = control.read_servers(place, _part(deadline, deadline.left() / 2))
        for server in listed:
            identity = process.identify(server.pid)
            if identity is not None and processes.is_daemon(identity, place):
                servers.add(identity)
        for server_pid, clients in _clients(place, listed, deadline).items():
            for client in clients:
                if terminate_client(place, server_pid, client, deadline):
                    ended.clients += (client,)
        control.tell_quit(place, deadline)
    except MpsError as error:
        ended.notes.append(f"it did not quit: {error.why}")
    return servers


def _signal_daemon(daemon: ProcessIdentity, deadline: Deadline) -> Literal["SIGTERM", "SIGKILL", "still there"]:
    process.end(daemon, signal.SIGTERM)
    if not process.wait_gone([daemon], _part(deadline, deadline.left() / 2)):
        return "SIGTERM"
    process.end(daemon, signal.SIGKILL)
    return "still there" if process.wait_gone([daemon], _killed(deadline)) else "SIGKILL"


def _end_servers(servers: Collection[ProcessIdentity], ended: _Ended, deadline: Deadline) -> None:
    """End the servers that outlived their daemon."""
    living = [one for one in servers if process.is_same(one)]
    for number, patience in ((signal.SIGTERM, _part(deadline, deadline.left() / 2)), (signal.SIGKILL, None)):
        for one in living:
            if process.end(one, number):
                ended.notes.append(f"server {one.pid} outlived its daemon and got {number.name}")
        living = list(process.wait_gone(living, patience or _killed(deadline)))
    ended.left += tuple(living)


# ---- Around it ----


def _alone(place: MpsPlace, deadline: Deadline) -> ExitStack:
    """Hold the daemon's own lock, made with its folder where it is missing; to be used in a `with`."""
    while True:
        folders.make_parents(place)
        stack = ExitStack()
        try:
            stack.enter_context(control.held(_life_lock(place), place, deadline, theirs=False))
            return stack
        except MpsGoneError:
            # The folder went between its making and the lock: the user's last daemon was being stopped.
            if deadline.left() <= 0:
                raise


def _found(place: MpsPlace, deadline: Deadline) -> AbstractContextManager[object]:
    """Hold the daemon's own lock as `_alone` does where there is anything of it; MpsGoneError leaves where nothing is.
    A cgroup is there without a folder when somebody removed that."""
    group = _group(place)
    if group is not None and cgroup_paths.exists(group):
        return _alone(place, deadline)
    return control.held(_life_lock(place), place, deadline, theirs=False)


def _forget_locks(place: MpsPlace) -> None:
    """Remove the daemon's locks, its own one held. A process that waits for one of them notices, and makes it anew."""
    ui_lock = control.ui_lock(place)
    try:
        with control.held(ui_lock, place, Deadline.after(0.5)):
            control.forget(ui_lock)
    except MpsError:
        pass  # a program of the user's sits on it; an empty file more
    control.forget(_life_lock(place))
    folders.remove_user(place)


def _life_lock(place: MpsPlace) -> str:
    """Return the path of the lock for starting and stopping. Its user cannot read it, so nobody else can keep a hook
    waiting with it."""
    return f"{place.pipe}.lock"


def _killed(deadline: Deadline) -> Deadline:
    """Return a short deadline for SIGKILL even when time is up: a process that is about to be gone must not count as
    left."""
    return Deadline.after(max(KILL_S, deadline.left()))


def _part(deadline: Deadline, seconds: float) -> Deadline:
    return deadline.at_most(seconds)


def _side_by_side(
    places: Sequence[MpsPlace], work: Sequence[Callable[[], _Outcome]], patience_s: float
) -> list[_Outcome | MpsFailed]:
    """Do each piece of work in a thread; return the outcomes, of which an MpsError is one. Any other error is a
    defect of ours and is raised."""
    outcomes: list[_Outcome | MpsFailed] = [
        MpsFailed(place, MpsSilentError.__name__, "it was not over in time") for place in places
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
