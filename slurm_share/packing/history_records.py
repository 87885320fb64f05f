"""Records of the user's history, and the family that a site publishes: hashes and numbers only.

`is_sane` says whether the figures of a record are possible. Speeds and trials are in `speed_records.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..core import text_files
from .records import EndKind, Source
from .speed_records import PairRun, SearchRun

VERSION = 1
NOT_A_RECORD = text_files.NOT_JSON
"""Errors of a line that is no record."""
NAME_MOST = 256
"""Most characters of a hash or a name."""
UNIX_MOST_S = 1e11
SECONDS_MOST = 1e9
"""Upper limit of a task's duration: 30 years."""
MIB_MOST = 1 << 24
"""16 TiB, more than any GPU has."""
RATIO_MOST = 1e6
"""Upper limit of slowdowns and aggregate speeds."""
RATE_MOST = 1e15
"""Upper limit of rates in units a second; a program that counts bytes stays below."""
TASKS_MOST = 100_000
"""Upper limit of tasks on a node."""
COUNT_MOST = 10**9
"""Upper limit of windows and GPUs, since JSON integers can be larger than any float."""


class TaskRun(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="record", tag="task"):
    """One finished attempt."""

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


Record = TaskRun | PairRun | SearchRun


def families(record: Record) -> tuple[str, ...]:
    """Return the families of commands that a record is about."""
    match record:
        case PairRun():
            return record.family_a, record.family_b
        case SearchRun():
            return record.family, *record.neighbours
    return (record.family,)


def is_sane(record: Record) -> bool:
    """Return whether a record is valid: of this version, printable hashes and short names, and possible figures."""
    names = (record.gpu_model, *families(record), *_other_names(record))
    if record.version != VERSION or not 0 <= record.when <= UNIX_MOST_S or not "".join(names).isprintable():
        return False
    return max(map(len, names)) <= NAME_MOST and _is_possible(record)


def _other_names(record: Record) -> tuple[str, ...]:
    match record:
        case TaskRun():
            return record.exact, record.series, record.script, record.sharing, record.software
        case PairRun():
            return record.a, record.b
        case SearchRun():
            return record.exact, record.rate_source, *(level.part for level in record.levels)


def _is_possible(record: Record) -> bool:
    match record:
        case TaskRun():
            sizes = (record.peak_mib or 0, record.gpu_total_mib or 0, record.reserved_mib or 0, record.cap_mib or 0)
            seconds = (record.seconds, record.alone_seconds)
            return _are_within(sizes, 0, MIB_MOST) and _are_within(seconds, 0, SECONDS_MOST)
        case PairRun():
            ratios = (record.slowdown_a, record.slowdown_b)
            return (
                _are_within(ratios, 1 / RATIO_MOST, RATIO_MOST)
                and _are_within((record.stp, record.stp_error), 0, RATIO_MOST)
                and 0 <= record.windows <= COUNT_MOST
            )
        case SearchRun():
            levels = [level.level for level in record.levels]
            return (
                record.best in levels
                and _are_within(levels, 1, TASKS_MOST)
                and 0 <= record.next <= TASKS_MOST
                and _are_within([level.per_s for level in record.levels], 0, RATE_MOST)
                and _are_within([level.spread_per_s for level in record.levels], 0, RATE_MOST)
                and _are_within([level.slowdown for level in record.levels], 0, RATIO_MOST)
                and _are_within([record.gpus, *(level.windows for level in record.levels)], 0, COUNT_MOST)
            )


def _are_within(figures: Sequence[float], least: float, most: float) -> bool:
    """Return whether all figures are in a range. JSON has no NaN, which `min` and `max` would miss."""
    return least <= min(figures) and max(figures) <= most
