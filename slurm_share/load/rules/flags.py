"""Which nodes deserve a look: those outside LLSC's bands of load, and those with a problem. Values in, letters out."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ..snapshot import GpuSums, NodeLoad
from .figures import Figures, figures
from .thresholds import CPU_BAND, GPU_BAND, HELD_IDLE, HELD_IDLE_S

MEMORY_FULL = 0.95
"""Part of host memory in use, above which a node is about to kill processes. Ours: LLSC has no figure for it."""
GPU_MEMORY_FULL = 0.98
"""Part of one GPU's memory: 2 percent is what a share's caps keep back (settings.memory_reserve_percent). Ours."""
ROUNDING = 0.5
"""Percent: a load that prints as the bound is within it."""

NO_DRIVER = "NVIDIA driver"
"""In what a sampler says of a node without one."""

Letter = Literal["L", "H", "!"]
Of = Literal["c", "g", "i", "m", "v", "n"]


class Flag(Struct, frozen=True, gc=False):
    """One thing about a node that is not as it should be."""

    of: Of
    """c: CPU load, g: GPU load, i: idle GPUs, m: host memory, v: GPU memory, n: the node."""
    letter: Letter
    """L: low, H: high, !: over, or a problem."""
    why: str
    uuid: str = ""
    """UUID of the GPU or MIG instance that the flag is about; empty: the node."""

    @property
    def code(self) -> str:
        """Return the code that a table shows, such as gL."""
        return self.of + self.letter


MEANINGS = {
    "cL": f"CPU load below {CPU_BAND[0]:.0f} % of the CPUs used",
    "cH": f"CPU load above {CPU_BAND[1]:.0f} % of the CPUs used",
    "gL": f"GPU load below {GPU_BAND[0]:.0f} % of the GPUs used",
    "gH": f"GPU load above {GPU_BAND[1]:.0f} % of the GPUs used",
    "iL": f"a job's GPU idle: below {HELD_IDLE:.0f} % for {HELD_IDLE_S / 60:.0f} min",
    "m!": "host memory full, or processes ended for want of it",
    "v!": "a GPU's memory full",
    "n!": "silent, or with a problem",
}


def flags(node: NodeLoad, known: Figures | None = None) -> tuple[Flag, ...]:
    """What is to be said of a node; `known`: its figures, where the caller has them. What is unknown is no reason."""
    one = figures(node) if known is None else known
    found: list[Flag] = [
        *_outside("c", one.load_per_cpu, CPU_BAND, "CPU load", one.load, one.cpus_used is not None),
        *_outside("g", one.load_per_gpu, GPU_BAND, "GPU load", one.gpu_load, one.gpus_used is not None),
        *_idle(node),
    ]
    if one.memory_mib and one.memory_used_mib is not None and one.memory_used_mib > MEMORY_FULL * one.memory_mib:
        found.append(Flag("m", "!", f"{one.memory_used_mib} of {one.memory_mib} MiB of host memory in use"))
    snapshot = node.snapshot
    if snapshot is None:
        return (*found, Flag("n", "!", node.why or "no answer"))
    killed = [job for job in snapshot.jobs if job.memory_kills]
    if killed:
        found += [
            Flag("m", "!", f"job {job.job}: {job.memory_kills} processes ended for want of host memory")
            for job in killed
        ]
    for gpu in snapshot.gpus:
        if gpu.problem is not None:
            found.append(Flag("n", "!", f"GPU {gpu.index}: {gpu.problem}", gpu.uuid))
        elif (
            not gpu.mig_parent
            and gpu.memory_total_mib
            and gpu.memory_used_mib is not None
            and gpu.memory_used_mib > GPU_MEMORY_FULL * gpu.memory_total_mib
        ):
            why = f"GPU {gpu.index}: {gpu.memory_used_mib} of {gpu.memory_total_mib} MiB in use"
            found.append(Flag("v", "!", why, gpu.uuid))
    if snapshot.gpu_sums is not None:
        found += _of_sums(snapshot.gpu_sums)
    # Without Slurm nobody knows whether there should be GPUs: then the missing driver is a sentence and no alarm.
    found += [Flag("n", "!", problem) for problem in problems(node) if one.gpus or NO_DRIVER not in problem]
    if node.slurm is not None and not node.slurm.answers:
        found.append(Flag("n", "!", "Slurm does not hear of it"))
    return tuple(found)


def _of_sums(sums: GpuSums) -> list[Flag]:
    """Return the flags of a node of which only sums over its GPUs are known."""
    found = []
    if sums.unusable:
        found.append(Flag("n", "!", f"{sums.unusable} of {sums.count} GPUs not to be used"))
    if sums.fullest_ratio is not None and sums.fullest_ratio > GPU_MEMORY_FULL:
        found.append(Flag("v", "!", f"the fullest GPU has {100 * sums.fullest_ratio:.0f} % of its memory in use"))
    return found


def _idle(node: NodeLoad) -> list[Flag]:
    """Return one flag for each job and GPU."""
    why = f"below {HELD_IDLE:.0f} % for {HELD_IDLE_S / 60:.0f} min"
    return [
        Flag("i", "L", f"GPU {one.index}: idle, job {one.job} of {one.user} holds it ({why})", one.uuid)
        for one in node.held_gpus or ()
        if one.idle
    ]


def problems(node: NodeLoad) -> tuple[str, ...]:
    """Return what does not work on a node. Without GPUs, which Slurm knows, it needs no driver."""
    if node.snapshot is None:
        return ()
    needs_driver = node.slurm is None or node.slurm.gpus > 0
    return tuple(problem for problem in node.snapshot.problems if needs_driver or NO_DRIVER not in problem)


def _outside(
    of: Of, share: float | None, band: tuple[float, float], what: str, load: float | None, is_use_known: bool
) -> list[Flag]:
    """Nothing is too low where nobody knows whether anybody has it: an idle workstation."""
    if share is None or load is None:
        return []
    low, high = band
    percent = 100.0 * share
    if percent <= high + ROUNDING and (percent >= low - ROUNDING or not is_use_known):
        return []
    return [Flag(of, "L" if percent < low else "H", f"{what} {load:.2f} is {percent:.0f} % of what is in use")]


def codes(found: tuple[Flag, ...]) -> tuple[str, ...]:
    """Return each code once, in order."""
    return tuple(dict.fromkeys(flag.code for flag in found))
