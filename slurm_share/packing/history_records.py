"""Records of sizes that are kept: a finished attempt in the user's history, and what a site publishes of a family."""

from __future__ import annotations

from msgspec import Struct

from .records import EndKind, Source


class TaskRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finished attempt, one line of the user's history. Hashes and numbers only."""

    version: int = 1
    when: float
    """Unix time of the end, seconds."""
    exact: str = ""
    family: str = ""
    series: str = ""
    script: str = ""
    numbers: tuple[tuple[str, float], ...] = ()
    """As in TaskKey; in the file, the names are hashes, too."""
    gpu_model: str = ""
    gpu_total_mib: int | None = None
    sharing: str = ""
    """The backend's name."""
    kind: EndKind
    seconds: float
    alone_seconds: float = 0.0
    """Part of `seconds` with no other task on the GPU."""
    peak_mib: int | None = None
    """None: no sample saw it, as of a task that is shorter than one."""
    peak_at_mib: tuple[tuple[int, int], ...] = ()
    """Age in seconds (30, 60, 120, 300, 900) -> the peak up to then."""
    reserved_mib: int | None = None
    cap_mib: int | None = None
    source: Source = "unknown"
    estimate_mib: int | None = None
    """The point estimate that it started with."""
    probe_mib: int | None = None
    """What a dry run with fake tensors said, as it was said."""
    safe_mib: int | None = None
    is_elastic: bool = False
    is_censored: bool = False
    """It ran out of memory: `peak_mib` is a lower bound of its need."""
    wanted_mib: int | None = None
    """What it had and asked for in vain, as its log says."""
    clients: int = 1
    sm_ratio: float | None = None
    """Means while it was alone on its GPU; None: never alone, or not measured."""
    dram_ratio: float | None = None
    util_ratio: float | None = None
    cpu_cores: float | None = None
    energy_j: float | None = None
    software: str = ""
    """Hash of the Python environment's or the container image's name; empty: none."""
    rate_alone: float | None = None
    """Units of work a second while it was alone on its GPU; None: not measured."""
    rate_source: str = ""
    """`RateSource` of that."""
    pcie_ratio: float | None = None


class SiteFamily(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a site publishes of one family of tasks on one GPU model: a line of a file that its users can read."""

    version: int = 1
    family: str
    gpu_model: str
    runs: int
    p90_mib: int
    """Nine in ten of its runs had a peak of at most so much."""
    ratio: float
    """The 0.95 quantile of a run's peak over the 0.9 quantile of the runs before it."""
