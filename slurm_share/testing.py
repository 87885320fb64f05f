"""Our fakes, shipped: they act, and refuse what they were not taught. For tests of ours and of whoever builds on us."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import DriverError
from .records import Driver, Gpu, GpuProcess, GpuReading


@dataclass
class FakeNvml:
    """Stands in for `slurm_share.readers.nvml`: GPUs as given, or a driver that does not answer."""

    broken: str | None = None
    """The reason the driver gives for not answering."""
    readings: list[GpuReading] = field(default_factory=list)

    def gpu(
        self,
        *,
        memory_total_mib: int | None = 81920,
        memory_used_mib: int | None = 0,
        utilization_percent: int | None = 0,
        pids: tuple[int, ...] = (),
    ) -> FakeNvml:
        """Add one GPU; answers itself, so that calls can be chained."""
        index = len(self.readings)
        gpu = Gpu(f"GPU-{index:08d}-0000-4000-8000-000000000000", index, index, "Fake GPU", memory_total_mib)
        processes = tuple(GpuProcess(pid, None) for pid in pids)
        self.readings.append(GpuReading(gpu, memory_used_mib, utilization_percent, processes))
        return self

    def read_driver(self) -> Driver:
        """As nvml.read_driver. Raises DriverError when told to."""
        return Driver("550.0-fake", tuple(reading.gpu for reading in self.read_gpu_readings()))

    def read_gpu_readings(self) -> tuple[GpuReading, ...]:
        """As nvml.read_gpu_readings. Raises DriverError when told to."""
        if self.broken is not None:
            raise DriverError("nvmlInit", self.broken)
        return tuple(self.readings)
