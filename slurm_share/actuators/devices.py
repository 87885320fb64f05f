"""Sets what only root may set on a GPU: its compute mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from ..errors import DriverError

EXCLUSIVE_PROCESS = 3
"""NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: one process, or one MPS server, at a time."""


def read_compute_mode(uuid: str) -> int:
    """The GPU's compute mode, NVML's number. Raises DriverError."""
    return int(_with_gpu(uuid, pynvml.nvmlDeviceGetComputeMode))


def set_compute_mode(uuid: str, mode: int) -> None:
    """Set it, and read it back. Raises DriverError when the driver refuses or the mode is another one afterwards."""
    _with_gpu(uuid, lambda handle: pynvml.nvmlDeviceSetComputeMode(handle, mode))
    found = read_compute_mode(uuid)
    if found != mode:
        raise DriverError("nvmlDeviceSetComputeMode", f"{uuid} is in mode {found} and not in {mode}")


def _with_gpu(uuid: str, act: Callable[[Any], Any]) -> Any:
    try:
        pynvml.nvmlInit()
        try:
            return act(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise DriverError(f"compute mode of {uuid}", str(error)) from error
