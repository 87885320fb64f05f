"""Published curves of throughput against the number of tasks, and a simulation of the search for the best number.

`play` passes the windows of a node that follows a curve, with noise, to the `Search` of the launcher. As a program,
this file prints a table of all curves.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

from slurm_share.packing.rules.level_runs import Level
from slurm_share.packing.rules.search import Search
from slurm_share.packing.speed_records import SearchRun

WINDOW_S = 30.0
Curve = Callable[[int], float]
"""Tasks at once on the node -> units of work a second."""


def between(points: dict[int, float]) -> Curve:
    """Return a curve through these points, linear between them and constant after the last."""
    known = sorted({0: 0.0, **points}.items())

    def rate(level: int) -> float:
        for (low, at_low), (high, at_high) in pairwise(known):
            if level <= high:
                return at_low + (at_high - at_low) * (level - low) / (high - low)
        return known[-1][1]

    return rate


PAN_T4 = between({1: 943.0, 2: 1667.0, 3: 1948.0, 4: 2083.0, 7: 2333.0})
"""ResNet-18 on CIFAR10, one V100, images a second: Pan 2021, Table 4. There is memory for 7."""
LENET = between({1: 1.0, 8: 8.0, 24: 10.0})
"""LeNet on MNIST, two V100, speed-up over one task: LLSC gives 8 at 8 and about 10 at 24. There is memory for 26."""
RESNET = between({1: 1.0, 2: 1.85, 6: 2.57})
"""ResNet-18 on ImageNet, two V100, speed-up over one task: the same paper, at 2 and 6. There is memory for 6."""
CASES: dict[str, tuple[Curve, int, int]] = {
    "Pan 2021, Table 4": (PAN_T4, 1, 7),
    "LLSC, LeNet": (LENET, 2, 26),
    "LLSC, ResNet-18": (RESNET, 2, 6),
}
"""Name -> curve, GPUs, most tasks for which there is memory."""


def play(
    curve: Curve,
    noise: float,
    seed: int,
    hi: int,
    gpus: int,
    tasks: int,
    *,
    task_s: float = 60.0,
    known: SearchRun | None = None,
) -> SearchRun:
    """Return the result of the search on a node that follows a curve.

    noise: standard deviation of the logarithm of a window's rate. tasks: of the run, each of which takes `task_s`
    seconds alone. known: the result of an earlier run.
    """
    rng = random.Random(seed)
    work = task_s * curve(1)
    search = Search("tasks", [Level(gpus, "mps")], tasks, gpus=gpus, known=known)
    search.bound(hi)
    done = 0.0
    while not search.is_done:
        rate = curve(search.level.tasks)
        before = int(done)
        done += rate * WINDOW_S / work
        search.window([rate * rng.lognormvariate(0.0, noise)], int(done) - before)
        if done >= tasks:
            search.stop("few tasks")
    assert search.end is not None
    return SearchRun(
        kind="tasks",
        when=0.0,
        exact="",
        family="",
        gpu_model="",
        gpus=gpus,
        rate_source="progress",
        levels=tuple(search.levels),
        best=search.level.tasks,
        end=search.end,
        next=search.next,
    )


def top(curve: Curve, hi: int, gpus: int) -> float:
    """Return the rate of the best possible level."""
    return max(curve(level) for level in range(gpus, hi + 1, gpus))


def main() -> None:
    """Print how often the search finds a good level."""
    print("curve               noise  seeds  >= 95 % of best  levels at most")
    for name, (curve, gpus, hi) in CASES.items():
        for noise in (0.0, 0.05, 0.10):
            found = [play(curve, noise, seed, hi, gpus, 1000) for seed in range(200)]
            good = sum(curve(one.best) >= 0.95 * top(curve, hi, gpus) for one in found) / len(found)
            most = max(len(one.levels) for one in found)
            print(f"{name:18}  {noise:5.2f}  {len(found):5}  {good:15.1%}  {most}")


if __name__ == "__main__":
    main()
