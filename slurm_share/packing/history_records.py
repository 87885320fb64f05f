"""Records of sizes on disk: a finished attempt in the user's history, and a family that a site publishes."""

from __future__ import annotations

from msgspec import Struct

from .records import EndKind, Source


class TaskRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finished attempt: a line of the user's history, with hashes and numbers only."""

    version: int = 1
    when: float
    """Unix time of the end, seconds."""
    exact: str = ""
    family: str = ""
    series: str = ""
    script: str = ""
    numbers: tuple[tuple[str, float], ...] = ()
    """As in TaskKey; in the file, the names are hashes."""
    gpu_model: str = ""
    gpu_total_mib: int | None = None
    sharing: str = ""
    """The backend's name."""
    kind: EndKind
    seconds: float
    alone_seconds: float = 0.0
    """Part of `seconds` with no other task on the GPU."""
    peak_mib: int | None = None
    """None: no sample saw its memory, for example because it was too short."""
    peak_at_mib: tuple[tuple[int, int], ...] = ()
    """(age in seconds: 30, 60, 120, 300 or 900, the peak up to that age)"""
    reserved_mib: int | None = None
    cap_mib: int | None = None
    source: Source = "unknown"
    estimate_mib: int | None = None
    """The point estimate at its start."""
    probe_mib: int | None = None
    """Result of a dry run with fake tensors, uncorrected."""
    safe_mib: int | None = None
    is_elastic: bool = False
    is_censored: bool = False
    """It ran out of memory: `peak_mib` is a lower bound of its need."""
    wanted_mib: int | None = None
    """Memory in use plus the failed allocation, from its log."""
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
    """`RateSource` of `rate_alone`."""
    pcie_ratio: float | None = None


class SiteFamily(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Figures of one family on one GPU model that a site publishes: a line of a file that its users can read."""

    version: int = 1
    family: str
    gpu_model: str
    runs: int
    p90_mib: int
    """0.9 quantile of the peaks."""
    ratio: float
    """0.95 quantile of a run's peak over the 0.9 quantile of the runs before it."""
