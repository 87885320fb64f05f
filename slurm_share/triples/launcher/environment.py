"""The environment variables of a worker's tasks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from ...core import given_variables, names, numbers
from ...core.text import fold
from ...spmd import names as spmd
from ..records import ENV_ATTEMPT, ENV_FOLDER, ENV_PROGRESS, ENV_RANK, ENV_SIZE, ENV_TASK, ENV_TASKS, Run, Worker
from ..rules import sweeps
from .node import Node

ONE_TASK = dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS"), "0") | dict.fromkeys(
    ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NNODES",
     "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
    "1",
)  # fmt: skip
"""Slurm's variables of a step with one task. With those of the launcher's step, frameworks (PyTorch Lightning, JAX,
mpi4py) would take each task for a rank of one distributed run. The task's number is in LLSUB_RANK."""
CPUS_PER_TASK = "SLURM_CPUS_PER_TASK"
REMOVED_PREFIXES = ("PMI_", "PMI2_", "PMIX_", "SLURM_PMI", "SLURM_CPU_BIND", "SLURM_SRUN_COMM", "LLSUB_", "LLMR")
"""Prefixes of the launcher's variables. They are removed so that MPI_Init of a task does not join the launcher's
step."""
OF_RANKS = (spmd.ENV_START_S, spmd.ENV_SEND_LIMIT, spmd.ENV_TRANSPORT, spmd.ENV_CHECK)
"""Variables with such a prefix that a user sets for ranks of `llsub --spmd`; they are kept."""


def of_run(run: Run, folder: Path, environ: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return the variables that are the same for all tasks of a node."""
    found = {
        name: value
        for name, value in environ.items()
        if name and "=" not in name and not name.startswith(REMOVED_PREFIXES)  # exec takes no variable without a name
    }
    if run.together:
        found |= {name: environ[name] for name in OF_RANKS if name in environ}
    if "SLURM_JOB_ID" in found:
        found.update({name: value for name, value in ONE_TASK.items() if name in found})
        found["SLURM_NTASKS"], found["SLURM_PROCID"] = "1", "0"
    found.pop(names.ENV_SLOT, None)
    found.pop(names.ENV_MPS_PARTITION, None)
    found |= {ENV_SIZE: str(run.processes), names.ENV_SIZE: str(run.processes), ENV_TASKS: str(run.tasks)}
    found[ENV_FOLDER] = str(folder)
    return {os.fsencode(name): os.fsencode(value) for name, value in found.items()}


def of_worker(
    common: Mapping[bytes, bytes],
    run: Run,
    node: Node,
    worker: Worker,
    *,
    threads: int | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> dict[bytes, bytes]:
    """Return the variables that are the same for all tasks of a worker; the loop adds those of a single task.

    `threads`: OMP_NUM_THREADS, if neither the triple nor the user says it; None: that of the worker's place. `more`:
    further variables. In a run inside a task of a share (--local), the values that slurm-share set for that task are
    not the user's: they count where this launcher has none.
    """
    inherited = {os.fsdecode(name): os.fsdecode(value) for name, value in common.items()}
    given = given_variables.read(inherited)
    found = {
        one.name: one.value
        for one in worker.environment
        if not one.unless_set or one.name not in inherited or one.name in given
    }
    if "SLURM_JOB_ID" in inherited:
        found[CPUS_PER_TASK] = str(len(worker.place.cpus))
    said = run.triple is not None and run.triple.threads is not None
    if said or names.ENV_THREADS not in inherited or names.ENV_THREADS in given:
        found[names.ENV_THREADS] = str(threads if threads is not None and not said else worker.place.threads)
    if node.progress_folder:
        found[ENV_PROGRESS] = f"{node.progress_folder}/{worker.place.local}"
    if node.rendezvous:
        found |= {
            spmd.ENV_RENDEZVOUS: node.rendezvous,
            spmd.ENV_NODE: str(node.index),
            spmd.ENV_NODES: str(node.count),
            spmd.ENV_LOCAL_RANK: str(worker.place.local),
            spmd.ENV_LOCAL_SIZE: str(len(node.workers)),
        }
        if node.address:
            found[spmd.ENV_ADDRESS] = node.address
        if node.ports:
            found[spmd.ENV_PORTS] = node.ports
    if run.bind:
        found[names.ENV_CORES] = fold(worker.place.cpus)
    slot = worker.gpu_slot
    if node.limits_socket and slot is not None and slot.is_cap_of_driver:
        limits = f"{slot.gpu.uuid}={slot.memory_least_mib or 0}:{slot.memory_cap_mib}"
        found[names.ENV_LIMITS] = f"{node.limits_socket} w{worker.place.local} {limits}"
    if run.kind == "llmapreduce":
        found |= {
            "LLMR_NODE_ID": str(node.index),
            "LLMR_TASKS_PER_NODE": str(len(node.workers)),
            "LLMR_RANK_MIN": str(node.first_rank),
            "LLMR_RANK_MAX": str(node.last_rank),
            "LLMR_LOG_DIR": str(node.folder),
            "LLMR_LOG_SUBDIR": node.folder.name,
        }
    found |= {os.fsdecode(name): os.fsdecode(value) for name, value in of_rank(run, node, worker.rank).items()} | dict(
        more
    )
    found[names.ENV_GIVEN] = _record(inherited, given, found)
    return {os.fsencode(name): os.fsencode(value) for name, value in (inherited | found).items()}


def _record(inherited: Mapping[str, str], given: Iterable[str], found: Mapping[str, str]) -> str:
    """Return the record of what slurm-share set: here, and for the launcher where that still has an effect."""
    job = numbers.whole(inherited.get("SLURM_JOB_ID"), numbers.UINT32_MOST)
    number = job if job is not None else given_variables.recorded_job(inherited) or 0
    now, own = {**inherited, **found}, given_variables.OWN_PREFIXES
    ours = {name for name in inherited if name in ONE_TASK or (name.startswith(own) and name not in OF_RANKS)}
    ours |= {*given, *found, ENV_TASK, ENV_ATTEMPT}
    values = {name: None if name.startswith(own) else now.get(name) for name in sorted(ours)}
    return given_variables.render(number, values)


def of_rank(run: Run, node: Node, rank: int) -> dict[bytes, bytes]:
    """Return the variables that hold a task's rank, which do not depend on its worker."""
    found = {ENV_RANK: rank, names.ENV_RANK: rank}
    if run.kind == "llmapreduce":
        found |= {"LLMR_RANK": rank, "LLMRID": rank - node.first_rank}
    return {os.fsencode(name): str(number).encode() for name, number in found.items()}


def of_params(params: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return the variables of a task's parameters."""
    return {os.fsencode(sweeps.variable(name)): os.fsencode(value) for name, value in params.items()}


def with_own(record: bytes, variables: Iterable[bytes]) -> bytes:
    """Return the record of what slurm-share set (core/given_variables.py) with the variables of a task's parameters.

    A job that the task submits then does not have them.
    """
    prefix = os.fsencode(sweeps.VARIABLE)
    items = [item for item in record.split(b" ") if not item.startswith(prefix)]
    found = b" ".join([*items, *variables])
    return found if len(found) < names.GIVEN_MAX_BYTES else record
