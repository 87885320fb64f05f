"""Convert a snapshot to metrics for Prometheus, and Prometheus's answers back to snapshots.

Both directions follow the `Metric` at each field of the records. Units are Prometheus's base units: bytes, seconds,
ratios, watts. An unknown figure has no series.

The number of series is bounded by the node's GPUs, users and jobs. Processes have none, because process ids do not
repeat. `jobid` is Slurm's number of a job; `job` is a label of Prometheus. NODE_LINE is enough for a line per node:
eleven series, however many GPUs.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ..core import numbers
from ..core.metric import MetricField, measured
from ..core.records import Reasons
from ..core.text import counted
from ..node.gpu_figures import Activity
from .rules import own_figures
from .snapshot import GpuLoad, GpuSums, JobLoad, JobProgress, Means, Snapshot, UserLoad

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "slurm_share_"
_TEXT_MAX = 120
"""Most characters of a driver's message in a label."""
_DIGITS = 6
"""Digits to which a percentage is rounded after it was divided by 100 and multiplied again."""

NOT_REPORTED = "not in Prometheus: the node's agent did not report it"
NOT_KEPT = "Prometheus keeps none; --source agents has them"
NOT_ASKED = "left out, as requested"
PROBLEMS = "the agent of this node reports {}; its log and --source agents have the text"


LOADS = tuple((f"load{minutes}", f"Load average over {minutes} minutes.") for minutes in (1, 5, 15))
ACTIVITY = "activity_ratio"
WINDOWS = {"1m": "m1", "5m": "m5", "10m": "m10", "15m": "m15"}
OVER = "window_seconds"


def _series_of(record: type[Struct]) -> tuple[MetricField, ...]:
    """Return the figures of a record that have one series each."""
    return tuple(one for one in measured(record) if one.metric.exported and not one.is_windows)


def _windows_of(record: type[Struct]) -> tuple[MetricField, ...]:
    """Return the figures of a record that have a series for each window."""
    return tuple(one for one in measured(record) if one.metric.exported and one.is_windows)


_LINE_COLUMNS = (
    *("sample_timestamp_seconds", "measured_seconds", "memory_used_bytes", "problems"),
    *("gpu_memory_used_bytes", "gpu_memory_fullest_ratio", "gpu_load5"),
)
NODE_LINE = tuple(f"{PREFIX}node_{name}" for name in ("info", *(name for name, _ in LOADS), *_LINE_COLUMNS))
"""Names of the metrics that a line per node needs."""


class MetricLabels(Struct, frozen=True, omit_defaults=True, gc=False):
    """Labels of our series. Those that Prometheus adds (`instance`, `job`) are not read."""

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
    host_memory: str = ""
    problem: str = ""
    # job_info
    share: str = ""
    slots: str = ""


# --- A snapshot -> metrics --------------------------------------------------------------------------------------------


class _Page:
    """A page of metric families, in the order in which they are first named."""

    def __init__(self) -> None:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        self._kinds = {False: GaugeMetricFamily, True: CounterMetricFamily}
        self._families: dict[str, tuple[Metric, tuple[str, ...]]] = {}

    def add(
        self,
        name: str,
        text: str,
        labels: Mapping[str, str],
        value: float | None,
        factor: float = 1.0,
        *,
        counter: bool = False,
    ) -> None:
        """Add one series, unless the value is not known or is not a number. `factor`: from its unit to Prometheus's."""
        if value is None or not math.isfinite(value):
            return
        if name not in self._families:
            family = self._kinds[counter](PREFIX + name, text, labels=tuple(labels))
            self._families[name] = family, tuple(labels)
        family, keys = self._families[name]
        # Bytes of a user database that are no UTF-8 become escapes.
        texts = [labels[key].encode("utf-8", "backslashreplace").decode("utf-8") for key in keys]
        family.add_metric(texts, value * factor)  # type: ignore[attr-defined]

    def figures(self, kind: str, labels: Mapping[str, str], record: Struct) -> None:
        """Add a series for each known figure of the record."""
        for one in _series_of(type(record)):
            name, value = f"{kind}_{one.series}", getattr(record, one.name)
            self.add(name, one.metric.help, labels, value, one.factor, counter=one.metric.counter)

    def windows(self, kind: str, labels: Mapping[str, str], record: Struct) -> None:
        """Add five series of each figure that has windows: four of them (10 minutes only if measured), and the seconds
        that were measured."""
        for one in _windows_of(type(record)):
            name, means = f"{kind}_{one.series}", getattr(record, one.name)
            if means is None:
                continue
            for window, field in WINDOWS.items():
                self.add(name, one.metric.help, {**labels, "window": window}, getattr(means, field), one.factor)
            self.add(f"{name}_{OVER}", "How much of its windows was measured.", labels, means.over_s)

    def render(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the families; prometheus_client calls this."""
        return (family for family, _ in self._families.values())


def render(snapshot: Snapshot) -> bytes:
    """Return the page that Prometheus scrapes, as bytes of its text format."""
    page = _Page()
    node = {"node": snapshot.node}
    _node(page, node, snapshot)
    for gpu in snapshot.gpus:
        _gpu(page, node, gpu)
    for job in snapshot.jobs:
        _job(page, node, job)
    accounts = Counter(user.user for user in snapshot.users)
    for user in snapshot.users:
        # Two accounts may have the same name, and Prometheus drops the second of two series with the same labels.
        name = user.user if accounts[user.user] == 1 else f"{user.user} (uid {user.uid})"
        labels = {**node, "user": name}
        page.add("user_info", "A user with something on the node.", {**labels, "uid": str(user.uid)}, 1)
        page.figures("user", labels, user)
        for uuid in user.gpus:
            page.add("user_on_gpu", "The user has a process on that GPU.", {**labels, "gpu": uuid}, 1)
    return page.render()


def _node(page: _Page, node: Mapping[str, str], snapshot: Snapshot) -> None:
    sums = snapshot.sums
    page.add(
        "node_info",
        "Facts about a node that seldom change.",
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
            "load_by": sums.gpu_load_by,
            "partial": _flag(sums.partial),
            "unusable": _text(sums.unusable or None),
            "simulated": _flag(snapshot.simulated),
        },
        1,
    )
    page.figures("node", node, snapshot)
    for place, (name, text) in enumerate(LOADS):
        page.add(f"node_{name}", text, node, None if snapshot.load is None else snapshot.load[place])
    page.add("node_gpus", "GPUs; of a GPU in MIG mode its instances.", node, sums.count)
    page.figures("node", node, sums)
    page.add("node_problems", "Problems on this node; the agent's log names them.", node, len(snapshot.problems))


def _gpu(page: _Page, node: Mapping[str, str], gpu: GpuLoad) -> None:
    labels = {**node, "gpu": gpu.uuid, "index": str(gpu.index)}
    info = {
        **labels,
        "model": gpu.name,
        "minor": _text(gpu.minor),
        "mig_parent": _flag(gpu.mig_parent),
        "mig_of": gpu.mig_of or "",
        "host_memory": _flag(gpu.is_host_memory),
        "simulated": _flag(gpu.simulated),
    }
    page.add("gpu_info", "A GPU, or a MIG instance.", info, 1)
    if gpu.problem is not None:
        page.add("gpu_unusable", "A GPU that cannot be used.", {**labels, "problem": gpu.problem[:_TEXT_MAX] or "?"}, 1)
    page.figures("gpu", labels, gpu)
    page.windows("gpu", labels, gpu)
    for one in _series_of(Activity):
        text = "Activity of a part of the GPU since the sample before (GPM)."
        page.add(f"gpu_{ACTIVITY}", text, {**labels, "unit": one.json}, getattr(gpu.activity, one.name), one.factor)


def _job(page: _Page, node: Mapping[str, str], job: JobLoad) -> None:
    labels = {**node, "jobid": str(job.job), "user": job.user}
    known = {"share": _text(job.share), "slots": _text(job.slots), "sharing": job.sharing or ""}
    info = {**labels, "uid": str(job.uid), **known}
    page.add("job_info", "A job on the node.", info, 1)
    page.figures("job", labels, job)
    if job.progress is not None:
        page.figures("job", labels, job.progress)
    page.windows("job", labels, job)
    for uuid in job.gpus:
        page.add("job_on_gpu", "The job has a process on that GPU.", {**labels, "gpu": uuid}, 1)
    for uuid in sorted({*job.gpus, *(job.granted or ())}):
        text = "Slurm gave the job that GPU, whole or in part, or the job has a process on it."
        page.add("job_holds_gpu", text, {**labels, "gpu": uuid}, 1)


class Cost(Struct, frozen=True, kw_only=True):
    """CPU time and memory that an agent uses, measured by itself."""

    cpu_ratio: float | None
    """CPU time of the last minute over wall time: 0.005 is half a percent of one core. None: just started."""
    resident_bytes: int | None
    round_s: float | None
    """Duration of the last sample."""
    rounds: int
    failed: int
    """Samples without a snapshot."""


def render_cost(cost: Cost, node: str) -> bytes:
    """Return the part of the page that is about the agent itself."""
    page, labels = _Page(), {"node": node}
    page.add("agent_cpu_ratio", "CPU time of the agent over wall time, last minute.", labels, cost.cpu_ratio)
    page.add("agent_resident_memory_bytes", "Memory of the agent.", labels, cost.resident_bytes)
    page.add("agent_round_seconds", "Duration of the last sample.", labels, cost.round_s)
    page.add("agent_rounds", "Samples taken.", labels, cost.rounds, counter=True)
    page.add("agent_rounds_failed", "Samples that failed.", labels, cost.failed, counter=True)
    return page.render()


def _text(number: int | None) -> str:
    """Return a label's text. To Prometheus, an empty label is an absent one."""
    return "" if number is None else str(number)


def _flag(on: bool) -> str:
    return "yes" if on else ""


# --- Prometheus's answers -> snapshots --------------------------------------------------------------------------------


class PrometheusSeries(Struct, frozen=True, gc=False):
    """One series and its value, as Prometheus answers an instant query."""

    metric: MetricLabels
    value: tuple[float, str]
    """Unix time of the query, and the value as text."""


_Values = dict[str, float]


class _NodeSeries:
    """The series of one node, sorted by subject."""

    __slots__ = ("info", "others", "values")

    def __init__(self) -> None:
        self.info: MetricLabels | None = None
        self.values: _Values = {}
        self.others: dict[tuple[str, str], list[PrometheusSeries]] = {}
        """By ("gpu", "job" or "user"; its id). Empty for a line per node, of which there may be ten thousand."""

    def of(self, kind: str) -> dict[str, list[PrometheusSeries]]:
        """Return the series of each subject of a kind: gpu, job or user."""
        return {which: rows for (of, which), rows in self.others.items() if of == kind}


def snapshots(series: Iterable[PrometheusSeries]) -> dict[str, Snapshot]:
    """Return a snapshot for each node in the series: with its GPUs if they have series, else with their sums. Ignores
    series that are not ours, and nodes without `node_info` or without the time of their sample."""
    nodes: dict[str, _NodeSeries] = defaultdict(_NodeSeries)
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
_ACTIVITIES = {one.json: one for one in _series_of(Activity)}
_IN_A_LINE = {one.name for one in _series_of(Snapshot) if f"{PREFIX}node_{one.series}" in NODE_LINE} | {
    *("memory_total_mib", "load", "driver"),
}
"""Fields of a Snapshot that a line per node has."""


def _snapshot(name: str, node: _NodeSeries) -> Snapshot | None:
    info, values = node.info, node.values
    taken = values.get("sample_timestamp_seconds")
    if info is None or taken is None or not math.isfinite(taken):
        return None
    loads = tuple(values[load] for load, _ in LOADS if load in values)
    jobs: tuple[JobLoad, ...] = ()
    gpus: list[GpuLoad] = []
    if node.others:
        found = sorted(node.of("job").items(), key=lambda item: (len(item[0]), item[0]))
        jobs = tuple(job for _, rows in found if (job := _job_of(rows)) is not None)
        gpus = [gpu for rows in node.of("gpu").values() if (gpu := _gpu_of(rows)) is not None]
        gpus.sort(key=lambda gpu: (gpu.index, gpu.uuid))
    details = "gpus" in values
    """Every agent exports node_gpus, and NODE_LINE does not have it."""
    unknown: Reasons = {"processes": NOT_KEPT if details else NOT_ASKED}
    if not details:
        unknown |= {"gpus": NOT_ASKED, "jobs": NOT_ASKED, "users": NOT_ASKED}
    known: dict[str, Any] = {
        **_figures(Snapshot, values)[0],
        "memory_total_mib": _number(info.memory_mib),
        "cpus": _number(info.cpus) or 0,
        "cores": _number(info.cores) or 0,
        "load": loads if len(loads) == 3 else None,
        "driver": info.driver or None,
    }
    for field, value in known.items():
        if value is None:
            unknown[field] = NOT_REPORTED if details or field in _IN_A_LINE else NOT_ASKED
    problems = int(values.get("problems", 0))
    return Snapshot(
        schema=_number(info.schema) or 1,
        node=name,
        view=info.view,
        source="prometheus",
        version=info.version,
        gpus=tuple(gpus),
        jobs=jobs,
        users=tuple(_users(node, jobs)) if node.others else (),
        gpu_sums=None if details else _sums(info, values),
        problems=(PROBLEMS.format(counted(problems, "problem")),) if problems else (),
        unknown=unknown,
        **known,
    )


def _sums(info: MetricLabels, values: _Values) -> GpuSums:
    return GpuSums(
        count=_number(info.gpus) or 0,
        gpu_load_by=info.load_by if info.load_by in ("sm", "util", "both") else "",  # type: ignore[arg-type]
        partial=bool(info.partial),
        unusable=_number(info.unusable) or 0,
        simulated=bool(info.simulated),
        **(_figures(GpuSums, values)[0] | {"memory_total_mib": _number(info.gpu_memory_mib)}),
    )


def _gpu_of(rows: Sequence[PrometheusSeries]) -> GpuLoad | None:
    values, info = _sorted(rows, "gpu_")
    if info is None:
        return None
    problem = next((one.metric.problem for one in rows if one.metric.problem), None)
    activity = {
        one.name: round(float(row.value[1]) / one.factor, _DIGITS)
        for row in rows
        if row.metric.name == f"{PREFIX}gpu_{ACTIVITY}" and (one := _ACTIVITIES.get(row.metric.unit)) is not None
    }
    fields, unknown = _read(GpuLoad, "gpu", values, rows)
    return GpuLoad(
        uuid=info.gpu,
        index=_number(info.index) or 0,
        name=info.model,
        minor=_number(info.minor),
        mig_parent=bool(info.mig_parent),
        mig_of=info.mig_of or None,
        is_host_memory=bool(info.host_memory),
        simulated=bool(info.simulated),
        activity=Activity(**activity),
        problem=problem,
        unknown=unknown,
        **fields,
    )


def _job_of(rows: Sequence[PrometheusSeries]) -> JobLoad | None:
    values, info = _sorted(rows, "job_")
    number, uid = _number(info.jobid if info else None), _number(info.uid if info else None)
    if info is None or number is None or uid is None:
        return None
    fields, unknown = _read(JobLoad, "job", values, rows)
    fields["slots"] = _number(info.slots)
    unknown.pop("slots", None)
    granted = _on_gpus(rows, "job_holds_gpu") or None
    if granted is None:
        unknown["granted"] = NOT_REPORTED
    # Prometheus does not keep the source of a rate, so a job's progress is shown and never compared.
    has_progress = any(one.series in values for one in _series_of(JobProgress))
    if not has_progress:
        unknown["progress"] = own_figures.NO_REPORT
    return JobLoad(
        job=number,
        uid=uid,
        user=info.user,
        share=_number(info.share),
        gpus=_on_gpus(rows, "job_on_gpu"),
        granted=granted,
        progress=JobProgress(**_figures(JobProgress, values)[0]) if has_progress else None,
        unknown=unknown,
        **fields,
    )


def _users(node: _NodeSeries, jobs: Sequence[JobLoad]) -> Iterator[UserLoad]:
    for user, rows in sorted(node.of("user").items()):
        values, info = _sorted(rows, "user_")
        uid = _number(info.uid if info else None)
        if uid is None:
            continue
        fields, unknown = _read(UserLoad, "user", values, rows)
        own = tuple(job.job for job in jobs if job.uid == uid)
        yield UserLoad(uid=uid, user=user, jobs=own, gpus=_on_gpus(rows, "user_on_gpu"), unknown=unknown, **fields)


def _sorted(rows: Sequence[PrometheusSeries], kind: str) -> tuple[_Values, MetricLabels | None]:
    """Return the plain values by metric, and the labels of the record's info series."""
    start = len(PREFIX) + len(kind)
    values = {one.metric.name[start:]: float(one.value[1]) for one in rows if not one.metric.window}
    info = next((one.metric for one in rows if one.metric.name == f"{PREFIX}{kind}info"), None)
    return values, info


def _read(
    record: type[Struct], kind: str, values: _Values, rows: Sequence[PrometheusSeries]
) -> tuple[dict[str, Any], Reasons]:
    """Return the fields of a record that have series, and why some are not known."""
    fields, unknown = _figures(record, values)
    for one in _windows_of(record):
        fields[one.name] = _means(rows, f"{PREFIX}{kind}_{one.series}", one.factor)
        if fields[one.name] is None:
            unknown[one.json] = NOT_REPORTED
    return fields, unknown


def _figures(record: type[Struct], values: _Values) -> tuple[dict[str, Any], Reasons]:
    """Return the figures of a record that have one series each, and why some are not known."""
    fields: dict[str, Any] = {}
    unknown: Reasons = {}
    for one in _series_of(record):
        value = values.get(f"{one.series}_total" if one.metric.counter else one.series)
        if value is None or not math.isfinite(value):
            fields[one.name], unknown[one.json] = one.default, NOT_REPORTED
        else:
            figure = value if one.factor == 1.0 else round(value / one.factor, _DIGITS)
            fields[one.name] = round(figure) if one.is_whole else figure
    return fields, unknown


def _means(rows: Sequence[PrometheusSeries], name: str, unit: float) -> Means | None:
    found = {
        WINDOWS[one.metric.window]: round(float(one.value[1]) / unit, _DIGITS)
        for one in rows
        if one.metric.name == name and one.metric.window in WINDOWS
    }
    over = next((float(one.value[1]) for one in rows if one.metric.name == f"{name}_{OVER}"), None)
    is_whole = found.keys() >= set(WINDOWS.values()) - {"m10"}
    return Means(**found, over_s=over) if is_whole and over is not None else None


def _on_gpus(rows: Sequence[PrometheusSeries], name: str) -> tuple[str, ...]:
    return tuple(sorted(one.metric.gpu for one in rows if one.metric.name == PREFIX + name))


def _number(text: str | None) -> int | None:
    return numbers.whole(text, numbers.UINT32_MOST)
