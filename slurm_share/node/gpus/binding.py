"""Queries of the NVIDIA driver that use NVIDIA's Python binding. `node/gpus/driver.py` has those that hooks need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pynvml
from msgspec import Struct
from msgspec.structs import replace

from ...core.errors import DriverError, shown
from ..records import Gpu, GpuProcess
from . import driver
from .driver import MIB as MIB
from .driver import SIMULATED_DRIVER as SIMULATED_DRIVER
from .driver import is_uuid
from .driver import read_driver as read_driver
from .driver import read_gpu_readings as read_gpu_readings


def read_bus_ids(gpus: Sequence[Gpu]) -> tuple[str | None, ...]:
    """Return the PCI address of each GPU (`nvidia-smi --query-gpu=pci.bus_id`); for a MIG instance, its parent's.

    None if the driver does not tell, and for simulated GPUs. Raises DriverError as `read_driver` does.
    """
    with _driver():
        return tuple(None if gpu.simulated else _bus_id(gpu.uuid) for gpu in gpus)


def _bus_id(uuid: str) -> str | None:
    handle = or_none(pynvml.nvmlDeviceGetHandleByUUID, uuid)
    if handle is not None and uuid.startswith("MIG-"):
        handle = or_none(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
    pci = None if handle is None else or_none(pynvml.nvmlDeviceGetPciInfo, handle)
    return None if pci is None else text_of(pci.busId)


@contextmanager
def _driver() -> Iterator[None]:
    """Open NVML and shut it down at the end. Translates NVML's errors to DriverError."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DriverError("nvmlInit", str(error)) from error
    try:
        yield
    except pynvml.NVMLError as error:
        raise DriverError(failed_call(error), str(error)) from error
    finally:
        pynvml.nvmlShutdown()


def failed_call(error: BaseException) -> str:
    """Return the NVML function in which the binding failed: the innermost frame with such a name."""
    call, step = "NVML", error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_name
        call = name if name.startswith("nvml") else call
        step = step.tb_next
    return call


def gpu_and_instances(index: int, simulated: bool) -> Iterator[tuple[Gpu, Any]]:
    """Yield a GPU and its MIG instances, each with the driver's handle. Raises NVML's errors."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    mig = or_none(pynvml.nvmlDeviceGetMigMode, handle)
    mig_on = mig is not None and mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    gpu = _gpu(handle, index, or_none(pynvml.nvmlDeviceGetMinorNumber, handle), mig_on, simulated)
    yield gpu, handle
    if mig_on:
        for number in range(or_none(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            instance = or_none(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if instance is not None:
                ids = [
                    or_none(pynvml.nvmlDeviceGetGpuInstanceId, instance),
                    or_none(pynvml.nvmlDeviceGetComputeInstanceId, instance),
                ]
                place = None if None in ids else f"{gpu.uuid}/{ids[0]}/{ids[1]}"
                yield replace(_gpu(instance, index, None, False, simulated), mig_place=place), instance


def _gpu(handle: Any, index: int, minor: int | None, mig_parent: bool, simulated: bool) -> Gpu:
    uuid, name = uuid_of(pynvml.nvmlDeviceGetUUID(handle)), text_of(pynvml.nvmlDeviceGetName(handle))
    memory = or_none(memory_of, pynvml.nvmlDeviceGetMemoryInfo, handle) or MemoryNow(None)
    capability = or_none(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return Gpu(
        uuid,
        index,
        minor,
        name,
        memory.total_mib,
        mig_parent,
        simulated,
        is_host_memory=memory.is_host,
        compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
    )


class MemoryNow(Struct, frozen=True):
    """The memory of a GPU in MiB; None: unknown."""

    total_mib: int | None
    used_mib: int | None = None
    is_host: bool = False
    """True: unified memory; the total is the node's MemTotal."""


def memory_of(ask: Callable[[Any], Any], handle: Any) -> MemoryNow:
    """Return the memory of a GPU, as `driver` reads it. Raises NVML's errors, but not `Not supported`."""
    try:
        memory = ask(handle)
    except pynvml.NVMLError_NotSupported:
        return MemoryNow(driver.host_memory_mib(), is_host=True)
    return MemoryNow(int(memory.total) // MIB, int(memory.used) // MIB) if memory.total else MemoryNow(None)


def process_lists(nvml: Any) -> tuple[Callable[[Any], list[Any]], ...]:
    """Return the NVML calls that list processes. Which of them lists an MPS client depends on the driver."""
    return (
        nvml.nvmlDeviceGetComputeRunningProcesses,
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
        nvml.nvmlDeviceGetMPSComputeRunningProcesses,
    )


def union(lists: Iterable[Iterable[Any]]) -> tuple[GpuProcess, ...]:
    """Return the processes of the binding's lists, as `driver.union`."""
    return driver.union(map(_process, processes) for processes in lists)


def _process(process: Any) -> GpuProcess:
    used = process.usedGpuMemory
    return GpuProcess(int(process.pid), None if used is None else int(used) // MIB)


def or_none(ask: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a call that not every GPU or driver supports; None if this one does not."""
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


def text_of(value: str | bytes) -> str:
    """Return NVML's text, which older bindings give as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def uuid_of(value: str | bytes) -> str:
    """Return the UUID of a GPU or instance. Raises DriverError for text that NVML does not write (nvml.h,
    nvmlDeviceGetUUID; MIG-GPU-UUID/G/C before driver 470).

    It becomes a word of a plan and, without slashes, the name of a folder (only in `Paths.mps_pipe`).
    """
    text = text_of(value)
    if not is_uuid(text):
        raise DriverError("nvmlDeviceGetUUID", f"a UUID that is none: {shown(text)}")
    return text


def why_unknown(error: pynvml.NVMLError) -> str:
    """Return a text that says why a value is unknown."""
    if isinstance(error, (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)):
        return "this GPU or its driver does not have it"
    if isinstance(error, pynvml.NVMLError_NoPermission):
        return "the driver tells it to root only"
    return f"the driver says: {error}"
