"""Read published logs of clusters: Philly's JSON, Helios' CSV, Alibaba's tables of 2020 and of 2023.

The publishers describe the formats: github.com/msr-fiddle/philly-traces,
github.com/S-Lab-System-Group/HeliosData, github.com/alibaba/clusterdata (cluster-trace-gpu-v2020 and -v2023).
These logs contain times and numbers of GPUs. `assumed_sizes` draws the missing values.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from ..core.errors import UsageError, shown
from . import log_text
from .log_text import TraceError

FORMATS = ("philly", "helios", "alibaba")
ROWS = 1000
"""Default number of jobs that are read."""
ROWS_MOST = 200_000
SECONDS_MOST = 10 * 366 * 86_400.0
GPUS_MOST = 100_000


class LoggedJob(Struct, frozen=True, kw_only=True):
    """A job with GPUs from a cluster log."""

    name: str
    submitted_s: float
    """Seconds since an arbitrary time that is the same for all jobs of the log."""
    seconds: float
    """Duration of the run."""
    gpus: int = 1
    share_ratio: float = 1.0
    """Part of each of its GPUs that it asked for."""
    memory_mib: float | None = None
    """Measured GPU memory; None: not in the log."""
    sm_ratio: float | None = None
    """Measured GPU activity; None: not in the log."""


class ClusterLog(Struct, frozen=True, kw_only=True):
    """The usable jobs of a cluster log."""

    name: str
    jobs: tuple[LoggedJob, ...]
    gpus: int
    """Number of GPUs of a node."""
    gpu_mib: int
    gpu_model: str
    notes: tuple[str, ...]


class _Jobs:
    """Collects jobs up to a limit, and counts those that cannot be used."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.taken: list[LoggedJob] = []
        self.left_out: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()

    @property
    def is_full(self) -> bool:
        return len(self.taken) >= self.rows

    def take(self, job: LoggedJob, end: str) -> None:
        if not self.is_full:
            self.taken.append(job)
            self.ends[end] += 1

    def log(self, path: Path, *, gpus: int, gpu_mib: int, gpu_model: str, notes: Sequence[str]) -> ClusterLog:
        """Return the collected log. Raises TraceError if no job can be used."""
        out = [f"{count} {why}" for why, count in self.left_out.items()]
        if not self.taken:
            why = f" ({', '.join(out)})" if out else ""
            raise TraceError(path, None, f"it has no job with a GPU and known times{why}")
        ends = ", ".join(f"{count} {end}" for end, count in self.ends.most_common())
        made = [f"jobs by their end: {ends}; each takes as long as in the log, whatever its end", *notes]
        if self.is_full:
            made.append(f"only the first {self.rows} jobs of the file that can be used are taken; see --rows")
        if out:
            made.append(f"left out: {', '.join(out)}")
        made.append(f"GPUs of {gpu_mib} MiB are assumed ({gpu_model}); see --gpu-memory")
        return ClusterLog(
            name=path.name, jobs=tuple(self.taken), gpus=gpus, gpu_mib=gpu_mib, gpu_model=gpu_model, notes=tuple(made)
        )


def form_of(name: str) -> str | None:
    """Return the format that belongs to the published name of a file; None: the name is not known."""
    stem = name.removesuffix(".gz")
    if stem in ("cluster_job_log", "cluster_job_log.json"):
        return "philly"
    if stem == "cluster_log.csv":
        return "helios"
    if stem.endswith(".csv") and stem.startswith(("openb_pod_list", "pai_task_table", "pai_instance_table")):
        return "alibaba"
    return None


def read(path: Path, form: str, rows: int | None = None) -> ClusterLog:
    """Return the first jobs of a log, `rows` at most. Raises TraceError, UsageError."""
    rows = ROWS if rows is None else rows
    if not 1 <= rows <= ROWS_MOST:
        raise UsageError(f"--rows {rows}: a number from 1 to {ROWS_MOST}")
    return {"philly": read_philly, "helios": read_helios, "alibaba": read_alibaba}[form](path, rows)


# ---- Values ----

_NO_VALUE = ("", "none", "null", "nan", "na", "unknown")
_ZONES = {"UTC": "+00:00", "GMT": "+00:00", "PST": "-08:00", "PDT": "-07:00", "CST": "+08:00"}
"""CST is China Standard Time, the zone of Helios and Alibaba."""
_NAMED_ZONE = re.compile(r" ?([A-Z]{3})$")
NO_ZONE = "times without a zone are taken as UTC: a change of the clock within a job is not seen"


def _moment(path: Path, line: int, what: str, value: object) -> float | None:
    """Return a time as seconds; None: it is missing. Raises TraceError for an invalid time."""
    if value is None or (isinstance(value, str) and value.strip().lower() in _NO_VALUE):
        return None
    if isinstance(value, str):
        text = value.strip()
        named = _NAMED_ZONE.search(text)
        if named is not None and named[1] in _ZONES:
            text = text[: named.start()] + _ZONES[named[1]]
        try:
            time = datetime.fromisoformat(text)
            return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            pass
    raise TraceError(path, line, f"{what} is {shown(repr(value)[:80])}, and not a time such as 2017-10-07 01:12:09")


def _number(path: Path, line: int, what: str, text: str, most: float) -> float | None:
    """Return a number from 0 to `most`; None: it is missing. Raises TraceError."""
    if text.lower() in _NO_VALUE:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= most:
        raise TraceError(path, line, f"{what} is {shown(text[:80])!r}, and not a number from 0 to {most:g}")
    return value


def _lasted(path: Path, line: int, start_s: float, end_s: float) -> float | None:
    """Return a duration of at least a second; None: the job ended before it began. Raises TraceError."""
    if end_s - start_s > SECONDS_MOST:
        raise TraceError(path, line, f"the job ran for {end_s - start_s:.3g} s, which is more than ten years")
    return None if end_s < start_s else max(end_s - start_s, 1.0)


# ---- Philly ----


def read_philly(path: Path, rows: int) -> ClusterLog:
    """Return jobs of `cluster_job_log`, with a job's attempts joined into one run. Raises TraceError."""
    jobs = _Jobs(rows)
    again = 0
    for line, entry in log_text.json_entries(path):
        if jobs.is_full:
            break
        missing = [name for name in ("jobid", "status", "submitted_time", "attempts") if name not in entry]
        if missing:
            raise TraceError(path, line, f"the job has no {', '.join(missing)}; a job of Philly's log has them")
        submitted = _moment(path, line, "submitted_time", entry["submitted_time"])
        stretches, gpus = _attempts(path, line, entry["attempts"])
        if not entry["attempts"] or not gpus:
            jobs.left_out["jobs without an attempt on a GPU"] += 1
        elif submitted is None or not stretches:
            jobs.left_out["jobs whose start or end is not known"] += 1
        else:
            again += len(stretches) > 1
            job = LoggedJob(
                name=shown(str(entry["jobid"])[:80]), submitted_s=submitted, seconds=math.fsum(stretches), gpus=gpus
            )
            jobs.take(job, shown(str(entry["status"])[:20]))
    return jobs.log(
        path,
        gpus=8,
        gpu_mib=24_576,
        gpu_model="Philly",
        notes=(NO_ZONE, f"{again} jobs have several attempts, which are joined into one run"),
    )


def _attempts(path: Path, line: int, attempts: object) -> tuple[list[float], int]:
    """Return the durations of the attempts with known times, and the number of GPUs of the last one with GPUs."""
    stretches, gpus = [], 0
    if not isinstance(attempts, list):
        raise TraceError(path, line, "attempts is not a list")
    for attempt in attempts:
        if not isinstance(attempt, dict) or not isinstance(attempt.get("detail", []), list):
            raise TraceError(path, line, "an attempt is not an object with a list `detail`")
        gpus = sum(_gpus_of(path, line, place) for place in attempt.get("detail", [])) or gpus
        start = _moment(path, line, "start_time", attempt.get("start_time"))
        end = _moment(path, line, "end_time", attempt.get("end_time"))
        if start is not None and end is not None and (seconds := _lasted(path, line, start, end)) is not None:
            stretches.append(seconds)
    return stretches, gpus


def _gpus_of(path: Path, line: int, place: object) -> int:
    gpus = place.get("gpus") if isinstance(place, dict) else None
    if not isinstance(gpus, list):
        raise TraceError(path, line, "a machine in `detail` has no list `gpus`")
    return len(gpus)


# ---- Helios ----

HELIOS = ("job_id", "gpu_num", "node_num", "state", "submit_time", "start_time", "end_time")


def read_helios(path: Path, rows: int) -> ClusterLog:
    """Return jobs of `cluster_log.csv`, which Slurm's accounting wrote. Raises TraceError."""
    jobs = _Jobs(rows)
    for line, found in log_text.named_rows(path, HELIOS, "Helios"):
        gpus = _number(path, line, "gpu_num", found["gpu_num"], GPUS_MOST)
        submitted, start, end = (
            _moment(path, line, name, found[name]) for name in ("submit_time", "start_time", "end_time")
        )
        if not gpus:
            jobs.left_out["jobs without a GPU"] += 1
        elif submitted is None or start is None or end is None:
            jobs.left_out["jobs whose start or end is not known"] += 1
        elif (seconds := _lasted(path, line, start, end)) is None:
            jobs.left_out["jobs that ended before they began"] += 1
        else:
            name = shown(found["job_id"][:80])
            jobs.take(
                LoggedJob(name=name, submitted_s=submitted, seconds=seconds, gpus=math.ceil(gpus)),
                shown(found["state"][:20]),
            )
        if jobs.is_full:
            break
    return jobs.log(path, gpus=8, gpu_mib=16_160, gpu_model="Helios", notes=(NO_ZONE,))


# ---- Alibaba ----

PODS = ("name", "num_gpu", "gpu_milli", "pod_phase", "creation_time", "deletion_time", "scheduled_time")
TASKS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip
INSTANCES = (
    "job_name", "task_name", "inst_name", "worker_name", "inst_id", "status", "start_time", "end_time", "machine",
)  # fmt: skip
SENSORS = (
    "job_name", "task_name", "worker_name", "inst_id", "machine", "gpu_name", "cpu_usage", "gpu_wrk_util", "avg_mem",
    "max_mem", "avg_gpu_wrk_mem", "max_gpu_wrk_mem", "read", "write", "read_count", "write_count",
)  # fmt: skip
"""The tables of 2020 have no header line; the names are published separately."""
_TIME_MOST_S = 1e11


def read_alibaba(path: Path, rows: int) -> ClusterLog:
    """Return jobs of a list of pods (2023), or of the tables of tasks or instances (2020). Raises TraceError."""
    first = next(log_text.csv_rows(path), None)
    if first is None:
        raise TraceError(path, None, "it has no line")
    if "gpu_milli" in first[1]:
        return _pods(path, rows)
    if len(first[1]) == len(TASKS):
        return _tasks(path, rows)
    if len(first[1]) == len(INSTANCES):
        return _instances(path, rows)
    raise TraceError(
        path,
        first[0],
        f"it has {len(first[1])} fields: neither a list of pods (with a column gpu_milli) nor pai_task_table "
        f"({len(TASKS)} fields) nor pai_instance_table ({len(INSTANCES)})",
    )


def _pods(path: Path, rows: int) -> ClusterLog:
    jobs = _Jobs(rows)
    for line, found in log_text.named_rows(path, PODS, "Alibaba's pods"):
        gpus = _number(path, line, "num_gpu", found["num_gpu"], GPUS_MOST)
        milli = _number(path, line, "gpu_milli", found["gpu_milli"], 1000.0 * GPUS_MOST)
        created, start, end = (
            _number(path, line, name, found[name], _TIME_MOST_S)
            for name in ("creation_time", "scheduled_time", "deletion_time")
        )
        if not gpus or not milli:
            jobs.left_out["pods without a GPU"] += 1
        elif created is None or start is None or end is None:
            jobs.left_out["pods that never started, or whose end is not known"] += 1
        elif (seconds := _lasted(path, line, start, end)) is None:
            jobs.left_out["pods that ended before they began"] += 1
        else:
            share = min(milli / 1000.0, 1.0) if gpus == 1 else 1.0
            name = shown(found["name"][:80])
            job = LoggedJob(name=name, submitted_s=created, seconds=seconds, gpus=math.ceil(gpus), share_ratio=share)
            jobs.take(job, shown(found["pod_phase"][:20]))
        if jobs.is_full:
            break
    return jobs.log(path, gpus=8, gpu_mib=16_160, gpu_model="Alibaba 2023", notes=())


class _Stretch(Struct, frozen=True):
    """A line of the tables of tasks or instances."""

    key: tuple[str, str]
    """(job_name, task_name)"""
    status: str
    start_s: float
    seconds: float


def _stretch(path: Path, line: int, found: Mapping[str, str], jobs: _Jobs) -> _Stretch | None:
    start, end = (_number(path, line, name, found[name], _TIME_MOST_S) for name in ("start_time", "end_time"))
    seconds = None if start is None or end is None else _lasted(path, line, start, end)
    if start is None or seconds is None:
        jobs.left_out["rows whose start or end is not known"] += 1
        return None
    key = (found["job_name"][:80], found["task_name"][:80])
    return _Stretch(key, shown(found["status"][:20]), start, seconds)


def _table(path: Path, names: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    for line, row in log_text.csv_rows(path):
        if row[0] == names[0]:
            continue  # a header line that was added to the published file
        if len(row) != len(names):
            raise TraceError(path, line, f"it has {len(row)} fields; a line of this table has {len(names)}")
        yield line, dict(zip(names, row, strict=True))


def _plan(path: Path, line: int, found: Mapping[str, str]) -> tuple[int, float] | None:
    """Return the number of GPUs of each instance of a task, and the part of each GPU; None: it has no GPU."""
    percent = _number(path, line, "plan_gpu", found["plan_gpu"], 100.0 * GPUS_MOST)
    if not percent:
        return None
    gpus = math.ceil(percent / 100.0)
    return gpus, percent / 100.0 / gpus


def _tasks(path: Path, rows: int) -> ClusterLog:
    jobs = _Jobs(rows)
    kept: list[tuple[_Stretch, tuple[int, float]]] = []
    for line, found in _table(path, TASKS):
        if len(kept) >= rows:
            break
        plan = _plan(path, line, found)
        instances = _number(path, line, "inst_num", found["inst_num"], 1e6)
        if plan is None or not instances:
            jobs.left_out["tasks without a GPU"] += 1
        elif (stretch := _stretch(path, line, found, jobs)) is not None:
            kept += [(stretch, plan)] * min(math.ceil(instances), rows - len(kept))
    return _of_2020(path, jobs, kept, "an instance of a task is a job of its own, and may run without the others")


def _instances(path: Path, rows: int) -> ClusterLog:
    """Return jobs from the instances, with their requests from the table of tasks in the same folder."""
    jobs = _Jobs(rows)
    stretches: list[_Stretch] = []
    for line, found in _table(path, INSTANCES):
        if len(stretches) >= 5 * rows:  # most of them have a GPU
            break
        if (stretch := _stretch(path, line, found, jobs)) is not None:
            stretches.append(stretch)
    asked = {stretch.key for stretch in stretches}
    tasks = _sibling(path, "pai_task_table.csv")
    if tasks is None:
        raise TraceError(path, None, "the requests of instances are in pai_task_table.csv; put it into the same folder")
    plans = {}
    for line, found in _table(tasks, TASKS):
        key = (found["job_name"][:80], found["task_name"][:80])
        if key in asked:
            plans[key] = _plan(tasks, line, found)
    kept = [(one, plan) for one in stretches if (plan := plans.get(one.key)) is not None]
    jobs.left_out["instances without a GPU"] += sum(plans.get(one.key) is None for one in stretches)
    return _of_2020(path, jobs, kept[:rows], "an instance is a job of its own, and may run without the others")


def _sibling(path: Path, name: str) -> Path | None:
    return next((file for file in (path.with_name(name), path.with_name(f"{name}.gz")) if file.is_file()), None)


def _of_2020(path: Path, jobs: _Jobs, kept: Sequence[tuple[_Stretch, tuple[int, float]]], each: str) -> ClusterLog:
    sensors = _sibling(path, "pai_sensor_table.csv")
    measured = {} if sensors is None else _measured(sensors, {stretch.key for stretch, _ in kept})
    for number, (stretch, (gpus, share)) in enumerate(kept):
        memory, sm = measured.get(stretch.key, (None, None)) if gpus == 1 else (None, None)
        job = LoggedJob(
            name=f"{shown(stretch.key[0])} {number}",
            submitted_s=stretch.start_s,
            seconds=stretch.seconds,
            gpus=gpus,
            share_ratio=share,
            memory_mib=memory,
            sm_ratio=sm,
        )
        jobs.take(job, stretch.status)
    jobs.left_out = +jobs.left_out
    notes = ["times of launch are taken as times of submission", each]
    if sensors is not None:
        notes.append(f"memory and activity of jobs with one GPU are from {sensors.name} where it has them")
    return jobs.log(path, gpus=8, gpu_mib=16_160, gpu_model="Alibaba 2020", notes=notes)


def _measured(path: Path, asked: set[tuple[str, str]]) -> dict[tuple[str, str], tuple[float | None, float | None]]:
    """Return for each task the largest memory of its workers in MiB, and their largest mean GPU activity as a ratio."""
    found: dict[tuple[str, str], tuple[float | None, float | None]] = {}
    for line, row in _table(path, SENSORS):
        key = (row["job_name"][:80], row["task_name"][:80])
        if key not in asked:
            continue
        gb = _number(path, line, "max_gpu_wrk_mem", row["max_gpu_wrk_mem"], 1e4)
        percent = _number(path, line, "gpu_wrk_util", row["gpu_wrk_util"], 100.0 * GPUS_MOST)
        memory, sm = found.get(key, (None, None))
        found[key] = (
            max(memory or 0.0, gb * 1024.0) if gb else memory,
            sm if percent is None else max(sm or 0.0, min(percent / 100.0, 1.0)),
        )
    return found
