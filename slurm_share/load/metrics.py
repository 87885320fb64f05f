"""A snapshot as metrics for Prometheus, and back from what Prometheus answers.

Both directions follow the same tables. Units are Prometheus's own (bytes, seconds, ratios of 1, watts), so a percent of
the snapshot is a hundredth here, and a MiB 1,048,576 bytes. What the snapshot does not know has no series.

The number of series is bounded by what is on the node: its GPUs, its users and its jobs. There are none for processes,
whose numbers never come again. `jobid` is Slurm's number of a job; `job` is a word of Prometheus's own. NODE_LINE is
enough for a line per node: eleven series, however many GPUs.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ..core.records import Reasons
from ..mps.records import MPS_NAME
from ..node.records import Activity
from .snapshot import (
    GpuLoad,
    GpuSums,
    JobLoad,
    Means,
    ProcessLoad,
    Snapshot,
    UserLoad,
)

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "slurm_share_"
MIB = 1048576.0
PERCENT = 0.01
_TEXT_MAX = 120
"""Characters of a driver's sentence in a label."""
_DIGITS = 6
"""A percentage that was divided by 100 and multiplied again is rounded to so many, far beyond what is measured."""

NOT_SAID = "not in Prometheus: the node's agent could not say"
NOT_KEPT = "Prometheus does not keep it; ask the agents"
NOT_ASKED = "left out, as it was asked for"
PROBLEMS = "the agent of this node reports problems ({}); its log, and --source agents, have them in words"


class Column(Struct, frozen=True):
    """A field of a record, and the metric that has it."""

    field: str
    metric: str
    """Without PREFIX and the word of the record (node, gpu, job, user)."""
    help: str
    unit: float = 1.0
    """What one of the field's is in the metric's unit."""
    whole: bool = False
    counter: bool = False


NODE = (
    Column("taken", "sample_timestamp_seconds", "When the sample was taken, Unix time of the node's clock."),
    Column("measured_s", "measured_seconds", "How long the sampler has watched this node."),
    Column("interval_s", "sample_interval_seconds", "Between the last two samples."),
    Column("cpus", "cpus", "Hardware threads online.", whole=True),
    Column("cores", "cores", "Cores.", whole=True),
    Column("cpu_cores", "cpu_used_cores", "CPU time since the sample before, in cores."),
    Column("memory_total_mib", "memory_total_bytes", "Host memory.", MIB, whole=True),
    Column("memory_used_mib", "memory_used_bytes", "Host memory in use, without page cache.", MIB, whole=True),
)
LOADS = tuple((f"load{minutes}", f"Load average over {minutes} minutes.") for minutes in (1, 5, 15))
SUMS = (
    Column("memory_total_mib", "gpu_memory_total_bytes", "Memory of all GPUs that say theirs.", MIB, whole=True),
    Column("memory_used_mib", "gpu_memory_used_bytes", "Memory in use on all GPUs that say theirs.", MIB, whole=True),
    Column("fullest", "gpu_memory_fullest_ratio", "Of the fullest GPU, how much of its memory is in use."),
    Column("load5", "gpu_load5", "Sum of the GPUs' loads over 5 minutes: 2 is two GPUs fully busy."),
)
GPU = (
    Column("memory_total_mib", "memory_total_bytes", "Memory of the GPU.", MIB, whole=True),
    Column("memory_used_mib", "memory_used_bytes", "Memory in use on the GPU, the driver's own included.", MIB, True),
    Column("utilization_percent", "utilization_ratio", "Share of the driver's last period with a kernel.", PERCENT),
    Column("power_w", "power_watts", "Power drawn now."),
    Column("energy_j", "energy_joules", "Energy since the driver was loaded.", counter=True),
    Column("temperature_c", "temperature_celsius", "Temperature.", whole=True),
    Column("clients", "clients", "Processes with a context on the GPU.", whole=True),
    Column("unused_s", "unused_seconds", "How long no process has been on the GPU, at most 900."),
)
GPU_MEANS = (
    ("utilization", "utilization_mean_ratio", "Utilisation over 1, 5, 10 and 15 minutes.", PERCENT),
    ("sm", "sm_mean_ratio", "SM activity over 1, 5, 10 and 15 minutes (GPM).", PERCENT),
)
ACTIVITY = "activity_ratio"
JOB = (
    Column("tasks", "tasks", "Tasks with a process on a GPU now.", whole=True),
    Column("gpu_memory_mib", "gpu_memory_bytes", "GPU memory of the job's processes here.", MIB, whole=True),
    Column("gpu_load", "gpu_load", "Its part of its GPUs' load over 5 minutes: 2 is two GPUs fully busy."),
    Column("cpu_cores", "cpu_used_cores", "CPU time since the sample before, in cores."),
    Column("memory_mib", "memory_bytes", "Host memory of the job here, without page cache.", MIB, whole=True),
    Column("memory_kills", "memory_kills", "Processes ended for the job's memory was full.", whole=True, counter=True),
    Column("task_peak_mib", "task_peak_gpu_memory_bytes", "The most GPU memory of one task.", MIB, whole=True),
    Column("task_host_peak_mib", "task_peak_memory_bytes", "The most host memory of one task.", MIB, whole=True),
    Column("tasks_measured", "tasks_measured", "Tasks that the peaks rest on.", whole=True),
    Column("tasks_at_once", "tasks_at_once", "The most tasks at the same moment.", whole=True),
    Column("measured_s", "measured_seconds", "How long the job has been watched."),
)
JOB_MEANS = (("cpu", "cpu_mean_cores", "Cores used over 1, 5, 10 and 15 minutes.", 1.0),)
USER = (
    Column("processes", "gpu_processes", "Processes of the user on GPUs.", whole=True),
    Column("gpu_memory_mib", "gpu_memory_bytes", "GPU memory of the user.", MIB, whole=True),
    Column("gpu_load", "gpu_load", "The user's part of the GPUs' load over 5 minutes: 2 is two GPUs fully busy."),
    Column("cpu_cores", "cpu_used_cores", "CPU time of the user's jobs, in cores."),
    Column("memory_mib", "memory_bytes", "Host memory of the user's jobs, without page cache.", MIB, whole=True),
)
WINDOWS = {"1m": "m1", "5m": "m5", "10m": "m10", "15m": "m15"}
OVER = "window_seconds"

_LINE_COLUMNS = (
    *("sample_timestamp_seconds", "measured_seconds", "memory_used_bytes", "problems"),
    *("gpu_memory_used_bytes", "gpu_memory_fullest_ratio", "gpu_load5"),
)
NODE_LINE = tuple(f"{PREFIX}node_{name}" for name in ("info", *(name for name, _ in LOADS), *_LINE_COLUMNS))
"""The metrics of a line per node."""


class Labels(Struct, frozen=True, omit_defaults=True, gc=False):
    """What tells one series from another, of ours; Prometheus's own (`instance`, `job`) are not read."""

    name: str = msgspec.field(name="__name__", default="")
    node: str = ""
    gpu: str = ""
    index: str = ""
    jobid: str = ""
    user: str = ""
    uid: str = ""
    window: str = ""
    unit: str = ""
    # node_info
    version: str = ""
    driver: str = ""
    schema: str = ""
    view: str = ""
    cpus: str = ""
    cores: str = ""
    memory_mib: str = ""
    gpus: str = ""
    gpu_memory_mib: str = ""
    load_by: str = ""
    partial: str = ""
    unusable: str = ""
    simulated: str = ""
    # gpu_info
    model: str = ""
    minor: str = ""
    mig_parent: str = ""
    mig_of: str = ""
    problem: str = ""
    # job_info
    share: str = ""
    slots: str = ""


# --- A snapshot -> metrics --------------------------------------------------------------------------------------------


class _Page:
    """Metric families in the making, in the order in which they are first named."""

    def __init__(self) -> None:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        self._kinds = {False: GaugeMetricFamily, True: CounterMetricFamily}
        self._families: dict[str, tuple[Metric, tuple[str, ...]]] = {}

    def add(
        self, name: str, text: str, labels: Mapping[str, str], value: float | None, *, counter: bool = False
    ) -> None:
        """One series; none where the value is not known, or no number."""
        if value is None or not math.isfinite(value):
            return
        if name not in self._families:
            family = self._kinds[counter](PREFIX + name, text, labels=tuple(labels))
            self._families[name] = family, tuple(labels)
        family, keys = self._families[name]
        family.add_metric([_safe(labels[key]) for key in keys], value)  # type: ignore[attr-defined]

    def columns(self, kind: str, columns: Iterable[Column], labels: Mapping[str, str], record: object) -> None:
        """A series for each column that the record knows."""
        for one in columns:
            value = getattr(record, one.field)
            scaled = None if value is None else value * one.unit
            self.add(f"{kind}_{one.metric}", one.help, labels, scaled, counter=one.counter)

    def means(self, name: str, text: str, labels: Mapping[str, str], means: Means | None, unit: float) -> None:
        """Add five series: four windows (10 minutes where it was measured), and how much of them was measured."""
        if means is None:
            return
        for window, field in WINDOWS.items():
            value = getattr(means, field)
            self.add(name, text, {**labels, "window": window}, None if value is None else value * unit)
        self.add(f"{name}_{OVER}", "How much of its windows was measured.", labels, means.over_s)

    def render(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """As prometheus_client asks a registry."""
        return (family for family, _ in self._families.values())


def render(snapshot: Snapshot) -> bytes:
    """The text that Prometheus scrapes."""
    page = _Page()
    node = {"node": snapshot.node}
    _node(page, node, snapshot)
    for gpu in snapshot.gpus:
        _gpu(page, node, gpu, snapshot.processes)
    for job in snapshot.jobs:
        _job(page, node, job)
    accounts = Counter(user.user for user in snapshot.users)
    for user in snapshot.users:
        # Two accounts may have one name, and Prometheus drops the second of two series with the same labels.
        name = user.user if accounts[user.user] == 1 else f"{user.user} (uid {user.uid})"
        labels = {**node, "user": name}
        page.add("user_info", "A user with something on the node.", {**labels, "uid": str(user.uid)}, 1)
        page.columns("user", USER, labels, user)
        for uuid in user.gpus:
            page.add("user_on_gpu", "The user has a process on that GPU.", {**labels, "gpu": uuid}, 1)
    return page.render()


def _node(page: _Page, node: Mapping[str, str], snapshot: Snapshot) -> None:
    sums = snapshot.sums
    page.add(
        "node_info",
        "What seldom changes about a node.",
        {
            **node,
            "version": snapshot.version,
            "driver": snapshot.driver or "",
            "schema": str(snapshot.schema),
            "view": snapshot.view,
            "cpus": str(snapshot.cpus),
            "cores": str(snapshot.cores),
            "memory_mib": _text(snapshot.memory_total_mib),
            "gpus": str(sums.count),
            "gpu_memory_mib": _text(sums.memory_total_mib),
            "load_by": sums.load_by,
            "partial": _flag(sums.partial),
            "unusable": _text(sums.unusable or None),
            "simulated": _flag(snapshot.simulated),
        },
        1,
    )
    page.columns("node", NODE, node, snapshot)
    for place, (name, text) in enumerate(LOADS):
        page.add(f"node_{name}", text, node, None if snapshot.load is None else snapshot.load[place])
    page.add("node_gpus", "GPUs, MIG instances in the place of a GPU that is divided.", node, sums.count)
    page.columns("node", SUMS, node, sums)
    page.add("node_problems", "Things that do not work on this node; the log has them.", node, len(snapshot.problems))


def _gpu(page: _Page, node: Mapping[str, str], gpu: GpuLoad, processes: Iterable[ProcessLoad]) -> None:
    labels = {**node, "gpu": gpu.uuid, "index": str(gpu.index)}
    info = {
        **labels,
        "model": gpu.name,
        "minor": _text(gpu.minor),
        "mig_parent": _flag(gpu.mig_parent),
        "mig_of": gpu.mig_of or "",
        "simulated": _flag(gpu.simulated),
    }
    page.add("gpu_info", "A GPU, or a MIG instance.", info, 1)
    if gpu.problem is not None:
        page.add(
            "gpu_unusable", "A GPU that is not to be used.", {**labels, "problem": gpu.problem[:_TEXT_MAX] or "?"}, 1
        )
    page.columns("gpu", GPU, labels, gpu)
    page.add("gpu_mps_servers", "MPS servers on the GPU.", labels, _mps_servers(gpu, processes))
    for field, metric, text, unit in GPU_MEANS:
        page.means(f"gpu_{metric}", text, labels, getattr(gpu, field), unit)
    for field in Activity.__struct_fields__:
        value = getattr(gpu.activity, field)
        page.add(
            f"gpu_{ACTIVITY}",
            "What a part of the GPU did since the sample before (GPM).",
            {**labels, "unit": field},
            None if value is None else value * PERCENT,
        )


def _mps_servers(gpu: GpuLoad, processes: Iterable[ProcessLoad]) -> int | None:
    """None: the driver does not say which processes are on the GPU."""
    if gpu.clients is None:
        return None
    servers = (process for process in processes if process.name.startswith(MPS_NAME))
    return sum(on.uuid == gpu.uuid for process in servers for on in process.gpus)


def _job(page: _Page, node: Mapping[str, str], job: JobLoad) -> None:
    labels = {**node, "jobid": str(job.job), "user": job.user}
    info = {**labels, "uid": str(job.uid), "share": _text(job.share), "slots": _text(job.slots)}
    page.add("job_info", "A job on the node.", info, 1)
    page.add("job_slots", "Slots of the job's share on this node.", labels, job.slots)
    page.columns("job", JOB, labels, job)
    for field, metric, text, unit in JOB_MEANS:
        page.means(f"job_{metric}", text, labels, getattr(job, field), unit)
    for uuid in job.gpus:
        page.add("job_on_gpu", "The job has a process on that GPU.", {**labels, "gpu": uuid}, 1)


class Cost(Struct, frozen=True, kw_only=True):
    """What an agent takes of its node, by its own measure."""

    cpu_ratio: float | None
    """CPU time of the last minute over wall time: 0.005 is half a percent of one core. None: just started."""
    resident_bytes: int | None
    round_s: float | None
    """What the last sample took, wall time."""
    rounds: int
    failed: int
    """Of them without a snapshot."""


def render_cost(cost: Cost, node: str) -> bytes:
    """The agent's own part of the page."""
    page, labels = _Page(), {"node": node}
    page.add("agent_cpu_ratio", "CPU time of the agent over wall time, last minute.", labels, cost.cpu_ratio)
    page.add("agent_resident_memory_bytes", "Memory of the agent.", labels, cost.resident_bytes)
    page.add("agent_round_seconds", "What the last sample took.", labels, cost.round_s)
    page.add("agent_rounds", "Samples taken.", labels, cost.rounds, counter=True)
    page.add("agent_rounds_failed", "Samples that failed.", labels, cost.failed, counter=True)
    return page.render()


def _safe(text: str) -> str:
    """A label is UTF-8; what a user database has that is none is written as an escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _text(number: int | None) -> str:
    """An absent label and an empty one are the same to Prometheus."""
    return "" if number is None else str(number)


def _flag(on: bool) -> str:
    return "yes" if on else ""


# --- What Prometheus answers -> snapshots -----------------------------------------------------------------------------


class Series(Struct, frozen=True, gc=False):
    """One series and its value, as Prometheus answers an instant query."""

    metric: Labels
    value: tuple[float, str]
    """When it was asked, Unix time; the number as text."""


_Values = dict[str, float]


class _Node:
    """The series of one node, sorted by what they are about."""

    __slots__ = ("info", "others", "values")

    def __init__(self) -> None:
        self.info: Labels | None = None
        self.values: _Values = {}
        self.others: dict[tuple[str, str], list[Series]] = {}
        """By (gpu, job or user; which one). Empty for a line per node, of which there may be ten thousand."""

    def of(self, kind: str) -> dict[str, list[Series]]:
        """The series of each GPU, job or user."""
        return {which: rows for (of, which), rows in self.others.items() if of == kind}


def snapshots(series: Iterable[Series]) -> dict[str, Snapshot]:
    """A snapshot for each node that the series are about, with what they carry: GPUs where there are any by
    themselves, else their sums. Series that are not ours, or make no sense, are passed over; so is a node without
    `node_info` and the time of its sample."""
    nodes: dict[str, _Node] = defaultdict(_Node)
    start = len(PREFIX)
    for one in series:
        labels = one.metric
        name = labels.name
        if not labels.node or not name.startswith(PREFIX):
            continue
        node = nodes[labels.node]
        if name.startswith("node_", start):
            if name == _INFO:
                node.info = labels
            else:
                node.values[name[start + 5 :]] = float(one.value[1])
            continue
        kind = name[start:].partition("_")[0]
        which = {"gpu": labels.gpu, "job": labels.jobid, "user": labels.user}.get(kind)
        if which is not None:
            node.others.setdefault((kind, which), []).append(one)
    found = ((name, _snapshot(name, node)) for name, node in nodes.items())
    return {name: snapshot for name, snapshot in found if snapshot is not None}


_INFO = PREFIX + "node_info"


def _snapshot(name: str, node: _Node) -> Snapshot | None:
    info, values = node.info, node.values
    taken = values.get("sample_timestamp_seconds")
    if info is None or taken is None:
        return None
    loads = tuple(values[load] for load, _ in LOADS if load in values)
    jobs: tuple[JobLoad, ...] = ()
    gpus: list[GpuLoad] = []
    if node.others:
        found = sorted(node.of("job").items(), key=_by_number)
        jobs = tuple(job for _, rows in found if (job := _job_of(rows)) is not None)
        gpus = [gpu for rows in node.of("gpu").values() if (gpu := _gpu_of(rows)) is not None]
        gpus.sort(key=lambda gpu: (gpu.index, gpu.uuid))
    details = "gpus" in values
    """node_gpus: not in NODE_LINE, and every agent has it."""
    unknown: Reasons = {"processes": NOT_KEPT if details else NOT_ASKED}
    if not details:
        unknown |= {"gpus": NOT_ASKED, "jobs": NOT_ASKED, "users": NOT_ASKED}
    known: dict[str, Any] = {
        "memory_total_mib": _number(info.memory_mib),
        "memory_used_mib": _mib(values.get("memory_used_bytes")),
        "load": loads if len(loads) == 3 else None,
        "driver": info.driver or None,
        "cpu_cores": values.get("cpu_used_cores"),
        "interval_s": values.get("sample_interval_seconds"),
    }
    for field, value in known.items():
        if value is None:
            unknown[field] = NOT_ASKED if not details and field in ("cpu_cores", "interval_s") else NOT_SAID
    problems = int(values.get("problems", 0))
    return Snapshot(
        schema=_number(info.schema) or 1,
        node=name,
        taken=taken,
        view=info.view,
        source="prometheus",
        measured_s=values.get("measured_seconds", 0.0),
        version=info.version,
        cpus=_number(info.cpus) or 0,
        cores=_number(info.cores) or 0,
        gpus=tuple(gpus),
        jobs=jobs,
        users=tuple(_users(node, jobs)) if node.others else (),
        gpu_sums=None if details else _sums(info, values),
        problems=(PROBLEMS.format(problems),) if problems else (),
        unknown=unknown,
        **known,
    )


def _sums(info: Labels, values: _Values) -> GpuSums:
    return GpuSums(
        count=_number(info.gpus) or 0,
        memory_total_mib=_number(info.gpu_memory_mib),
        memory_used_mib=_mib(values.get("gpu_memory_used_bytes")),
        load5=values.get("gpu_load5"),
        load_by=info.load_by if info.load_by in ("sm", "util", "both") else "",  # type: ignore[arg-type]
        partial=bool(info.partial),
        fullest=values.get("gpu_memory_fullest_ratio"),
        unusable=_number(info.unusable) or 0,
        simulated=bool(info.simulated),
    )


def _gpu_of(rows: Sequence[Series]) -> GpuLoad | None:
    values, info = _sorted(rows, "gpu_")
    if info is None:
        return None
    problem = next((one.metric.problem for one in rows if one.metric.problem), None)
    activity = {
        one.metric.unit: round(float(one.value[1]) / PERCENT, _DIGITS)
        for one in rows
        if one.metric.name == f"{PREFIX}gpu_{ACTIVITY}" and one.metric.unit in Activity.__struct_fields__
    }
    fields, unknown = _fields(GPU, values)
    for field, metric, _, unit in GPU_MEANS:
        fields[field] = _means(rows, f"{PREFIX}gpu_{metric}", unit)
        if fields[field] is None:
            unknown[field] = NOT_SAID
    return GpuLoad(
        uuid=info.gpu,
        index=_number(info.index) or 0,
        name=info.model,
        minor=_number(info.minor),
        mig_parent=bool(info.mig_parent),
        mig_of=info.mig_of or None,
        simulated=bool(info.simulated),
        activity=Activity(**activity),
        problem=problem,
        unknown=unknown,
        **fields,
    )


def _job_of(rows: Sequence[Series]) -> JobLoad | None:
    values, info = _sorted(rows, "job_")
    if info is None or not info.jobid.isdecimal() or not info.uid.isdecimal():
        return None
    fields, unknown = _fields(JOB, values)
    for field, metric, _, unit in JOB_MEANS:
        fields[field] = _means(rows, f"{PREFIX}job_{metric}", unit)
        if fields[field] is None:
            unknown[field] = NOT_SAID
    _whole(fields, JobLoad)
    return JobLoad(
        job=int(info.jobid),
        uid=int(info.uid),
        user=info.user,
        share=_number(info.share),
        slots=_number(info.slots),
        gpus=_on_gpus(rows),
        unknown=unknown,
        **fields,
    )


def _users(node: _Node, jobs: Sequence[JobLoad]) -> Iterator[UserLoad]:
    for user, rows in sorted(node.of("user").items()):
        values, info = _sorted(rows, "user_")
        if info is None or not info.uid.isdecimal():
            continue
        fields, unknown = _fields(USER, values)
        _whole(fields, UserLoad)
        own = tuple(job.job for job in jobs if job.uid == int(info.uid))
        yield UserLoad(uid=int(info.uid), user=user, jobs=own, gpus=_on_gpus(rows), unknown=unknown, **fields)


def _sorted(rows: Sequence[Series], kind: str) -> tuple[_Values, Labels | None]:
    """The plain values by metric, and the labels of the record's info."""
    start = len(PREFIX) + len(kind)
    values = {one.metric.name[start:]: float(one.value[1]) for one in rows if not one.metric.window}
    info = next((one.metric for one in rows if one.metric.name == f"{PREFIX}{kind}info"), None)
    return values, info


def _fields(columns: Iterable[Column], values: _Values) -> tuple[dict[str, Any], Reasons]:
    fields: dict[str, Any] = {}
    unknown: Reasons = {}
    for one in columns:
        value = values.get(f"{one.metric}_total" if one.counter else one.metric)
        if value is None or not math.isfinite(value):
            fields[one.field], unknown[one.field] = None, NOT_SAID
        else:
            fields[one.field] = round(value / one.unit) if one.whole else round(value / one.unit, _DIGITS)
    return fields, unknown


def _whole(fields: dict[str, Any], record: type[Struct]) -> None:
    """A count that is not there is the record's default: these have no None."""
    for name, default in zip(record.__struct_fields__, _defaults(record), strict=True):
        if name in fields and fields[name] is None and default is not None:
            fields[name] = default


def _defaults(record: type[Struct]) -> tuple[Any, ...]:
    return tuple(field.default for field in msgspec.structs.fields(record))


def _means(rows: Sequence[Series], name: str, unit: float) -> Means | None:
    found = {
        WINDOWS[one.metric.window]: round(float(one.value[1]) / unit, _DIGITS)
        for one in rows
        if one.metric.name == name and one.metric.window in WINDOWS
    }
    over = next((float(one.value[1]) for one in rows if one.metric.name == f"{name}_{OVER}"), None)
    is_whole = found.keys() >= set(WINDOWS.values()) - {"m10"}
    return Means(**found, over_s=over) if is_whole and over is not None else None


def _on_gpus(rows: Sequence[Series]) -> tuple[str, ...]:
    return tuple(sorted(one.metric.gpu for one in rows if one.metric.name.endswith("_on_gpu")))


def _by_number(item: tuple[str, object]) -> tuple[int, str]:
    return len(item[0]), item[0]


def _mib(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else round(value / MIB)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None
