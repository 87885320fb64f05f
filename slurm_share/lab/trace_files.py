"""Read a trace from a path: published traces (Gavel, CARMA, cluster logs), the folder of a run, or a user's history.

A file that cannot be used is refused with its name, line and reason. Values that a format lacks are assumed, and the
notes of the trace list them.
"""

from __future__ import annotations

import ast
import difflib
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..core import numbers, text_files
from ..core.errors import quoted, shown
from ..packing.history_records import MIB_MOST, VERSION, Record, TaskRun, is_sane
from . import assumed_sizes, cluster_logs, recorded, traces
from .log_text import TraceError
from .records import SimTask, Trace

FORMATS = ("gavel", "carma", "run", "history", *cluster_logs.FORMATS)
FILE_MOST_BYTES = 64 << 20
UNKNOWN_SM = 0.5
"""Assumed SM activity of an unknown task, close to the mean of whole GPUs in clusters."""
SMALL_MIB = 300
"""Assumed memory of tasks that no sample saw: about the size of a CUDA context."""


def read(path: Path, form: str | None = None, *, throughputs: Path | None = None, gpu_model: str = "v100") -> Trace:
    """Return the trace in a file or folder. Raises TraceError.

    form: one of FORMATS; None: by the name. throughputs, gpu_model: Gavel's matrix, and the GPU in it.
    """
    form = form or form_of(path)
    if form != "gavel" and throughputs is not None:
        raise TraceError(throughputs, None, "--throughputs goes with a trace of Gavel's")
    if form in cluster_logs.FORMATS:
        return assumed_sizes.trace_of(cluster_logs.read(path, form), seed=1)
    if form == "gavel":
        return read_gavel(path, throughputs, gpu_model)
    if form == "carma":
        return read_carma(path)
    if form == "history":
        return read_history(path)
    return read_run(path)


def form_of(path: Path) -> str:
    """Return the format that belongs to a path. Raises TraceError."""
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir() raises where a name is too long
        return "run"
    known = {".trace": "gavel", ".sh": "carma", ".jsonl": "history"}.get(path.suffix, cluster_logs.form_of(path.name))
    if known is None:
        why = "there is no such file or folder"
        if os.path.lexists(path):
            why = "its format is not known from its name"
        elif near := difflib.get_close_matches(str(path), traces.TRACES, n=1):
            why = f"{why} (did you mean {near[0]}?)"
        raise TraceError(
            path,
            None,
            f"{why}; a trace is {', '.join(traces.TRACES)}, the folder of a run, or a file with "
            f"--format {', '.join(FORMATS)}",
        )
    return known


def _text(path: Path) -> str:
    return recorded.read_bytes(path, FILE_MOST_BYTES).removeprefix(text_files.BOM).decode("utf-8", errors="replace")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, read in enumerate(text_files.split_lines(recorded.read_bytes(path, FILE_MOST_BYTES)), 1):
        line = read.decode("utf-8", errors="replace")
        if line.strip():
            yield number, line


def _number(path: Path, line: int, what: str, text: str, least: float = 0.0, most: float = 1e12) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= least):
        raise TraceError(path, line, f"{what} is {shown(text)!r}, and not a number of at least {least:g}")
    if value > most:
        raise TraceError(path, line, f"{what} is {shown(text)!r}, and more than {most:g}")
    return value


def _sorted(made: Sequence[SimTask]) -> tuple[SimTask, ...]:
    """Return the tasks sorted by submission, renumbered, with the first submission at 0."""
    first = min((one.submitted_s for one in made), default=0.0)
    ordered = sorted(made, key=lambda one: (one.submitted_s, one.task))
    return tuple(
        msgspec.structs.replace(one, task=number, submitted_s=one.submitted_s - first)
        for number, one in enumerate(ordered)
    )


# ---- Gavel ----

GAVEL_SIZES: Mapping[str, tuple[int, float]] = {
    "ResNet-18 (batch size 16)": (1500, 0.30),
    "ResNet-18 (batch size 32)": (1600, 0.35),
    "ResNet-18 (batch size 64)": (1800, 0.40),
    "ResNet-18 (batch size 128)": (2200, 0.45),
    "ResNet-18 (batch size 256)": (3000, 0.50),
    "ResNet-50 (batch size 16)": (3600, 0.60),
    "ResNet-50 (batch size 32)": (5260, 0.70),
    "ResNet-50 (batch size 64)": (8540, 0.80),
    "ResNet-50 (batch size 128)": (15120, 0.85),
    "Transformer (batch size 16)": (2000, 0.40),
    "Transformer (batch size 32)": (2700, 0.45),
    "Transformer (batch size 64)": (4200, 0.55),
    "Transformer (batch size 128)": (6500, 0.65),
    "Transformer (batch size 256)": (9000, 0.75),
    "A3C": (1200, 0.10),
    "LM (batch size 5)": (1500, 0.30),
    "LM (batch size 10)": (1800, 0.35),
    "LM (batch size 20)": (2400, 0.40),
    "LM (batch size 40)": (3600, 0.50),
    "LM (batch size 80)": (7200, 0.60),
    "Recommendation (batch size 512)": (1200, 0.30),
    "Recommendation (batch size 1024)": (1500, 0.35),
    "Recommendation (batch size 2048)": (2000, 0.40),
    "Recommendation (batch size 4096)": (3000, 0.45),
    "Recommendation (batch size 8192)": (4800, 0.50),
    "CycleGAN": (7500, 0.75),
}
"""Gavel's job type -> (memory in MiB, SM activity). All are assumed such that pairs that could not run together in
Gavel's matrix do not fit into 16 GB (ResNet-50: Yousefzadeh 2025, Table 6.2)."""
GAVEL_MIB = {"v100": 16160, "p100": 16280, "k80": 11441}
MATRIX = "simulation_throughputs.json"


def read_gavel(path: Path, throughputs: Path | None, gpu_model: str) -> Trace:
    """Return a trace of Gavel (Narayanan 2020) with its measured rates of pairs. Raises TraceError.

    A line has 7 fields (job type, command, its option for steps, needs data, steps, arrival, GPUs) or 10 (job type,
    command, folder, option for steps, needs data, steps, GPUs, priority, deadline, arrival), with tabs between.
    """
    matrix = throughputs or next((up / MATRIX for up in path.parents if (up / MATRIX).is_file()), None)
    if matrix is None:
        raise TraceError(path, None, f"its durations are in Gavel's {MATRIX}; give it with --throughputs FILE")
    rates = read_rates(matrix, gpu_model)
    made, seen = [], set()
    for number, line in _lines(path):
        fields = line.split("\t")
        if len(fields) == 7:
            job, command, steps, arrival, gpus = fields[0], fields[1], fields[4], fields[5], fields[6]
        elif len(fields) == 10:
            job, command, steps, gpus, arrival = fields[0], fields[1], fields[5], fields[6], fields[9]
        else:
            raise TraceError(
                path, number, f"it has {len(fields)} fields; a line of Gavel's has 7 or 10, with tabs between"
            )
        rate = rates.get(job, {}).get(None)
        if not rate:
            raise TraceError(path, number, f"{matrix.name} has no rate of {quoted(job)} on one {gpu_model}")
        batch = re.search(r"batch size ([0-9]{1,18})", job)
        mib, sm = GAVEL_SIZES.get(job, (4000, UNKNOWN_SM))
        seen.add(job)
        made.append(
            SimTask(
                task=number,
                name=job,
                submitted_s=_number(path, number, "the arrival", arrival),
                work_s=_number(path, number, "the number of steps", steps, 1.0) / rate,
                memory_mib=mib,
                gpus=int(_number(path, number, "the number of GPUs", gpus, 1.0)),
                sm_ratio=sm,
                command=command,
                family=job.partition(" (")[0],
                numbers=(("batch size", float(batch[1])),) if batch else (),
            )
        )
    if not made:
        raise TraceError(path, None, "it has no line")
    speeds = {
        (job, other): rate / own
        for job, pairs in rates.items()
        if (own := pairs.get(None))
        for other, rate in pairs.items()
        if other is not None and rate > 0.0
    }
    unknown = sorted(job for job in seen if job not in GAVEL_SIZES)
    return Trace(
        name=path.name,
        tasks=_sorted(made),
        gpu_mib=GAVEL_MIB.get(gpu_model, 16160),
        gpu_model=gpu_model,
        speeds=speeds,
        notes=(
            "memory and SM activity of Gavel's jobs are assumed; rates alone and in pairs are measured "
            f"({matrix.name}, {gpu_model}); three and more on a GPU: from the pairs",
            *(f"the memory of {job} is not known: 4000 MiB are assumed" for job in unknown),
        ),
    )


def read_rates(path: Path, gpu_model: str) -> dict[str, dict[str | None, float]]:
    """Return job type -> neighbour (None: alone) -> steps a second, for jobs with one GPU. Raises TraceError."""
    try:
        table = msgspec.json.decode(_text(path).encode(), type=dict[str, dict[str, dict[str, Any]]])
    except text_files.NOT_JSON as error:
        raise TraceError(path, None, f"it is not a matrix of Gavel's ({shown(str(error), 200)})") from error
    if gpu_model not in table:
        raise TraceError(path, None, f"it has no GPU {quoted(gpu_model)}; it has {', '.join(table)}")
    found: dict[str, dict[str | None, float]] = {}
    for job_key, row in table[gpu_model].items():
        job = _job(path, job_key)
        if job is None:
            continue
        rates = found.setdefault(job, {})
        for other_key, value in row.items():
            if other_key == "null":
                rates[None] = _rate(path, job_key, value)
            elif (other := _job(path, other_key)) is not None:
                if not isinstance(value, list) or len(value) != 2:
                    raise TraceError(
                        path, None, f"{shown(job_key)} beside {shown(other_key)} has {quoted(value)}, and not two rates"
                    )
                rates[other] = _rate(path, job_key, value[0])
    return found


def _job(path: Path, key: str) -> str | None:
    """Return the job type in a key such as "('A3C', 1)"; None: the job has more than one GPU."""
    try:
        job, gpus = ast.literal_eval(key)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise TraceError(path, None, f"{shown(key)!r} is not a job type and its number of GPUs") from error
    return str(job) if gpus == 1 else None


def _rate(path: Path, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise TraceError(path, None, f"a rate of {shown(key)} is {quoted(value)}, and not a number of at least 0")
    return float(value)


# ---- CARMA ----

_SLEEP = re.compile(r"sleep\s+(\S+)")
_SUBMIT = re.compile(r"python\S*\s+\S*submit\.py\s+--task\s+(\S+)")
_RAD_LEAST = 8
MINUTES_UNKNOWN = 30.0
MINUTES = {"mnist_train": 5.0}
"""Assumed minutes of a program that is in the published submissions but not in the table; they give the published GPU
time."""
_PROGRAMS = {
    "resnet50": "resnet50", "efficientnet": "efficientnet_b0", "mobilenet": "mobilenet_v2", "vgg": "vgg16",
    "vgg16": "vgg16", "xception": "xception", "inception": "inception", "bert_base_on_wiki": "bert_base",
    "bert_large_on_wiki": "bert_large", "gpt2_large_on_wiki": "gpt2_large", "xlnet_base_cased": "xlnet_base",
    "xlnet_large_cased": "xlnet_large", "resnet18_cifar100": "resnet18_cifar100",
    "resnet34_cifar100": "resnet34_cifar100", "efficientnet_cifar100": "efficientnet_b0_cifar100",
    "mobilenet_cifar100": "mobilenet_v3_small_cifar100",
}  # fmt: skip
"""CARMA's programs -> rows of Table 6.2."""


class _Rad(Struct, frozen=True):
    """The content of a .rad file, whose lines are command, model, data, batch, policy, GPUs and MiB."""

    program: str
    batch: int
    epochs: int
    gpus: int
    memory_mib: int
    command: str


def read_carma(path: Path) -> Trace:
    """Return the trace of a submission script of CARMA: lines `sleep N` and `python submit.py --task X.rad`.

    Sizes are those of the .rad files, durations those of Yousefzadeh 2025, Table 6.2. Raises TraceError.
    """
    time, made = 0.0, []
    files: dict[str, _Rad] = {}
    assumed: set[str] = set()
    for number, line in _lines(path):
        text = line.strip()
        if text.startswith("#"):
            continue
        if found := _SLEEP.fullmatch(text):
            time += _number(path, number, "the pause", found[1])
        elif found := _SUBMIT.match(text):
            if found[1] not in files:
                files[found[1]] = _read_rad(_find_rad(path, number, found[1]))
            rad = files[found[1]]
            workload = _workload(rad)
            if workload is None:
                assumed.add(rad.program)
            made.append(_carma_task(number, time, rad, workload))
        else:
            raise TraceError(path, number, f"{text[:60]!r} is neither `sleep N` nor `python submit.py --task FILE.rad`")
    if not made:
        raise TraceError(path, None, "it submits no task")
    return Trace(
        name=path.name,
        tasks=_sorted(made),
        notes=(
            traces.ASSUMED_SM,
            "durations: Yousefzadeh 2025, Table 6.2; sizes: the .rad files",
            *(
                f"{one} is not in the table: {MINUTES.get(one, MINUTES_UNKNOWN):g} minutes are assumed"
                for one in sorted(assumed)
            ),
        ),
    )


def _find_rad(script: Path, line: int, name: str) -> Path:
    for up in (Path(), script.parent, *script.parent.parents):
        for file in (up / name, up / "workloads" / Path(name).name):
            if file.is_file():
                return file
    raise TraceError(script, line, f"{name} is not there: neither from here nor from a folder above the script")


def _read_rad(file: Path) -> _Rad:
    lines = [(number, line.strip()) for number, line in _lines(file) if not line.lstrip().startswith("#")]
    at = next((index for index, (_, line) in enumerate(lines) if "python" in line), None)
    if at is None:
        raise TraceError(file, None, "no line has a command with python")
    if len(lines) - at < _RAD_LEAST - 1:
        number = lines[-1][0]
        raise TraceError(
            file,
            number,
            "the command has to be followed by the model's file, data, batch size, policy, GPUs and memory in MiB; "
            f"here are {len(lines) - at - 1} lines",
        )
    number, command = lines[at]
    (batch_at, batch), (gpus_at, gpus), (mib_at, mib) = lines[at + 3], lines[at + 5], lines[at + 6]
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise TraceError(file, number, f"the command cannot be split ({error})") from error
    program = next((Path(word).stem for word in words if word.endswith(".py")), "")
    return _Rad(
        program=program or Path(file).stem,
        batch=int(_option(words, "--batch_size") or _number(file, batch_at, "the batch size", batch, 1.0)),
        epochs=int(_option(words, "--epochs") or 0),
        gpus=int(_number(file, gpus_at, "the number of GPUs", gpus, 1.0)),
        memory_mib=int(_number(file, mib_at, "the memory", mib, 1.0)),
        command=command,
    )


def _option(words: Sequence[str], name: str) -> float | None:
    for word, value in pairwise(words):
        if word == name and (number := numbers.whole(value)) is not None:
            return float(number)
    return None


def _workload(rad: _Rad) -> traces.Workload | None:
    name = _PROGRAMS.get(rad.program.lower())
    same = [one for one in (*traces.LARGE, *traces.MEDIUM, *traces.LIGHT) if one.name == name]
    return next((one for one in same if one.batch == rad.batch), same[0] if len(same) == 1 else None)


def _carma_task(number: int, time: float, rad: _Rad, workload: traces.Workload | None) -> SimTask:
    epochs = rad.epochs or (workload.epochs[0] if workload else 1)
    minutes = workload.minutes * epochs if workload else MINUTES.get(rad.program, MINUTES_UNKNOWN)
    name = f"{rad.program} {rad.batch}"
    return SimTask(
        task=number,
        name=name,
        submitted_s=time,
        work_s=minutes * 60.0,
        memory_mib=rad.memory_mib,
        gpus=rad.gpus,
        sm_ratio=workload.sm_ratio if workload else 0.1,
        command=rad.command,
        family=rad.program,
        numbers=(("--batch_size", float(rad.batch)), ("--epochs", float(epochs))),
    )


# ---- Measured runs ----


def read_run(path: Path) -> Trace:
    """Return the measured tasks of a run. Raises TraceError.

    Durations include the slowdown by neighbours, and all tasks are submitted when the run begins.
    """
    run = recorded.read(path)
    best: dict[int, recorded.RecordedAttempt] = {}
    for attempt in run.attempts:
        if attempt.outcome == "done":
            best.setdefault(attempt.task, attempt)
    if not best:
        raise TraceError(path, None, "it has no finished task to simulate")
    made = [_measured(one, run.from_events.get((one.task, one.attempt))) for _, one in sorted(best.items())]
    unseen = sum(one.peak_gpu_mib is None for one in best.values())
    guessed = sum(recorded.sm_alone(run.from_events.get((one.task, one.attempt))) is None for one in best.values())
    sizes = {gpu.total_mib for gpu in run.gpus if gpu.total_mib and 0 < gpu.total_mib <= MIB_MOST}
    notes = [
        "durations are as measured, beside the neighbours that the tasks had: make-spans are too long",
        "every task is submitted when the run begins; its GPUs are taken to be of one node",
    ]
    if guessed:
        notes.append(f"SM activity {UNKNOWN_SM:g} is assumed for {guessed} tasks, which never had a GPU to themselves")
    if unseen:
        notes.append(f"the memory of {unseen} tasks was not seen: {SMALL_MIB} MiB")
    lost = len({attempt.task for attempt in run.attempts} - set(best))
    if lost:
        notes.append(f"{lost} tasks were never done and are left out")
    if run.passed_over:
        notes.append(f"{run.passed_over} lines of {recorded.RESULTS} cannot be read and are left out")
    if not sizes:
        notes.append("the size of the GPUs is not known: 40 GiB, or as --gpu-memory says")
    return Trace(
        name=path.name,
        tasks=tuple(msgspec.structs.replace(one, task=number) for number, one in enumerate(made)),
        gpus=max(1, len(run.gpus)),
        gpu_mib=min(sizes, default=40960),
        gpu_model=next((gpu.model for gpu in run.gpus if gpu.model), "unknown"),
        notes=tuple(notes),
    )


def _measured(attempt: recorded.RecordedAttempt, seen: recorded.FromEvents | None) -> SimTask:
    sm = recorded.sm_alone(seen)
    ask = None if seen is None else seen.ask
    key = None if ask is None else ask.key
    return SimTask(
        task=attempt.task,
        name=f"task {attempt.task}",
        submitted_s=0.0,
        work_s=max(attempt.seconds, 0.1),
        memory_mib=attempt.peak_gpu_mib or SMALL_MIB,
        gpus=1 if ask is None else ask.gpus,
        sm_ratio=UNKNOWN_SM if sm is None else sm,
        gpu_mem_mib=None if ask is None else ask.gpu_mem_mib,
        gpu_mem_least_mib=None if ask is None else ask.gpu_mem_least_mib,
        command="" if key is None else key.exact,
        family="" if key is None else key.family,
        numbers=() if key is None else key.numbers,
    )


def read_history(path: Path) -> Trace:
    """Return the finished tasks of a month of a user's history. Raises TraceError."""
    made, notes = [], []
    for number, line in _lines(path):
        try:
            run = msgspec.json.decode(line.encode(), type=Record)
        except text_files.NOT_JSON as error:
            raise TraceError(path, number, f"this is no line of a history ({shown(str(error), 200)})") from error
        if why := _why_not(run):
            raise TraceError(path, number, f"this is no line of a history ({why})")
        if not isinstance(run, TaskRun) or run.kind != "done":
            continue
        made.append(
            SimTask(
                task=number,
                name=run.exact[:8] or f"line {number}",
                submitted_s=run.when - run.seconds,
                work_s=max(run.seconds, 0.1),
                memory_mib=run.peak_mib or SMALL_MIB,
                sm_ratio=UNKNOWN_SM if run.sm_ratio is None else run.sm_ratio,
                busy_ratio=1.0 if run.util_ratio is None else run.util_ratio,
                command=run.exact,
                family=run.family,
                numbers=run.numbers,
            )
        )
    if not made:
        raise TraceError(path, None, "it has no finished task to simulate")
    notes.append(f"SM activity {UNKNOWN_SM:g} is assumed where it was not measured; durations are as measured")
    return Trace(name=path.name, tasks=_sorted(made), notes=tuple(notes))


def _why_not(run: Record) -> str:
    """Return why a line cannot have been written by slurm-share; empty: it can."""
    if run.version != VERSION:
        return f"it has version {quoted(run.version, 20)}; only {VERSION} is known"
    if not isinstance(run, TaskRun):
        return "" if is_sane(run) else "its text is not hashes and short names, or its figures cannot be"
    if not is_sane(run):
        return (
            f"its text is not hashes and short names, or its figures cannot be: at {run.when:g} s after "
            f"{run.seconds:g} s, a peak of {run.peak_mib} MiB"
        )
    for ratio in (run.sm_ratio, run.util_ratio):
        if ratio is not None and not 0.0 <= ratio <= 1.0:
            return f"a part of {ratio:g}; it is from 0 to 1"
    return ""
