"""Activity of the parts of a GPU between two samples: NVIDIA's GPM counters, on Hopper and newer."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pynvml
from msgspec import structs

from ..gpu_figures import Activity
from .binding import why_unknown

GPM_PAUSE_S = 0.1
"""Two GPM samples must be at least this far apart (NVIDIA's nvmlGpmSampleGet)."""
ONE_SAMPLE = "one sample so far"
_COUNTERS = (
    ("sm_percent", pynvml.NVML_GPM_METRIC_SM_UTIL),
    ("occupancy_percent", pynvml.NVML_GPM_METRIC_SM_OCCUPANCY),
    ("tensor_percent", pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL),
    ("dram_percent", pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL),
    ("fp64_percent", pynvml.NVML_GPM_METRIC_FP64_UTIL),
    ("fp32_percent", pynvml.NVML_GPM_METRIC_FP32_UTIL),
    ("fp16_percent", pynvml.NVML_GPM_METRIC_FP16_UTIL),
)
"""Field of Activity, and its number in GPM."""
_NAMES = {field.name: field.encode_name for field in structs.fields(Activity)}
"""Names of the fields in JSON, which are the keys of `unknown`."""


class Gpm:
    """Two samples of one GPU or MIG instance, swapped at each reading: metrics are means since the previous one."""

    def __init__(self, before: Any, next_one: Any) -> None:
        self.before = before
        self.next = next_one
        self.taken: float | None = None
        """Time of the sample in `before`; None: it holds none yet."""
        self.last: Activity | None = None
        self.unknown: dict[str, str] = {}


class GpmReader:
    """Read the counters of GPUs and instances through one binding. Raises the binding's errors."""

    def __init__(self, nvml: ModuleType | Any, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._clock = clock
        self._request: Any = None

    def alloc(self) -> Gpm:
        """Allocate two samples; `free` releases them."""
        first = self._nvml.nvmlGpmSampleAlloc()
        try:
            return Gpm(first, self._nvml.nvmlGpmSampleAlloc())
        except pynvml.NVMLError:
            self._free(first)
            raise

    def read(self, gpm: Gpm, handle: Any, gpu_instance: int | None, unknown: dict[str, str]) -> Activity | None:
        """Return the means since the previous sample, or None and add the reason to `unknown`. gpu_instance: number of
        the GPU instance of a MIG instance."""
        now = self._clock()
        if gpm.taken is not None and now - gpm.taken < GPM_PAUSE_S:
            unknown.update(gpm.unknown)
            return gpm.last
        if gpu_instance is None:
            self._nvml.nvmlGpmSampleGet(handle, gpm.next)
        else:
            self._nvml.nvmlGpmMigSampleGet(handle, gpu_instance, gpm.next)
        gpm.unknown = {}
        if gpm.taken is None:
            gpm.unknown["activity"] = ONE_SAMPLE
        else:
            gpm.last = self._compute(gpm.before, gpm.next, gpm.unknown)
        gpm.before, gpm.next, gpm.taken = gpm.next, gpm.before, now
        unknown.update(gpm.unknown)
        return gpm.last

    def _compute(self, before: Any, after: Any, unknown: dict[str, str]) -> Activity | None:
        if self._request is None:
            self._request = pynvml.c_nvmlGpmMetricsGet_t()  # 25 kB: its room for metrics differs between releases
        request = self._request
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_COUNTERS)
        request.sample1, request.sample2 = before, after
        for slot, (_, number) in enumerate(_COUNTERS):
            request.metrics[slot].metricId = number
        self._nvml.nvmlGpmMetricsGet(request)
        values: dict[str, float] = {}
        for slot, (name, _) in enumerate(_COUNTERS):
            metric = request.metrics[slot]
            if metric.nvmlReturn != pynvml.NVML_SUCCESS:
                unknown[f"activity.{_NAMES[name]}"] = why_unknown(pynvml.NVMLError(metric.nvmlReturn))
            elif not math.isfinite(metric.value):
                unknown[f"activity.{_NAMES[name]}"] = "the driver's figure is no number"
            else:
                # MIG instances have reported more than 100 (NVIDIA/DCGM issue 152).
                values[name] = min(100.0, max(0.0, metric.value))
        return Activity(**values)

    def free(self, gpm: Gpm) -> None:
        """Release both samples."""
        for sample in (gpm.before, gpm.next):
            self._free(sample)

    def _free(self, sample: Any) -> None:
        try:
            self._nvml.nvmlGpmSampleFree(sample)
        except pynvml.NVMLError:
            pass  # the driver that allocated them is gone
