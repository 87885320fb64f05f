"""SIMULATED MPS, which namespace a cgroup belongs to (protocol 3, from driver 620 on).

The manual of release 620 says: a client of the daemon's own socket `control` gets a namespace by its cgroup or its
user; one that connects to a namespace's socket gets that one. Keys of a namespace: `cgroup`, a folder below
/sys/fs/cgroup, and `cgroup_depth`. The manual's words about the second are not known to us: here it is how many levels
below the folder belong to it, too.

With SIMMPS_ROUTING=everywhere (simmps_common.py) the driver itself knows the routes, and a client goes to the namespace
of its cgroup whatever its environment says. A daemon then writes its routes into `routes/` of the state folder, in
files named by its PID and start time.
"""

# ruff: noqa: PTH118, PTH208  (see nvidia-cuda-mps-control)
from __future__ import annotations

import os

CGROUP_ROOT = "/sys/fs/cgroup"


def cgroups_of(pid: int | str) -> list[str]:
    """Return the folders of a process's cgroups: of v2, and those of v1, which a real driver may not look at."""
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        below = controllers.removeprefix("name=")
        folders += [f"{CGROUP_ROOT}/{below}{path}"] if below else [CGROUP_ROOT + path, f"{CGROUP_ROOT}/unified{path}"]
    return [folder.rstrip("/") for folder in folders]


def distance(cgroup: str, depth: int, folders: list[str]) -> int | None:
    """Return how many levels a process is below a namespace's cgroup; None: it does not belong to it."""
    found = []
    for folder in folders:
        if folder == cgroup or folder.startswith(f"{cgroup}/"):
            levels = folder[len(cgroup) :].count("/")
            if levels <= depth:
                found.append(levels)
    return min(found, default=None)


def write_routes(state: str, name: str, routes: list[tuple[str, int, str]]) -> None:
    """Write a daemon's routes: cgroup, depth, pipe directory of the daemon. Without the folder there are none."""
    path = f"{state}/routes/{name}"
    try:
        with open(f"{path}~", "w") as file:
            file.write("".join(f"{depth} {pipe} {cgroup}\n" for cgroup, depth, pipe in routes))
        os.rename(f"{path}~", path)  # noqa: PTH104
    except OSError:
        pass


def route_of_this_process(state: str) -> str | None:
    """Return the pipe directory of the daemon that has a namespace for this process's cgroup; None: there is none."""
    try:
        names = [name for name in os.listdir(f"{state}/routes") if not name.endswith("~")]
    except OSError:
        return None
    folders = cgroups_of("self") if names else []
    found: list[tuple[int, str]] = []
    for name in names:
        pid, _, start = name.partition(".")
        if start_of(pid) != start:
            continue
        try:
            with open(os.path.join(state, "routes", name)) as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        for line in lines:
            depth, pipe, cgroup = line.split(" ", 2)
            levels = distance(cgroup, int(depth), folders)
            if levels is not None:
                found.append((levels, pipe))
    return min(found)[1] if found else None


def start_of(pid: int | str) -> str:
    """Return a process's start time as /proc has it; empty: it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""
