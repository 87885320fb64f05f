"""Prepare a node for its processes: ranks, cores, GPUs, and the variables of their tasks."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ...core import names
from ...core.errors import DriverError, StateError
from ...core.live import LiveFolder
from ...core.paths import Paths
from ...core.records import JobStart
from ...core.settings import Settings
from ...core.text import fold
from ...node import topology
from ...node.gpus import binding
from ...node.records import Core, Driver, Gpu
from ...share import Leases, Plan, Slot, limits, registry
from ...slurm.node_name import read_node_name
from ...spmd import key_folder
from ...spmd.errors import SpmdError
from .. import run_folder
from ..records import ENV_JOB_TASKS, Ended, ProcessPlace, Run, Worker
from ..rules import triple
from . import slot_assignment
from .slot_assignment import BackendGpus, LauncherJob, SlotAssignment

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from ...packing import Bookings, Budget, GpuFacts


class Node(Struct, frozen=True, kw_only=True):
    """One node's part of a run, with the resources that are held until `release`."""

    name: str
    index: int
    """Number of the node in the run, 0 to `count` - 1."""
    count: int
    job: str
    """As in records.Ended."""
    first_rank: int
    last_rank: int
    folder: Path
    """The node's folder below the run's folder: logs, results, progress."""
    workers: tuple[Worker, ...]
    """In the order of their ranks."""
    notes: tuple[str, ...] = ()
    own: BackendGpus | None = None
    """Resources prepared for this launcher only; None: there is a plan of the Prolog, or nothing was prepared."""
    leases: Leases | None = None
    """Leases of slots of the Prolog's plan."""
    plan: Plan | None = None
    """The plan of the workers' GPUs; None: no GPUs."""
    budgets: Mapping[int, Budget] = {}
    """GPU position -> its budget, for GPUs with memory caps."""
    cores: int = 1
    """Number of cores that the launcher may use."""
    gpu_slots: tuple[Slot, ...] = ()
    """In a packed run: one slot of each GPU, by position, the template for the slot of each start."""
    gpu_facts: tuple[GpuFacts, ...] = ()
    """In a packed run: the same GPUs, by position."""
    partitions: Mapping[str, tuple[Slot, ...]] = {}
    """In a packed run: GPU (UUID) -> slots with a static partition, one for each task on it at once."""
    bookings: Bookings | None = None
    """In a packed run: memory booked by all launchers of the user; None: other launchers are not considered."""
    live: LiveFolder | None = None
    """None: it could not be made, so there are no bookings, rates and progress files."""
    progress_folder: str = ""
    """Folder with one progress file per worker, named by the worker's number on the node; empty: none."""
    estimate_history: str = ""
    """The site's folder of measured sizes, from its settings."""
    rendezvous: str = ""
    """LLSUB_RENDEZVOUS: the socket of this node's rendezvous process; empty: the run has no ranks."""
    address: str = ""
    """LLSUB_ADDRESS: where ranks of this node listen for other nodes; empty: there is one node."""
    ports: str = ""
    """LLSUB_PORTS: the ports on which they listen; empty: any."""
    rendezvous_folder: Path | None = None
    """Folder with the key of ranks on several nodes; None: no key is needed."""
    limits_socket: str = ""
    """Socket of the job's keeper of memory limits, which each task asks before its program starts; empty: the driver
    limits no memory."""


def prepare(run: Run, folder: Path, environ: Mapping[str, str], paths: Paths, settings: Settings) -> Node:
    """Return this node with its workers; slots are leased, or GPUs prepared, until `release`.

    `folder`: the run's folder, in which nothing is created. Raises LaunchError if the node cannot run the processes,
    StateError if a plan or its slots cannot be used. Nothing is held after an error.
    """
    here = _read_here(environ)
    first, processes = _ranks(run, here, environ)
    last = first + processes - 1
    cores = topology.read_machine(os.sched_getaffinity(0))
    found = _read_slot_assignment(run, here, processes, environ, paths, settings)
    workers = tuple(_worker(first, place, found) for place in _places(run, processes, cores, found))
    # Root's goes with the user's last shared job, so the launcher of a job that is not shared does not use it.
    given = paths.launchers_of(os.getuid()) if found.leases is not None or here.job_id is None else None
    node = Node(
        name=here.node,
        index=here.index,
        count=here.count,
        job=here.job,
        first_rank=first,
        last_rank=last,
        folder=run_folder.node_folder(folder, run, first, last, here.node),
        workers=workers,
        notes=(*_sizing_notes(run, here, len(cores)), *found.notes),
        own=found.own,
        leases=found.leases,
        plan=found.plan,
        budgets=_budgets(workers, found, settings),
        cores=len(cores),
        limits_socket=found.limits_socket,
        estimate_history=settings.estimate_history,
        rendezvous_folder=run_folder.key_folder_of(folder, here.job) if run.together and here.count > 1 else None,
    )
    try:
        node = replace(node, live=LiveFolder(paths.tmp, here.job, given))
    except StateError as error:
        node = replace(node, notes=(*node.notes, f"{error}; {no_progress_text(here.node)}"))
    if run.pack is None:
        return node
    from . import pack_gpus  # imported here: other runs start faster without it

    try:
        slots, facts, bookings, notes = pack_gpus.prepare(here, found, node.budgets, paths, settings, node.live)
    except BaseException:
        release(node)
        raise
    partitions = pack_gpus.partition_slots(found)
    notes = [*node.notes, *notes]
    return replace(node, gpu_slots=slots, gpu_facts=facts, bookings=bookings, notes=tuple(notes), partitions=partitions)


def release(node: Node, *, is_told_to_end: bool = False) -> tuple[str, ...]:
    """End the daemons, release slots and bookings, remove the launcher's folder and the key of ranks; return problems.

    May be called twice. `is_told_to_end`: the job ends, and Slurm kills what is left of it soon.
    """
    if node.rendezvous_folder is not None and node.index == 0:  # the node that ends last
        run_folder.remove_key(node.rendezvous_folder)
    if node.bookings is not None:
        node.bookings.close()
    if node.live is not None:
        node.live.close()
    if node.leases is not None:
        node.leases.close()
    return slot_assignment.release(node.own, slot_assignment.LAST_STOP_S if is_told_to_end else slot_assignment.STOP_S)


def no_progress_text(node: str) -> str:
    """Return what follows where the folder of a launcher cannot be used."""
    return (
        f"tasks on {node} have no LLSUB_PROGRESS, so their rates come from their logs only, and your other launchers "
        "there do not know what this one books"
    )


def tell_failed(run: Run, folder: Path, environ: Mapping[str, str], why: str) -> None:
    """Tell the other nodes of a run of ranks that none can be started here, so that they do not wait for them."""
    here = _read_here(environ)
    if not run.together or here.count == 1:
        return
    place = run_folder.key_folder_of(folder, here.job)
    if here.index == 0:
        run_folder.remove_key(place)
        return
    with contextlib.suppress(OSError, SpmdError):  # then they wait until the start limit
        key_folder.write_failure(str(place), here.job, here.index, why)


def blank_result(run: Run, node: Node, worker: Worker) -> Ended:
    """Return a result with the fields that all results of a worker share; the caller adds task, attempt and outcome."""
    return Ended(
        task=0,
        rank=worker.rank,
        attempt=1,
        outcome="unfinished",
        node=node.name,
        job=node.job,
        started=0.0,
        seconds=0.0,
        slot=worker.slot,
        gpu=None if worker.gpu is None else worker.gpu.index,
        gpu_uuid=None if worker.gpu is None else worker.gpu.uuid,
        cpus=fold(worker.place.cpus) if run.bind else "",
    )


def on_gpu(node: Node, result: Ended, place: int) -> Ended:
    """Return a result of a packed run with the GPU at a position among the node's GPUs."""
    gpu = node.gpu_slots[place].gpu
    return replace(result, gpu=gpu.index if gpu.is_listed else None, gpu_uuid=gpu.uuid if gpu.is_listed else None)


# ---- Job and ranks ----


def _read_here(environ: Mapping[str, str]) -> LauncherJob:
    name = read_node_name(environ)
    job_id = _number(environ, "SLURM_JOB_ID")
    if job_id is None:
        return LauncherJob(node=name, index=0, count=1, job=f"local-{os.getpid()}-{time.time_ns():x}")
    return LauncherJob(
        node=name,
        index=_number(environ, "SLURM_NODEID") or 0,
        count=_number(environ, "SLURM_NNODES") or 1,
        job=str(JobStart(job_id, _number(environ, "SLURM_RESTART_COUNT") or 0)),
        job_id=job_id,
        step=_number(environ, "SLURM_STEP_ID") or 0,
    )


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if re.fullmatch("[0-9]{1,10}", text, re.ASCII) else None


def _ranks(run: Run, here: LauncherJob, environ: Mapping[str, str]) -> tuple[int, int]:
    """Return the first rank of this node, and its number of ranks."""
    first, wanted = 0, run.processes
    if run.triple is not None:
        if run.triple.nodes != here.count:
            has = "outside Slurm there is this machine alone" if here.job_id is None else f"the job has {here.count}"
            raise slot_assignment.cannot_run(
                here,
                f"the triple {run.triple} is for {run.triple.nodes} node{'' if run.triple.nodes == 1 else 's'}, and "
                f"{has}; write {replace(run.triple, nodes=here.count)}",
            )
        first, wanted = here.index * run.triple.per_node, run.triple.per_node
    elif here.job_id is not None:
        # In the launcher's own step Slurm's variable says one task a node; launch.sh keeps the job's value.
        task_counts = environ.get(ENV_JOB_TASKS) or environ.get("SLURM_TASKS_PER_NODE", "")
        try:
            first, wanted = triple.ranks_of(task_counts, here.index)
        except ValueError as error:
            raise slot_assignment.cannot_run(
                here, f"Slurm does not say how many tasks the node has: {error}"
            ) from error
    count = min(wanted, run.processes - first)
    if count < 1:
        raise slot_assignment.cannot_run(here, f"the run has {run.processes} processes, all of them on nodes before it")
    return first, count


# ---- GPUs and cores ----


def _read_slot_assignment(
    run: Run, here: LauncherJob, processes: int, environ: Mapping[str, str], paths: Paths, settings: Settings
) -> SlotAssignment:
    driver: Driver | None = None
    why_no_driver = ""
    try:
        driver = binding.read_driver()
    except DriverError as error:
        why_no_driver = str(error)
    plan = slot_assignment.read_plan(paths, here)
    if plan is not None:
        return slot_assignment.lease(run, plan, processes, here, paths, settings)
    visible = environ.get(names.ENV_VISIBLE_DEVICES, None if here.job_id is None else "")
    return slot_assignment.deal(run, visible, driver, processes, why_no_driver, here, paths, settings)


def _places(run: Run, processes: int, cores: Sequence[Core], workers: SlotAssignment) -> list[ProcessPlace]:
    """Return the places of the processes, near the GPUs that the slots give them."""
    threads = None if run.triple is None else run.triple.threads
    places = triple.lay_out(processes, threads, cores, _read_gpu_numa(workers.gpus))
    everywhere = tuple(sorted(cpu for core in cores for cpu in core.cpus))
    return [
        replace(
            place,
            gpu=workers.positions[place.local] if workers.positions else None,
            cpus=place.cpus if run.bind else everywhere,
        )
        for place in places
    ]


def _worker(first: int, place: ProcessPlace, workers: SlotAssignment) -> Worker:
    if not workers.gpus:
        return Worker(first + place.local, place)
    slot = workers.slots[place.local] if workers.slots else None
    gpu_slot = workers.gpu_slots[place.local]
    variables = () if workers.plan is None else registry.slot_environment(workers.plan, gpu_slot)
    return Worker(first + place.local, place, slot, workers.gpus[place.local], gpu_slot, variables)


def _budgets(workers: Sequence[Worker], assigned: SlotAssignment, settings: Settings) -> dict[int, Budget]:
    """Return the memory of each GPU that this launcher may divide: all, or the part of its slots if others share it."""
    from ...packing import Budget  # imported here: runs without GPUs start faster without it

    found = {}
    plan, held = assigned.plan, slot_assignment.held_slots(assigned)
    for gpu in {worker.place.gpu for worker in workers if worker.place.gpu is not None}:
        there = [worker for worker in workers if worker.place.gpu == gpu]
        one = there[0]
        cap_mib = None if one.gpu_slot is None else one.gpu_slot.enforced_cap_mib
        usable_mib = None if one.gpu is None else limits.usable_mib(one.gpu, settings)
        if one.gpu is not None and one.gpu_slot is not None and cap_mib is not None and usable_mib is not None:
            count = held.get(one.gpu.uuid, len(there))
            is_whole = one.slot is None or (plan is not None and plan.share.per_gpu == count)
            least_mib, has_limits = one.gpu_slot.memory_least_mib, one.gpu_slot.is_cap_of_driver
            total_mib = usable_mib if is_whole else min(usable_mib, (least_mib or cap_mib) * count)
            found[gpu] = Budget(cap_mib, total_mib, len(there), is_whole, least_mib, has_limits)
    return found


def _sizing_notes(run: Run, here: LauncherJob, cores: int) -> tuple[str, ...]:
    """Return notes on cores and threads, on the first node only: the nodes of a job are alike."""
    if run.triple is None or run.triple.is_auto or here.index > 0:
        return ()
    return triple.notes(run.triple.nodes, run.triple.per_node, run.triple.threads, cores)


def _read_gpu_numa(gpus: Sequence[Gpu | None]) -> tuple[int | None, ...]:
    """Return the NUMA node of each process's GPU; None: not known, and then no cores are preferred."""
    known = tuple({gpu.uuid: gpu for gpu in gpus if gpu is not None}.values())
    try:
        bus_ids = binding.read_bus_ids(known) if known else ()
    except DriverError:
        bus_ids = ()
    numa = {gpu.uuid: topology.read_pci_numa(bus) for gpu, bus in zip(known, bus_ids, strict=False) if bus is not None}
    return tuple(None if gpu is None else numa.get(gpu.uuid) for gpu in gpus)
