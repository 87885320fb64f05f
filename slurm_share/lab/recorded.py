"""Read a finished packed run from its folder: attempts from `results.jsonl`, memory from `events.jsonl`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
from msgspec import Struct

from ..core import files, text_files
from ..packing import events
from ..packing.history_records import MIB_MOST, SECONDS_MOST, UNIX_MOST_S
from ..packing.records import GpuFacts, TaskAsk
from .log_text import TraceError
from .records import Bar

RESULTS = "results.jsonl"
FILE_MOST_BYTES = 256 << 20


class RecordedAttempt(Struct):
    """The needed fields of a line of results.jsonl."""

    task: int
    attempt: int
    outcome: str
    started: float
    """Unix time."""
    seconds: float
    gpu_uuid: str | None = None
    peak_gpu_mib: int | None = None


class FromEvents(Struct):
    """The data of one attempt in the events."""

    ask: TaskAsk
    gpus: tuple[str, ...]
    reserved_mib: int
    memory: list[tuple[float, int]]
    """(Unix time, MiB)"""
    sm_alone: list[float]
    """SM activity of its GPU at decisions at which it was alone there."""


class RecordedRun(Struct, frozen=True):
    """A finished run."""

    attempts: tuple[RecordedAttempt, ...]
    gpus: tuple[GpuFacts, ...]
    """GPUs of all nodes. The size of a GPU that only results name is not known."""
    from_events: dict[tuple[int, int], FromEvents]
    """(task, attempt) -> its data in the events, which do not contain all attempts."""
    passed_over: int = 0
    """Number of lines of results that cannot be used, for example incomplete ones after a crash or on a full disk."""


def read(folder: Path) -> RecordedRun:
    """Return a finished run. Raises TraceError."""
    files = sorted(folder.rglob(RESULTS)) if folder.is_dir() else []
    if not files:
        raise TraceError(folder, None, f"this is not the folder of a run: there is no {RESULTS} in it or below it")
    attempts: list[RecordedAttempt] = []
    entries: list[events.MadeDecision] = []
    passed_over = 0
    for file in files:
        found, bad = _attempts(file)
        attempts += found
        passed_over += bad
        decisions = file.parent / events.EVENTS
        if decisions.is_file():
            entries += events.read_decisions(read_bytes(decisions, FILE_MOST_BYTES))
    return RecordedRun(tuple(attempts), _gpus(entries, attempts), read_views(entries), passed_over)


def read_bytes(file: Path, most: int) -> bytes:
    """Return the content of a file. Raises TraceError for a file larger than `most`, and for a fifo or a device,
    which might never end."""
    try:
        data = files.read_regular(file, most + 1, follows=True)
    except OSError as error:
        raise TraceError(file, None, f"it cannot be read ({error.strerror})") from error
    if data is None:
        raise TraceError(file, None, "it is not a file")
    if len(data) > most:
        raise TraceError(file, None, f"it is larger than {most >> 20} MiB")
    return data


def _attempts(file: Path) -> tuple[list[RecordedAttempt], int]:
    """Return the attempts in a file, and the number of lines that cannot be used."""
    found, bad = [], 0
    for line in read_bytes(file, FILE_MOST_BYTES).split(b"\n"):
        if not line.strip():
            continue
        try:
            one = msgspec.json.decode(line, type=RecordedAttempt)
        except text_files.NOT_JSON:
            bad += 1
            continue
        is_sane = 0.0 <= one.seconds <= SECONDS_MOST and abs(one.started) <= UNIX_MOST_S
        if is_sane and 0 <= (one.peak_gpu_mib or 0) <= MIB_MOST:
            found.append(one)
        else:
            bad += 1
    return found, bad


def _gpus(entries: Iterable[events.MadeDecision], attempts: Iterable[RecordedAttempt]) -> tuple[GpuFacts, ...]:
    found = {gpu.facts.uuid: gpu.facts for entry in entries for gpu in entry.view.gpus}
    for attempt in attempts:
        if attempt.gpu_uuid and attempt.gpu_uuid not in found:
            found[attempt.gpu_uuid] = GpuFacts(uuid=attempt.gpu_uuid, index=len(found), model="", total_mib=None)
    return tuple(found.values())


def read_views(entries: Iterable[events.MadeDecision]) -> dict[tuple[int, int], FromEvents]:
    """Return the data of each (task, attempt) in the views of the decisions."""
    found: dict[tuple[int, int], FromEvents] = {}
    for entry in entries:
        if entry.repeats is not None:
            continue
        counts: dict[str, int] = {}
        for task in entry.view.running:
            for uuid in task.gpus:
                counts[uuid] = counts.get(uuid, 0) + 1
        activity = {gpu.facts.uuid: gpu.sm_ratio for gpu in entry.view.gpus}
        for task in entry.view.running:
            seen = found.setdefault(
                (task.ask.task, task.attempt), FromEvents(task.ask, task.gpus, task.reserved_mib, [], [])
            )
            seen.reserved_mib = task.reserved_mib
            if task.memory_mib is not None:
                seen.memory.append((entry.unix_s, task.memory_mib))
            sm = activity.get(task.gpus[0]) if task.gpus else None
            if sm is not None and task.is_flat and all(counts[uuid] == 1 for uuid in task.gpus):
                seen.sm_alone.append(sm)
    return found


def sm_alone(seen: FromEvents | None) -> float | None:
    """Return the mean SM activity of an attempt while it was alone on its GPU; None: it was never seen alone."""
    return min(1.0, max(0.0, fmean(seen.sm_alone))) if seen is not None and seen.sm_alone else None


def bars(recorded: RecordedRun) -> list[Bar]:
    """Return the bars of a picture, in seconds since the first start.

    The memory is that of the latest decision, and before the first decision that of the first one. An attempt that no
    decision saw has its peak from start to end.
    """
    begin = min((one.started for one in recorded.attempts), default=0.0)
    index = {gpu.uuid: number for number, gpu in enumerate(recorded.gpus)}
    found = []
    for one in recorded.attempts:
        seen = recorded.from_events.get((one.task, one.attempt))
        gpus: Sequence[str] = seen.gpus if seen is not None else (one.gpu_uuid,) if one.gpu_uuid else ()
        start, end = one.started - begin, one.started - begin + one.seconds
        memory = [(at - begin, mib) for at, mib in seen.memory if start <= at - begin <= end] if seen else []
        if not memory:
            memory = [(start, one.peak_gpu_mib or 0)]
        elif one.peak_gpu_mib and max(mib for _, mib in memory) < one.peak_gpu_mib:
            # The peak came after the last decision that saw the task, or between two.
            memory.append(((memory[-1][0] + end) / 2, one.peak_gpu_mib))
        memory[0] = (start, memory[0][1])
        found += [
            Bar(
                gpu=index[uuid],
                task=one.task,
                attempt=one.attempt,
                start_s=start,
                end_s=end,
                memory=tuple(memory),
                reserved_mib=None if seen is None else seen.reserved_mib,
                outcome=one.outcome,
                name=seen.ask.name if seen is not None else "",
            )
            for uuid in gpus
            if uuid in index
        ]
    return found


def sizes_mib(recorded: RecordedRun, drawn: Iterable[Bar]) -> list[int]:
    """Return the memory of each GPU; for an unknown size, an upper bound of the memory of its tasks."""
    most = [0] * len(recorded.gpus)
    for bar in drawn:
        most[bar.gpu] += max((mib for _, mib in bar.memory), default=0)
    return [max(gpu.total_mib or mib, 1) for gpu, mib in zip(recorded.gpus, most, strict=True)]
