"""Questions about speed that only a GPU can answer; writes tests/gpu/results/speed_questions-<driver>.json.

    PYTHONPATH=. python3 tests/gpu/speed_questions.py [--minutes 30] [QUESTION ...]

as root, on a machine with a GPU that nobody else uses, by a Python that has PyTorch, nvidia-ml-py and msgspec.

What a stopped MPS client does to others; what NVML says of each client, to whom and at which cost; how frameworks say
that they are at their memory limit; and the matrix: twelve programs, alone and in pairs, under MPS and by time slices,
beside what rules/interference.py predicts. The matrix takes the time that `--minutes` gives it,
the others some minutes.
Compute mode, clocks and MIG are never touched, nothing is reset, and every process ended here was started here.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import mps_questions
import speed_matrix
import speed_programs
from mps_questions import OTHER, OWNER, Facts, Lab, as_user, daemon

from slurm_share.core.records import Owner
from slurm_share.mps import control
from slurm_share.mps.records import MpsPlace
from slurm_share.packing.rules import interference
from slurm_share.packing.speed_records import Load

HERE = Path(__file__).resolve().parent
MINUTES = 30.0
DEVICE: tuple[str, ...] = ()
"""More arguments for the programs; a test of the parts without a GPU sets the CPU."""
_minutes = MINUTES
GPM = {2: "sm_ratio", 10: "dram_ratio", 1: "busy_ratio"}
"""NVML's numbers of GPM metrics: SM utilisation, DRAM bandwidth, graphics (any) utilisation; percent."""
PCIE = (20, 21)
"""GPM's PCIe traffic, sent and received, in MiB/s."""


class Worker:
    """One of the twelve programs, which reports its speed."""

    def __init__(self, lab: Lab, name: str, place: MpsPlace | None, owner: Owner = OWNER, **environ: str) -> None:
        program = lab.home / "speed_programs.py"
        if not program.exists():
            shutil.copy(HERE / "speed_programs.py", program)
            program.chmod(0o644)
        own = {"CUDA_VISIBLE_DEVICES": lab.gpu, "CUDA_MPS_PIPE_DIRECTORY": str(lab.home / "no-mps")}
        base = own if place is None else control.environment(place)
        kept = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH") if key in os.environ}
        self.name = name
        self.child = subprocess.Popen(
            [sys.executable, str(program), name, *DEVICE],
            env={**kept, **base, "HOME": "/tmp", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd="/",
            **as_user(owner),
        )
        lab.children.append(self.child)
        self.facts: Facts = {}

    def is_ready(self) -> bool:
        """Wait until it can work; False, with the reason in `facts`: it cannot."""
        self.facts = json.loads(mps_questions.first_line(self.child, 120) or '{"error": "it ended without a word"}')
        return "ready" in self.facts

    def begin(self, start: float, until: float) -> None:
        """Let it work between two times of the monotonic clock."""
        assert self.child.stdin is not None
        self.child.stdin.write(f"{start} {until}\n")
        self.child.stdin.flush()

    def rate(self, seconds: float = 60) -> float:
        """Return the units a second of the work that it began. Raises RuntimeError where it has failed."""
        said = json.loads(mps_questions.first_line(self.child, seconds) or '{"error": "it ended without a word"}')
        if "rate" not in said:
            raise RuntimeError(f"{self.name}: {said.get('error', said)}")
        return float(said["rate"])


def measured(workers: Sequence[Worker], seconds: float) -> list[float]:
    """Return the rates of programs that work at the same time.

    Raises RuntimeError where one has failed; every answer is read before that, so that none is taken for a later one.
    """
    start = time.monotonic() + 0.5
    rates: list[float] = []
    failed = ""
    begun = []
    for one in workers:
        try:
            one.begin(start, start + seconds)
            begun.append(one)
        except OSError as error:
            failed = f"{one.name}: {error}"
    for one in begun:
        try:
            rates.append(one.rate(seconds + 60))
        except RuntimeError as error:
            failed = str(error)
    if failed:
        raise RuntimeError(failed)
    return rates


# ---- What the driver counts ----


class Counters:
    """GPM between two moments; without GPM, utilisation at the second."""

    def __init__(self, lab: Lab) -> None:
        import pynvml

        self.nvml = pynvml
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByUUID(lab.gpu)
        try:
            self.has_gpm = bool(pynvml.nvmlGpmQueryDeviceSupport(self.handle).isSupportedDevice)
            self.samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)] if self.has_gpm else []
        except (pynvml.NVMLError, AttributeError):
            self.has_gpm = False

    def begin(self) -> None:
        """Take the first sample."""
        if self.has_gpm:
            self.nvml.nvmlGpmSampleGet(self.handle, self.samples[0])

    def end(self) -> Facts:
        """Return the figures since `begin`, and where they are from."""
        nvml = self.nvml
        if not self.has_gpm:
            said = nvml.nvmlDeviceGetUtilizationRates(self.handle)
            busy = said.gpu / 100
            return {"sm_ratio": busy, "dram_ratio": said.memory / 100, "busy_ratio": busy, "from": "utilisation"}
        nvml.nvmlGpmSampleGet(self.handle, self.samples[1])
        question = nvml.c_nvmlGpmMetricsGet_t()
        ids = (*GPM, *PCIE)
        question.version, question.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(ids)
        question.sample1, question.sample2 = self.samples
        for slot, number in enumerate(ids):
            question.metrics[slot].metricId = number
        nvml.nvmlGpmMetricsGet(question)
        found: Facts = {"from": "GPM"}
        for slot, number in enumerate(ids):
            metric = question.metrics[slot]
            value = float(metric.value) if metric.nvmlReturn == 0 else None
            if number in GPM:
                found[GPM[number]] = None if value is None else min(max(value / 100, 0.0), 1.0)
            else:
                found[f"pcie_{number}_mib_s"] = value
        return found


def load_of(figures: Mapping[str, float | str | None]) -> Load:
    """Return what the figures of a program that runs alone say of it; unknown ones stay at their default."""
    known = {name: value for name, value in figures.items() if name in GPM.values() and isinstance(value, float)}
    return Load(**{"sm_ratio": interference.UNMEASURED.sm_ratio, **known})


# ---- The questions ----


def a_stopped_client(lab: Lab) -> Facts:
    """Stop one MPS client with work in its queue: does the other go on, at which rate; memory; after SIGCONT."""
    found: Facts = {}
    with daemon(lab, "s") as started:
        for name in ("gemm-4096", "launches"):
            one, other = Worker(lab, "gemm-512", started.place), Worker(lab, name, started.place)
            if not (one.is_ready() and other.is_ready()):
                found[name] = [one.facts, other.facts]
                continue
            row: Facts = {"alone": measured([one], 2)[0]}
            other.begin(time.monotonic(), time.monotonic() + 14)
            time.sleep(1)
            row["beside"] = measured([one], 2)[0]
            row["memory_beside"] = mps_questions.nvml_lists(lab)
            other.child.send_signal(signal.SIGSTOP)
            try:
                row["just_after_stop"] = measured([one], 1)[0]
                row["while_stopped"] = measured([one], 3)[0]
            except RuntimeError as error:
                row["did_not_go_on"] = str(error)
            finally:
                row["memory_while_stopped"] = mps_questions.nvml_lists(lab)
                other.child.send_signal(signal.SIGCONT)
            if "did_not_go_on" not in row:
                row["after_cont"] = measured([one], 2)[0]
            row["the_stopped_one"] = other.rate()
            row["memory_after"] = mps_questions.nvml_lists(lab)
            found[name] = row
            for worker in (one, other):
                end(worker)
    return found


def end(worker: Worker) -> None:
    """End a program, and wait for it."""
    worker.child.kill()
    worker.child.communicate()


READ = """
import json, pynvml, sys, time
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByUUID(sys.argv[1])
found = {}
def gpm():
    s = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    pynvml.nvmlGpmSampleGet(h, s[0]); time.sleep(0.2); pynvml.nvmlGpmSampleGet(h, s[1])
    q = pynvml.c_nvmlGpmMetricsGet_t()
    ids = (1, 2, 3, 5, 10, 11, 12, 13)
    q.version, q.numMetrics, (q.sample1, q.sample2) = pynvml.NVML_GPM_METRICS_GET_VERSION, len(ids), s
    for slot, number in enumerate(ids):
        q.metrics[slot].metricId = number
    pynvml.nvmlGpmMetricsGet(q)
    return {number: [q.metrics[slot].nvmlReturn, q.metrics[slot].value] for slot, number in enumerate(ids)}
since = int((time.time() - 5) * 1e6)
asked = {
    "compute": lambda: [[p.pid, p.usedGpuMemory] for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h)],
    "mps": lambda: [[p.pid, p.usedGpuMemory] for p in pynvml.nvmlDeviceGetMPSComputeRunningProcesses(h)],
    "process_utilization":
        lambda: [[s.pid, s.smUtil, s.memUtil] for s in pynvml.nvmlDeviceGetProcessUtilization(h, since)],
    "utilization": lambda: str(pynvml.nvmlDeviceGetUtilizationRates(h).gpu),
    "gpm": gpm,
}
for name, question in asked.items():
    took = []
    try:
        for _ in range(10):
            began = time.perf_counter(); said = question(); took.append(1000 * (time.perf_counter() - began))
        found[name] = {"said": said, "median_ms": sorted(took)[5] - (200 if name == "gpm" else 0)}
    except Exception as error:
        found[name] = {"error": repr(error)}
print(json.dumps(found))
"""


def figures_of_each_client(lab: Lab) -> Facts:
    """Read PIDs, SM part and memory of two unlike MPS clients, and GPM, as root, owner and another user; milliseconds
    of each reading, to be done once a second."""
    with daemon(lab, "f") as started:
        workers = [Worker(lab, name, started.place) for name in ("gemm-4096", "launches")]
        if not all(one.is_ready() for one in workers):
            return {"workers": [one.facts for one in workers]}
        found: Facts = {"pids": {one.name: one.child.pid for one in workers}, "server": started.servers[0].pid}
        begun = time.monotonic()
        for one in workers:
            one.begin(begun, begun + 40)
        time.sleep(6)
        for who, owner in (("root", Owner(0, 0)), ("owner", OWNER), ("other", OTHER)):
            done = subprocess.run(
                [sys.executable, "-c", READ, lab.gpu], capture_output=True, text=True, timeout=60, check=False, cwd="/",
                **as_user(owner),
            )  # fmt: skip
            found[who] = json.loads(done.stdout) if done.returncode == 0 else done.stderr[-600:]
        for one in workers:
            end(one)
        return found


AT_THE_CAP = {
    "torch": """
import torch
free, total = torch.cuda.mem_get_info()
print("mem_get_info", free >> 20, total >> 20, flush=True)
held = []
while True:
    held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda").fill_(1))
    torch.cuda.synchronize()
    print("held", 64 * len(held), flush=True)
""",
    "torch, small pieces": """
import torch
held = []
while True:
    held.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda").fill_(1))
""",
    "torch, a handle of cuBLAS": """
import torch
held = []
try:
    while True:
        held.append(torch.empty(2 << 20, dtype=torch.uint8, device="cuda").fill_(1))
except torch.cuda.OutOfMemoryError:
    a = held[0][:65536].view(torch.float32).view(128, 128)
    torch.mm(a, a, out=held[1][:65536].view(torch.float32).view(128, 128)); torch.cuda.synchronize()
    print("works at the cap", flush=True)
""",
    "jax": """
import jax, jax.numpy as jnp
print("memory_stats", jax.devices()[0].memory_stats(), flush=True)
held = []
while True:
    held.append(jnp.ones((16 << 20,), jnp.float32).block_until_ready())
    print("held", 64 * len(held), flush=True)
""",
}
CAP_MIB = 2048


def errors_at_the_cap(lab: Lab) -> Facts:
    """Return what programs print and how they end at an MPS memory limit of 2 GiB; whether cudaMemGetInfo shows it."""
    found: Facts = {"cap_mib": CAP_MIB}
    with daemon(lab, "e") as started:
        kept = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH") if key in os.environ}
        for name, code in AT_THE_CAP.items():
            if importlib.util.find_spec(name.partition(",")[0]) is None:
                found[name] = "NOT ASKED: it is not installed"
                continue
            for setting in ({}, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}) if name == "jax" else ({},):
                done = subprocess.run(
                    [sys.executable, "-c", code],
                    env={
                        **kept, **control.environment(started.place), "HOME": "/tmp", **setting,
                        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={CAP_MIB}M",
                    },
                    capture_output=True, text=True, timeout=120, check=False, cwd="/", **as_user(OWNER),
                )  # fmt: skip
                title = f"{name}{', without preallocation' if setting else ''}"
                out = done.stdout.splitlines()
                found[title] = {
                    "code": done.returncode,
                    "first": out[:1],
                    "last": out[-1:],
                    "error": done.stderr[-2500:],
                }
    return found


@contextmanager
def programs(lab: Lab, place: MpsPlace | None, names: Sequence[str]) -> Iterator[tuple[dict[str, Worker], Facts]]:
    """Start one of each program, waiting; return also the output of those that cannot work."""
    begun = [Worker(lab, name, place) for name in names]
    try:
        ready = {one.name: one for one in begun if one.is_ready()}
        yield ready, {one.name: one.facts for one in begun if one.name not in ready}
    finally:
        for one in begun:
            end(one)


def matrix(lab: Lab) -> Facts:
    """Measure twelve programs alone and in all pairs, under MPS and with time slicing, beside the unfitted model's
    prediction."""
    names = list(speed_programs.PROGRAMS)
    planned = speed_matrix.plan(names, _minutes)
    counters = Counters(lab)
    found: Facts = {"seconds": planned.seconds, "repeats": planned.repeats, "left_out": planned.left_out}
    every: list[Facts] = []
    figures: dict[str, Facts] = {}
    with daemon(lab, "m") as started:
        for method, place in (("mps", started.place), ("time-slicing", None)):
            with programs(lab, place, names) as (workers, failed):
                found[method] = _measure(lab, place, workers, planned, counters, figures)
                found[method]["failed"] = failed
            alone, together = found[method].pop("alone"), found[method].pop("together")
            loads = {name: load_of(one) for name, one in figures.items()}
            rows = speed_matrix.rows(alone, together, loads, method)
            found[method].update(alone=alone, errors=speed_matrix.errors(rows))
            every += rows
    found.update(figures_alone=figures, rows=every, text=speed_matrix.report(every, planned))
    print(found["text"], flush=True)
    return found


def _measure(
    lab: Lab,
    place: MpsPlace | None,
    workers: Mapping[str, Worker],
    planned: speed_matrix.Plan,
    counters: Counters,
    figures: dict[str, Facts],
) -> Facts:
    """Return rates alone and together. Fill the counters of each program alone, once: under MPS, which is first."""
    alone: dict[str, list[float]] = {name: [] for name in workers}
    together: dict[speed_matrix.Pair, list[tuple[float, float]]] = {}
    problems: list[str] = []
    for _ in range(planned.repeats):
        for name, one in workers.items():
            start = time.monotonic() + 0.5
            one.begin(start, start + planned.seconds)
            time.sleep(0.6)
            counters.begin()
            time.sleep(planned.seconds * 0.7)
            figures.setdefault(name, counters.end())
            alone[name].append(one.rate())
        for a, b in planned.pairs:
            if a != b and a in workers and b in workers:
                _pair(workers[a], workers[b], planned.seconds, together, problems)
    for name in [a for a, b in planned.pairs if a == b and a in workers]:
        twin = Worker(lab, name, place)
        if twin.is_ready():
            for _ in range(planned.repeats):
                _pair(workers[name], twin, planned.seconds, together, problems)
        else:
            problems.append(f"a second {name}: {twin.facts}")
        end(twin)
    spread = {name: round(statistics.pstdev(rates) / statistics.fmean(rates), 4) for name, rates in alone.items()}
    return {"alone": alone, "together": together, "spread_alone": spread, "problems": problems[:20]}


def _pair(
    one: Worker,
    other: Worker,
    seconds: float,
    together: dict[speed_matrix.Pair, list[tuple[float, float]]],
    problems: list[str],
) -> None:
    try:
        first, second = measured([one, other], seconds)
        together.setdefault((one.name, other.name), []).append((first, second))
    except RuntimeError as error:
        problems.append(f"{one.name} beside {other.name}: {error}")


QUESTIONS: tuple[Callable[[Lab], Facts], ...] = (
    errors_at_the_cap, figures_of_each_client, a_stopped_client, matrix,
)  # fmt: skip


def main() -> int:
    global _minutes
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=", ".join(one.__name__ for one in QUESTIONS))
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for the matrix ({MINUTES:g})")
    arguments = parser.parse_args()
    unknown = set(arguments.questions) - {one.__name__ for one in QUESTIONS}
    if unknown:
        parser.error(f"no question {', '.join(sorted(unknown))}; there are {', '.join(q.__name__ for q in QUESTIONS)}")
    _minutes = arguments.minutes
    try:
        speed_matrix.plan(list(speed_programs.PROGRAMS), _minutes)
    except ValueError as error:
        parser.error(f"--minutes: {error}")
    lab = mps_questions.open_lab()
    if isinstance(lab, str):
        print(f"speed_questions: NOT ASKED: {lab}", file=sys.stderr)
        return 1
    chosen = tuple(one for one in QUESTIONS if not arguments.questions or one.__name__ in arguments.questions)
    print(mps_questions.ask_all(lab, chosen, "speed_questions"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
