"""The kernel's side of a node's load: cores, memory, the processes that are on GPUs, and the jobs.

Read every few seconds, so what does not change is read once for each process, and the files that do are read directly:
psutil takes six times as long for the same figures.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ..core import names
from ..core.process import is_gone
from ..node import cgroups, topology
from ..node.cgroups import slurp
from ..node.gpu_figures import GpuBooking
from ..node.processes import read_user_name
from ..node.readings import BookingNow, HostNow, ProcessNow
from ..node.step_trees import (
    MIB,
    PAGE,
    TICKS,
    UID,
    Step,
    StepTrees,
    find_step,
    jobs_of,
    read_stat,
)
from ..packing import read_bookings
from ..triples import ENV_RANK, ENV_TASK, read_rates
from .run_rates import ReadRates, RunRates, read_run_rates

_CAP = re.compile(r"[0-9]{1,3}=([0-9]{1,15})([KMG])?[Bb]?(?:,|$)")
_ENVIRON_BYTES = 1 << 20
_WANTED = frozenset(
    (
        *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"),
        *(names.ENV_SLOT, names.ENV_SLOTS, names.ENV_PER_GPU, names.ENV_MPS_MEMORY, ENV_RANK, ENV_TASK),
        names.ENV_CONNECTIONS,
    )
)
_STEPS = {"4294967291": "batch", "4294967290": "interactive", "4294967292": "extern"}
"""What SLURM_STEP_ID would be in them (slurm.h); they do not set it, or set these."""
_NO_ENVIRONMENT = "its environment is for its user and root to read"


class _Known(Struct):
    """Facts about a process that hold until it executes another program."""

    start_ticks: int
    name: bytes
    uid: int
    user: str
    job: int | None
    is_own_claim: bool
    step: str | None
    task: int | None
    task_key: str
    slot: int | None
    slots: int | None
    share: int | None
    cap_mib: int | None
    connections: int | None
    unknown: dict[str, str]


class NodeReader:
    """Read one node's kernel repeatedly."""

    def __init__(
        self,
        node: str,
        proc: Path = Path("/proc"),
        cgroup_root: Path = cgroups.ROOT,
        sysfs: Path = Path("/sys"),
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        tmp: Path = Path("/tmp"),
        rates: ReadRates = read_rates,
    ) -> None:
        self._proc = str(proc)
        self._sysfs = sysfs
        self._clock = clock
        self._wall_clock = wall_clock
        self._tmp = tmp
        self._rates = rates
        self._root = cgroup_root
        self._groups = cgroups.JobGroups(node, proc, cgroup_root)
        self._known: dict[int, _Known] = {}
        self._users: dict[int, str] = {}
        self._cpus: tuple[bytes, int, int] | None = None
        self._trees = StepTrees(self._proc)
        self.boot_id = slurp(f"{self._proc}/sys/kernel/random/boot_id").decode("ascii", "replace").strip()

    def read(self, pids: Iterable[int], gpus: Sequence[str] = ()) -> HostNow:
        """Return the node, its jobs, those of the processes that exist and may be seen, what their users have booked of
        the GPUs (UUIDs), and what these users' launchers say of their tasks."""
        at, taken, unknown = self._clock(), self._wall_clock(), {}
        cpus, cores = self._read_cpus()
        busy_s = self._read_busy()
        total, used = self._read_memory()
        load = self._read_load()
        if busy_s is None:
            unknown["cpu_cores"] = "the kernel's /proc/stat was not understood"
        if used is None:
            unknown["memory_used_mib"] = "the kernel's /proc/meminfo was not understood"
        if load is None:
            unknown["load"] = "the kernel's /proc/loadavg was not understood"
        groups = self._groups.read()
        steps: Mapping[str, Step] = {}
        tops: Mapping[int, tuple[Step, int]] = {}
        if groups is None or any(group.cpu_s is None or group.memory_mib is None for group in groups):
            steps, tops = self._trees.read()
        known: dict[int, _Known] = {}
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
            bookings=tuple(one for uid in sorted(users) for one in self._read_bookings(uid, gpus)),
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
        """Return the busy CPU time in seconds, without idle, iowait and steal; user time includes guests (proc(5))."""
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
        """Return the user's name. Each user is looked up once: a slow user database must not delay every sample."""
        if uid not in self._users:
            if len(self._users) > 4096:
                self._users.clear()
            self._users[uid] = read_user_name(uid)
        return self._users[uid]

    def _read_bookings(self, uid: int, gpus: Sequence[str]) -> Iterator[BookingNow]:
        if not gpus:
            return
        for gpu, bookings in read_bookings(self._tmp, uid, gpus, self._lives).items():
            for one in bookings:
                booking = GpuBooking(
                    uid=uid,
                    job=one.job_number,
                    booked_mib=one.booked_mib,
                    tasks=one.tasks,
                    clients=one.clients,
                    held_for=one.held_for,
                    held_since=one.held_since,
                )
                yield BookingNow(gpu, booking)

    def _with_progress(self, processes: Sequence[ProcessNow], rates: RunRates) -> tuple[ProcessNow, ...]:
        if not rates.runs:
            return tuple(processes)
        found = ((one, rates.of_process(one.pid, one.uid, self._proc)) for one in processes)
        return tuple(one if progress is None else replace(one, progress=progress) for one, progress in found)

    def _lives(self, pid: int, start_ticks: int, uid: int) -> bool:
        """Return whether that process of that user lives. The folder of one that may not be dumped is root's."""
        folder = f"{self._proc}/{pid}"
        fields = read_stat(folder)[1]
        if len(fields) < 22 or is_gone(fields) or int(fields[19]) != start_ticks:
            return False
        try:
            return Path(folder).stat().st_uid in (uid, 0)
        except OSError:
            return False

    # ---- processes on GPUs ----

    def _read_process(
        self, pid: int, tops: Mapping[int, tuple[Step, int]], known: dict[int, _Known]
    ) -> ProcessNow | None:
        folder = f"{self._proc}/{pid}"
        name, fields = read_stat(folder)
        if len(fields) < 22 or is_gone(fields):
            return None
        start_ticks = int(fields[19])
        facts = self._known.get(pid)
        if facts is None or facts.start_ticks != start_ticks or facts.name != name:
            facts = self._find_out(pid, folder, name, fields, tops)
            if facts is None:
                return None
        known[pid] = facts
        statm = slurp(f"{folder}/statm").split()
        resident, shared = (int(statm[1]), int(statm[2])) if len(statm) > 2 else (None, None)
        return ProcessNow(
            pid=pid,
            start_ticks=start_ticks,
            name=name.decode("utf-8", "replace"),
            uid=facts.uid,
            user=facts.user,
            cpu_s=(int(fields[11]) + int(fields[12])) / TICKS,
            memory_mib=None if resident is None else resident * PAGE // MIB,
            own_mib=None if resident is None or shared is None else (resident - shared) * PAGE // MIB,
            job=facts.job,
            is_own_claim=facts.is_own_claim,
            step=facts.step,
            task=facts.task,
            task_key=facts.task_key,
            slot=facts.slot,
            slots=facts.slots,
            share=facts.share,
            cap_mib=facts.cap_mib,
            connections=facts.connections,
            unknown=facts.unknown,
        )

    def _find_out(
        self, pid: int, folder: str, name: bytes, fields: list[bytes], tops: Mapping[int, tuple[Step, int]]
    ) -> _Known | None:
        match = UID.search(slurp(f"{folder}/status"))
        if match is None:
            return None
        environ = self._read_environ(folder)
        told = environ or {}
        job, step, task, top, is_own_claim = self._place(pid, folder, tops)
        if job is None and (said := _whole(told.get("SLURM_JOB_ID"))) is not None:
            job, is_own_claim = said, True
            step = _STEPS.get(told.get("SLURM_STEP_ID", ""), _decimal(told.get("SLURM_STEP_ID")))
        # The launcher of triples mode tells each of its tasks that it is alone, and so number 0.
        if task is None and step is not None and step == told.get("SLURM_STEP_ID") and ENV_TASK not in told:
            task = _whole(told.get("SLURM_PROCID"))
        unknown = {}
        if environ is None:
            unknown = dict.fromkeys(("slot", "cap_mib"), _NO_ENVIRONMENT)
        cap_mib = parse_cap(limit := told.get(names.ENV_MPS_MEMORY, ""))
        if cap_mib is None and limit:
            unknown["cap_mib"] = f"its {names.ENV_MPS_MEMORY} is not understood"
        # Tasks of triples mode are all in the launcher's cgroup. Each has a number; where that cannot be read they are
        # told apart by the sessions that the launcher gives them.
        if ENV_TASK in told:
            apart = f"l{told[ENV_TASK]}"
        elif environ is None:
            apart = f"s{fields[3].decode()}"
        else:
            apart = ""
        task_key = f"{step}/{top if task is None else task}/{apart}"
        return _Known(
            start_ticks=int(fields[19]),
            name=name,
            uid=int(match[1]),
            user=self._user(int(match[1])),
            job=job,
            is_own_claim=is_own_claim,
            step=step,
            task=task,
            task_key=task_key,
            slot=_whole(told.get(names.ENV_SLOT)),
            slots=_whole(told.get(names.ENV_SLOTS)),
            share=_whole(told.get(names.ENV_PER_GPU)),
            cap_mib=cap_mib,
            connections=_whole(told.get(names.ENV_CONNECTIONS)),
            unknown=unknown,
        )

    def _place(
        self, pid: int, folder: str, tops: Mapping[int, tuple[Step, int]]
    ) -> tuple[int | None, str | None, int | None, str, bool]:
        """(job, step, task, what stands for the task where that is None, whether it is only the process's own word)."""
        place = cgroups.read_place(folder, self._root)
        if place is not None:
            job = place.job
            if job is None:
                job = cgroups.read_job_of_sluid(place, Path(self._proc), self._root)
            if job is not None:
                # Without task/cgroup or jobacct_gather/cgroup all tasks of a step are in one group (task_special).
                found = find_step(pid, self._proc, tops) if place.task is None else None
                return job, place.step, place.task, "" if found is None else found[2], False
        found = find_step(pid, self._proc, tops)
        return (None, None, None, "", False) if found is None else (found[0], found[1], None, found[2], False)

    def _read_environ(self, folder: str) -> dict[str, str] | None:
        """Return the variables of Slurm and slurm-share in its environment; None: no permission."""
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
            if name in _WANTED and len(value) < (1024 if name == names.ENV_MPS_MEMORY else 128):  # of 64 GPUs
                found[name] = value.decode("ascii", "replace")
        return found


def parse_cap(text: str) -> int | None:
    """Return MiB of the first device in CUDA_MPS_PINNED_DEVICE_MEM_LIMIT (`0=8192M`); None: no cap, or another form.

    A plain number is bytes (docs.nvidia.com/deploy/mps, "Environment Variables").
    """
    match = _CAP.match(text.strip())
    if match is None:
        return None
    scale = {"K": 1024, "M": MIB, "G": 1024 * MIB}.get(match[2] or "", 1)
    return int(match[1]) * scale // MIB or None


def _is_hidden(pid: int, proc: str) -> bool:
    """Return whether a process exists although its folder is hidden (hidepid), by sending it signal 0."""
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


def _decimal(text: str | None) -> str | None:
    return None if _whole(text) is None else text


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 10 else None
