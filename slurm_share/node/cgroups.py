"""Jobs by their cgroups: whose a process is, and what each job of this node uses.

Slurm's paths, in cgroup v2 and v1 (Slurm's cgroup_v2 page, and src/plugins/cgroup of its source):

    /system.slice/slurmstepd.scope/job_4711/step_0/user/task_2             slurmd alone on its host
    /system.slice/n1_slurmstepd.scope/sD2NM7WG72QG00/step_batch/user/...   several slurmd; a SLUID in the job's place
    /slurm/uid_2001/job_4711/step_0/task_2                                 v1; /slurm_n1 with several slurmd

From 26.05 a v2 path has the job's SLUID, `s` and 13 characters, unless cgroup.conf says CgroupJobIdPaths=yes. On the
node the title of the step's slurmstepd has the job's number. The task is numbered over all nodes of its step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from ..core.patterns import pattern

ROOT = Path("/sys/fs/cgroup")
_MIB = 1024 * 1024
_V2 = pattern(
    r"/(?:[^/]+_)?slurmstepd\.scope/(?:job_([0-9]{1,10})|(s[0-9A-Z]{13}))(?=/|$)(?:/step_([^/]+))?"
    r"(?:/(?:user|slurm)(?:/task_([^/]+))?)?"
)
_V1 = pattern(r"/slurm(?:_[^/]+)?/uid_([0-9]{1,10})/job_([0-9]{1,10})(?=/|$)(?:/step_([^/]+))?(?:/task_([^/]+))?")
_OF_A_USER = pattern(r"/user\.slice/|/user@[0-9]+\.service/")
"""systemd gives what is below these to the user, who may make folders of any name there."""
_STEPD = pattern(rb"slurmstepd: \[([0-9]{1,10})(?:\.([^\]\0]+))?\]")
_REAL_ROOT = pattern(rb"(?m)^Uid:\t0\t")
_UID = pattern(rb"(?m)^Uid:\t([0-9]+)\t")
_CONTROLLERS = ("memory", "cpuacct", "cpu,cpuacct", "freezer", "devices", "cpuset")


class CgroupPlace(Struct, frozen=True):
    """Where in Slurm's tree a process is."""

    job: int | None
    """None: the path has a SLUID in its place."""
    sluid: str | None = None
    uid: int | None = None
    """The job's user; only v1 has it in the path."""
    step: str | None = None
    """0, 1 ..., batch, interactive, extern."""
    task: int | None = None
    folder: str = ""
    """The job's own, below the mount."""
    tree: str = ""
    """The controllers of v1 whose path this is, as the kernel writes them; empty: v2's."""


class JobGroup(Struct, frozen=True, kw_only=True):
    """What the cgroup of one job says."""

    job: int
    uid: int | None
    cpu_s: float | None = None
    memory_mib: int | None = None
    memory_kills: int | None = None
    unknown: dict[str, str] = {}


def parse(text: bytes, is_made_by_root: Callable[[CgroupPlace], bool] = lambda place: True) -> CgroupPlace | None:
    """Return the job of a process from its /proc/PID/cgroup; None: in none.

    Under v1 the controllers may be at different depths of the tree, and the deepest says most. A path that a user may
    have made says nothing, and below a job's own folder nothing can name another job.
    """
    best: CgroupPlace | None = None
    for line in text.decode("utf-8", "replace").splitlines():
        _, _, rest = line.partition(":")
        tree, _, path = rest.partition(":")
        place = _parse_path(path, tree)
        if place is not None and (best is None or _depth(place) > _depth(best)) and is_made_by_root(place):
            best = place
    return best


def read_place(process: str | Path, root: Path = ROOT) -> CgroupPlace | None:
    """Return the job of a process (its folder in /proc); None: in none.

    A user who was given a cgroup may give the folders in it Slurm's names. Such a folder is the user's; those of Slurm
    are root's, up to the mount. A path that cannot be seen from here is believed: this process may be in a container,
    and the folder of a living process cannot be removed.
    """
    return parse(slurp(f"{process}/cgroup"), lambda place: _is_roots(_mount(root, place.tree), place.folder))


def _mount(root: Path, tree: str) -> str:
    if tree:
        return f"{root}/{tree.removeprefix('name=')}"
    return str(root) if (root / "cgroup.controllers").exists() else f"{root}/unified"


def _is_roots(mount: str, folder: str) -> bool:
    """Return whether none of the folders from the mount down is a user's. Where the mount itself is not root's, as
    in a container without privileges, its owner counts instead."""
    try:
        trusted = {0, os.stat(mount).st_uid}  # noqa: PTH116
        while folder.strip("/"):
            if os.stat(mount + folder).st_uid not in trusted:  # noqa: PTH116
                return False
            folder = folder.rpartition("/")[0]
    except OSError:
        pass
    return True


def _parse_path(path: str, tree: str = "") -> CgroupPlace | None:
    v2, v1 = _V2.search(path), _V1.search(path)
    match = min((one for one in (v2, v1) if one is not None), key=lambda one: one.start(), default=None)
    if match is None or _OF_A_USER.search(path, 0, match.start() + 1):
        return None
    if match is v2:
        job, sluid, step, task = match.groups()
        name = f"job_{job}" if job else sluid
        folder = path[: path.index(f"/{name}", match.start()) + 1 + len(name)]
        return CgroupPlace(int(job) if job else None, sluid, None, step, _number(task), folder, tree)
    uid, job, step, task = match.groups()
    folder = path[: path.index(f"/job_{job}", match.start()) + 5 + len(job)]
    return CgroupPlace(int(job), None, int(uid), step, _number(task), folder, tree)


def _depth(place: CgroupPlace) -> tuple[bool, bool]:
    return place.step is not None, place.task is not None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else None


def read_stepd(process: Path) -> tuple[int, str | None] | None:
    """Return (job, step) from the title of a slurmstepd, `slurmstepd: [4711.batch]`; None: it is none.

    Anybody may give his process such a title; the real uid is root's alone, and stays so while slurmstepd acts as the
    job's user.
    """
    match = _STEPD.match(slurp(process / "cmdline"))
    if match is None or not _REAL_ROOT.search(slurp(process / "status")):
        return None
    return int(match[1]), None if match[2] is None else match[2].decode("utf-8", "replace")


def read_job_of_sluid(place: CgroupPlace, proc: Path, root: Path = ROOT) -> int | None:
    """Return the number of the job whose cgroup has a SLUID, by the slurmstepd of one of its steps; None: it has
    none now."""
    return _read_number(_mount(root, "") + place.folder, proc)


def _read_number(folder: str, proc: Path) -> int | None:
    for step in _names(folder):
        if step.startswith("step_"):
            # Since 23.02 slurmstepd is in the branch `slurm`, and the tasks are in `user`.
            for branch in (f"{folder}/{step}/slurm", f"{folder}/{step}"):
                for pid in _pids(f"{branch}/cgroup.procs"):
                    found = read_stepd(proc / str(pid))
                    if found is not None:
                        return found[0]
    return None


def _read_owner(folder: str, proc: Path) -> int | None:
    """Return the user of a job in a v2 cgroup: that of its tasks, since the folders themselves are root's.

    0 is an answer for this moment only: a task is here before it becomes its user's. In step_extern root says nothing:
    Slurm's own sleep is there (PrologFlags=Contain).
    """
    seen_root = False
    for step in _names(folder):
        for task in _names(f"{folder}/{step}/user") if step.startswith("step_") else ():
            for pid in _pids(f"{folder}/{step}/user/{task}/cgroup.procs"):
                match = _UID.search(slurp(proc / str(pid) / "status"))
                if match and int(match[1]) != 0:
                    return int(match[1])
                seen_root = seen_root or (match is not None and step != "step_extern")
    return 0 if seen_root else None


class JobGroups:
    """The cgroups of this node's jobs, read again and again; what does not change is looked up once."""

    def __init__(self, node: str, proc: Path = Path("/proc"), root: Path = ROOT) -> None:
        self._node = node
        self._proc = proc
        self._root = root
        self._known: dict[str, tuple[int, int | None]] = {}
        """Job folder of a v2 tree -> (job, uid); the uid None: not known, or root so far."""

    def read(self) -> tuple[JobGroup, ...] | None:
        """Return what each job uses; None: Slurm keeps no job in a cgroup here (proctrack/linuxproc), or has had
        none yet."""
        scope = self._find_v2()
        if scope is not None:
            return self._read_v2(scope)
        trees = self._find_v1()
        return self._read_v1(trees) if trees else None

    # ---- v2 ----

    def _find_v2(self) -> str | None:
        """Find Slurm's scope up to three levels down: `CgroupSlice` is configurable, and a slurmd in a container is
        deeper."""
        mount = str(self._root)
        if not os.path.exists(f"{mount}/cgroup.controllers"):  # noqa: PTH110  (once a round)
            return None
        wanted = (f"{self._node}_slurmstepd.scope", "slurmstepd.scope")
        level = [mount]
        for _ in range(4):
            for name in wanted:
                for folder in level:
                    found = f"{folder}/{name}"
                    if os.path.isdir(found) and _is_roots(mount, found.removeprefix(mount)):  # noqa: PTH112
                        return found
            level = [
                f"{folder}/{name}"
                for folder in level
                for name in _names(folder)
                if name.endswith((".slice", ".scope", ".service")) and not name.startswith(("user.slice", "user@"))
            ][:256]
        return None

    def _read_v2(self, scope: str) -> tuple[JobGroup, ...]:
        found, known = [], {}
        for name in _names(scope):
            place = _parse_path(f"/slurmstepd.scope/{name}")
            if place is None:
                continue
            folder = f"{scope}/{name}"
            job, uid = self._known.get(folder, (place.job, None))
            if job is None:
                job = _read_number(folder, self._proc)
            if job is None:
                continue  # between two steps of a job that was never seen in one
            if uid is None:
                uid = _read_owner(folder, self._proc)
            known[folder] = (job, uid or None)
            found.append(self._group_v2(folder, job, uid))
        self._known = known
        return tuple(found)

    def _group_v2(self, folder: str, job: int, uid: int | None) -> JobGroup:
        unknown = {}
        usage = _keyed(f"{folder}/cpu.stat").get(b"usage_usec")
        if usage is None:
            unknown["cpu_cores"] = "the job's cgroup counts no CPU time"
        memory = _keyed(f"{folder}/memory.stat")
        used = None
        if b"anon" in memory:
            swap = slurp(f"{folder}/memory.swap.current").strip()
            used = memory[b"anon"] + memory.get(b"shmem", 0) + (int(swap) if swap.isdigit() else 0)
        else:
            unknown["memory_mib"] = "the job's cgroup counts no memory"
        kills = _keyed(f"{folder}/memory.events").get(b"oom_kill")
        if kills is None:
            unknown["memory_kills"] = "the job's cgroup counts no memory"
        return JobGroup(
            job=job,
            uid=uid,
            cpu_s=None if usage is None else usage / 1e6,
            memory_mib=None if used is None else used // _MIB,
            memory_kills=kills,
            unknown=unknown,
        )

    # ---- v1 ----

    def _find_v1(self) -> dict[str, str]:
        """Return controller -> Slurm's folder below it."""
        found = {}
        for controller in _CONTROLLERS:
            for name in (f"slurm_{self._node}", "slurm"):
                folder = f"{self._root}/{controller}/{name}"
                if os.path.isdir(folder):  # noqa: PTH112
                    found[controller] = folder
                    break
        return found

    def _read_v1(self, trees: dict[str, str]) -> tuple[JobGroup, ...]:
        jobs: dict[tuple[int, int], None] = {}
        for tree in trees.values():
            for user in _names(tree):
                for name in _names(f"{tree}/{user}") if user.startswith("uid_") else ():
                    place = _parse_path(f"/slurm/{user}/{name}")
                    if place is not None and place.job is not None and place.uid is not None:
                        jobs[place.job, place.uid] = None
        return tuple(self._group_v1(trees, job, uid) for job, uid in jobs)

    def _group_v1(self, trees: dict[str, str], job: int, uid: int) -> JobGroup:
        unknown, below = {}, f"uid_{uid}/job_{job}"
        usage = b""
        if (cpu := trees.get("cpuacct") or trees.get("cpu,cpuacct")) is not None:
            usage = slurp(f"{cpu}/{below}/cpuacct.usage").strip()
        if not usage.isdigit():
            unknown["cpu_cores"] = "the job's cgroup counts no CPU time"
        used = kills = None
        if (memory := trees.get("memory")) is not None:
            stat = _keyed(f"{memory}/{below}/memory.stat")
            if b"total_rss" in stat:
                used = stat[b"total_rss"] + stat.get(b"total_shmem", 0) + stat.get(b"total_swap", 0)
            kills = _kills_v1(f"{memory}/{below}")
        if used is None:
            unknown["memory_mib"] = "the job's cgroup counts no memory"
        if kills is None:
            unknown["memory_kills"] = "the job's cgroup counts no memory"
        return JobGroup(
            job=job,
            uid=uid,
            cpu_s=int(usage) / 1e9 if usage.isdigit() else None,
            memory_mib=None if used is None else used // _MIB,
            memory_kills=kills,
            unknown=unknown,
        )


def _kills_v1(folder: str) -> int | None:
    """Add up the kills of all groups of a job: v1 counts a kill in the group of the process and not in those above
    it; the groups of a step go when it ends."""
    own = _keyed(f"{folder}/memory.oom_control").get(b"oom_kill")
    if own is None:
        return None
    return own + sum(
        _kills_v1(f"{folder}/{name}") or 0 for name in _names(folder) if name.startswith(("step_", "task_"))
    )


def _keyed(file: str) -> dict[bytes, int]:
    found = {}
    for line in slurp(file).splitlines():
        key, _, value = line.partition(b" ")
        if value.isdigit():
            found[key] = int(value)
    return found


def _pids(file: str) -> Iterator[int]:
    for number in slurp(file).split():
        if number.isdigit():
            yield int(number)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  (a Path for each is what this loop would cost)
    except OSError:
        return []


def slurp(file: str | Path, most: int = 1 << 16) -> bytes:
    """Return the content of a small file of the kernel's; empty where it is gone or may not be read.

    One read: these files are made in one piece, and half the cost of Python's open() is its buffer.
    """
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, most)
    except OSError:
        return b""  # ended between open and read
    finally:
        os.close(fd)
