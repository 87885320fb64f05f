"""A host with simulated GPUs: its state folder, the programs on it, and what NVML says of it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).resolve().parents[2] / "packaging" / "demo" / "simgpu"
TASK = HOME / "simgpu-task"
INIT = HOME / "simgpu-init"
MIB = 1 << 20
without_driver = pytest.mark.skipif(
    Path("/proc/driver/nvidia/version").exists(),
    reason="NOT TESTED: a real NVIDIA driver is loaded, beside which the simulated GPU refuses to work",
)
StartMps = Callable[[str], dict[str, str]]

ASK_NVML = """
import json, sys
import pynvml as nvml

def answer(function, *arguments):
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        return type(error).__name__

def processes(function, handle):
    found = answer(function, handle)
    return found if isinstance(found, str) else {process.pid: process.usedGpuMemory for process in found}

def gpm(handle, ids):
    samples = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
    for sample in samples:
        nvml.nvmlGpmSampleGet(handle, sample)
    request = nvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(ids)
    request.sample1, request.sample2 = samples
    for slot, number in enumerate(ids):
        request.metrics[slot].metricId = number
    nvml.nvmlGpmMetricsGet(request)
    values = {}
    for slot, number in enumerate(ids):
        metric = request.metrics[slot]
        values[number] = metric.value if metric.nvmlReturn == 0 else metric.nvmlReturn
    for sample in samples:
        nvml.nvmlGpmSampleFree(sample)
    return values

def describe(index):
    handle = answer(nvml.nvmlDeviceGetHandleByIndex, index)
    if isinstance(handle, str):
        return {"handle": handle}
    plain, second = nvml.nvmlDeviceGetMemoryInfo(handle), nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    rates = answer(nvml.nvmlDeviceGetUtilizationRates, handle)
    samples = answer(nvml.nvmlDeviceGetProcessUtilization, handle, 0)
    infos = answer(nvml.nvmlDeviceGetProcessesUtilizationInfo, handle, 0)
    pci = nvml.nvmlDeviceGetPciInfo(handle)
    uuid = nvml.nvmlDeviceGetUUID(handle)
    supported = nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice
    return {
        "name": nvml.nvmlDeviceGetName(handle),
        "uuid": uuid,
        "index": nvml.nvmlDeviceGetIndex(handle),
        "by_uuid": nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(uuid)),
        "by_bus": nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy)),
        "minor": nvml.nvmlDeviceGetMinorNumber(handle),
        "bus": [pci.busId, pci.domain, pci.bus, pci.device],
        "cc": nvml.nvmlDeviceGetCudaComputeCapability(handle),
        "cpus": nvml.nvmlDeviceGetCpuAffinity(handle, 2)[:],
        "memory": [plain.total, plain.free, plain.used],
        "memory_v2": [second.total, second.free, second.used],
        "rates": rates if isinstance(rates, str) else [rates.gpu, rates.memory],
        "compute": processes(nvml.nvmlDeviceGetComputeRunningProcesses, handle),
        "compute_v2": processes(nvml.nvmlDeviceGetComputeRunningProcesses_v2, handle),
        "mps": processes(nvml.nvmlDeviceGetMPSComputeRunningProcesses, handle),
        "graphics": processes(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle),
        "process_sm": samples if isinstance(samples, str) else {one.pid: one.smUtil for one in samples},
        "process_info": infos if isinstance(infos, str) else {one.pid: one.smUtil for one in infos},
        "mode": nvml.nvmlDeviceGetComputeMode(handle),
        "mig": nvml.nvmlDeviceGetMigMode(handle),
        "temperature": answer(nvml.nvmlDeviceGetTemperature, handle, 0),
        "power": answer(nvml.nvmlDeviceGetPowerUsage, handle),
        "power_limit": answer(nvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        "energy": answer(nvml.nvmlDeviceGetTotalEnergyConsumption, handle),
        "gpm": gpm(handle, [1, 2, 3, 5, 10, 13]) if supported else None,
    }

try:
    nvml.nvmlInit()
except nvml.NVMLError as error:
    print(json.dumps({"init": type(error).__name__}))
    sys.exit()
print(json.dumps({
    "init": "ok",
    "driver": nvml.nvmlSystemGetDriverVersion(),
    "gpus": [describe(index) for index in range(nvml.nvmlDeviceGetCount())],
}))
"""


def build(folder: Path, *variables: str) -> Path:
    """Build the library with its own Makefile."""
    subprocess.run(["make", "-s", "-C", HOME, f"BUILD={folder}", *variables], check=True)
    return folder


class Host:
    """One simulated host: its state folder, and the programs that run on it."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.state = folder / "state"
        self.library = library
        self.running: list[subprocess.Popen[str]] = []

    def environ(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return an environment without the caller's CUDA variables and preloads."""
        venv = str(Path(sys.executable).parent)
        return {
            "PATH": f"{venv}:/usr/bin:/bin",
            "HOME": "/nonexistent",
            "TERM": "dumb",
            "LC_ALL": "C.UTF-8",
            "SIMGPU_STATE": str(self.state),
            "LD_LIBRARY_PATH": str(self.library),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.state / "no-mps"),
            **(extra or {}),
        }

    def run(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        return subprocess.run(argv, env=self.environ(), capture_output=True, text=True, check=False)

    def init(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(INIT, *words)

    def start(self, *words: str, user: int | None = None, **extra: str) -> subprocess.Popen[str]:
        """Start a task, as another user if one is given; `extra` is added to its environment."""
        process = subprocess.Popen(
            [TASK, *words],
            env=self.environ(extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user=user,
            # A shell starts what it puts into the background with SIGINT ignored, and that is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.running.append(process)
        return process

    def start_and_hear(self, *words: str, user: int | None = None, **extra: str) -> subprocess.Popen[str]:
        """Start a task and wait for its first line, when it holds its memory."""
        process = self.start(*words, user=user, **extra)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "(simulated)" in line, process.communicate()
        return process

    def task(self, *words: str, **extra: str) -> tuple[int, str, str]:
        """Run a task to its end; return exit code, output, errors."""
        out, err = (process := self.start(*words, **extra)).communicate(timeout=120)
        return process.returncode, out, err

    def nvml(self, program: str = ASK_NVML) -> Any:
        """Return what a program prints of the GPUs as JSON."""
        run = self.run(sys.executable, "-c", program)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    def gpus(self) -> list[dict[str, Any]]:
        return list(self.nvml()["gpus"])

    def gpu(self, index: int = 0) -> dict[str, Any]:
        return self.gpus()[index]

    def say(self, index: int, line: str) -> None:
        """Adds a line to a GPU's file; the last one of a key wins."""
        with (self.state / f"gpu{index}").open("a") as file:
            file.write(line + "\n")

    def clients(self) -> list[str]:
        return sorted(path.name for path in (self.state / "clients").iterdir())

    def end(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()


def used_mib(gpu: Mapping[str, Any]) -> int:
    return int(gpu["memory"][2]) // MIB


def until(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Wait until the condition holds; return False if it does not within that time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


class MpsAnswers:
    """A daemon's socket that answers every client with one line."""

    def __init__(self, pipe: Path, answer: str) -> None:
        pipe.mkdir()
        self.lines: list[socket.socket] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(pipe / "control"))
        self._socket.listen(16)
        self._answer = answer
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            self.lines.append(line)
            request = line.recv(1000).decode()
            line.send((self._answer if re.fullmatch(r"SIMGPU_CLIENT \d+\n", request) else "what?").encode())

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for line in self.lines:
            line.close()
        self._thread.join()
