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
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ..core import names, numbers
from ..core.patterns import pattern

ROOT = Path("/sys/fs/cgroup")
_MIB = 1024 * 1024
_V2 = pattern(
    r"/(?:[^/]+_)?slurmstepd\.scope/(?:job_([0-9]{1,10})|(s[0-9A-Z]{13}))(?=/|$)(?:/step_([^/]+))?"
    r"(?:/(?:user|slurm)(?:/task_([^/]+))?)?"
)
_V1 = pattern(r"/slurm(?:_[^/]+)?/uid_([0-9]{1,10})/job_([0-9]{1,10})(?=/|$)(?:/step_([^/]+))?(?:/task_([^/]+))?")
_OF_A_USER = pattern(r"/user\.slice/|/user@[0-9]+\.service/")
"""systemd lets the user make folders of any name below these."""
_STEPD = pattern(rb"slurmstepd: \[([0-9]{1,10})(?:\.([^\]\0]+))?\]")
_SOME = pattern(rb"some .* total=([0-9]{1,18})")
_REAL_ROOT = pattern(rb"(?m)^Uid:\t0\t")
_UID = pattern(rb"(?m)^Uid:\t([0-9]+)\t")
_SAMPLES = "\0{}\0".format("\0".join(names.SAMPLE_WORDS)).encode()
LLLOAD_MOST_MIB = 512
"""Most host memory of one job that counts as llload's: anybody can name a program so, and a sampler takes 60 MB."""
_LLLOAD_MOST_KILLS = 1
"""Most kills in one step that count as llload's: a sampler is one process."""
_CONTROLLERS = ("memory", "cpuacct", "cpu,cpuacct", "freezer", "devices", "cpuset")


class CgroupPlace(Struct, frozen=True):
    """Place of a process in Slurm's cgroup tree."""

    job: int | None
    """None: the path has a SLUID instead of a job id."""
    sluid: str | None = None
    uid: int | None = None
    """User of the job; only in paths of v1."""
    step: str | None = None
    """0, 1 ..., batch, interactive or extern."""
    task: int | None = None
    folder: str = ""
    """Folder of the job, relative to the mount."""
    tree: str = ""
    """Controllers of v1 whose path this is, as the kernel writes them; empty for v2."""


NO_PRESSURE_V1 = "this node's cgroups are of version 1, which counts no waiting; version 2 does"
NO_PRESSURE = "the node's kernel counts no waiting (PSI): boot it with psi=1"
NO_LIMIT = "Slurm limits no memory of jobs here (ConstrainRAMSpace in cgroup.conf)"
NO_GROUP = "Slurm keeps no job in a cgroup on this node"


class GroupUse(Struct, frozen=True, kw_only=True):
    """Figures of a job's cgroup for its record of use, and what tells one start of the job from the next."""

    start: str = ""
    """The job's SLUID, or the inode of its folder if that stays as long as the job runs. Empty: not known."""
    cpus: int | None = None
    """CPUs that it may use; None: not limited."""
    cpu_wait_s: float | None = None
    """Time in which some of its processes waited for a CPU, since the group was made (PSI)."""
    io_wait_s: float | None = None
    """The same for storage."""
    memory_limit_mib: int | None = None
    unknown: dict[str, str] = {}


class JobGroup(Struct, frozen=True, kw_only=True):
    """Resource use of one job by its cgroup."""

    job: int
    uid: int | None
    cpu_s: float | None = None
    memory_mib: int | None = None
    """Without that of llload's steps."""
    memory_kills: int | None = None
    """Without those in llload's steps."""
    llload_s: dict[str, float] = {}
    """Step of llload -> its part of `cpu_s`."""
    use: GroupUse = GroupUse()
    unknown: dict[str, str] = {}


def parse(text: bytes, is_made_by_root: Callable[[CgroupPlace], bool] = lambda place: True) -> CgroupPlace | None:
    """Return the job of a process from its /proc/PID/cgroup; None: it is in no job.

    In v1 the controllers may be at different depths of the tree; the deepest is used. Paths that a user may have made
    are ignored, and nothing below a job's own folder can name another job.
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
    """Return the job of a process (its folder in /proc); None: it is in no job.

    A user who was given a cgroup can make folders in it with Slurm's names, but owns them; Slurm's own are root's, up
    to the mount. A path that cannot be seen from here is trusted: this process may be in a container, and the folder of
    a living process cannot be removed.
    """
    return parse(slurp(f"{process}/cgroup"), lambda place: _is_roots(_mount(root, place.tree), place.folder))


def _mount(root: Path, tree: str) -> str:
    if tree:
        return f"{root}/{tree.removeprefix('name=')}"
    return str(root) if (root / "cgroup.controllers").exists() else f"{root}/unified"


def _is_roots(mount: str, folder: str) -> bool:
    """Return whether no folder from the mount down belongs to a user. If the mount itself is not root's, as in an
    unprivileged container, its owner takes root's place."""
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
    if "\0" in path or "\0" in tree:
        return None  # it is not the kernel's
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
    return numbers.whole(text, numbers.UINT32_MOST)


def read_stepd(process: Path) -> tuple[int, str | None] | None:
    """Return (job, step) from the title of a slurmstepd, `slurmstepd: [4711.batch]`; None: it is none.

    Any process can have such a title. Only root's processes have the real uid 0, and slurmstepd keeps it while it acts
    as the job's user.
    """
    match = _STEPD.match(slurp(process / "cmdline"))
    if match is None or not is_started_by_root(process):
        return None
    return int(match[1]), None if match[2] is None else match[2].decode("utf-8", "replace")


def is_started_by_root(process: Path) -> bool:
    """Return whether root started the process (its folder in /proc): its real uid is 0, and its program is none by
    which users get that uid, such as sudo, which takes it before it asks for a password.

    The path of the program is not compared: slurmd can have another slurmstepd (`slurmd -d`), and an upgrade replaces
    the file. The caller needs root's rights to see the program; without them the real uid alone counts.
    """
    return _REAL_ROOT.search(slurp(process / "status")) is not None and not _gives_rights(f"{process}/exe")


def _gives_rights(program: str) -> bool:
    """Return whether a program file gives its user further rights: it is set-uid, or has capabilities."""
    try:
        if os.stat(program).st_mode & stat.S_ISUID:  # noqa: PTH116
            return True
        return bool(os.getxattr(program, "security.capability"))
    except OSError:
        return False


def is_sampler(process: Path | str) -> bool | None:
    """Return whether a process (its folder in /proc), the first one of a task, is the sampler that llload starts; None:
    it has not executed its program yet, or has ended."""
    words = slurp(f"{process}/cmdline")
    return None if not words or words.startswith(b"slurmstepd") else _SAMPLES in words


def read_job_of_sluid(place: CgroupPlace, proc: Path, root: Path = ROOT) -> int | None:
    """Return the job id of a cgroup with a SLUID, from the slurmstepd of one of its steps; None: no step runs now."""
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
    """Return the user of a job in a v2 cgroup: the user of its tasks, since root owns the folders.

    0 is valid for this moment only: a task runs as root until it changes to its user. In step_extern root is ignored:
    Slurm's own sleep runs there (PrologFlags=Contain).
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


def find_scope(node: str, root: Path = ROOT) -> str | None:
    """Return the folder of Slurm's jobs in cgroup v2; None: there is none, or no slurmd has run since the boot.

    It is up to three levels down: `CgroupSlice` is configurable, and slurmd in a container is deeper.
    """
    mount = str(root)
    if not os.path.exists(f"{mount}/cgroup.controllers"):  # noqa: PTH110  (once a round)
        return None
    wanted = (f"{node}_slurmstepd.scope", "slurmstepd.scope")
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


class JobGroups:
    """Read the cgroups of this node's jobs repeatedly. Facts that do not change are looked up once."""

    def __init__(self, node: str, proc: Path = Path("/proc"), root: Path = ROOT) -> None:
        self._node = node
        self._proc = proc
        self._root = root
        self._known: dict[str, tuple[int, int | None]] = {}
        """Folder of a job in v2 -> (job, uid); uid None: unknown, or root so far."""
        self._steps: dict[tuple[str, int], bool] = {}
        """(folder of a step, its inode) -> whether the step is llload's."""
        self._kills: dict[str, dict[str, int]] = {}
        """Folder of a job in v2 -> step of llload -> processes that the kernel ended there, also after its end."""
        self._cpus: dict[str, int | None] = {}
        """Folder of a job in v2 -> its CPUs."""

    def read(self) -> tuple[JobGroup, ...] | None:
        """Return the use of each job; None: Slurm keeps no jobs in cgroups here (proctrack/linuxproc), or none has run
        yet."""
        before, self._steps = self._steps, {}
        scope = find_scope(self._node, self._root)
        if scope is not None:
            return self._read_v2(scope, before)
        trees = self._find_v1()
        return self._read_v1(trees, before) if trees else None

    def _llload_steps(self, job: str, branch: str, before: dict[tuple[str, int], bool]) -> list[str]:
        """Return the folders of a job's steps that are llload's. `branch`: the folder of the tasks in a step's."""
        found = []
        for name in _names(job):
            if not name.startswith("step_") or numbers.whole(name[5:]) is None:
                continue
            step = f"{job}/{name}"
            try:
                key = step, os.stat(step).st_ino  # noqa: PTH116
            except OSError:
                continue
            is_llload = before[key] if key in before else self._is_llload(f"{step}{branch}")
            if is_llload is not None:
                self._steps[key] = is_llload
            if is_llload:
                found.append(step)
        return found

    def _is_llload(self, folder: str) -> bool | None:
        """Return whether the only task below this folder is a sampler; None: it cannot be told yet."""
        # In v2 slurmstepd makes an empty task_special beside every step's tasks (cgroup_v2.c, cgroup_p_step_addto).
        tasks = [name for name in _names(folder) if name.startswith("task_") and name != "task_special"]
        if len(tasks) > 1:
            return False
        for group in (folder, *(f"{folder}/{name}" for name in tasks)):
            for pid in _pids(f"{group}/cgroup.procs"):
                found = is_sampler(self._proc / str(pid))
                if found is not None:
                    return found
        return None

    # ---- v2 ----

    def _read_v2(self, scope: str, before: dict[tuple[str, int], bool]) -> tuple[JobGroup, ...]:
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
            group = self._group_v2(folder, job, uid, self._llload_steps(folder, "/user", before))
            found.append(replace(group, use=self._use_v2(folder, place.sluid)))
        self._known = known
        self._cpus = {folder: cpus for folder, cpus in self._cpus.items() if folder in known}
        self._kills = {folder: kills for folder, kills in self._kills.items() if folder in known}
        return tuple(found)

    def _use_v2(self, folder: str, sluid: str | None) -> GroupUse:
        if folder not in self._cpus:
            self._cpus[folder] = _cpus_v2(folder)
        cpu_wait, io_wait = (_waited_s(f"{folder}/{what}.pressure") for what in ("cpu", "io"))
        unknown = {
            name: NO_PRESSURE for name, value in (("cpu_wait_s", cpu_wait), ("io_wait_s", io_wait)) if value is None
        }
        limit = slurp(f"{folder}/memory.max").strip()
        if not limit.isdigit():
            unknown["memory_limit_mib"] = NO_LIMIT
        return GroupUse(
            start=sluid or _lasting_inode(folder),
            cpus=self._cpus[folder],
            cpu_wait_s=cpu_wait,
            io_wait_s=io_wait,
            memory_limit_mib=int(limit) // _MIB if limit.isdigit() else None,
            unknown=unknown,
        )

    def _group_v2(self, folder: str, job: int, uid: int | None, llload: list[str]) -> JobGroup:
        cpu_s, used, kills = _use_v2(folder)
        llload_s, llload_used = {}, 0
        for step in llload:
            its_cpu_s, its_used, its_kills = _use_v2(step)
            llload_s[step] = its_cpu_s or 0.0
            llload_used += its_used or 0
            if its_kills:
                self._kills.setdefault(folder, {})[step] = min(its_kills, _LLLOAD_MOST_KILLS)
        if kills is not None:
            kills = max(0, kills - sum(self._kills.get(folder, {}).values()))
        return _job_group(job, uid, cpu_s, used, kills, llload_s, llload_used)

    # ---- v1 ----

    def _find_v1(self) -> dict[str, str]:
        """Return Slurm's folder by controller."""
        found = {}
        for controller in _CONTROLLERS:
            for name in (f"slurm_{self._node}", "slurm"):
                folder = f"{self._root}/{controller}/{name}"
                if os.path.isdir(folder):  # noqa: PTH112
                    found[controller] = folder
                    break
        return found

    def _read_v1(self, trees: dict[str, str], before: dict[tuple[str, int], bool]) -> tuple[JobGroup, ...]:
        jobs: dict[tuple[int, int], None] = {}
        for tree in trees.values():
            for user in _names(tree):
                for name in _names(f"{tree}/{user}") if user.startswith("uid_") else ():
                    place = _parse_path(f"/slurm/{user}/{name}")
                    if place is not None and place.job is not None and place.uid is not None:
                        jobs[place.job, place.uid] = None
        # The first tree in which there are steps; they have the same names in all.
        folder = next(iter(trees.values()))
        found = []
        for job, uid in jobs:
            steps = self._llload_steps(f"{folder}/uid_{uid}/job_{job}", "", before)
            group = self._group_v1(trees, job, uid, [step.rpartition("/")[2] for step in steps])
            found.append(replace(group, use=_use_v1(trees, f"uid_{uid}/job_{job}")))
        return tuple(found)

    def _group_v1(self, trees: dict[str, str], job: int, uid: int, llload: list[str]) -> JobGroup:
        cpu_s = used = kills = None
        below, llload_s, llload_used = f"uid_{uid}/job_{job}", {}, 0
        if (cpu := trees.get("cpuacct") or trees.get("cpu,cpuacct")) is not None:
            cpu_s = _cpu_v1(f"{cpu}/{below}")
            llload_s = {step: _cpu_v1(f"{cpu}/{below}/{step}") or 0.0 for step in llload}
        if (memory := trees.get("memory")) is not None:
            used = _memory_v1(f"{memory}/{below}")
            llload_used = sum(_memory_v1(f"{memory}/{below}/{step}") or 0 for step in llload)
            kills = _kills_v1(f"{memory}/{below}", llload)
        return _job_group(job, uid, cpu_s, used, kills, llload_s, llload_used)


def _use_v2(folder: str) -> tuple[float | None, int | None, int | None]:
    """Return CPU time in seconds, bytes of memory, and out-of-memory kills of a group and all below it."""
    usage = keyed(f"{folder}/cpu.stat").get(b"usage_usec")
    memory = keyed(f"{folder}/memory.stat")
    used = None
    if b"anon" in memory:
        swap = slurp(f"{folder}/memory.swap.current").strip()
        used = memory[b"anon"] + memory.get(b"shmem", 0) + (int(swap) if swap.isdigit() else 0)
    kills = keyed(f"{folder}/memory.events").get(b"oom_kill")
    return None if usage is None else usage / 1e6, used, kills


def _cpus_v2(folder: str) -> int | None:
    """Return the number of CPUs of a group whose CPUs are limited; None: they are not."""
    if not slurp(f"{folder}/cpuset.cpus").strip():
        return None
    parts = slurp(f"{folder}/cpuset.cpus.effective").decode("ascii", "replace").strip().split(",")
    ends = [part.partition("-") for part in parts if part.replace("-", "").isdigit()]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends) or None


def _waited_s(file: str) -> float | None:
    """Return the seconds of the line `some` of a file with pressure; None: the kernel counts none."""
    match = _SOME.match(slurp(file))
    return None if match is None else int(match[1]) / 1e6


def _lasting_inode(folder: str) -> str:
    """Return the inode of a job's folder, if the folder stays from the start of the job to its end here: it has the
    batch step, or the extern step (PrologFlags=Contain). Else empty: between two steps there is no folder."""
    try:
        if {"step_batch", "step_extern"}.isdisjoint(os.listdir(folder)):  # noqa: PTH208
            return ""
        return str(os.stat(folder).st_ino)  # noqa: PTH116
    except OSError:
        return ""


def _use_v1(trees: dict[str, str], below: str) -> GroupUse:
    unknown = {"cpu_wait_s": NO_PRESSURE_V1, "io_wait_s": NO_PRESSURE_V1}
    limit = slurp(f"{trees['memory']}/{below}/memory.limit_in_bytes").strip() if "memory" in trees else b""
    # without a limit it is the largest number of pages
    limit_mib = int(limit) // _MIB if limit.isdigit() and int(limit) < 1 << 60 else None
    if limit_mib is None:
        unknown["memory_limit_mib"] = NO_LIMIT
    return GroupUse(
        start=_lasting_inode(f"{next(iter(trees.values()))}/{below}"), memory_limit_mib=limit_mib, unknown=unknown
    )


def _cpu_v1(folder: str) -> float | None:
    usage = slurp(f"{folder}/cpuacct.usage").strip()
    return int(usage) / 1e9 if usage.isdigit() else None


def _memory_v1(folder: str) -> int | None:
    stat = keyed(f"{folder}/memory.stat")
    return (
        stat[b"total_rss"] + stat.get(b"total_shmem", 0) + stat.get(b"total_swap", 0) if b"total_rss" in stat else None
    )


def _job_group(
    job: int,
    uid: int | None,
    cpu_s: float | None,
    used: int | None,
    kills: int | None,
    llload_s: dict[str, float],
    llload_used: int,
) -> JobGroup:
    """Return the record, with the reasons for unknown figures. used, llload_used: bytes of memory."""
    unknown = {} if cpu_s is not None else {"cpu_cores": "the job's cgroup counts no CPU time"}
    for figure, value in (("memory_mib", used), ("memory_kills", kills)):
        if value is None:
            unknown[figure] = "the job's cgroup counts no memory"
    memory_mib = None if used is None else max(0, used - min(llload_used, LLLOAD_MOST_MIB * _MIB)) // _MIB
    return JobGroup(
        job=job, uid=uid, cpu_s=cpu_s, memory_mib=memory_mib, memory_kills=kills, llload_s=llload_s, unknown=unknown
    )


def _kills_v1(folder: str, llload: Iterable[str] = ()) -> int | None:
    """Return the sum of the out-of-memory kills of all groups of a job, without those of samplers in these steps.

    v1 counts a kill only in the group of the process, not in its parents. The groups of a step disappear when it ends.
    """
    own = keyed(f"{folder}/memory.oom_control").get(b"oom_kill")
    if own is None:
        return None
    return own + sum(
        max(0, (_kills_v1(f"{folder}/{name}") or 0) - (_LLLOAD_MOST_KILLS if name in llload else 0))
        for name in _names(folder)
        if name.startswith(("step_", "task_"))
    )


def keyed(file: str | Path) -> dict[bytes, int]:
    """Return the numbers of a kernel file with a key and a number on each line."""
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
    """Return the content of a small kernel file; empty if it is gone or unreadable.

    Read in one call: the kernel makes these files in one piece, and the buffer of Python's open() takes half the time.
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
