"""Find limits that this node cannot enforce on users' MPS daemons. Changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

from ...core import cgroup_paths
from ...core.user_process import CAP_WAKE_ALARM
from ...mps import device_guard
from ...mps.rules import cgroups
from .records import Unseen

WHAT = {
    "memory": "host memory is not limited",
    "pids": "the number of processes is not limited",
    "devices": "any GPU may be opened",
    "freezer": "processes cannot be stopped before they are killed",
}


def read_unheld(slurmd: int | None, root: Path = Path("/")) -> tuple[str, ...] | Unseen:
    """Return a short description of each limit that cannot be enforced.

    slurmd: its pid; the hooks that start daemons have its rights.
    """
    if os.geteuid() != 0:
        return Unseen("whether limits hold is for root to see")
    mount = str(root / "sys/fs/cgroup")
    trees = [controller for controller, _ in cgroup_paths.trees(mount)]
    if not trees:
        found = ["there are no cgroups that can be written: no limit holds"]
    elif trees == [""]:
        on = cgroup_paths.read_controllers(mount)
        found = [
            f"{WHAT[name]} (the controller {name} is not in {mount})" for name in ("memory", "pids") if name not in on
        ]
        found += [] if (why := _why_no_guard()) is None else [f"{WHAT['devices']} (bpf: {why})"]
    else:
        missing = [name for name in cgroup_paths.CONTROLLERS if name not in trees]
        found = [f"{WHAT[name]} (the controller {name} is not in {mount})" for name in missing]
    if slurmd is not None and not _may_grant(slurmd, root):
        found.append("users can trace their daemons (slurmd may not use CAP_WAKE_ALARM)")
    return tuple(found)


def _why_no_guard() -> str | None:
    """Return why the kernel takes no device program; None: it does. A program is loaded and discarded, without a
    cgroup."""
    try:
        os.close(device_guard.load(cgroups.device_program(0)))
    except OSError as error:
        return error.strerror
    return None


def _may_grant(slurmd: int, root: Path) -> bool:
    # psutil does not report capabilities.
    try:
        lines = (root / f"proc/{slurmd}/status").read_text(errors="replace").splitlines()
    except OSError:
        return True  # it has just ended
    bounds = next((line.split()[1] for line in lines if line.startswith("CapBnd:")), None)
    return bounds is None or bool(int(bounds, 16) >> CAP_WAKE_ALARM & 1)
