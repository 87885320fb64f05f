"""The columns of the table of nodes: LLload's columns, and bars. The dashboard knows the names of `llload --sort` and
more; its `memory`, `cores`, `gpus` and `gpumem` are what is in use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ...core import terminal
from ..rules import rates
from ..rules.figures import percent
from ..rules.flags import SEVERITIES
from ..rules.node_rows import NodeRow
from ..snapshot import Means, Snapshot
from ..text import (
    ABOUT_IDLE,
    ABOUT_NOTE,
    ABOUT_SEVERITY,
    NONE,
    UNKNOWN,
    Letter,
    Triple,
    core_text,
    energy_text,
    first_of,
    gb,
    gpu_count_text,
    gpu_load_text,
    gpu_memory_text,
    idle_text,
    joined,
    known,
    letter_of,
    load_text,
    memory_text,
    named,
    of_text,
    percent_text,
    share,
    why_silent,
    worst,
)
from .base import DASHBOARD, EVERYWHERE, NOT_PLAIN, ON_SCREEN, VALUES, Column, Output, Raw

_VALUES_TOO: frozenset[Output] = frozenset({"values", "dashboard"})
_NOT_TABLE: frozenset[Output] = EVERYWHERE - {"table"}


def cpu_percent(row: NodeRow) -> float | None:
    """Return the load average over 5 minutes in percent of the node's CPUs."""
    return percent(row.figures.load, row.figures.cpus)


def memory_percent(row: NodeRow) -> float | None:
    """Return the host memory in use, in percent."""
    return percent(row.figures.memory_used_mib, row.figures.memory_mib)


def gpu_percent(row: NodeRow) -> float | None:
    """Return the mean load of its GPUs, in percent."""
    return percent(row.figures.gpu_load, row.figures.gpus)


def gpu_memory_percent(row: NodeRow) -> float | None:
    """Return the memory of all its GPUs in use, in percent."""
    return percent(row.figures.gpu_memory_used_mib, row.figures.gpu_memory_mib)


def users(row: NodeRow) -> str:
    """Return the users with a job or a process on the node; for a silent node, those in Slurm's queue. `-`: nobody;
    of a silent node, Slurm has given no CPU away. `?`: not known."""
    snapshot = row.node.snapshot
    return _or_unknown(row, row.queued_users if snapshot is None else tuple(one.user for one in snapshot.users))


def jobs(row: NodeRow) -> str:
    """Return the jobs on it as squeue writes them."""
    snapshot = row.node.snapshot
    return _or_unknown(
        row, row.queued_jobs if snapshot is None else tuple(row.job_name(one.job) for one in snapshot.jobs)
    )


def _job_keys(row: NodeRow) -> str | None:
    snapshot = row.node.snapshot
    if snapshot is None:
        return row.queued_keys or None
    return row.job_keys(one.job for one in snapshot.jobs) or known(jobs(row))


def _or_unknown(row: NodeRow, names: Sequence[str]) -> str:
    held = row.figures.cpus_used
    if not names and (held or (held is None and row.node.snapshot is None)):
        return UNKNOWN
    return joined(map(named, names))


def state(row: NodeRow) -> str:
    """Return the node's states in Slurm, in small letters: allocated+drain."""
    slurm = row.node.slurm
    return UNKNOWN if slurm is None else "+".join(slurm.states).lower() or UNKNOWN


def by(row: NodeRow) -> str:
    """Return the counter on which the GPU load rests."""
    texts = {"sm": "sm", "util": "util", "both": "sm+util", "": UNKNOWN}
    return NONE if row.figures.gpus == 0 else texts[row.figures.gpu_load_by]


def note(row: NodeRow, with_util: bool = False) -> str:
    """Return llload's last column: the flags, a problem of the node, that it is drained, why it is silent.
    `with_util`: name utilisation if the GPU load rests on it."""
    said = list(row.codes)
    if row.node.snapshot is not None:
        said += [terminal.safe(flag.why) for flag in row.flags if flag.of == "n"][:1]
        if row.node.slurm is not None and "DRAIN" in row.node.slurm.states:
            reason = terminal.safe(row.node.slurm.reason)
            said.append(f"drained: {reason}" if reason else "drained")
    if with_util and row.figures.gpu_load_by in ("util", "both"):
        said.append("util")
    if row.node.snapshot is None:
        said.append(why_silent(row.node))
    return " ".join(said)


def _work(row: NodeRow) -> rates.RateSum | None:
    return None if row.node.snapshot is None else rates.of_node(row.node.snapshot)


def _plain(text: str) -> str:
    return {UNKNOWN: "unknown", NONE: "none"}.get(text, text)


def _used_of(label: str, cells: Triple) -> str:
    total, used, free = map(_plain, cells)
    return f"{label}: {used} of {total} used, {free} free"


def _cores(row: NodeRow) -> Triple:
    return core_text(row.figures)


def _memory(row: NodeRow) -> Triple:
    return memory_text(row.figures.memory_mib, row.figures.memory_used_mib)


def _gpu_counts(row: NodeRow) -> Triple:
    return (NONE, NONE, NONE) if row.figures.gpus == 0 else gpu_count_text(row.figures)


def _gpu_memory(row: NodeRow) -> Triple:
    return gpu_memory_text(row.figures)


def _gpu_load_plain(row: NodeRow) -> str:
    one = row.figures
    by = {"sm": " (SM activity)", "util": " (utilisation)", "both": " (SM activity, utilisation)", "": ""}
    partial = ", some GPUs unknown" if one.partial_gpu_load or one.partial_gpu_memory else ""
    return f"GPU load: {_plain(load_text(one.gpu_load))}{by[one.gpu_load_by]}{partial}"


def _joined_of(row: NodeRow, read: Callable[[Snapshot], Sequence[object]]) -> str | None:
    return None if row.node.snapshot is None else ",".join(map(str, read(row.node.snapshot))) or None


def _unless_partial(row: NodeRow, value: int | None) -> int | None:
    """Return the value; None if the sum lacks a GPU, since a number has no room for a `?`."""
    return None if row.figures.partial_gpu_memory else value


def _load(row: NodeRow, at: int) -> float | None:
    loads = None if row.node.snapshot is None else row.node.snapshot.load
    return None if loads is None else loads[at]


def _gpu_load(row: NodeRow, read: Callable[[Means], float]) -> float | None:
    snapshot = row.node.snapshot
    if snapshot is None or not snapshot.whole_gpus or row.figures.partial_gpu_load:
        return None
    means = [gpu.load_percent_windows for gpu in snapshot.whole_gpus]
    return sum(read(mean) for mean in means if mean) / 100 if all(means) else None


def _field(field: str, doc: str, raw: Callable[[NodeRow], Raw]) -> Column[NodeRow]:
    """Return a column that only TSV and CSV have, from a field of the row."""
    return Column(field, field.upper(), doc, text=lambda row: str(raw(row)), value=raw, outputs=VALUES)


def _energy_j(row: NodeRow) -> float | None:
    snapshot = row.node.snapshot
    known = [] if snapshot is None else [job.energy_j for job in snapshot.jobs if job.energy_j is not None]
    return sum(known) if known else None


def _letter(of: str, row: NodeRow) -> Letter:
    return letter_of([code for code in row.codes if code != "mH"], of)  # the past marks no figure


def _percent(
    id: str, heading: str, doc: str, read: Callable[[NodeRow], float | None], of: str, twin: str = ""
) -> Column[NodeRow]:
    """Return a column of the dashboard with the bar of a percentage. `of`: the letter of its flags."""

    def text(row: NodeRow) -> str:
        return NONE if of in ("g", "v") and row.figures.gpus == 0 else percent_text(read(row))

    return Column(
        id, heading, doc, text=text, value=read, outputs=DASHBOARD, bar=lambda row: share(read(row)),
        unit="%", twin=twin, right=True, least=9, most=18, letter=partial(_letter, of), sorts_down=True,
    )  # fmt: skip


def _part(
    id: str, heading: str, doc: str, figure: str, triple: Callable[[NodeRow], Triple], at: int, goes: int
) -> Column[NodeRow]:
    """Return the column of one part of a triple, a field of the row's figures. The dashboard hides it by default."""

    def raw(row: NodeRow) -> int | None:
        found: int | None = getattr(row.figures, figure)
        return _unless_partial(row, found) if figure == "gpu_memory_free_mib" else found

    def value(row: NodeRow) -> float | None:
        found: int | None = getattr(row.figures, figure)
        if not figure.endswith("_mib"):
            return found
        return None if figure.startswith("gpu_") and row.figures.gpus == 0 else gb(found)

    return Column(
        id, heading, doc, text=lambda row: triple(row)[at], value=value, field=figure, raw=raw, outputs=_VALUES_TOO,
        unit="GB" if figure.endswith("_mib") else "", right=True, goes=goes, shown=False, sorts_down=True,
    )  # fmt: skip


NODES: tuple[Column[NodeRow], ...] = (
    Column(
        "hostname", "HOSTNAME", "the node, as Slurm calls it",
        text=lambda row: named(row.name), value=lambda row: row.name,
        outputs=ON_SCREEN, least=8, most=32, cut="middle", whole=lambda row: named(row.name),
        alias=("node", "host", "name"),
    ),
    Column(
        "user", "USER", "who has a job or a process on it",
        text=users, value=lambda row: known(users(row)),
        field="users", raw=lambda row: _joined_of(row, lambda snapshot: [one.user for one in snapshot.users]),
        outputs=_VALUES_TOO, needs="details", least=5, keeps=20, most=20, goes=3, cut="list", repeats=True,
        whole=lambda row: first_of(users(row)), alias=("users",),
    ),
    Column(
        "cores_used", "CORES", "CPUs that jobs have / CPUs of the node",
        text=lambda row: of_text(_cores(row)), value=lambda row: row.figures.cpus_used,
        triple=_cores, plain=lambda row: _used_of("cores", _cores(row)), field="cpus_used",
        right=True, least=5, most=11, goes=17, sorts_down=True,
    ),
    _percent("cpu", "CPU", "load average over 5 minutes, in percent of all CPUs of the node", cpu_percent, "c"),
    Column(
        "load", "LOAD", "load average over 5 minutes: CPUs that work, or are waited for",
        text=lambda row: load_text(row.figures.load), value=lambda row: row.figures.load,
        field="load5", plain=lambda row: f"load: {_plain(load_text(row.figures.load))}",
        twin="cpu", right=True, least=5, most=8, goes=14, letter=partial(_letter, "c"), sorts_down=True,
    ),
    _percent("mem", "MEM", "host memory in use, without page cache, in percent", memory_percent, "m", "memory_used"),
    Column(
        "memory_used", "MEMORY", "host memory in use / all of it, GB",
        text=lambda row: of_text(_memory(row)), value=lambda row: gb(row.figures.memory_used_mib),
        triple=_memory, plain=lambda row: _used_of("memory", _memory(row)),
        field="memory_used_mib", raw=lambda row: row.figures.memory_used_mib,
        unit="GB", twin="mem", right=True, least=8, most=14, goes=18, letter=partial(_letter, "m"), sorts_down=True,
    ),
    Column(
        "gpus_used", "GPUS", "GPUs that jobs have, whole or in part / GPUs of the node",
        text=lambda row: of_text(_gpu_counts(row)), value=lambda row: row.figures.gpus_used,
        triple=lambda row: gpu_count_text(row.figures), plain=lambda row: _used_of("GPUs", gpu_count_text(row.figures)),
        right=True, least=4, most=7, goes=16, sorts_down=True,
    ),
    Column(
        "gpus_idle", "IDLE", f"GPUs that running jobs hold and leave idle; {ABOUT_IDLE}",
        text=lambda row: (
            NONE if row.figures.gpus == 0
            else idle_text(row.figures.gpus_idle, partial=row.figures.partial_gpus_idle)
        ),
        value=lambda row: row.figures.gpus_idle if row.figures.gpus != 0 else None,
        raw=lambda row: None if row.figures.partial_gpus_idle else row.figures.gpus_idle,
        outputs=_VALUES_TOO,
        needs="details", right=True, least=4, most=5, goes=4, letter=partial(_letter, "i"), alias=("idle",),
        sorts_down=True,
    ),
    _percent("gpu", "GPU", "GPU load over 5 minutes, in percent of all GPUs of the node", gpu_percent, "g"),
    Column(
        "gpu_load", "GPULOAD", "sum over the GPUs: 2.00 is two fully busy; 1.20? is without those that did not say",
        text=lambda row: gpu_load_text(row.figures),
        value=lambda row: row.figures.gpu_load if row.figures.gpus != 0 else None, plain=_gpu_load_plain,
        field="gpu_load5", raw=lambda row: None if row.figures.partial_gpu_load else row.figures.gpu_load,
        twin="gpu", right=True, least=5, most=8, goes=12, letter=partial(_letter, "g"), sorts_down=True,
    ),
    Column(
        "by", "BY", "what GPU load rests on: sm is SM activity, util is utilisation, an upper bound of it",
        text=by, value=lambda row: known(by(row)), field="gpu_load_by", raw=lambda row: row.figures.gpu_load_by or None,
        outputs=_VALUES_TOO, least=4, most=7, goes=11,
    ),
    _percent("gmem", "GMEM", "GPU memory in use, of all its GPUs, in percent", gpu_memory_percent, "v", "gpumem_used"),
    Column(
        "gpumem_used", "GPUMEM", "GPU memory in use / all of it, GB",
        text=lambda row: of_text(_gpu_memory(row)),
        value=lambda row: gb(row.figures.gpu_memory_used_mib) if row.figures.gpus != 0 else None,
        triple=_gpu_memory, plain=lambda row: _used_of(
            "GPU memory", memory_text(row.figures.gpu_memory_mib, row.figures.gpu_memory_used_mib)
        ),
        field="gpu_memory_used_mib", raw=lambda row: _unless_partial(row, row.figures.gpu_memory_used_mib),
        unit="GB", twin="gmem", right=True, least=8, most=12, goes=15, letter=partial(_letter, "v"), sorts_down=True,
    ),
    Column(
        "rate", "RATE",
        "units of work a second, a minute or an hour of all tasks on it, as their launchers measure it; there only "
        "where all of them count the same",
        text=lambda row: rates.text(_work(row)), value=lambda row: rates.per_s(_work(row)), field="rate_per_s",
        plain=lambda row: f"rate: {rates.text(_work(row), with_source=True)}",
        outputs=_NOT_TABLE,
        needs="details", right=True, least=4, most=18, goes=13, sorts_down=True, unless_empty=True,
    ),
    Column(
        "energy", "ENERGY", "energy of its GPUs that the jobs on it now are charged with so far; filters take kJ",
        text=lambda row: energy_text(_energy_j(row)),
        value=lambda row: None if (found := _energy_j(row)) is None else found / 1000,
        field="energy_j", raw=_energy_j, outputs=_NOT_TABLE,
        needs="details", right=True, least=6, most=9, goes=22, shown=False, sorts_down=True, unless_empty=True,
        takes_last=True,
    ),
    Column(
        "note", "NOTE", ABOUT_NOTE,
        text=note, value=note, field="flags", raw=lambda row: " ".join(row.codes) or None,
        outputs=NOT_PLAIN, least=9, keeps=20, most=20, letter=lambda row: worst(row.codes), sorts_down=True,
        whole=lambda row: " ".join(row.codes),
        short=lambda row: " ".join(row.codes) or NONE if row.node.snapshot is None else "", alias=("flags", "why"),
    ),
    Column(
        "severity", "SEVERITY", f"of its worst flag: {ABOUT_SEVERITY}",
        text=lambda row: row.severity or NONE, value=lambda row: SEVERITIES.index(row.severity),
        outputs=DASHBOARD, least=8, most=8, goes=20, shown=False, sorts_down=True,
    ),
    Column(
        "jobs", "JOBS", "the jobs on it, as squeue writes them",
        text=jobs, value=_job_keys, has_names=True,
        raw=lambda row: _joined_of(row, lambda snapshot: [one.job for one in snapshot.jobs]),
        outputs=_VALUES_TOO, needs="details", least=6, keeps=18, most=20, goes=23, cut="list",
        whole=lambda row: first_of(jobs(row)), alias=("job",),
    ),
    Column(
        "state", "STATE", "the node's state as Slurm has it",
        text=state, value=lambda row: known(state(row)),
        field="states", raw=lambda row: None if row.node.slurm is None else "+".join(row.node.slurm.states),
        outputs=_VALUES_TOO, least=5, most=20, goes=24,
    ),
    _part("all_cores", "ALLCORES", "CPUs of the node, as Slurm counts them", "cpus", _cores, 0, 25),
    _part("cores_free", "COREFREE", "CPUs that no job has and one could have", "cpus_free", _cores, 2, 26),
    _part("all_memory", "ALLMEM", "host memory of the node, GB", "memory_mib", _memory, 0, 27),
    _part("memory_free", "MEMFREE", "host memory that nobody uses, but for page cache, GB", "memory_free_mib",
          _memory, 2, 28),
    _part("all_gpus", "ALLGPUS", "GPUs of the node", "gpus", _gpu_counts, 0, 29),
    _part("gpus_free", "GPUFREE", "GPUs that no job has and one could have", "gpus_free", _gpu_counts, 2, 30),
    _part("all_gpumem", "ALLGPUMEM", "GPU memory of the node, GB", "gpu_memory_mib", _gpu_memory, 0, 31),
    _part("gpumem_free", "GPUMEMFREE", "GPU memory that nobody uses, GB", "gpu_memory_free_mib", _gpu_memory, 2, 32),
    _field("answered", "whether it answered", lambda row: row.node.snapshot is not None),
    _field("why", "why it did not answer", lambda row: row.node.why or None),
    _field("load1", "load average over 1 minute", lambda row: _load(row, 0)),
    _field("load15", "load average over 15 minutes", lambda row: _load(row, 2)),
    _field("cpu_cores", "CPU time since the sample before, in cores",
           lambda row: None if row.node.snapshot is None else row.node.snapshot.cpu_cores),
    _field("gpu_load1", "sum of the GPUs' loads over 1 minute", lambda row: _gpu_load(row, lambda mean: mean.m1)),
    _field("gpu_load15", "sum of the GPUs' loads over 15 minutes", lambda row: _gpu_load(row, lambda mean: mean.m15)),
    _field("gpu_load_over_s", "how long the youngest of the GPUs' loads was measured, seconds",
           lambda row: row.figures.gpu_load_over_s or None),
    _field("hidden_gpus", "GPUs that only others use",
           lambda row: None if row.node.snapshot is None else row.node.snapshot.hidden_gpus),
)  # fmt: skip
"""The columns in LLload's order, each figure after the bar of its percentage."""
