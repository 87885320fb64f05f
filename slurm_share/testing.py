"""Our fakes, shipped: they act, and refuse what they were not taught. For tests of ours and of whoever builds on us."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from .core import names
from .core.errors import DriverError
from .core.records import ShareRequest
from .core.settings import Settings
from .node.records import Driver, Gpu, GpuProcess, GpuReading
from .share import BACKEND_MPS, Limits, registry
from .triples import Run, run_folder


def make_run_folder(folder: Path, jobs: Sequence[int]) -> Path:
    """The folder of a run of one task that was submitted as these jobs."""
    folder.mkdir()
    run = Run(name="true", command=("/bin/true",), cwd="/", triple=None, processes=1, tasks=1)
    (folder / run_folder.RUN).write_bytes(run_folder.render_run(run))
    (folder / run_folder.JOBS).write_text("".join(f"{job} 1795271308\n" for job in jobs), encoding="ascii")
    return folder


def offers_of(
    share: ShareRequest | None,
    settings: Settings | None = None,
    *,
    client_limit: int = names.MPS_CLIENTS_MIN,
    why_not: str | None = None,
    is_missing: bool = False,
) -> tuple[Limits, ...]:
    """Return what the backends that may serve a share offer on a node where MPS is so."""
    required_by = "mps_required" if settings is not None and settings.mps_required else ""
    return tuple(
        replace(one, client_limit=client_limit, why_not=why_not, is_missing=is_missing, required_by=required_by)
        if one.backend == BACKEND_MPS
        else one
        for one in (backend.limits(None) for backend in registry.wanted(share))
    )


@dataclass
class FakeNvml:
    """Stands in for `slurm_share.node.gpus.binding`: GPUs as given, or a driver that does not answer."""

    broken: str | None = None
    """The reason the driver gives for not answering."""
    readings: list[GpuReading] = field(default_factory=list)
    bus_ids: dict[str, str] = field(default_factory=dict)
    """PCI addresses by UUID."""

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
        """Add one GPU; answers itself, so that calls can be chained."""
        index = len(self.readings)
        uuid = f"GPU-{index:08d}-0000-4000-8000-000000000000"
        gpu = Gpu(uuid, index, index, "Fake GPU", memory_total_mib, simulated=simulated)
        if bus_id is not None:
            self.bus_ids[uuid] = bus_id
        processes = tuple(GpuProcess(pid, None) for pid in pids)
        self.readings.append(GpuReading(gpu, memory_used_mib, utilization_percent, processes))
        return self

    def read_driver(self) -> Driver:
        """As nvml.read_driver. Raises DriverError when told to."""
        return Driver("550.0-fake", tuple(reading.gpu for reading in self.read_gpu_readings()))

    def read_bus_ids(self, gpus: Sequence[Gpu]) -> tuple[str | None, ...]:
        """As nvml.read_bus_ids. Raises DriverError when told to."""
        self.read_gpu_readings()
        return tuple(self.bus_ids.get(gpu.uuid) for gpu in gpus)

    def read_gpu_readings(self) -> tuple[GpuReading, ...]:
        """As nvml.read_gpu_readings. Raises DriverError when told to."""
        if self.broken is not None:
            raise DriverError("nvmlInit", self.broken)
        return tuple(self.readings)


@dataclass
class FakeGpu:
    """One GPU, or MIG instance, of a FakeBinding. Memory in MiB; None where the driver does not say."""

    uuid: str
    memory: tuple[int, int] = (81920, 0)
    """Total and used."""
    utilization: int | None = 0
    memory_busy: int = 0
    """Percent of the driver's last period with traffic to memory; told with the utilisation."""
    compute: dict[int, int | None] = field(default_factory=dict)
    """Pid -> memory, in this list of the driver's."""
    graphics: dict[int, int | None] = field(default_factory=dict)
    mps: dict[int, int | None] = field(default_factory=dict)
    all_in_one: dict[int, int | None] | None = None
    """The list of all processes (Hopper and newer); None: not supported."""
    sm: dict[int, int] | None = None
    """Pid -> percent since the question before; None: not supported."""
    gpm: dict[int, float] | None = None
    """Metric -> percent now; None: no GPM."""
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: int | None = None
    instances: list[FakeGpu] | None = None
    """None: MIG is off."""
    fails: dict[str, str] = field(default_factory=dict)
    """Function -> the error it raises, such as GpuIsLost; `*`: all that are asked of a handle."""


class FakeBinding:
    """Stands in for NVIDIA's binding in `node.gpus.load.NvmlSession`: answers as the driver would, raises the
    binding's own errors, and counts what was asked and what was not given back."""

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.absent: str | None = None
        """The error of nvmlInit."""
        self.void: str | None = None
        """The error of every other call, until the next nvmlInit: a driver that was loaded anew."""
        self.asked: dict[str, int] = {}
        self.open = 0
        self.samples = 0
        """GPM samples that were allocated and not freed."""
        self.since_us: int | None = None
        """What use by processes was asked since, last."""
        self._taken: dict[int, dict[int, float]] = {}
        self.clock_us = 0
        """The driver's clock, microseconds: it stamps samples of use by processes with it."""

    def error(self, name: str) -> Exception:
        """NVML's error of that name, as the binding raises it; `Success` is one, too."""
        import pynvml  # noqa: TID251  (its errors and its structures are what is faked here)

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

    # The binding's own names from here on.

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
        """The mean of the two samples; a metric that neither has is not supported."""
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
