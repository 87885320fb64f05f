"""Fakes for our own tests and for tests of other programs. They behave like the original and refuse unknown
requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from .core.errors import DriverError
from .core.records import MPS_CLIENTS_MIN, ShareRequest
from .core.settings import Settings
from .node.records import Driver, Gpu, GpuProcess, GpuReading
from .share import BACKEND_MPS, Limits, registry
from .triples import Run, run_folder


def make_run_folder(folder: Path, jobs: Sequence[int]) -> Path:
    """Make the folder of a run with one task that was submitted as `jobs`, and return it."""
    folder.mkdir()
    run = Run(
        id=folder.name,
        folder=str(folder),
        name="true",
        command=("/bin/true",),
        cwd="/",
        triple=None,
        processes=1,
        tasks=1,
    )
    (folder / run_folder.RUN).write_bytes(run_folder.render_run(run))
    (folder / run_folder.JOBS).write_text("".join(f"{job} 1795271308\n" for job in jobs), encoding="ascii")
    return folder


def offers_of(
    share: ShareRequest | None,
    settings: Settings | None = None,
    *,
    client_limit: int = MPS_CLIENTS_MIN,
    why_not: str | None = None,
    is_missing: bool = False,
    driver: str | None = None,
) -> tuple[Limits, ...]:
    """Return the limits of the backends that may serve a share, with the given limits for MPS. driver: its version."""
    required_by = "mps_required" if settings is not None and settings.mps_required else ""
    return tuple(
        replace(one, client_limit=client_limit, why_not=why_not, is_missing=is_missing, required_by=required_by)
        if one.backend == BACKEND_MPS
        else one
        for one in (backend.limits(driver) for backend in registry.wanted(share, settings or Settings()))
    )


@dataclass
class FakeNvml:
    """A fake of `slurm_share.node.gpus.binding`: the given GPUs, or a driver that does not answer."""

    broken: str | None = None
    """The error of the driver; None: the driver answers."""
    readings: list[GpuReading] = field(default_factory=list)
    bus_ids: dict[str, str] = field(default_factory=dict)
    """GPU UUID -> PCI address."""

    def gpu(
        self,
        *,
        memory_total_mib: int | None = 81920,
        memory_used_mib: int | None = 0,
        utilization_percent: int | None = 0,
        pids: tuple[int, ...] = (),
        bus_id: str | None = None,
        simulated: bool = False,
    ) -> FakeNvml:
        """Add a GPU; return the fake itself, so that calls can be chained."""
        index = len(self.readings)
        uuid = f"GPU-{index:08d}-0000-4000-8000-000000000000"
        gpu = Gpu(uuid, index, index, "Fake GPU", memory_total_mib, simulated=simulated)
        if bus_id is not None:
            self.bus_ids[uuid] = bus_id
        processes = tuple(GpuProcess(pid, None) for pid in pids)
        self.readings.append(GpuReading(gpu, memory_used_mib, utilization_percent, processes))
        return self

    def read_driver(self) -> Driver:
        """Return the driver with its GPUs. Raises DriverError if `broken` is set."""
        return Driver("550.0-fake", tuple(reading.gpu for reading in self.read_gpu_readings()))

    def read_bus_ids(self, gpus: Sequence[Gpu]) -> tuple[str | None, ...]:
        """Return the PCI addresses of GPUs. Raises DriverError if `broken` is set."""
        self.read_gpu_readings()
        return tuple(self.bus_ids.get(gpu.uuid) for gpu in gpus)

    def read_gpu_readings(self) -> tuple[GpuReading, ...]:
        """Return the readings of all GPUs. Raises DriverError if `broken` is set."""
        if self.broken is not None:
            raise DriverError("nvmlInit", self.broken)
        return tuple(self.readings)


@dataclass
class FakeGpu:
    """One GPU or MIG instance of a FakeBinding. Memory in MiB; None: the driver does not report it."""

    uuid: str
    memory: tuple[int, int] = (81920, 0)
    """Total and used memory."""
    utilization: int | None = 0
    memory_busy: int = 0
    """Percentage of the driver's last period with memory traffic, reported with the utilisation."""
    compute: dict[int, int | None] = field(default_factory=dict)
    """Pid -> memory, for compute processes; `graphics` and `mps` likewise."""
    graphics: dict[int, int | None] = field(default_factory=dict)
    mps: dict[int, int | None] = field(default_factory=dict)
    all_in_one: dict[int, int | None] | None = None
    """The list of all processes (Hopper and newer); None: not supported."""
    sm: dict[int, int] | None = None
    """Pid -> percentage since the previous query; None: not supported."""
    gpm: dict[int, float] | None = None
    """Metric -> present percentage; None: no GPM."""
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: int | None = None
    instances: list[FakeGpu] | None = None
    """None: MIG is off."""
    fails: dict[str, str] = field(default_factory=dict)
    """Function -> the error it raises, such as GpuIsLost; `*`: all functions of a GPU."""


class FakeBinding:
    """A fake of NVIDIA's binding for `node.gpus.load.NvmlSession`.

    It answers like the driver, raises the errors of the binding, and counts calls and resources that were not freed.
    """

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.absent: str | None = None
        """The error of nvmlInit."""
        self.void: str | None = None
        """The error of every other call until the next nvmlInit, as after a reload of the driver."""
        self.asked: dict[str, int] = {}
        """Function -> number of calls."""
        self.open = 0
        """Calls of nvmlInit without nvmlShutdown."""
        self.samples = 0
        """GPM samples that were allocated and not freed."""
        self.since_us: int | None = None
        """Time stamp in the last query for the utilisation by processes."""
        self._taken: dict[int, dict[int, float]] = {}
        """Address of a GPM sample -> its metrics."""
        self.clock_us = 0
        """The driver's clock, microseconds, for time stamps of the utilisation by processes."""

    def error(self, name: str) -> Exception:
        """Return NVML's error of that name, as the binding raises it; `Success` is one too."""
        import pynvml  # noqa: TID251  (the fake needs its errors and structures)

        prefix = "".join(f"_{one}" if one.isupper() else one.upper() for one in name).removeprefix("_")
        value = pynvml.NVML_SUCCESS if name == "Success" else getattr(pynvml, f"NVML_ERROR_{prefix}")
        found: Exception = pynvml.NVMLError(value)
        return found

    def _count(self, name: str, gpu: FakeGpu | None = None) -> None:
        self.asked[name] = self.asked.get(name, 0) + 1
        if name != "nvmlInit" and self.void is not None:
            raise self.error(self.void)
        if gpu is not None:
            for key in (name, "*"):
                if key in gpu.fails:
                    raise self.error(gpu.fails[key])

    def _told(self, name: str, gpu: FakeGpu, value: Any) -> Any:
        self._count(name, gpu)
        if value is None:
            raise self.error("NotSupported")
        return value

    # From here on, functions of the binding.

    def nvmlInit(self) -> None:
        self._count("nvmlInit")
        if self.absent is not None:
            raise self.error(self.absent)
        self.void = None
        self.open += 1

    def nvmlShutdown(self) -> None:
        self._count("nvmlShutdown")
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.0-fake"

    def nvmlDeviceGetCount(self) -> int:
        self._count("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        self._count("nvmlDeviceGetHandleByIndex", self.gpus[index])
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return "Fake GPU"

    def nvmlDeviceGetMinorNumber(self, gpu: FakeGpu) -> int:
        return self.gpus.index(gpu)

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        self._count("nvmlDeviceGetMigMode", gpu)
        return [int(gpu.instances is not None)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        if gpu.instances is None or index >= len(gpu.instances):
            raise self.error("NotFound")
        return gpu.instances[index]

    def nvmlDeviceGetGpuInstanceId(self, instance: FakeGpu) -> int:
        return next(gpu.instances.index(instance) for gpu in self.gpus if gpu.instances and instance in gpu.instances)

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> Any:
        self._count("nvmlDeviceGetMemoryInfo", gpu)
        return SimpleNamespace(total=gpu.memory[0] << 20, used=gpu.memory[1] << 20)

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        utilization = self._told("nvmlDeviceGetUtilizationRates", gpu, gpu.utilization)
        return SimpleNamespace(gpu=utilization, memory=gpu.memory_busy)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> float:
        return 1000 * float(self._told("nvmlDeviceGetPowerUsage", gpu, gpu.power_w))

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu) -> float:
        return 1000 * float(self._told("nvmlDeviceGetTotalEnergyConsumption", gpu, gpu.energy_j))

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        return int(self._told("nvmlDeviceGetTemperature", gpu, gpu.temperature_c))

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        return self._list("nvmlDeviceGetComputeRunningProcesses", gpu, gpu.compute)

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        return self._list("nvmlDeviceGetGraphicsRunningProcesses", gpu, gpu.graphics)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        return self._list("nvmlDeviceGetMPSComputeRunningProcesses", gpu, gpu.mps)

    def nvmlDeviceGetRunningProcessDetailList(self, gpu: FakeGpu, version: int, mode: int) -> list[Any]:
        found: list[Any] = self._list("nvmlDeviceGetRunningProcessDetailList", gpu, gpu.all_in_one)
        if any(process.usedGpuMemory is None for process in found):
            raise TypeError("'NoneType' object cannot be interpreted as an integer")  # as the binding does
        return found

    def _list(self, name: str, gpu: FakeGpu, processes: dict[int, int | None] | None) -> list[Any]:
        told: dict[int, int | None] = self._told(name, gpu, processes)
        return [SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib << 20) for pid, mib in told.items()]

    def nvmlDeviceGetProcessUtilization(self, gpu: FakeGpu, since_us: int) -> list[Any]:
        told = self._told("nvmlDeviceGetProcessUtilization", gpu, gpu.sm)
        self.since_us = since_us
        if since_us > self.clock_us:
            raise self.error("InvalidArgument")
        if not told:
            raise self.error("Success")
        self.clock_us += 1
        return [SimpleNamespace(pid=pid, smUtil=percent, timeStamp=self.clock_us) for pid, percent in told.items()]

    def nvmlGpmQueryDeviceSupport(self, gpu: FakeGpu) -> Any:
        self._count("nvmlGpmQueryDeviceSupport", gpu)
        return SimpleNamespace(isSupportedDevice=int(gpu.gpm is not None))

    def nvmlGpmSampleAlloc(self) -> Any:
        import ctypes

        import pynvml  # noqa: TID251

        self._count("nvmlGpmSampleAlloc")
        self.samples += 1
        return ctypes.cast(ctypes.c_void_p(0x1000 + self.asked["nvmlGpmSampleAlloc"]), pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self.samples -= 1

    def nvmlGpmSampleGet(self, gpu: FakeGpu, sample: Any) -> None:
        self._taken[_address(sample)] = dict(self._told("nvmlGpmSampleGet", gpu, gpu.gpm))

    def nvmlGpmMigSampleGet(self, gpu: FakeGpu, instance: int, sample: Any) -> None:
        assert gpu.instances is not None
        self._taken[_address(sample)] = dict(
            self._told("nvmlGpmMigSampleGet", gpu.instances[instance], gpu.instances[instance].gpm)
        )

    def nvmlGpmMetricsGet(self, request: Any) -> None:
        """Set each metric to the mean of two samples; a metric that is not in both is not supported."""
        self._count("nvmlGpmMetricsGet")
        first, second = self._taken[_address(request.sample1)], self._taken[_address(request.sample2)]
        for slot in range(request.numMetrics):
            metric = request.metrics[slot]
            known = metric.metricId in first and metric.metricId in second
            metric.nvmlReturn = 0 if known else 3
            metric.value = (first[metric.metricId] + second[metric.metricId]) / 2 if known else 0.0


def _address(sample: Any) -> int:
    import ctypes

    return ctypes.cast(sample, ctypes.c_void_p).value or 0
