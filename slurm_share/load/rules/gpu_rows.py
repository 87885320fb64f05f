"""Make the rows of GPUs: the GPU itself, the slots of the shares on it, its processes. Values in, values out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Literal

from msgspec import Struct

from ...mps.records import MPS_NAME
from ..snapshot import GpuLoad, HeldGpu, JobLoad, OnGpu, ProcessLoad, Snapshot
from .figures import percent, tasks_on
from .node_rows import NodeRow


class GpuRow(Struct, frozen=True, dict=True):
    """A GPU or a MIG instance; or a node whose GPUs are not known."""

    node: NodeRow
    gpu: GpuLoad | None = None

    @property
    def key(self) -> str:
        """Return a key that is unique among a survey's rows."""
        return f"{self.node.name}/{'' if self.gpu is None else self.gpu.uuid}"

    @property
    def name(self) -> str:
        """Return the name that llload prints: 0, or 0 1g.10gb for a MIG instance."""
        if self.gpu is None:
            return ""
        return str(self.gpu.index) + (f" {self.gpu.name.rpartition(' ')[2]}" if self.gpu.mig_of else "")

    @cached_property
    def tasks(self) -> tuple[ProcessLoad, ...]:
        """Return the programs on it, without those of MPS."""
        snapshot = self.node.node.snapshot
        return () if self.gpu is None or snapshot is None else tasks_on(snapshot, self.gpu)

    @property
    def knows_tasks(self) -> bool:
        """Return whether the processes on it are known: False if the driver does not list them, or if it has some and
        the source keeps none."""
        snapshot = self.node.node.snapshot
        if self.gpu is None or snapshot is None:
            return False
        return bool(self.tasks) or self.gpu.clients == 0 or (self.gpu.clients is not None and snapshot.knows_processes)

    @cached_property
    def task_count(self) -> int | None:
        """Return the number of programs on it, without those of MPS. None: not known."""
        if self.knows_tasks:
            return len(self.tasks)
        if self.gpu is None or self.gpu.clients is None or self.gpu.mps_servers is None:
            return None
        return max(0, self.gpu.clients - self.gpu.mps_servers)

    @cached_property
    def users(self) -> tuple[str, ...] | None:
        """Return the users with a task on it. None: not known."""
        snapshot = self.node.node.snapshot
        if self.knows_tasks or snapshot is None or self.gpu is None or not self.task_count:
            return tuple(sorted({one.user for one in self.tasks})) if self.task_count is not None else None
        return tuple(sorted(one.user for one in snapshot.users if self.gpu.uuid in one.gpus)) or None

    @cached_property
    def jobs(self) -> tuple[int, ...] | None:
        """Return Slurm's numbers of the jobs with a task on it. None: not known."""
        snapshot = self.node.node.snapshot
        if self.knows_tasks or snapshot is None or self.gpu is None or not self.task_count:
            numbers = {one.job for one in self.tasks if one.job is not None}
            return tuple(sorted(numbers)) if self.task_count is not None else None
        if "jobs" in snapshot.unknown:
            return None
        return tuple(sorted(one.job for one in snapshot.jobs if self.gpu.uuid in one.gpus))

    @property
    def holders(self) -> tuple[HeldGpu, ...]:
        """Return the running jobs that hold it, with or without a process on it."""
        return tuple(
            one for one in self.node.node.held_gpus or () if self.gpu is not None and one.uuid == self.gpu.uuid
        )

    def is_of(self, users: Collection[str], jobs: Collection[int]) -> bool:
        """Return whether one of these jobs of these users has a task on it or holds it; empty: all jobs, all users."""
        pairs: set[tuple[str, int | None]] = {(one.user, one.job) for one in self.tasks}
        pairs |= {(one.user, one.job) for one in self.holders}
        snapshot = self.node.node.snapshot
        if snapshot is not None and self.gpu is not None and not self.knows_tasks:
            pairs |= {(one.user, one.job) for one in snapshot.jobs if self.gpu.uuid in one.gpus}
            pairs |= {(one.user, None) for one in snapshot.users if self.gpu.uuid in one.gpus}
        return any((not users or user in users) and (not jobs or job in jobs) for user, job in pairs)

    @property
    def memory_percent(self) -> float | None:
        """Return the percentage of GPU memory in use."""
        return None if self.gpu is None else percent(self.gpu.memory_used_mib, self.gpu.memory_total_mib)

    @property
    def codes(self) -> tuple[str, ...]:
        """Return the codes about this GPU; for a silent node, the node's."""
        if self.gpu is None:
            return self.node.codes
        return tuple(dict.fromkeys(flag.code for flag in self.node.flags if flag.uuid == self.gpu.uuid))


def gpu_rows(nodes: Iterable[NodeRow], users: Collection[str] = (), jobs: Collection[int] = ()) -> list[GpuRow]:
    """Return a row for each GPU, and for each node whose GPUs are not known. `users`, `jobs`: only GPUs that one of
    these holds or has a process on."""
    return [row for node in nodes for row in _gpus_of(node) if not (users or jobs) or row.is_of(users, jobs)]


def _gpus_of(node: NodeRow) -> Iterator[GpuRow]:
    snapshot = node.node.snapshot
    if snapshot is not None and snapshot.gpus:
        for gpu in snapshot.gpus:
            yield GpuRow(node, gpu)
    elif node.figures.gpus != 0:
        yield GpuRow(node)


class ProcessRow(Struct, frozen=True):
    """One process on one of its GPUs."""

    node: NodeRow
    process: ProcessLoad
    on: OnGpu | None = None
    """Its use of the GPU; None: it is on no GPU that is shown."""
    gpu: GpuLoad | None = None

    @property
    def key(self) -> str:
        """Return a key that is unique among a survey's rows."""
        uuid = "" if self.on is None else self.on.uuid
        return f"{self.node.name}/{uuid}/{self.process.pid}:{self.process.start_ticks}"

    @property
    def of_cap(self) -> float | None:
        """Return its memory in percent of its cap; without a cap, of the GPU's memory. None: not known, or its cap is
        not known."""
        return None if self.on is None else percent(self.on.memory_mib, self.most_mib)

    @property
    def most_mib(self) -> int | None:
        """Return the limit of its GPU memory: its cap; without a cap, the GPU's memory. None: not known."""
        if self.process.cap_mib or self.gpu is None or self.is_cap_unknown:
            return self.process.cap_mib or None
        return self.gpu.memory_total_mib

    @property
    def is_cap_unknown(self) -> bool:
        """Return whether it may have a cap that only its user may read. Programs of MPS have none."""
        return "cap_mib" in self.process.unknown and not self.process.name.startswith(MPS_NAME)


def process_rows(node: NodeRow, processes: Sequence[ProcessLoad] | None = None) -> list[ProcessRow]:
    """Return a row for each process and each of its GPUs, as in llload --processes; `processes`: only these."""
    snapshot = node.node.snapshot
    if snapshot is None:
        return []
    gpus = {gpu.uuid: gpu for gpu in snapshot.gpus}
    return [
        ProcessRow(node, one, on, None if on is None else gpus.get(on.uuid))
        for one in (snapshot.processes if processes is None else processes)
        for on in one.gpus or (None,)
    ]


# --- Slots ------------------------------------------------------------------------------------------------------------


class SlotRow(Struct, frozen=True):
    """A row below a GPU: a slot of a share with its process, or a process without a slot; or the GPU itself."""

    on: GpuRow
    kind: Literal["gpu", "slot", "process"]
    number: int | None = None
    """Number of the slot among those of its job on the node."""
    job: JobLoad | None = None
    """The job of the slot or the process; None: no job."""
    process: ProcessRow | None = None
    """The process; None: the slot is free, unless `is_unknown`."""
    is_unknown: bool = False
    """True: whether a process is in the slot is not known."""

    @property
    def key(self) -> str:
        """Return a key that is unique among a survey's rows."""
        if self.process is not None:
            return self.process.key
        return self.on.key if self.kind == "gpu" else f"{self.on.key}/{self.job and self.job.job}/slot{self.number}"

    @property
    def is_mps(self) -> bool:
        """Return whether it is a process of MPS itself."""
        return self.process is not None and self.process.process.name.startswith(MPS_NAME)

    @property
    def cap_mib(self) -> int | None:
        """Return the memory cap of its process; None: no cap, or not known."""
        return None if self.process is None else self.process.process.cap_mib


def slot_rows(row: GpuRow, *, with_gpu: bool = False) -> list[SlotRow]:
    """Return the rows of a GPU: the slots of each job in order, then processes without a slot, those of MPS last.
    `with_gpu`: a row for the GPU itself first."""
    found = [SlotRow(row, "gpu")] if with_gpu else []
    snapshot, gpu = row.node.node.snapshot, row.gpu
    if snapshot is None or gpu is None:
        return found
    jobs = {job.job: job for job in snapshot.jobs}
    here: list[SlotRow] = []
    taken: set[tuple[int, int]] = set()
    unplaced: Counter[int] = Counter()
    """Job -> its processes here whose slots are not known, because only their user can read them."""
    for one in snapshot.processes:
        for on in one.gpus:
            if on.uuid != gpu.uuid:
                continue
            process = ProcessRow(row.node, one, on, gpu)
            job = None if one.job is None else jobs.get(one.job)
            here.append(SlotRow(row, "process" if one.slot is None else "slot", one.slot, job, process))
            if one.slot is not None and one.job is not None:
                taken.add((one.job, one.slot))
            elif one.job is not None and "slot" in one.unknown and not one.name.startswith(MPS_NAME):
                unplaced[one.job] += 1
    for job in snapshot.jobs:
        left = [number for number in slots_of(snapshot, job, gpu) if (job.job, number) not in taken]
        is_unknown = not row.knows_tasks or unplaced[job.job] > 0
        if not (unplaced[job.job] and len(left) <= unplaced[job.job]):  # else all of them are taken
            here += [SlotRow(row, "slot", number, job, is_unknown=is_unknown) for number in left]
    return found + sorted(here, key=_in_order)


def _in_order(row: SlotRow) -> tuple[bool, bool, int, int, int]:
    process = None if row.process is None else row.process.process
    job = process.job if process is not None else None if row.job is None else row.job.job
    return (row.is_mps, row.number is None, job or 0, row.number or 0, 0 if process is None else process.pid)


def slots_of(snapshot: Snapshot, job: JobLoad, gpu: GpuLoad) -> tuple[int, ...]:
    """Return the slots of a job that are on this GPU. Slot i is on GPU i mod G of the job's GPUs, whose order the node
    does not report. It follows from the processes in slots, and from the GPUs' order if the job has all of them or only
    one. Else the GPU of a free slot is not known."""
    if not job.slots:
        return ()
    count = job.slots // job.share if job.share and job.slots % job.share == 0 else len(job.gpus)
    if not count:
        return ()
    seen: dict[int, str] = {}
    for one in snapshot.processes:
        if one.job != job.job or one.slot is None or not one.gpus:
            continue
        if seen.setdefault(one.slot % count, one.gpus[0].uuid) != one.gpus[0].uuid:
            return ()  # the slots were distributed in another way
    if len(set(seen.values())) < len(seen):
        return ()
    its_gpus = job.granted or job.gpus
    if count == len(its_gpus) == 1:
        seen.setdefault(0, its_gpus[0])
    whole = [each.uuid for each in sorted(snapshot.whole_gpus, key=lambda each: each.index)]
    if len(whole) == count and all(whole[turn] == uuid for turn, uuid in seen.items()):
        seen = dict(enumerate(whole))
    turn = next((turn for turn, uuid in seen.items() if uuid == gpu.uuid), None)
    return () if turn is None else tuple(range(turn, job.slots, count))


def process_slots(node: NodeRow) -> list[SlotRow]:
    """Return a row for each process and each of its GPUs, as in llload --processes."""
    return [SlotRow(GpuRow(node, row.gpu), "process", row.process.slot, process=row) for row in process_rows(node)]
