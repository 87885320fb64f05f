"""The records and sums of a report. `None`: not known; then `unknown` has the reason under the field's name."""

from __future__ import annotations

from msgspec import Struct

from ..core.records import Amount, Count, Level, NodeName, Reasons
from ..slurm.accounts import AccountedJob
from ..usage import EnergyRule, GpuUse, JobUse, Source, Sources, TaskUse, UseSeries

SCHEMA = 1
"""Version of the JSON form (packaging/docs/report.md). It rises when a field changes its meaning or goes."""


class JobReport(Struct, frozen=True, kw_only=True):
    """All that is known of one job or of one run, from all sources, merged."""

    title: str
    """As the user named it: 4711, 4711_3, LLSUB.5."""
    starts: tuple[AccountedJob, ...] = ()
    """Starts in Slurm's accounts, the oldest first: a requeue, and each job of a run, is a start of its own. Of an
    array, its elements."""
    uses: tuple[JobUse, ...] = ()
    """One for each node and start."""
    series: tuple[UseSeries, ...] = ()
    tasks: tuple[TaskUse, ...] = ()
    """Ended attempts at tasks."""
    tasks_left_out: Count = 0
    """Attempts that are not in `tasks` because there are too many."""
    run: str = ""
    """Name of the run's folder; empty: no run of llsub, or its folder is not known."""
    script: str = ""
    """Path of the script of the run's job, which is in its folder; empty: no run."""
    run_tasks: Count | None = None
    """Tasks of the run, ended or not."""
    triple: str = ""
    """Triple of the run or job, [1,8,2]; empty: it has none, or it is not known."""
    share: str = ""
    """Value of --share-gpu; empty: none, or not known."""
    now: Level
    """Unix time of the report."""
    problems: tuple[str, ...] = ()
    """Sources that did not answer, a sentence each, with the way out."""

    @property
    def job(self) -> AccountedJob | None:
        """Return the last start; None: Slurm's accounts do not have the job."""
        return self.starts[-1] if self.starts else None

    @property
    def runs(self) -> bool:
        """Return whether a start of it has not ended."""
        return any(one.runs for one in self.starts) if self.starts else any(one.ended is None for one in self.uses)


class NodeGpu(Struct, frozen=True, kw_only=True):
    """One GPU of a job, with the sums over the starts of the job that had it."""

    node: NodeName
    use: GpuUse


class JobFigures(Struct, frozen=True, kw_only=True):
    """The sums of a report."""

    elapsed_s: Level | None = None
    """Time of all starts together; of an array, of its elements together."""
    limit_s: Level | None = None
    """Time limit of the last start."""
    nodes: tuple[NodeName, ...] = ()
    silent: tuple[NodeName, ...] = ()
    """Nodes of the job of which nothing was measured."""
    cpus: Count | None = None
    """CPUs of the last start, on all its nodes."""
    cpu_had_s: Level | None = None
    """CPU time that it could have had: CPUs times elapsed time."""
    cpu_s: Level | None = None
    cpu_wait_s: Level | None = None
    io_wait_s: Level | None = None
    memory_limit_mib: Amount | None = None
    """On the node with the highest peak."""
    memory_peak_mib: Amount | None = None
    memory_kills: Count | None = None
    gpu_count: Count | None = None
    """GPUs of the last start; None: not known. 0: none."""
    gpus: tuple[NodeGpu, ...] = ()
    gpu_s: Level | None = None
    """GPU-seconds that it had."""
    gpu_idle_s: Level | None = None
    """GPU-seconds in which none of its kernels ran."""
    gpu_measured_s: Level | None = None
    gpu_load_percent: Level | None = None
    """Mean SM activity, or mean utilisation (`load_is_sm`), of its GPUs, by anybody."""
    load_is_sm: bool = False
    own_sm_percent: Level | None = None
    dram_percent: Level | None = None
    gpu_peak_mib: Amount | None = None
    """The most memory that its processes had on one GPU."""
    gpu_cap_mib: Amount | None = None
    """The least cap of a task."""
    gpu_memory_mib: Amount | None = None
    """Memory of the GPU with that peak."""
    energy_j: Level | None = None
    energy_idle_j: Level | None = None
    energy_rule: EnergyRule | None = None
    unattributed_j: Level | None = None
    device_j: Level | None = None
    """Energy of its GPUs in that time, whoever used them."""
    simulated: bool = False
    by: Sources = {}
    unknown: Reasons = {}
    gpu_least_mib: Amount | None = None
    """The guaranteed part of `gpu_cap_mib`; None: it has none."""

    @property
    def cpu_percent(self) -> float | None:
        """Return the part of its CPUs that it used."""
        return 100 * self.cpu_s / self.cpu_had_s if self.cpu_s is not None and self.cpu_had_s else None

    @property
    def memory_percent(self) -> float | None:
        """Return the peak of host memory in percent of what it could have had."""
        if self.memory_peak_mib is None or not self.memory_limit_mib:
            return None
        return 100 * self.memory_peak_mib / self.memory_limit_mib

    @property
    def gpu_memory_percent(self) -> float | None:
        """Return the peak of GPU memory in percent of the GPU's."""
        if self.gpu_peak_mib is None or not self.gpu_memory_mib:
            return None
        return 100 * self.gpu_peak_mib / self.gpu_memory_mib

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return everybody who measured one of the figures."""
        return tuple(dict.fromkeys(self.by.values()))


class Request(Struct, frozen=True, kw_only=True):
    """A change of the next submission, with its reason."""

    option: str
    """As written on the command line: --time=02:00:00. Empty: no option can change it."""
    why: str
    is_needed: bool = False
    """True: without it the job fails again."""

    @property
    def text(self) -> str:
        """Return the option with its reason."""
        return f"{self.option}: {self.why}" if self.option else self.why
