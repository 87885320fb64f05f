"""Make and remove the cgroups of users' MPS daemons, and kill all processes in a cgroup.

Limits that the kernel does not support are skipped with a note: a daemon without limits is better than none, since its
user cannot trace it to run programs in it (user_process.py).
"""

from __future__ import annotations

import os
import signal
import time

from ..core import cgroup_paths, process
from ..core.process import Deadline
from ..core.records import DaemonGroup, ProcessIdentity
from . import device_guard
from .rules import cgroups as rules

PAUSE_S = 0.002
FREEZE_S = 0.5
"""How long to wait until all processes of a group are frozen. The group is killed even if a process in a call into the
driver takes longer."""
END_S = 1.0
"""How long to wait, beyond a deadline, until a group is empty after SIGKILL."""


def make(group: DaemonGroup, deadline: Deadline) -> tuple[str, ...]:
    """Make the group with its limits; return sentences about the limits that this node cannot set.

    Processes of an earlier daemon in a group of that name are ended first.
    """
    notes: list[str] = []
    if cgroup_paths.exists(group) and (left := end(group, deadline)):
        notes.append(f"process {left[0].pid} of a former daemon does not end")
    folders = cgroup_paths.folders(group)
    if not folders:
        return (*notes, f"it has no limits: {group.root} has no cgroups that can be written")
    for controller, folder in folders:
        try:
            _make_folder(folder, group, deadline)
        except OSError as error:
            notes.append(f"it has no cgroup: {folder}: {error.strerror}")
            continue
        notes += _limit(folder, controller, group)
    if group.minor is None:
        notes.append("it may open any GPU: the number of its own is not known")
    return tuple(notes)


def _limit(folder: str, controller: str, group: DaemonGroup) -> list[str]:
    """Write the group's limits in one tree; return a sentence for each kind that cannot be set."""
    notes: dict[str, str] = {}
    for file, value in rules.values(group, controller):
        if file in notes:
            continue
        try:
            cgroup_paths.write(f"{folder}/{file}", value)
        except OSError as error:
            notes[file] = f"{file} cannot be set for it: {error.strerror}"
    if controller == "" and group.minor is not None:
        try:
            device_guard.attach(folder, rules.device_program(group.minor))
        except OSError as error:
            notes["devices"] = f"it may open any GPU: {error.filename or 'bpf'}: {error.strerror}"
    for file, value in rules.swap_values(group, controller):
        _tried(f"{folder}/{file}", value)  # a kernel may not count swap
    return list(notes.values())


def end(group: DaemonGroup, deadline: Deadline) -> tuple[ProcessIdentity, ...]:
    """Kill all processes in the group and remove it, and the user's folder if it is empty then; return the processes
    that are still there. Do nothing if there is no group."""
    folders = cgroup_paths.folders(group)
    if not any(os.access(folder, os.F_OK) for _, folder in folders):
        return ()
    until = Deadline.after(max(deadline.left(), END_S))
    while True:
        pids = cgroup_paths.read_pids(group)
        if pids:
            _kill(folders, pids)
        if _remove(folders) or until.left() <= 0:
            break
        time.sleep(PAUSE_S)
    left = (process.identify(pid) for pid in cgroup_paths.read_pids(group))
    _remove(cgroup_paths.users_folders(group))
    return tuple(one for one in left if one is not None)


def _kill(folders: tuple[tuple[str, str], ...], pids: tuple[int, ...]) -> None:
    """Send SIGKILL to all processes in the group, in a way that none of them can start another one meanwhile."""
    if any(_tried(f"{folder}/cgroup.kill", "1") for controller, folder in folders if controller == ""):
        return  # since Linux 5.14
    freezers = [
        (f"{folder}/freezer.state", "FROZEN", "THAWED") if controller else (f"{folder}/cgroup.freeze", "1", "0")
        for controller, folder in folders
        if controller in ("", "freezer")
    ]
    for file, stop, _ in freezers:
        _tried(file, stop)
    if freezers:
        _wait_frozen(folders, Deadline.after(FREEZE_S))
    for pid in {*pids, *(pid for _, folder in folders for pid in cgroup_paths.read_pids_in(folder))}:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for file, _, go_on in freezers:
        _tried(file, go_on)


def _wait_frozen(folders: tuple[tuple[str, str], ...], until: Deadline) -> None:
    while until.left() > 0:
        states = [_read(f"{folder}/freezer.state") for controller, folder in folders if controller == "freezer"]
        events = [_read(f"{folder}/cgroup.events") for controller, folder in folders if controller == ""]
        if all("FROZEN" in state for state in states) and all("frozen 1" in event for event in events):
            return
        time.sleep(PAUSE_S)


def _make_folder(folder: str, group: DaemonGroup, deadline: Deadline) -> None:
    """Make the group's folder. Try again if another hook removes the user's folder at the same time."""
    user = os.path.dirname(folder)  # noqa: PTH120
    ours = os.path.dirname(user)  # noqa: PTH120
    while True:
        try:
            for one in (ours, user):
                try:
                    os.mkdir(one, 0o755)  # noqa: PTH102
                except FileExistsError:
                    pass
                _enable(os.path.dirname(one), one, group)  # noqa: PTH120
            _enable(user, folder, group)
            os.mkdir(folder, 0o755)  # noqa: PTH102
            return
        except FileExistsError:
            return
        except FileNotFoundError:
            if deadline.left() <= 0:
                raise
            time.sleep(PAUSE_S)


def _enable(above: str, folder: str, group: DaemonGroup) -> None:
    """Enable, in v2, the group's controllers for the folders in `above`. If that fails, writing the limit fails."""
    if not os.access(f"{above}/cgroup.subtree_control", os.W_OK):
        return
    on = _read(f"{above}/cgroup.subtree_control").split()
    for controller in rules.needed_controllers(group):
        if controller not in on:
            _tried(f"{above}/cgroup.subtree_control", f"+{controller}")


def _remove(folders: tuple[tuple[str, str], ...]) -> bool:
    """Remove the folders; return whether all are gone. A folder with a dying process cannot be removed yet."""
    gone = True
    for _, folder in folders:
        try:
            os.rmdir(folder)  # noqa: PTH106
        except FileNotFoundError:
            pass
        except OSError:
            gone = False
    return gone


def _tried(file: str, value: str) -> bool:
    try:
        cgroup_paths.write(file, value)
    except OSError:
        return False
    return True


def _read(file: str) -> str:
    try:
        with open(file, encoding="ascii") as stream:
            return stream.read(4096)
    except OSError:
        return ""
