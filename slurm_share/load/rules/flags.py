"""Flag nodes that are outside LLSC's bands of load or have a problem. Values in, flags out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ...core.text import counted
from ..snapshot import GpuSums, NodeLoad
from .figures import NodeFigures, figures
from .steps import NO_STEPS
from .thresholds import CPU_BAND, GPU_BAND, HELD_IDLE, HELD_IDLE_S

MEMORY_FULL = 0.95
"""Ratio of host memory in use above which a node is about to kill processes. Ours: LLSC has no figure for it."""
GPU_MEMORY_FULL = 0.98
"""Ratio of one GPU's memory in use. Ours: the caps of a share reserve 2 percent (settings.memory_reserve_percent)."""
ROUNDING = 0.5
"""Percent: a load that is printed like the bound counts as within the band."""

NO_DRIVER = "NVIDIA driver"
"""Text that a sampler's problem contains for a node without a driver."""

Letter = Literal["L", "H", "!"]
Of = Literal["c", "g", "i", "m", "v", "n"]


class Flag(Struct, frozen=True, gc=False):
    """One finding about a node: a load outside its band, or a problem."""

    of: Of
    """c: CPU load, g: GPU load, i: idle GPUs, m: host memory, v: GPU memory, n: the node."""
    letter: Letter
    """L: low, H: high, !: over, or a problem."""
    why: str
    uuid: str = ""
    """UUID of the GPU or MIG instance that the flag is about; empty: the node."""

    @property
    def code(self) -> str:
        """Return the two letters that a table shows, such as gL."""
        return self.of + self.letter


MEANINGS = {
    "cL": f"CPU load below {CPU_BAND[0]:.0f} % of the CPUs used",
    "cH": f"CPU load above {CPU_BAND[1]:.0f} % of the CPUs used",
    "gL": f"GPU load below {GPU_BAND[0]:.0f} % of the GPUs used",
    "gH": f"GPU load above {GPU_BAND[1]:.0f} % of the GPUs used",
    "iL": f"a job's GPU idle: below {HELD_IDLE:.0f} % for {HELD_IDLE_S / 60:.0f} min",
    "m!": "host memory full",
    "mH": "processes killed for lack of host memory",
    "v!": "a GPU's memory full",
    "n!": "silent, or with a problem",
}

Severity = Literal["", "hint", "waste", "full", "dead"]
SEVERITIES: tuple[Severity, ...] = ("", "hint", "waste", "full", "dead")
"""The least severe first; empty: nothing to say."""
URGENT: tuple[Severity, ...] = ("dead", "full", "waste")
"""The severities of what somebody should look at, the worst first. A hint needs nobody."""
_OF_CODE: Mapping[str, Severity] = {
    "n!": "dead", "m!": "full", "mH": "full", "v!": "full", "iL": "waste",
    "cL": "hint", "cH": "hint", "gL": "hint", "gH": "hint",
}  # fmt: skip
_RANKS = {code: SEVERITIES.index(one) for code, one in _OF_CODE.items()}
OF_JOBS = frozenset({"iL", "mH"})
"""Codes of what a single job does on a node."""
WRONG_NOW = frozenset({"n!", "m!"})
"""Codes of what is wrong now, which are marked in red: a node or a GPU that does not work, and a node that is about to
kill processes. Full GPU memory is full use, and processes that were killed are the past."""
EXPECTED_SILENCE = frozenset({*NO_STEPS.values(), "powered down"})
"""Reasons of silence (`NodeLoad.why`) with which nothing is wrong."""


def severity(codes: Iterable[str]) -> Severity:
    """Return the severity of the most severe of these codes."""
    return SEVERITIES[max(map(_RANKS.__getitem__, codes), default=0)]


def in_order(codes: Iterable[str]) -> tuple[str, ...]:
    """Return each code once, the most severe first."""
    return tuple(sorted(dict.fromkeys(codes), key=lambda code: -_RANKS[code]))


def needs_attention(codes: Iterable[str]) -> bool:
    """Return whether somebody should look at the node, the GPU, the job or the user with these codes."""
    return severity(codes) in URGENT


def flags(node: NodeLoad, known: NodeFigures | None = None, names: Mapping[int, str] | None = None) -> tuple[Flag, ...]:
    """Return the flags of a node. An unknown value gives none, nor does silence that is expected. `known`: the node's
    figures, if the caller has them. `names`: Slurm's number of a job -> the job as squeue writes it."""
    names = names or {}
    snapshot = node.snapshot
    if snapshot is None:  # Slurm may have an old load
        return () if node.why in EXPECTED_SILENCE else (Flag("n", "!", node.why or "no answer"),)
    one = figures(node) if known is None else known
    of_cpus = _outside("c", one.load_per_cpu, CPU_BAND, "CPU load", one.load, one.cpus_used is not None)
    found: list[Flag] = [
        *(_with_cpu_time(flag, node) for flag in of_cpus),
        *_outside("g", one.load_per_gpu, GPU_BAND, "GPU load", one.gpu_load, one.gpus_used is not None),
        *_idle(node, names),
    ]
    if one.memory_mib and one.memory_used_mib is not None and one.memory_used_mib > MEMORY_FULL * one.memory_mib:
        found.append(Flag("m", "!", f"{one.memory_used_mib} of {one.memory_mib} MiB of host memory in use"))
    found += [
        Flag(
            "m",
            "H",
            f"job {names.get(job.job, job.job)}: {counted(job.memory_kills, 'process')} killed for lack of host memory",
        )
        for job in snapshot.jobs
        if job.memory_kills
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
    # Without Slurm it is not known whether the node should have GPUs, so a missing driver is no flag.
    found += [Flag("n", "!", problem) for problem in problems(node) if one.gpus or NO_DRIVER not in problem]
    if node.slurm is not None and not node.slurm.answers:
        found.append(Flag("n", "!", "it does not answer Slurm"))
    return tuple(found)


def _with_cpu_time(flag: Flag, node: NodeLoad) -> Flag:
    """Return the flag with the CPU time of the node. The load average also counts processes that wait for storage, so
    a high one alone does not show that the CPUs are busy."""
    if flag.letter != "H" or node.snapshot is None or node.snapshot.cpu_cores is None:
        return flag
    now = f"CPU time now {node.snapshot.cpu_cores:.1f} cores"
    return replace(flag, why=f"{flag.why}; {now} (the load also counts processes that wait for storage)")


def _of_sums(sums: GpuSums) -> list[Flag]:
    found = []
    if sums.unusable:
        found.append(Flag("n", "!", f"{sums.unusable} of {sums.count} GPUs cannot be used"))
    if sums.fullest_ratio is not None and sums.fullest_ratio > GPU_MEMORY_FULL:
        found.append(Flag("v", "!", f"the fullest GPU has {100 * sums.fullest_ratio:.0f} % of its memory in use"))
    return found


def _idle(node: NodeLoad, names: Mapping[int, str]) -> list[Flag]:
    why = f"below {HELD_IDLE:.0f} % for {HELD_IDLE_S / 60:.0f} min"
    return [
        Flag(
            "i",
            "L",
            f"GPU {one.index}: idle, job {names.get(one.job, one.job)} of {one.user} holds it ({why})",
            one.uuid,
        )
        for one in node.held_gpus or ()
        if one.idle
    ]


def problems(node: NodeLoad) -> tuple[str, ...]:
    """Return the problems of a node. A node without GPUs by Slurm needs no driver."""
    if node.snapshot is None:
        return ()
    needs_driver = node.slurm is None or node.slurm.gpus > 0
    return tuple(problem for problem in node.snapshot.problems if needs_driver or NO_DRIVER not in problem)


def _outside(
    of: Of, share: float | None, band: tuple[float, float], what: str, load: float | None, is_use_known: bool
) -> list[Flag]:
    """Return a flag if the load is outside its band. It is never too low if it is not known whether a job has the node,
    as on a workstation."""
    if share is None or load is None:
        return []
    low, high = band
    percent = 100.0 * share
    if percent <= high + ROUNDING and (percent >= low - ROUNDING or not is_use_known):
        return []
    return [Flag(of, "L" if percent < low else "H", f"{what} {load:.2f} is {percent:.0f} % of what is in use")]
