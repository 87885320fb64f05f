"""The NVIDIA driver, asked through NVIDIA's own binding. The only importer of pynvml."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml

from ..errors import DriverError
from ..records import Driver, Gpu, GpuProcess, GpuReading

_MIB = 1024 * 1024
_SIMULATED_DRIVER = "-simulated"
"""The end of the driver version that the simulated NVML library of `packaging/demo/simgpu` reports."""


def read_driver() -> Driver:
    """The driver's version and every GPU of this node (`nvidia-smi -L`), in one visit: without persistence mode each
    nvmlInit may wait for the GPUs to wake.

    Raises DriverError when the driver does not answer, or not about one of its GPUs.
    """
    with _driver():
        version = _text(pynvml.nvmlSystemGetDriverVersion())
        simulated = version.endswith(_SIMULATED_DRIVER)
        return Driver(version, tuple(gpu for i in range(_count()) for gpu, _ in _gpu_and_instances(i, simulated)))


def read_gpu_readings() -> tuple[GpuReading, ...]:
    """The same GPUs with their load at this moment. Raises DriverError as `read_driver` does."""
    with _driver():
        simulated = _text(pynvml.nvmlSystemGetDriverVersion()).endswith(_SIMULATED_DRIVER)
        return tuple(
            _reading(gpu, handle) for index in range(_count()) for gpu, handle in _gpu_and_instances(index, simulated)
        )


@contextmanager
def _driver() -> Iterator[None]:
    """NVML between its init and its shutdown; NVML's errors leave as DriverError."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DriverError("nvmlInit", str(error)) from error
    try:
        yield
    except pynvml.NVMLError as error:
        raise DriverError(_failed_call(error), str(error)) from error
    finally:
        pynvml.nvmlShutdown()


def _failed_call(error: BaseException) -> str:
    """Which NVML function the binding was in: the innermost frame whose name is one."""
    call, step = "NVML", error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_name
        call = name if name.startswith("nvml") else call
        step = step.tb_next
    return call


def _count() -> int:
    return int(pynvml.nvmlDeviceGetCount())


def _gpu_and_instances(index: int, simulated: bool) -> Iterator[tuple[Gpu, Any]]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    mig = _or_none(pynvml.nvmlDeviceGetMigMode, handle)
    mig_on = mig is not None and mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    gpu = Gpu(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        index=index,
        minor=_or_none(pynvml.nvmlDeviceGetMinorNumber, handle),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_total_mib=_memory_mib(handle, "total"),
        mig_parent=mig_on,
        simulated=simulated,
    )
    yield gpu, handle
    if mig_on:
        for number in range(_or_none(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            instance = _or_none(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if instance is not None:
                yield _instance(gpu, instance), instance


def _instance(parent: Gpu, handle: Any) -> Gpu:
    return Gpu(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        index=parent.index,
        minor=None,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_total_mib=_memory_mib(handle, "total"),
        simulated=parent.simulated,
    )


def _reading(gpu: Gpu, handle: Any) -> GpuReading:
    rates = _or_none(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return GpuReading(
        gpu=gpu,
        memory_used_mib=_memory_mib(handle, "used"),
        utilization_percent=None if rates is None else int(rates.gpu),
        processes=_processes(handle),
    )


def _processes(handle: Any) -> tuple[GpuProcess, ...]:
    """Union by pid of the compute, graphics and MPS client lists: which list names an MPS client depends on the
    driver, and a process may be in two."""
    found: dict[int, GpuProcess] = {}
    for ask in (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
    ):
        for process in _or_none(ask, handle) or ():
            used = process.usedGpuMemory
            if found.get(process.pid) is None or found[process.pid].memory_used_mib is None:
                found[process.pid] = GpuProcess(int(process.pid), None if used is None else int(used) // _MIB)
    return tuple(found[pid] for pid in sorted(found))


def _memory_mib(handle: Any, which: str) -> int | None:
    memory = _or_none(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return None if memory is None else int(getattr(memory, which)) // _MIB


def _or_none(ask: Callable[..., Any], *args: Any) -> Any:
    """What a question that not every GPU or driver can answer gives; None where this one cannot."""
    try:
        return ask(*args)
    except (
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_FunctionNotFound,
        pynvml.NVMLError_NotFound,
        pynvml.NVMLError_NoPermission,
        pynvml.NVMLError_InvalidArgument,
    ):
        return None


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
