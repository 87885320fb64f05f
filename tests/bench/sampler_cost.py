"""Measure the cost of one sample on a node with simulated GPUs: `measure()`, or this file as a program.

The simulated driver reads a file for each client at each question, which a real one does not; the time in it is told
apart. CPU time is the process's own, of all its threads, in user and kernel mode.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
SIMGPU = HOME / "packaging" / "demo" / "simgpu"
LIBRARY = HOME / "build" / "simgpu"

_ROUNDS = """
import json, msgspec, resource, sys, time
import pynvml
from slurm_share.load.collectors import NodeReader
from slurm_share.load.sampler import NodeSampler

from msgspec.structs import replace
from slurm_share.load.rules.job_use import NodeUse
from slurm_share.node.readings import JobNow

# All programs are tasks of one job, as on a node with a share.
class OneJob(NodeReader):
    def read(self, pids, gpus=()):
        seen = super().read(pids, gpus)
        mine = tuple(replace(one, job=4711, step="0", task=one.slot) for one in seen.processes)
        uid = mine[0].uid if mine else 0
        job = JobNow(job=4711, uid=uid, user="user", cpu_s={"cgroup": seen.busy_s or 0.0}, memory_mib=1)
        return replace(seen, processes=mine, jobs=(job,))

rounds, pause_s = int(sys.argv[1]), float(sys.argv[2])
sampler = NodeSampler("bench", kernel=OneJob("bench"))
use, use_took = NodeUse("bench"), []
inside, depth = [0.0], [0]

def timed(call):
    def ask(*args):
        depth[0] += 1
        begin = time.process_time()
        try:
            return call(*args)
        finally:
            depth[0] -= 1
            if not depth[0]:
                inside[0] += time.process_time() - begin
    return ask

for _ in range(3):
    seen = sampler.sample()
    time.sleep(0.12)
took = []
for _ in range(rounds):
    begin = time.process_time()
    seen = sampler.sample()
    took.append(time.process_time() - begin)
    begin = time.process_time()
    use.add(*sampler.readings, seen)
    use.filled(seen)
    use_took.append(time.process_time() - begin)
    time.sleep(pause_s)
begin = time.process_time()
stored = len(json.dumps([len(msgspec.json.encode(one)) for one in use.stored_jobs().values()]))
store_ms = 1000 * (time.process_time() - begin)
# The driver's part in rounds of their own: to time every call takes time, too.
for name in [name for name in dir(pynvml) if name.startswith("nvmlDevice") or name.startswith("nvmlGpm")]:
    setattr(pynvml, name, timed(getattr(pynvml, name)))
for _ in range(5):
    sampler.sample()
    time.sleep(0.12)
took.sort()

rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

# What psutil would take for the same figures of the same clients.
import psutil
pids = [one.pid for one in seen.processes]
kernel = NodeReader("bench")

def mean_us(read):
    read()
    begin = time.process_time()
    for _ in range(rounds):
        read()
    return 1e6 * (time.process_time() - begin) / rounds / len(pids)

def read_with_psutil():
    for pid in pids:
        process = psutil.Process(pid)
        with process.oneshot():
            process.name(), process.status(), process.create_time(), process.cpu_times(), process.memory_info()

print(json.dumps({
    "gpus": len(seen.gpus),
    "clients": len(seen.processes),
    "cpu_ms": 1000 * sum(took) / len(took),
    "cpu_ms_most": 1000 * took[-1],
    "driver_ms": 1000 * inside[0] / 5,
    "use_ms": 1000 * sum(use_took) / len(use_took),
    "store_ms": store_ms,
    "process_us": mean_us(lambda: kernel.read(pids)) - mean_us(lambda: kernel.read(())),
    "psutil_process_us": mean_us(read_with_psutil),
    "rss_mib": rss_mib,
}))
sampler.close()
"""


def measure(gpus: int = 8, clients: int = 60, rounds: int = 40, pause_s: float = 0.12) -> dict[str, float]:
    """Return the CPU milliseconds of a round (`cpu_ms`: mean, `cpu_ms_most`), those in the driver (`driver_ms`), those
    of the records of jobs in a round (`use_ms`) and when they are stored, once a minute (`store_ms`), the CPU
    microseconds for each client (`process_us`) and with psutil (`psutil_process_us`), and the largest resident memory
    (`rss_mib`) of a Python that only samples."""
    with simulated_node(gpus, clients) as environ:
        run = [sys.executable, "-c", _ROUNDS, str(rounds), str(pause_s)]
        done = subprocess.run(run, env=environ, check=True, stdout=subprocess.PIPE, text=True, cwd=HOME)
    found: dict[str, float] = json.loads(done.stdout)
    return found


@contextmanager
def simulated_node(gpus: int, clients: int) -> Iterator[dict[str, str]]:
    """The environment of programs that see simulated GPUs, and programs on them."""
    subprocess.run(["make", "-s", "-C", SIMGPU, f"BUILD={LIBRARY}"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "SIMGPU_STATE": f"{folder}/state",
            "LD_LIBRARY_PATH": str(LIBRARY),
            "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/no-mps",
        }
        subprocess.run([SIMGPU / "simgpu-init", str(gpus)], env=environ, check=True, stdout=subprocess.DEVNULL)
        with _tasks(gpus, clients, environ):
            yield environ


@contextmanager
def _tasks(gpus: int, clients: int, environ: dict[str, str]) -> Iterator[Sequence[subprocess.Popen[str]]]:
    counters = [f"--{name}=10" for name in ("occupancy", "tensor", "dram", "fp64", "fp32", "fp16")]
    tasks: list[subprocess.Popen[str]] = []
    try:
        for number in range(clients):
            words = ["--memory=1G", "--load=10", "--seconds=600", f"--device={number % gpus}", *counters]
            env = {**environ, "SLURM_SHARE_SLOT": str(number), "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}
            tasks.append(subprocess.Popen([SIMGPU / "simgpu-task", *words], env=env, stdout=subprocess.PIPE, text=True))
        for task in tasks:
            assert task.stdout is not None
            task.stdout.readline()
        yield tasks
    finally:
        for task in tasks:
            task.kill()
            task.communicate()


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
