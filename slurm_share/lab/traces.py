"""Generate traces: the tasks of Yousefzadeh 2025 (`thesis60`, `thesis90`), and sweeps.

Published: Table 6.2 (batch size, GPUs, minutes per epoch, epochs, memory, where 1 GB is 1000 MiB), 6.3.1 (parts of the
classes), the number of two-GPU tasks and the spans of the published submission scripts. Assumed: the SM activity of all
tasks, the burstiness of the arrivals, and the selection of configurations within a class.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from .records import SimTask, Trace

TRACES = ("thesis60", "thesis90", "sweep")
ASSUMED_SM = "the SM activity of the tasks is assumed: no published table has it"


class Workload(Struct, frozen=True, kw_only=True):
    """A program and its size: a row of Table 6.2."""

    name: str
    batch: int
    minutes: float
    """Duration of an epoch alone on one A100 with 40 GB (or on two)."""
    epochs: tuple[int, ...]
    memory_mib: int
    sm_ratio: float
    """Assumed."""
    gpus: int = 1

    @property
    def title(self) -> str:
        return f"{self.name} {self.batch}"


def _cnn(name: str, sizes: tuple[tuple[float, int], ...], sm: tuple[float, float, float]) -> tuple[Workload, ...]:
    return tuple(
        Workload(name=name, batch=batch, minutes=minutes, epochs=(1,), memory_mib=mib, sm_ratio=activity)
        for batch, (minutes, mib), activity in zip((32, 64, 128), sizes, sm, strict=True)
    )


def _cifar(name: str, sizes: tuple[tuple[float, int], ...]) -> tuple[Workload, ...]:
    return tuple(
        Workload(name=f"{name}_cifar100", batch=batch, minutes=minutes, epochs=(20, 50), memory_mib=mib, sm_ratio=sm)
        for batch, (minutes, mib), sm in zip((32, 64, 128), sizes, (0.15, 0.20, 0.28), strict=True)
    )


LARGE = (
    Workload(name="xlnet_base", batch=8, gpus=2, minutes=8.95, epochs=(8,), memory_mib=9720, sm_ratio=0.60),
    Workload(name="xlnet_large", batch=4, gpus=2, minutes=25.31, epochs=(3,), memory_mib=14550, sm_ratio=0.70),
    Workload(name="gpt2_large", batch=8, gpus=2, minutes=64.96, epochs=(1,), memory_mib=27900, sm_ratio=0.80),
    Workload(name="bert_base", batch=32, minutes=14.87, epochs=(1,), memory_mib=20770, sm_ratio=0.75),
    Workload(name="bert_large", batch=8, minutes=44.93, epochs=(1,), memory_mib=13570, sm_ratio=0.70),
)
MEDIUM = (
    *_cnn("efficientnet_b0", ((36.21, 4960), (35.41, 7840), (35.21, 13830)), (0.32, 0.37, 0.42)),
    *_cnn("resnet50", ((36.32, 5260), (35.50, 8540), (35.01, 15120)), (0.38, 0.415, 0.45)),
    *_cnn("mobilenet_v2", ((36.09, 4540), (35.43, 7220), (34.91, 12580)), (0.22, 0.245, 0.27)),
    *_cnn("vgg16", ((48.45, 8220), (44.38, 13640), (42.42, 24410)), (0.45, 0.515, 0.58)),
    *_cnn("xception", ((46.86, 7200), (45.78, 11520), (44.44, 22980)), (0.50, 0.55, 0.60)),
    *_cnn("inception", ((50.10, 6350), (46.29, 10560), (44.85, 19020)), (0.36, 0.43, 0.50)),
)
LIGHT = (
    *_cifar("efficientnet_b0", ((0.77, 1860), (0.48, 1910), (0.27, 2050))),
    *_cifar("resnet18", ((0.33, 1960), (0.22, 1970), (0.16, 2010))),
    *_cifar("resnet34", ((0.49, 2150), (0.30, 2170), (0.20, 2190))),
    *_cifar("mobilenet_v3_small", ((0.54, 1780), (0.32, 1790), (0.22, 1820))),
)
"""Yousefzadeh 2025, Table 6.2. SM activities are assumed to rise with the batch size."""


class _Mix(Struct, frozen=True):
    """Number of tasks of each class in a trace, and the time span of their submissions."""

    light: int
    medium: int
    large: int
    two_gpus: int
    """Number of two-GPU tasks among the large ones."""
    span_s: float
    burst: float
    """Coefficient of variation of the gaps, assumed."""


MIXES = {
    "thesis60": _Mix(0, 50, 10, 3, 8966.0, 1.3),
    "thesis90": _Mix(59, 24, 7, 5, 12514.0, 1.6),
}
"""6.3.1: of 60 tasks 83 % are medium and 17 % large; of 90 tasks 65 % are light, 27 % medium and 8 % large. In the
published scripts, 3 of 9 and 6 of 8 large tasks have two GPUs; the same part is used here."""


def _gaps(draw: random.Random, count: int, span_s: float, burst: float) -> list[float]:
    """Return submission times from 0 to the span, with gamma-distributed gaps. `burst`: coefficient of variation."""
    shape = 1.0 / burst**2
    gaps = [draw.gammavariate(shape, 1.0) for _ in range(count - 1)]
    scale = span_s / sum(gaps) if gaps else 0.0
    times = [0.0]
    for gap in gaps:
        times.append(times[-1] + gap * scale)
    return times


def _task(number: int, workload: Workload, epochs: int, submitted_s: float) -> SimTask:
    return SimTask(
        task=number,
        name=workload.title,
        submitted_s=submitted_s,
        work_s=workload.minutes * 60.0 * epochs,
        memory_mib=workload.memory_mib,
        gpus=workload.gpus,
        sm_ratio=workload.sm_ratio,
        command=f"{workload.title} {epochs}",
        family=workload.name,
        numbers=(("--batch_size", float(workload.batch)), ("--epochs", float(epochs))),
    )


def thesis(name: str, seed: int) -> Trace:
    """Return `thesis60` or `thesis90` with configurations and arrivals drawn by a seed."""
    mix = MIXES[name]
    draw = random.Random(f"{name} {seed}")
    two = [one for one in LARGE if one.gpus == 2]
    one = [one for one in LARGE if one.gpus == 1]
    workloads = [draw.choice(LIGHT) for _ in range(mix.light)]
    workloads += [draw.choice(MEDIUM) for _ in range(mix.medium)]
    workloads += [draw.choice(two) for _ in range(mix.two_gpus)]
    workloads += [draw.choice(one) for _ in range(mix.large - mix.two_gpus)]
    draw.shuffle(workloads)
    times = _gaps(draw, len(workloads), mix.span_s, mix.burst)
    tasks = tuple(
        _task(number, workload, draw.choice(workload.epochs), time)
        for number, (workload, time) in enumerate(zip(workloads, times, strict=True))
    )
    return Trace(name=name, tasks=tasks, notes=(ASSUMED_SM,))


SWEEP_FAMILIES = 6
SWEEP_SETTINGS = 10
SWEEP_LATE_RATIO = 0.2
"""Part of the families with a late rise of memory by at most half, after half of their work, as by a validation."""
SWEEP_LIARS_RATIO = 0.1
"""Part of the tasks with a --gpu-mem of half of their need."""


def sweep(seed: int, families: int = SWEEP_FAMILIES, settings: int = SWEEP_SETTINGS) -> Trace:
    """Return families of tasks with memory linear in a number of the command, and heavy-tailed durations."""
    draw = random.Random(f"sweep {seed}")
    made: list[SimTask] = []
    for family in range(families):
        fixed = draw.uniform(600.0, 3000.0)
        each = draw.uniform(20.0, 180.0)
        median_s = draw.uniform(120.0, 1200.0)
        sm = draw.uniform(0.15, 0.7)
        late = draw.uniform(1.1, 1.5) if draw.random() < SWEEP_LATE_RATIO else None
        for _ in range(settings):
            batch = draw.choice((8, 16, 32, 48, 64, 96, 128))
            mib = round((fixed + each * batch) * math.exp(draw.gauss(0.0, 0.01)))
            made.append(
                SimTask(
                    task=0,
                    name=f"sweep{family} {batch}",
                    submitted_s=0.0,
                    work_s=median_s * math.exp(draw.gauss(0.0, 0.8)),
                    memory_mib=mib,
                    sm_ratio=min(1.0, sm * (0.7 + 0.3 * batch / 64)),
                    late_at_ratio=None if late is None else 0.5,
                    late_mib=0 if late is None else round(mib * late),
                    gpu_mem_mib=round(mib * 0.5) if draw.random() < SWEEP_LIARS_RATIO else None,
                    command=f"sweep{family} {batch}",
                    family=f"sweep{family}",
                    numbers=(("--batch_size", float(batch)),),
                )
            )
    draw.shuffle(made)
    times = _gaps(draw, len(made), 60.0 * len(made), 1.3)
    tasks = tuple(
        replace(one, task=number, submitted_s=time) for number, (one, time) in enumerate(zip(made, times, strict=True))
    )
    return Trace(name="sweep", tasks=tasks, notes=("all tasks are invented: linear in one number, some late peaks",))


GENERATORS: dict[str, Callable[[int], Trace]] = {
    "thesis60": lambda seed: thesis("thesis60", seed),
    "thesis90": lambda seed: thesis("thesis90", seed),
    "sweep": sweep,
}


def many(tasks: int, nodes: int, seed: int) -> Trace:
    """Return many tasks of Table 6.2 for several nodes with 8 GPUs each, for the benchmark."""
    draw = random.Random(f"many {seed}")
    pool = [*LIGHT, *MEDIUM, *(one for one in LARGE if one.gpus == 1)]
    workloads = [draw.choice(pool) for _ in range(tasks)]
    work_s = sum(one.minutes * 60.0 * one.epochs[0] * one.sm_ratio for one in workloads)
    times = _gaps(draw, tasks, work_s / (8 * nodes), 1.3)
    made = tuple(
        _task(number, workload, workload.epochs[0], time)
        for number, (workload, time) in enumerate(zip(workloads, times, strict=True))
    )
    return Trace(name=f"many{tasks}", tasks=made, gpus=8, nodes=nodes, notes=(ASSUMED_SM,))
