"""Facts about this node's GPUs: modes, errors, processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pynvml
from msgspec.structs import replace

from ...core.errors import DriverError
from ...node import cgroups, processes
from ...node.gpus import binding, driver
from ...node.records import Gpu
from ...share import drivers, memory_limits
from ...slurm.node_name import read_node_name
from .records import HostGpus, SeenGpu, UnknownFact

NOT_SUPPORTED = "Not Supported"


def read_gpus(root: Path = Path("/")) -> HostGpus:
    """Return the driver and its GPUs, or why the driver does not answer."""
    version: str | UnknownFact
    try:
        version, gpus, cuda = read_driver()
    except DriverError as error:
        version, gpus, cuda = UnknownFact(str(error)), (), None
    found = HostGpus(version, gpus, cuda, read_toolkit(root))
    return _with_limits(found, root) if isinstance(version, str) else found


def _with_limits(found: HostGpus, root: Path) -> HostGpus:
    """Ask a driver whose release limits the memory of cgroups for the limits of this process's own."""
    whole = [one.gpu.uuid for one in found.gpus if not one.problems and one.gpu.uuid.startswith("GPU-")]
    if not whole or not drivers.offers(str(found.driver), drivers.MEMORY_LIMITS):
        return found
    mount = root / "sys/fs/cgroup"
    scope = cgroups.find_scope(read_node_name(os.environ), mount)
    if scope is None:
        return replace(found, why_no_limits="Slurm keeps no jobs in cgroup v2 on this node")
    groups = sorted(Path(scope).glob("*/step_*/user/**/slurm-share_*"))
    empty = tuple(str(one) for one in groups if "populated 0" in _read(one / "cgroup.events"))
    found = replace(found, limits_by="dmem" if memory_limits.uses_dmem(str(mount)) else "misc", limit_groups=empty)
    try:
        driver.read_memory_limits(whole[0], scope)
    except DriverError as error:
        if error.reason != NOT_SUPPORTED:  # with misc also the answer for a cgroup without limits
            return replace(found, why_no_limits=f"the driver says: {error.reason}")
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""


def read_toolkit(root: Path = Path("/")) -> str:
    """Return the version of /usr/local/cuda from its version file (11.1 and later); "": there is none."""
    try:
        data = json.loads((root / "usr/local/cuda/version.json").read_bytes())
        return str(data["cuda"]["version"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def read_driver() -> tuple[str, tuple[SeenGpu, ...], tuple[int, int] | None]:
    """Return the driver's version, all GPUs with their problems, and the newest CUDA that the driver supports. Raises
    DriverError if it does not answer.

    A lost GPU answers nothing and is identified by its index.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DriverError("nvmlInit", str(error)) from error
    try:
        version = binding.text_of(pynvml.nvmlSystemGetDriverVersion())
        simulated = version.endswith(binding.SIMULATED_DRIVER)
        found = [one for index in range(int(pynvml.nvmlDeviceGetCount())) for one in _seen(index, simulated)]
        number = binding.or_none(pynvml.nvmlSystemGetCudaDriverVersion)  # 12040 is 12.4
        return version, tuple(found), None if not number else (number // 1000, number % 1000 // 10)
    except pynvml.NVMLError as error:
        raise DriverError(binding.failed_call(error), str(error)) from error
    finally:
        pynvml.nvmlShutdown()


def _seen(index: int, simulated: bool) -> list[SeenGpu]:
    try:
        return [_one(gpu, handle) for gpu, handle in binding.gpu_and_instances(index, simulated)]
    except pynvml.NVMLError as error:
        lost = Gpu(f"index {index}", index, None, "?", None, simulated=simulated)
        return [SeenGpu(lost, problems=(f"{binding.failed_call(error)}: {error}",))]


def _one(gpu: Gpu, handle: Any) -> SeenGpu:
    lists = (binding.or_none(ask, handle) or () for ask in binding.process_lists(pynvml))
    mode = binding.or_none(pynvml.nvmlDeviceGetComputeMode, handle)
    persistence = binding.or_none(pynvml.nvmlDeviceGetPersistenceMode, handle)
    accounting = binding.or_none(pynvml.nvmlDeviceGetAccountingMode, handle)
    return SeenGpu(
        gpu,
        None if mode is None else int(mode),
        None if persistence is None else bool(persistence),
        _problems(handle),
        processes.read_processes(one.pid for one in binding.union(lists)),
        None if accounting is None else bool(accounting),
    )


def _problems(handle: Any) -> tuple[str, ...]:
    """Return problems for the next job that nvidia-smi -q shows under ECC Errors, Remapped Rows and Retired Pages."""
    found = []
    errors = binding.or_none(
        pynvml.nvmlDeviceGetTotalEccErrors, handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    )
    if errors:
        found.append(f"{errors} uncorrected memory errors since the driver was loaded")
    rows = binding.or_none(pynvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        _, _, pending, failed = rows
        found += ["a row of its memory could not be replaced"] if failed else []
        found += ["a row of its memory is to be replaced at the next reset"] if pending else []
    if binding.or_none(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
        found.append("a page of its memory is to be retired at the next reboot")
    return tuple(found)
