"""Measure the time of one packing decision: python tests/bench/packing_decide.py

The state has 64 waiting tasks of different sizes and 16 GPUs with 8 tasks each, the largest one for which the bar
holds: 5 ms with the creation of the view, after new figures of every task and GPU. Prints a line for each case, in CPU
time, because other programs may run too. Other benches call `measure`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from slurm_share.packing.records import Estimate, GpuFacts, PackSettings, TaskAsk, TaskKey
from slurm_share.packing.rules.board import Board
from slurm_share.packing.rules.place import decide
from slurm_share.packing.rules.speeds import Speeds
from slurm_share.packing.speed_records import Load, PairRun

BAR_MS = 5.0
GPUS, TASKS, WAITING = 16, 8, 64


class _Sizes:
    """An estimator whose answers take no time."""

    def estimate(self, ask, gpu_model, gpu_total_mib):
        mib = ask.gpu_mem_mib
        return Estimate(point_mib=mib, safe_mib=mib, source="exact", seconds=100.0 + ask.task)

    def sibling(self, key, gpu_model, peak_mib, age_s):
        """Learn nothing."""

    def growth(self, key, gpu_model, age_s):
        return 1.1


def full(*, waiting_mib: Callable[[int], int], policy: str = "booked") -> Board:
    """Return a board whose GPUs have eight tasks each, and whose other tasks wait."""
    gpus = [
        GpuFacts(uuid=f"GPU-{index:08x}", index=index, model="A100", total_mib=81920, reserve_mib=1638, is_mps=True)
        for index in range(GPUS)
    ]
    settings = PackSettings(policy=policy, free_min_mib=None, smact_max=None)
    board = Board(gpus, 4096, settings, _Sizes(), _speeds())
    for task in range(GPUS * TASKS):
        board.add(TaskAsk(task=task, gpu_mem_mib=9900, key=TaskKey(exact=f"e{task}", family="f")), 0.0)
    now = 0.0
    while waits := len(board.view(now).waiting):
        board.decide(now)
        sample(board, now)
        now += 1.0
        if now > 1000:
            raise RuntimeError(f"{waits} tasks do not fit")
    for task in range(WAITING):
        number = GPUS * TASKS + task
        key = TaskKey(exact=f"e{number}", family="g")
        board.add(TaskAsk(task=number, gpu_mem_mib=waiting_mib(task), key=key), now)
    return board


def _speeds() -> Speeds:
    """Return speeds with a different load of each task, and many measured pairs, of which none is refused."""
    speeds = Speeds()
    for task in range(GPUS * TASKS + WAITING):
        key = TaskKey(exact=f"e{task}", family="f" if task < GPUS * TASKS else "g")
        speeds.note_load(key, "A100", Load(sm_ratio=round(0.1 + 0.005 * (task % 100), 2), dram_ratio=0.2))
        pair = PairRun(
            when=0.0, a=f"e{task}", b=f"e{task + 7}", family_a="f", family_b="f", gpu_model="A100", sharing="mps",
            slowdown_a=1.5, slowdown_b=1.5, stp=1.3, stp_error=0.0, windows=4,
        )  # fmt: skip
        speeds.learn_pair(pair, 0.0)
    return speeds


def sample(board: Board, now: float) -> None:
    """Pass new figures of all tasks and GPUs to the board."""
    view = board.view(now)
    for run in view.running:
        board.sample_task(run.ask.task, {run.gpus[0]: 9000 + int(now) % 7}, 1, now)
    for gpu in view.gpus:
        used = sum(run.memory_mib or 0 for run in view.running if gpu.facts.uuid in run.gpus)
        board.sample_gpu(gpu.facts.uuid, now, used_mib=used, sm_ratio=0.5, dram_ratio=0.2)


def measure(repeats: int = 200) -> dict[str, float]:
    """Return the median time of a decision with its view, in ms, for each case."""
    found = {}
    cases: dict[str, Callable[[int], int]] = {
        "64 sizes, none fits": lambda task: 20000 + task,
        "one size, none fits": lambda task: 20000,
    }
    fits: dict[str, Callable[[int], int]] = {"8 of 64 start": lambda task: 100 if task % 8 == 0 else 20000}
    for policy in ("booked", "magm", "gain"):
        for name, mib in (cases if policy == "magm" else cases | fits).items():
            board = full(waiting_mib=mib, policy=policy)
            times = []
            for count in range(repeats):
                now = 300.0 + count
                sample(board, now)
                began = time.process_time()
                decide(board.view(now))
                times.append((time.process_time() - began) * 1000)
            found[f"{policy}: {name}"] = statistics.median(times)
    return found


if __name__ == "__main__":
    for case, ms in measure().items():
        print(f"{ms:8.3f} ms  {case}{'' if ms <= BAR_MS else f'  above {BAR_MS} ms'}")
