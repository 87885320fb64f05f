"""The GPUs of this node as a physician looks at them: modes, errors, programs on them; and MPS for them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml

from ...core import process
from ...core.errors import CommandError, DriverError
from ...core.patterns import pattern
from ...core.records import Owner
from ...core.settings import Settings
from ...mps import control as mp_control
from ...mps import processes, status
from ...mps.records import MpsProcess
from ...node import processes as node_processes
from ...node.gpus import binding
from ...node.records import Gpu, GpuReading
from . import programs
from .records import FileFact, GpuFacts, Mount, SeenGpu, Unseen

FIRST_WITH_VERSION = 590
"""Driver whose MPS control program is the first with `-v` (docs.nvidia.com/deploy/mps, release 590)."""
ASK_S = 4.0
NOBODY = 65534
_CUDA_VERSION = pattern(r"(?a)\b([1-9][0-9]0[0-9]0)\b")


def read_gpus(settings: Settings, state_root: str, root: Path = Path("/"), mounts: Sequence[Mount] = ()) -> GpuFacts:
    """Driver, GPUs and MPS. A driver that does not answer is said, and MPS's programs are looked at all the same."""
    version: str | Unseen
    try:
        version, gpus, cuda = read_driver()
    except DriverError as error:
        version, gpus, cuda = Unseen(str(error)), (), None
    control = settings.mps_control
    return GpuFacts(
        version,
        gpus,
        programs.read_file_fact(control, root, mounts) if control else None,
        _server(control, root, mounts),
        _foreign_daemons(control, state_root, root),
        cuda,
        read_toolkit(root),
        read_control_cuda(control, version) if root == Path("/") else None,
    )


def _foreign_daemons(control: str, state_root: str, root: Path) -> tuple[MpsProcess, ...]:
    """Those of either protocol. A process that only has the name of one, such as su behind a link, is none."""
    files = processes.read_program_files(control) if control else frozenset[str]()
    return tuple(
        one
        for one in status.foreign_daemons(status.read_processes(str(root / "proc")), state_root)
        if one.program is None or processes.runs_program(one, files)
    )


def _server(control: str, root: Path, mounts: Sequence[Mount]) -> FileFact | None:
    """The daemon starts its server from its own folder, or from its search path."""
    folders = [os.path.dirname(control), "/usr/bin", "/usr/sbin"] if control else []  # noqa: PTH120
    found = (programs.read_file_fact(f"{one}/nvidia-cuda-mps-server", root, mounts) for one in folders)
    return next((one for one in found if one is not None), None)


def read_toolkit(root: Path = Path("/")) -> str:
    """Version of /usr/local/cuda, by the file that NVIDIA puts into every one since 11.1; empty: none is there."""
    try:
        data = json.loads((root / "usr/local/cuda/version.json").read_bytes())
        return str(data["cuda"]["version"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def read_control_cuda(program: str, driver: str | Unseen) -> tuple[int, int] | None:
    """Return the CUDA release that the MPS control program says it belongs to (`-v`), such as (13, 1).

    None where it is not asked, or does not say. A program older than driver 590 takes `-v` for nothing and tries to
    speak with a daemon; so it is not asked, and a newer one runs as nobody with a folder for daemons that is not there.
    """
    major = driver.partition(".")[0] if isinstance(driver, str) else ""
    if not program or not major.isdecimal() or int(major) < FIRST_WITH_VERSION:
        return None
    nobody = Owner(NOBODY, NOBODY) if os.geteuid() == 0 else None
    env = {"PATH": mp_control.SEARCH_PATH, processes.PIPE_VARIABLE.decode(): "/nonexistent/slurm-share"}
    try:
        said = process.exchange([program, "-v"], timeout_s=ASK_S, env=env, owner=nobody)
    except CommandError:
        return None
    return parse_control_cuda(said.stdout + said.stderr)


def parse_control_cuda(text: str) -> tuple[int, int] | None:
    """Return (13, 1) for a text with the number 13010, which is major * 1000 + minor * 10 as in CUDA_VERSION of cuda.h;
    None where there is no such number."""
    match = _CUDA_VERSION.search(text)
    return None if match is None else (int(match[1]) // 1000, int(match[1]) % 1000 // 10)


def read_driver() -> tuple[str, tuple[SeenGpu, ...], tuple[int, int] | None]:
    """The driver's version, every GPU with what is wrong with it, and the newest CUDA that the driver serves. Raises
    DriverError where it does not answer.

    A GPU that is lost answers nothing, and is listed by its index.
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
    reading: GpuReading = binding.reading_of(gpu, handle)
    mode = binding.or_none(pynvml.nvmlDeviceGetComputeMode, handle)
    persistence = binding.or_none(pynvml.nvmlDeviceGetPersistenceMode, handle)
    return SeenGpu(
        gpu,
        None if mode is None else int(mode),
        None if persistence is None else bool(persistence),
        _problems(handle),
        node_processes.read_processes(one.pid for one in reading.processes),
    )


def _problems(handle: Any) -> tuple[str, ...]:
    """What nvidia-smi -q shows under ECC Errors, Remapped Rows and Retired Pages, where it is bad for the next job."""
    found = []
    errors = binding.or_none(
        pynvml.nvmlDeviceGetTotalEccErrors,
        handle,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
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
