"""Read the kernel's side of a node's load: CPUs, memory, processes on GPUs, and jobs.

A node is read every few seconds. So the facts of a process that do not change are read once, and the other files are
read directly: psutil takes 3.5 times as long for the same figures of a process (tests/bench/sampler_cost.py).
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from msgspec.structs import replace

from ..core import names, numbers
from ..core.paths import Paths
from ..core.process import is_gone
from ..core.records import MOST, JobStart, SharingMethod
from ..node import cgroups, topology
from ..node.cgroups import slurp
from ..node.gpu_figures import GpuBooking
from ..node.processes import read_user_name
from ..node.progress_figures import LevelRate, RunProgress, TaskProgress
from ..node.readings import HostNow, ProcessNow
from ..node.step_trees import MIB, PAGE, TICKS, UID, Step, StepTrees, find_step, jobs_of, read_stat, with_parents
from ..packing import read_bookings
from ..triples import ENV_RANK, ENV_TASK, read_rates
from .rules.sums import NO_MAPS

if TYPE_CHECKING:
    from ..packing import LevelRun, NodeRates, TaskRate

ReadRates = Callable[[Path, frozenset[int]], "dict[int, tuple[NodeRates, ...]]"]
STALE_S = 60.0
"""Age from which a file is ignored. A launcher writes every few seconds, unless it hangs or is stopped."""
MOST_TASKS, MOST_LEVELS = 1024, 32
"""Limits for one launcher, above the tasks that it starts on a node and the numbers of tasks that it tries."""
NO_PROGRESS = "finished"
"""Source of rates if no task shows progress: finished tasks are counted."""
_NAME_MOST = 64
_TASK, _LEVELS = 10**9, 10**6


class RunRates:
    """The progress that launchers report at one sample."""

    def __init__(self, runs: Iterable[RunProgress], leaders: dict[tuple[int, int], TaskProgress]) -> None:
        self.runs = tuple(runs)
        self._leaders = leaders
        """By (uid, pid of the session's leader)."""
        self._uids = {uid for uid, _ in leaders}

    def of_process(self, pid: int, uid: int, proc: str) -> TaskProgress | None:
        """Return the progress of the task to which a process belongs: the one whose session the process, or a parent of
        it, is in. None: there is none."""
        if uid not in self._uids:
            return None
        for one, fields in with_parents(pid, proc):
            found = self._leaders.get((uid, int(fields[3]))) or self._leaders.get((uid, one))
            if found is not None:
                return found
        return None


def read_run_rates(read: ReadRates, tmp: Path, uids: frozenset[int], now_s: float) -> RunRates:
    """Return the progress that these users' launchers report, if their files may be read. `now_s`: Unix time."""
    runs: list[RunProgress] = []
    leaders: dict[tuple[int, int], TaskProgress] = {}
    for uid, of_user in sorted(read(tmp, uids).items()):
        for rates in of_user:
            if not abs(now_s - rates.unix_s) <= STALE_S:
                continue
            tasks = {one.pid: task for one in islice(rates.tasks, MOST_TASKS) if (task := _task(one, rates.run))}
            leaders |= {(uid, pid): task for pid, task in tasks.items()}
            runs.append(
                RunProgress(
                    uid=uid,
                    job=JobStart.parse(rates.job).number,
                    source=rates.source or NO_PROGRESS,
                    tasks=tuple(tasks.values()),
                    finished_per_h=_figure(rates.finished_per_h),
                    levels=tuple(level for one in rates.levels[:MOST_LEVELS] if (level := _level(one))),
                )
            )
    return RunRates(runs, leaders)


def _task(one: TaskRate, run: str) -> TaskProgress | None:
    if not (0 <= one.task <= _TASK and 1 < one.pid <= _TASK):
        return None
    rate = one.rate
    per_s = None if rate is None else _figure(rate.per_s)
    return TaskProgress(
        task=one.task,
        run=run[:_NAME_MOST],
        family=_short(one.family),
        rate_per_s=per_s,
        rate_error_per_s=None if rate is None or per_s is None else _figure(rate.error_per_s),
        rate_windows=0 if rate is None or per_s is None else max(0, min(_LEVELS, rate.windows)),
        rate_source="" if rate is None or per_s is None else rate.source,
        speed_ratio=_figure(one.speed_ratio),
        units=_figure(one.units),
        is_paused=one.is_paused,
    )


def _short(family: str) -> str:
    """Return a name of at most _NAME_MOST characters for tasks of the same command; a long one becomes its hash."""
    if len(family) <= _NAME_MOST:
        return family
    return hashlib.sha256(family.encode("utf-8", "surrogatepass")).hexdigest()[:_NAME_MOST]


def _level(one: LevelRun) -> LevelRate | None:
    per_s, spread = _figure(one.per_s), _figure(one.spread_per_s)
    if per_s is None or spread is None or not 0 < one.level <= _LEVELS or not 0 <= one.windows <= _LEVELS:
        return None
    return LevelRate(level=one.level, per_s=per_s, spread_per_s=spread, windows=one.windows, sharing=one.sharing)


def _figure(value: float | None) -> float | None:
    """Return the value if a snapshot can hold it, else None."""
    return None if value is None or not math.isfinite(value) or not 0 <= value <= MOST else float(value)


_CAP = re.compile(r"[0-9]{1,3}=([0-9]{1,15})([KMG])?[Bb]?(?:,|$)")
_ENVIRON_BYTES = 1 << 20
_PATHS = Paths()
_JAX_IN_ADVANCE, _JAX_ALLOCATOR = "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_ALLOCATOR"
_WANTED = frozenset(
    (
        *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"),
        *(names.ENV_SLOT, names.ENV_SLOTS, names.ENV_PER_GPU, names.ENV_MPS_MEMORY, ENV_RANK, ENV_TASK),
        *(
            names.ENV_CONNECTIONS,
            names.ENV_GIVEN,
            _JAX_IN_ADVANCE,
            _JAX_ALLOCATOR,
            names.ENV_TF_GROWTH,
            names.ENV_SHARING,
        ),
    )
)
_STEPS = {"4294967291": "batch", "4294967290": "interactive", "4294967292": "extern"}
"""Values of SLURM_STEP_ID for special steps (slurm.h)."""
_LAUNCHER = b"\0slurm_share.cli.main\0launch\0"
_NO_ENVIRONMENT = "only its user and root can read its environment"


class NodeReader:
    """A reader of this node's kernel files, for repeated use."""

    def __init__(
        self,
        node: str,
        proc: Path = Path("/proc"),
        cgroup_root: Path = cgroups.ROOT,
        sysfs: Path = Path("/sys"),
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        tmp: Path = Path("/tmp"),
        rates: ReadRates | None = None,
        paths: Paths = _PATHS,
    ) -> None:
        """`tmp`: where users' launchers have their folders, besides those of `paths`; `rates`: read_rates if None."""
        self._proc = str(proc)
        self._sysfs = sysfs
        self._clock = clock
        self._wall_clock = wall_clock
        self._tmp = tmp
        self._given = paths.launchers_of
        self._rates: ReadRates = rates or partial(read_rates, given=self._given)
        self._root = cgroup_root
        self._groups = cgroups.JobGroups(node, proc, cgroup_root)
        self._known: dict[int, ProcessNow] = {}
        """The processes as they were first read; their facts hold until they execute another program."""
        self._users: dict[int, str] = {}
        self._cpus: tuple[bytes, int, int] | None = None
        self._trees = StepTrees(self._proc)
        self.boot_id = slurp(f"{self._proc}/sys/kernel/random/boot_id").decode("ascii", "replace").strip()

    def read(self, pids: Iterable[int], gpus: Sequence[str] = ()) -> HostNow:
        """Return the state of the node: its jobs, the visible ones of these processes, what their users have booked on
        the GPUs (UUIDs), and the progress that these users' launchers report."""
        at, taken = self._clock(), self._wall_clock()
        cpus, cores = self._read_cpus()
        busy_s = self._read_busy()
        total, used = self._read_memory()
        load = self._read_load()
        read = (("cpu_cores", "stat", busy_s), ("memory_used_mib", "meminfo", used), ("load", "loadavg", load))
        unknown = {field: f"the kernel's /proc/{file} cannot be parsed" for field, file, one in read if one is None}
        groups = self._groups.read()
        steps: Mapping[str, Step] = {}
        tops: Mapping[int, tuple[Step, int]] = {}
        if groups is None or any(group.cpu_s is None or group.memory_mib is None for group in groups):
            steps, tops = self._trees.read()
        known: dict[int, ProcessNow] = {}
        processes, hidden = [], []
        for pid in pids:
            process = self._read_process(pid, tops, known)
            if process is not None:
                processes.append(process)
            elif _is_hidden(pid, self._proc):
                hidden.append(pid)
        self._known = known
        jobs = jobs_of(groups or (), steps, self._user)
        users = {os.getuid()} | {one.uid for one in processes} | {one.uid for one in jobs}
        rates = read_run_rates(self._rates, self._tmp, frozenset(users), taken)
        return HostNow(
            boot_id=self.boot_id,
            taken=taken,
            at=at,
            cpus=cpus,
            cores=cores,
            load=load,
            busy_s=busy_s,
            memory_total_mib=total,
            memory_used_mib=used,
            processes=self._with_progress(processes, rates),
            hidden=tuple(hidden),
            jobs=jobs,
            bookings=self._read_bookings(users, gpus),
            runs=rates.runs,
            unknown=unknown,
        )

    # ---- the machine ----

    def _read_cpus(self) -> tuple[int, int]:
        """Return (CPUs online, cores); cores are counted again only when the CPUs online change."""
        online = slurp(self._sysfs / "devices/system/cpu/online")
        if self._cpus is None or self._cpus[0] != online:
            cores = topology.read_cores(self._sysfs)
            listed = len(topology.read_cpu_list(self._sysfs / "devices/system/cpu/online"))
            count = listed or sum(map(len, cores)) or os.cpu_count() or 1
            self._cpus = (online, count, len(cores) or count)
        return self._cpus[1], self._cpus[2]

    def _read_busy(self) -> float | None:
        """Return the busy CPU time in seconds, without idle, iowait and steal (proc_stat(5)); user time includes guest
        time."""
        fields = slurp(f"{self._proc}/stat").partition(b"\n")[0].split()
        try:
            user, nice, system, _, _, irq, softirq = map(int, fields[1:8])
        except ValueError:
            return None
        return (user + nice + system + irq + softirq) / TICKS

    def _read_memory(self) -> tuple[int | None, int | None]:
        found = {}
        for line in slurp(f"{self._proc}/meminfo").splitlines()[:5]:
            key, _, value = line.partition(b":")
            found[key] = value.split()[0] if value else b""
        try:
            total, available = int(found[b"MemTotal"]) // 1024, int(found[b"MemAvailable"]) // 1024
        except (KeyError, ValueError):
            return None, None
        return total, total - available

    def _read_load(self) -> tuple[float, float, float] | None:
        try:
            one, five, fifteen = map(float, slurp(f"{self._proc}/loadavg").split()[:3])
        except ValueError:
            return None
        return one, five, fifteen

    def _user(self, uid: int) -> str:
        """Return the user's name, looked up once: a slow user database must not delay every sample."""
        if uid not in self._users:
            if len(self._users) > 4096:
                self._users.clear()
            self._users[uid] = read_user_name(uid)
        return self._users[uid]

    def _read_bookings(self, users: Iterable[int], gpus: Sequence[str]) -> dict[str, list[GpuBooking]]:
        found: dict[str, list[GpuBooking]] = {}
        for uid in sorted(users) if gpus else ():
            for gpu, bookings in read_bookings(self._tmp, uid, gpus, self._given(uid)).items():
                found.setdefault(gpu, []).extend(bookings)
        return found

    def _with_progress(self, processes: Sequence[ProcessNow], rates: RunRates) -> tuple[ProcessNow, ...]:
        if not rates.runs:
            return tuple(processes)
        found = ((one, rates.of_process(one.pid, one.uid, self._proc)) for one in processes)
        return tuple(one if progress is None else replace(one, progress=progress) for one, progress in found)

    # ---- processes on GPUs ----

    def _read_process(
        self, pid: int, tops: Mapping[int, tuple[Step, int]], known: dict[int, ProcessNow]
    ) -> ProcessNow | None:
        folder = f"{self._proc}/{pid}"
        bytes_name, fields = read_stat(folder)
        if len(fields) < 22 or is_gone(fields):
            return None
        name = bytes_name.decode("utf-8", "replace")
        facts = self._known.get(pid)
        if facts is None or facts.start_ticks != int(fields[19]) or facts.name != name:
            facts = self._read_facts(pid, folder, name, fields, tops)
            if facts is None:
                return None
        known[pid] = facts
        statm = slurp(f"{folder}/statm").split()
        resident, shared = (int(statm[1]), int(statm[2])) if len(statm) > 2 else (None, None)
        return replace(
            facts,
            cpu_s=(int(fields[11]) + int(fields[12])) / TICKS,
            memory_mib=None if resident is None else resident * PAGE // MIB,
            own_mib=None if resident is None or shared is None else (resident - shared) * PAGE // MIB,
        )

    def _read_facts(
        self, pid: int, folder: str, name: str, fields: list[bytes], tops: Mapping[int, tuple[Step, int]]
    ) -> ProcessNow | None:
        """Return the facts of a process that do not change: its user, job, step, task, slot and share."""
        match = UID.search(slurp(f"{folder}/status"))
        if match is None:
            return None
        environ = self._read_environ(folder)
        told = environ or {}
        job, step, task, top, is_own_claim = self._place(pid, folder, tops)
        if job is None and (said := _whole(told.get("SLURM_JOB_ID"))) is not None:
            job, is_own_claim = said, True
            number = told.get("SLURM_STEP_ID", "")
            step = _STEPS.get(number, None if _whole(number) is None else number)
        # The launcher of triples mode sets SLURM_PROCID to 0 for each of its tasks.
        run_task = _run_task(told)
        if task is None and step is not None and step == told.get("SLURM_STEP_ID") and run_task is None:
            task = _whole(told.get("SLURM_PROCID"))
        unknown = {}
        if environ is None:
            unknown = dict.fromkeys(("slot", "cap_mib", "connections", "in_advance"), _NO_ENVIRONMENT)
            is_of_run = self._is_launched(int(fields[1]))
            if step is not None and (task is None or is_of_run):
                unknown["task"] = _NO_ENVIRONMENT
        libraries = None if environ is None else in_advance(_read_maps(folder), environ)
        if libraries is None:
            unknown.setdefault("in_advance", NO_MAPS)
        cap_mib = parse_cap(limit := told.get(names.ENV_MPS_MEMORY, ""))
        if cap_mib is None and limit:
            unknown["cap_mib"] = f"its {names.ENV_MPS_MEMORY} cannot be parsed"
        # All tasks of triples mode are in the launcher's cgroup. Their number tells them apart; if it cannot be read,
        # the session that the launcher gives each task.
        if run_task is not None:
            apart = f"l{run_task}"
        elif environ is None:
            apart = f"s{fields[3].decode()}"
        else:
            apart = ""
        task_key = f"{step}/{top if task is None else task}/{apart}"
        return ProcessNow(
            pid=pid,
            cpu_s=0.0,
            start_ticks=int(fields[19]),
            name=name,
            uid=int(match[1]),
            user=self._user(int(match[1])),
            job=job,
            is_own_claim=is_own_claim,
            step=step,
            task=None if "task" in unknown else task if run_task is None else run_task,
            task_key=task_key,
            slot=_whole(told.get(names.ENV_SLOT)),
            slots=_whole(told.get(names.ENV_SLOTS)),
            share=_whole(told.get(names.ENV_PER_GPU)),
            sharing=next((word for word in get_args(SharingMethod) if word == told.get(names.ENV_SHARING)), None),
            cap_mib=cap_mib,
            connections=_whole(told.get(names.ENV_CONNECTIONS)),
            in_advance=libraries,
            unknown=unknown,
        )

    def _place(
        self, pid: int, folder: str, tops: Mapping[int, tuple[Step, int]]
    ) -> tuple[int | None, str | None, int | None, str, bool]:
        """Return (job, step, task, key of the task if its number is None, whether only the process itself says so)."""
        place = cgroups.read_place(folder, self._root)
        if place is not None:
            job = place.job
            if job is None:
                job = cgroups.read_job_of_sluid(place, Path(self._proc), self._root)
            if job is not None:
                # Without task/cgroup or jobacct_gather/cgroup, all tasks of a step are in one group (task_special).
                found = find_step(pid, self._proc, tops) if place.task is None else None
                return job, place.step, place.task, "" if found is None else found[2], False
        found = find_step(pid, self._proc, tops)
        return (None, None, None, "", False) if found is None else (found[0], found[1], None, found[2], False)

    def _is_launched(self, pid: int) -> bool:
        """Return whether a process or a parent of it is a launcher of llsub, whose own task is Slurm's."""
        return any(_LAUNCHER in slurp(f"{self._proc}/{one}/cmdline") for one, _ in with_parents(pid, self._proc))

    def _read_environ(self, folder: str) -> dict[str, str] | None:
        """Return the variables of Slurm and slurm-share in its environment; None if it may not be read."""
        try:
            fd = os.open(f"{folder}/environ", os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            return None
        except OSError:
            return {}
        try:
            data = os.read(fd, _ENVIRON_BYTES)
        except OSError:
            return {}
        finally:
            os.close(fd)
        found = {}
        for entry in data.split(b"\0"):
            key, _, value = entry.partition(b"=")
            name = key.decode("ascii", "replace")
            if name == names.ENV_GIVEN:
                value = value.partition(b" ")[0]  # its job
            if name in _WANTED and len(value) < (1024 if name == names.ENV_MPS_MEMORY else 128):  # of 64 GPUs
                found[name] = value.decode("ascii", "replace")
        return found


def _run_task(told: Mapping[str, str]) -> int | None:
    """Return the number of the task of llsub in its run; None: no task of llsub. A job that was submitted by a task
    inherits the task's variables, and their record is of the task's job."""
    job = told.get("SLURM_JOB_ID", "0")
    return _whole(told.get(ENV_TASK)) if told.get(names.ENV_GIVEN, job) == job else None


def in_advance(maps: bytes | None, told: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the libraries of a process that take a GPU's memory at their start; None: not known. `maps`: its mapped
    files (/proc/PID/maps), None: not known. `told`: its variables. Their meaning: JAX's "GPU memory allocation",
    TensorFlow's "Limiting GPU memory growth"."""
    jax, growth = told.get(_JAX_IN_ADVANCE), told.get(names.ENV_TF_GROWTH)
    allocator = told.get(_JAX_ALLOCATOR, "default").lower()
    found = []
    # XLA_PYTHON_CLIENT_MEM_FRACTION and TF_FORCE_GPU_ALLOW_GROWTH show nothing: a share sets both for any program.
    is_jax = jax is not None or allocator != "default" or (maps is not None and any(one in maps for one in _OF_JAX))
    if is_jax and (jax or "true").lower() not in ("false", "0") and allocator not in ("platform", "cuda_async"):
        found.append("JAX")
    if maps is not None and _OF_TENSORFLOW in maps and (growth or "").lower() not in ("true", "1"):
        found.append("TensorFlow")
    return tuple(found) if found or maps is not None or is_jax else None


_OF_JAX, _OF_TENSORFLOW = (b"/jaxlib/", b"xla_cuda_plugin"), b"libtensorflow"
"""Parts of the paths of libraries. JAX's plugin for CUDA is jax_plugins/xla_cuda12/xla_cuda_plugin.so."""
_MAPS_BYTES = 8 << 20


def _read_maps(folder: str) -> bytes | None:
    """Return the names of the mapped files of a process; None: they may not be read. It is read once per process."""
    try:
        with open(f"{folder}/maps", "rb") as file:
            return file.read(_MAPS_BYTES)
    except OSError:
        return None


def parse_cap(text: str) -> int | None:
    """Return the cap of the first device in CUDA_MPS_PINNED_DEVICE_MEM_LIMIT (`0=8192M`) in MiB; None: no cap. A plain
    number is bytes (docs.nvidia.com/deploy/mps, "Environment Variables"). None also for another form."""
    match = _CAP.match(text.strip())
    if match is None:
        return None
    scale = {"K": 1024, "M": MIB, "G": 1024 * MIB}.get(match[2] or "", 1)
    return int(match[1]) * scale // MIB or None


def _is_hidden(pid: int, proc: str) -> bool:
    """Return whether a process exists but its folder is hidden (hidepid), by sending it signal 0."""
    state = read_stat(f"{proc}/{pid}")[1][:1]
    if state or proc != "/proc" or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _whole(text: str | None) -> int | None:
    return numbers.whole(text, 999_999_999)
