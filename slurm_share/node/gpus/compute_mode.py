"""Read and set the compute mode of a GPU; only root may set it."""

from __future__ import annotations

from ...core.errors import DriverError
from . import driver
from .driver import EXCLUSIVE_PROCESS as EXCLUSIVE_PROCESS
from .driver import read_compute_mode as read_compute_mode


def set_compute_mode(uuid: str, mode: int) -> None:
    """Set the compute mode and read it back. Raises DriverError if the driver refuses or ignores it."""
    found = driver.set_compute_mode(uuid, mode)
    if found != mode:
        raise DriverError("nvmlDeviceSetComputeMode", f"{uuid} is in mode {found} and not in {mode}")
