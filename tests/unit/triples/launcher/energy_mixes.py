"""Random runs on simulated GPUs, and what the launcher says of their energy beside what an observer reads."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct
from packed_machine import TASK, Machine

from slurm_share.usage import JobUse, files

OBSERVE = """
import json, sys, time, pynvml as n
n.nvmlInit()
gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
while True:
    began = time.time()
    counters = [n.nvmlDeviceGetTotalEnergyConsumption(one) for one in gpus]
    print(json.dumps([(began + time.time()) / 2, *counters]), flush=True)
    time.sleep(0.02)
"""
"""A process of its own with nvidia-ml-py, which has nothing to do with the launcher."""


class MixResult(Struct, frozen=True, kw_only=True):
    """The energy of one run, joules."""

    seed: int
    is_packed: bool
    tasks: int
    observed_j: float
    """Difference of the counters while the launcher measured, as the observer read them."""
    listed_j: float
    """Sum of the results' `energy_j`."""
    short_j: float
    unattributed_j: float
    least_j: float
    """The least part."""

    @property
    def error(self) -> float:
        """Return the relative difference between all parts together and what was observed."""
        return abs(self.listed_j + self.short_j + self.unattributed_j - self.observed_j) / self.observed_j


def lines_of(chosen: random.Random) -> list[str]:
    """Return random commands: loads, programs that wait, failures, and programs too short for a sample."""
    found = []
    for _ in range(chosen.randint(5, 9)):
        seconds, load = round(chosen.uniform(1.0, 3.0), 2), chosen.randint(5, 100)
        kind = chosen.random()
        if kind < 0.6:
            found.append(f"{TASK} --memory {chosen.randint(100, 2000)} --load {load} --seconds {seconds}")
        elif kind < 0.7:
            found.append(f"{TASK} --load {load} --seconds {seconds}; exit 3")
        elif kind < 0.8:
            found.append(f"sleep {seconds}")
        else:
            found.append(f"{TASK} --load {load} --seconds {round(chosen.uniform(0.05, 0.4), 2)}")
    return found


def run_mix(machine: Machine, seed: int, *, foreign: bool | None = None) -> MixResult:
    """Run a mix to its end. `foreign`: a program that is no task's is on a GPU; None: as chosen."""
    chosen = random.Random(seed)
    lines, is_packed = lines_of(chosen), chosen.random() < 0.5
    more: dict[str, Any] = {} if is_packed else {"pack": None}
    run = machine.run(lines, at_once=chosen.randint(2, 5), **more)
    # Into a file: a pipe that nobody reads would stop the observer once it is full.
    readings = Path(tempfile.mkstemp(prefix="counters-")[1])
    with readings.open("ab") as out:
        observer = subprocess.Popen([sys.executable, "-c", OBSERVE], env=machine.environ, stdout=out)
    other = None
    if chosen.random() < 0.3 if foreign is None else foreign:
        words = [TASK, "--load", "30", "--seconds", "600"]
        other = subprocess.Popen(words, env=machine.environ, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        await_reading(observer, readings, 0.0)
        run.go()
        await_reading(observer, readings, time.time())
    finally:
        for process in (other, observer):
            if process is not None:
                process.kill()
                process.wait()
        seen = read_counters(readings)
        readings.unlink()
    (use,) = files.read_folder(Path(run.node), JobUse)[0]
    assert use.ended is not None
    assert use.others[0].measured_s is not None
    since = use.ended - use.others[0].measured_s
    energies = [one.energy_j for one in run.ended() if one.energy_j is not UNSET]
    return MixResult(
        seed=seed,
        is_packed=is_packed,
        tasks=len(lines),
        observed_j=sum(between(seen, number, since, use.ended) for number in range(1, len(seen[0]))) / 1000,
        listed_j=sum(energies),
        short_j=sum(gpu.short_j for gpu in use.others),
        unattributed_j=sum(gpu.unattributed_j for gpu in use.others),
        least_j=min([*energies, *(part for gpu in use.others for part in (gpu.short_j, gpu.unattributed_j))]),
    )


def read_counters(file: Path) -> list[list[float]]:
    """Return the observer's readings so far: time and counters in mJ."""
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("]")]


def await_reading(observer: subprocess.Popen[bytes], file: Path, after: float) -> None:
    """Wait for a reading that was taken after a moment."""
    while not (seen := read_counters(file)) or seen[-1][0] <= after:
        assert observer.poll() is None, "the observer of the counters has ended"
        time.sleep(0.02)


def between(seen: list[list[float]], number: int, since: float, until: float) -> float:
    """Return the difference of a counter between two moments, from the observer's readings around them."""
    times = [one[0] for one in seen]

    def at(moment: float) -> float:
        place = min(max(bisect_left(times, moment), 1), len(times) - 1)
        before, after = seen[place - 1], seen[place]
        part = (moment - before[0]) / (after[0] - before[0])
        return before[number] + min(max(part, 0.0), 1.0) * (after[number] - before[number])

    return at(until) - at(since)
