"""The environment of each start of a packed run: GPU, memory cap, and the memory settings of frameworks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec.structs import replace

from ...core import names
from ...packing import Attempt, GpuFacts
from ...share import BACKEND_TIME_SLICING, Assignment, Slot, limits, registry
from ..records import Run
from . import environment, task_process
from .node import Node

ENV_GPU_MEM = "LLSUB_GPU_MEM_MIB"
"""GPU memory booked for the task on each of its GPUs, in MiB."""
ENV_NEIGHBOURS = b"LLSUB_NEIGHBOURS"
"""Number of other tasks of the run on its GPU when it started."""
ENVIRONMENTS_MOST = 512
"""Most environments in the cache, each for one worker, GPU and cap."""


class PackEnvironments:
    """A cache of environments. Most starts have the worker, GPU and cap of an earlier one."""

    def __init__(self, run: Run, node: Node, common: Mapping[bytes, bytes]) -> None:
        """`common`: the variables that are the same for all tasks."""
        self._run = run
        self._node = node
        self._common = common
        self._facts: dict[str, GpuFacts] = {facts.uuid: facts for facts in node.gpu_facts}
        self._kept: dict[object, task_process.Environment] = {}

    def find(self, task: Attempt, *, threads: int | None) -> task_process.Environment:
        """Return the environment of a task. `threads`: OMP_NUM_THREADS of each process; None: not set here."""
        key = (
            task.worker, task.gpus, task.cap_mib, task.start_mib, task.is_alone, task.sharing, task.sm_percent,
            threads,
        )  # fmt: skip
        env = self._kept.get(key)
        if env is None:
            if len(self._kept) >= ENVIRONMENTS_MOST:
                self._kept.clear()
            env = self._kept[key] = self._make(task, threads)
        env[ENV_NEIGHBOURS] = b"%d" % task.neighbours
        env.update(environment.of_rank(self._run, self._node, task.rank))
        return env

    def _make(self, task: Attempt, threads: int | None) -> task_process.Environment:
        worker = self._node.workers[task.worker]
        slot, more = self._slot_of(task)
        variables: tuple[Assignment, ...] = ()
        if self._node.plan is not None:
            variables = (*registry.slot_environment(self._node.plan, slot), *more)
        other = replace(worker, rank=task.rank, gpu_slot=slot, environment=variables)
        of_start = {ENV_GPU_MEM: str(task.start_mib), os.fsdecode(ENV_NEIGHBOURS): "0"}
        return task_process.Environment(
            environment.of_worker(self._common, self._run, self._node, other, threads=threads, more=of_start)
        )

    def _slot_of(self, task: Attempt) -> tuple[Slot, tuple[Assignment, ...]]:
        """Return the slot of a start, and the variables that do not come from the slot."""
        template = self._node.gpu_slots[self._facts[task.gpus[0]].index]
        own = self._node.workers[task.worker].gpu_slot
        slot = own if own is not None and own.gpu.uuid == template.gpu.uuid else template
        if len(task.gpus) > 1 or self._is_without_mps(task):
            slot = replace(
                slot, backend=BACKEND_TIME_SLICING, mps_directory=None, sm_percent=None, variables=(),
                memory_cap_mib=None, memory_ratio=None,
            )  # fmt: skip
            return slot, (Assignment(names.ENV_VISIBLE_DEVICES, ",".join(task.gpus)),)
        # The memory ratio for frameworks follows from the booked memory.
        booked = None if task.is_alone or not task.start_mib else task.start_mib
        percent = slot.sm_percent if task.sm_percent is None else task.sm_percent
        ratio = limits.memory_ratio(slot.gpu, booked)
        return replace(slot, memory_cap_mib=task.cap_mib, memory_ratio=ratio, sm_percent=percent), ()

    def _is_without_mps(self, task: Attempt) -> bool:
        """Return whether a task runs without MPS on a GPU that has an MPS daemon."""
        facts = self._facts[task.gpus[0]]
        return facts.is_mps and not facts.takes_only_mps and task.sharing in ("time-slicing", "exclusive")
