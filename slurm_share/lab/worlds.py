"""Worlds of our own making to score policies in: mixes of tasks, with and without harmful pairs, and sheets of memory.

Each is drawn by a seed. Nothing in them is fitted to a policy: sizes, durations and loads are drawn from wide ranges.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..packing.history_records import TaskRun
from .records import Assumptions, GpuKind, SimTask, Trace

QUIET = Assumptions(pair_sigma=0.05)
"""No pair harms by more than the noise of measurements."""
MOST_MIB = 39_000
"""Most memory of a task, and most that its user gives: it fits on a GPU of 40 GiB alone."""
HARMFUL_RATIO = 0.22
"""Part of the pairs that do less together than one at a time. Gavel's matrix for V100 has 21.7 % of 636 pairs."""
BEGIN_UNIX_S = 1.7e9 - 86400.0


class WorldKind(Struct, frozen=True, kw_only=True):
    """A kind of world: a trace for each seed, and what is assumed of its GPUs."""

    name: str
    trace_of: Callable[[int], Trace]
    assumed: Assumptions = Assumptions()
    history_of: Callable[[int], Sequence[TaskRun]] = lambda seed: ()
    """The user's earlier runs, oldest first."""


class _Program(Struct, frozen=True):
    """A program and its size."""

    name: str
    family: str
    mib: int
    sm: float
    dram: float
    busy: float
    seconds: float
    batch: int
    late_ratio: float | None


def _kinds(draw: random.Random, count: int, gpu_mib: int, *, sizes: int = 1) -> list[_Program]:
    """Return programs with `sizes` sizes each; memory is linear in the batch."""
    made = []
    for number in range(max(1, count // sizes)):
        fixed = gpu_mib * draw.uniform(0.01, 0.10)
        each = gpu_mib * math.exp(draw.gauss(math.log(0.12), 0.7)) / 64
        sm, dram, busy = draw.uniform(0.1, 0.9), draw.uniform(0.0, 0.6), draw.uniform(0.5, 1.0)
        seconds = math.exp(draw.gauss(math.log(600.0), 0.8))
        late = draw.uniform(1.1, 1.4) if draw.random() < 0.1 else None
        for size in range(sizes):
            batch = draw.choice((32, 64, 96)) if sizes == 1 else 16 * 2**size
            mib = min(fixed + each * batch, 0.85 * gpu_mib)
            name = f"program{number} {batch}"
            made.append(_Program(name, f"program{number}", round(mib), sm, dram, busy, seconds, batch, late))
    return made


def _tasks(draw: random.Random, kinds: Sequence[_Program], count: int, gpus: int, *, is_at_once: bool) -> list[SimTask]:
    """Return tasks of these kinds, at once or with random gaps, in which 1.5 times the work arrives that
    GPUs with one task at a time do."""
    chosen = [draw.choice(kinds) for _ in range(count)]
    gap_s = sum(kind.seconds for kind in chosen) / count / gpus / 1.5
    made, now = [], 0.0
    for number, kind in enumerate(chosen):
        late = None if kind.late_ratio is None else min(round(kind.mib * kind.late_ratio), MOST_MIB)
        made.append(
            SimTask(
                task=number,
                name=kind.name,
                submitted_s=now,
                work_s=kind.seconds * math.exp(draw.gauss(0.0, 0.2)),
                memory_mib=kind.mib,
                sm_ratio=kind.sm,
                dram_ratio=kind.dram,
                busy_ratio=kind.busy,
                late_at_ratio=None if late is None else 0.5,
                late_mib=0 if late is None else max(late, kind.mib),
                command=kind.name,
                family=kind.family,
                numbers=(("--batch", float(kind.batch)),),
            )
        )
        now += 0.0 if is_at_once else draw.expovariate(1.0 / gap_s)
    return made


def mix(seed: int, *, is_at_once: bool | None = None) -> Trace:
    """Return a mix of 10 to 80 tasks of 1 to 12 kinds on 1 to 8 GPUs, in a third of which the user gives the sizes."""
    draw = random.Random(f"mix {seed}")
    gpus, count = draw.choice((1, 2, 4, 8)), draw.randint(10, 80)
    kinds = _kinds(draw, draw.randint(1, 12), 40960)
    at_once = draw.random() < 0.5 if is_at_once is None else is_at_once
    tasks = _tasks(draw, kinds, count, gpus, is_at_once=at_once)
    if draw.random() < 1 / 3:
        tasks = [replace(one, gpu_mem_mib=min(round(one.peak_mib * draw.uniform(1.0, 1.3)), MOST_MIB)) for one in tasks]
    return Trace(name="mix", tasks=tuple(tasks), gpus=gpus)


def halved(seed: int) -> Trace:
    """Return a mix whose user gives half of every size."""
    trace = mix(seed)
    tasks = tuple(replace(one, gpu_mem_mib=max(one.peak_mib // 2, 1)) for one in trace.tasks)
    return replace(trace, name="halved sizes", tasks=tasks)


def unlike_gpus(seed: int) -> Trace:
    """Return a mix on a node with GPUs of two models, of which the smaller one is slower."""
    trace = mix(seed)
    small = GpuKind(model="simulated V100 16 GB", mib=16_384, speed=0.6)
    gpus = max(trace.gpus, 2)
    return replace(
        trace, name="two models", gpus=gpus, kinds=(GpuKind(),) * (gpus - gpus // 2) + (small,) * (gpus // 2)
    )


def broken_gpu(seed: int) -> Trace:
    """Return a mix on at least two GPUs, of which one breaks."""
    trace = mix(seed)
    draw = random.Random(f"broken {seed}")
    gpus = max(trace.gpus, 2)
    at_s = draw.uniform(0.0, max(one.submitted_s for one in trace.tasks) + 600.0)
    return replace(trace, name="a broken GPU", gpus=gpus, breaks=((at_s, draw.randrange(gpus)),))


def two_nodes(seed: int) -> Trace:
    """Return a mix at once whose list two nodes share."""
    return replace(mix(seed, is_at_once=True), name="two nodes", nodes=2)


def short_tasks(seed: int) -> Trace:
    """Return tasks of a few seconds or without work."""
    draw = random.Random(f"short {seed}")
    tasks = [replace(one, work_s=draw.choice((0.0, 1.0, 5.0, 20.0))) for one in mix(seed, is_at_once=True).tasks]
    return Trace(name="short tasks", tasks=tuple(tasks), gpus=draw.choice((1, 4)))


def equal_kinds(seed: int, *, is_at_once: bool, tasks: int = 120, gpus: int = 4, kinds: int = 8) -> Trace:
    """Return tasks of a few kinds that leave room for each other, whose pairs harm as `Assumptions` says."""
    draw = random.Random(f"kinds {seed}")
    made = [
        replace(one, mib=draw.randint(3_000, 14_000), sm=draw.uniform(0.15, 0.5), seconds=draw.uniform(600.0, 1500.0))
        for one in _kinds(draw, kinds, 40960)
    ]
    name = "kinds at once" if is_at_once else "kinds with arrivals"
    return Trace(name=name, tasks=tuple(_tasks(draw, made, tasks, gpus, is_at_once=is_at_once)), gpus=gpus)


def measured_speeds(seed: int, names: Sequence[str]) -> dict[tuple[str, str], float]:
    """Return a table of speeds as of measured pairs: (name, neighbour) -> speed; about a fifth of the pairs harms.

    The sum of a pair's speeds is 1.31 on average in Gavel's matrix for V100 and from 0.6 on.
    """
    draw = random.Random(f"speeds {seed}")
    found = {}
    for at, one in enumerate(names):
        for other in names[at:]:
            harms = draw.random() < HARMFUL_RATIO
            stp = draw.uniform(0.6, 0.97) if harms else draw.triangular(1.0, 1.9, 1.4)
            part = 0.5 if one == other else draw.uniform(0.38, 0.62)
            found[one, other], found[other, one] = min(stp * part, 1.0), min(stp * (1.0 - part), 1.0)
    return found


def pairs(seed: int, *, is_at_once: bool) -> Trace:
    """Return tasks of a few kinds whose speeds beside each other are as measured."""
    trace = equal_kinds(seed, is_at_once=is_at_once)
    names = sorted({one.name for one in trace.tasks})
    name = "pairs at once" if is_at_once else "pairs with arrivals"
    return replace(trace, name=name, speeds=measured_speeds(seed, names))


def own_kinds() -> tuple[WorldKind, ...]:
    """Return the kinds of world that have no harm."""
    return (
        WorldKind(name="mix", trace_of=mix, assumed=QUIET),
        WorldKind(name="two models", trace_of=unlike_gpus, assumed=QUIET),
        WorldKind(name="a broken GPU", trace_of=broken_gpu, assumed=QUIET),
        WorldKind(name="two nodes", trace_of=two_nodes, assumed=QUIET),
        WorldKind(name="short tasks", trace_of=short_tasks, assumed=QUIET),
    )


def harmful_kinds() -> tuple[WorldKind, ...]:
    """Return the kinds of world in which about a fifth of the pairs harms."""
    assumed = Assumptions(harmful_ratio=HARMFUL_RATIO)
    return (
        WorldKind(name="kinds at once", trace_of=lambda seed: equal_kinds(seed, is_at_once=True), assumed=assumed),
        WorldKind(
            name="kinds with arrivals", trace_of=lambda seed: equal_kinds(seed, is_at_once=False), assumed=assumed
        ),
        WorldKind(name="pairs at once", trace_of=lambda seed: pairs(seed, is_at_once=True)),
        WorldKind(name="pairs with arrivals", trace_of=lambda seed: pairs(seed, is_at_once=False)),
    )


# ---- Sheets of measured memory ----


class SheetRow(Struct, frozen=True):
    """One measured run: a model, its numbers, and the peak of its GPU memory."""

    model: str
    numbers: tuple[tuple[str, float], ...]
    peak_mib: int
    seconds: float | None = None


def sheet(seed: int, *, models: int = 20, sizes: int = 5, repeats: int = 1) -> list[SheetRow]:
    """Return the measured memory of some models with some sizes each, in random order.

    A size is a batch, and for every second model an image as well. Memory is linear in their product, but for what a
    library takes for its algorithms (log-normal, 5 % of a size; Yousefzadeh 2025, Table 6.2, is linear to 3 %). A
    learning rate changes nothing; a repeated run is within 2 %.
    """
    draw = random.Random(f"sheet {seed}")
    rows = []
    for model in range(models):
        fixed, each = draw.uniform(600.0, 4000.0), draw.uniform(15.0, 200.0)
        for size in range(sizes):
            batch, image = float(8 * 2 ** draw.randint(0, 5)) if model % 2 else float(8 * 2**size), 224.0
            numbers: tuple[tuple[str, float], ...] = (("--batch", batch),)
            if model % 2:
                image = draw.choice((128.0, 160.0, 224.0, 288.0))
                numbers = (*numbers, ("--image", image))
            own = (fixed + each * batch * (image / 224.0) ** 2) * math.exp(draw.gauss(0.0, 0.05))
            for _ in range(repeats):
                peak = min(own * math.exp(draw.gauss(0.0, 0.01)), 79_000.0)
                rows.append(SheetRow(f"model{model}", (*numbers, ("--lr", draw.choice((0.1, 0.01)))), round(peak)))
    draw.shuffle(rows)
    return rows


BATCHES = (4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SEQUENCES = (128, 256, 384, 512, 768, 1024, 1536, 2048)
WIDTHS = (256, 384, 512, 768, 1024, 1280, 1600, 2048, 3072)


def unlike_sheet(seed: int, *, models: int = 20, sizes: int = 5, repeats: int = 1) -> list[SheetRow]:
    """Return a sheet of models with unlike laws: affine in the batch, quadratic in a sequence or a width.

    An allocator rounds up to its blocks, a workspace appears from some size on, and a context hides small models.
    """
    draw = random.Random(f"unlike sheet {seed}")
    rows = []
    for model in range(models):
        flag, known = draw.choice(
            (("--batch", BATCHES), ("--batch", BATCHES), ("--seq", SEQUENCES), ("--width", WIDTHS))
        )
        chosen = draw.sample(known, sizes)
        context, block = draw.uniform(450.0, 1600.0), draw.choice((2, 2, 20, 512, 1024))
        fixed = math.exp(draw.uniform(math.log(30.0), math.log(6000.0)))
        most = math.exp(draw.uniform(math.log(500.0), math.log(50_000.0)))
        linear = {"--batch": 1.0, "--width": 0.0}.get(flag, draw.choice((0.0, 0.3, 1.0)))
        from_size, workspace = draw.choice(chosen), draw.choice((0.0, 0.0, 0.0, draw.uniform(200.0, 4000.0)))
        noise, has_rate = draw.choice((0.0, 0.002, 0.01)), draw.random() < 0.5
        for size in chosen:
            part = size / max(chosen)
            tensors = fixed + most * (linear * part + (1.0 - linear) * part**2) + workspace * (size >= from_size)
            own = context + math.ceil(tensors / block) * block
            for _ in range(repeats):
                numbers: tuple[tuple[str, float], ...] = ((flag, float(size)),)
                if has_rate:
                    numbers = (*numbers, ("--lr", draw.choice((0.1, 0.01))))
                peak = min(own * math.exp(abs(draw.gauss(0.0, noise))), 79_000.0)
                rows.append(SheetRow(f"model{model}", numbers, round(peak)))
    draw.shuffle(rows)
    return rows
