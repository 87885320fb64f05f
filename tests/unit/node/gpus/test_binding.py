"""PCI addresses of GPUs, as the driver reports them."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from slurm_share.core.errors import DriverError
from slurm_share.node.gpus import binding
from slurm_share.node.records import Gpu


def gpu(uuid, *, simulated=False):
    return Gpu(uuid, 0, 0, "H100", None, simulated=simulated)


@pytest.fixture
def driver(monkeypatch):
    """Replace NVML by one with one GPU, and one instance on it."""

    def by_uuid(uuid):
        if uuid not in ("GPU-1", "MIG-1"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def pci(handle):
        assert handle == "GPU-1", "an instance has no address of its own"
        return SimpleNamespace(busId=b"00000000:3B:00.0")

    for name, does in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda handle: "GPU-1",
        "nvmlDeviceGetPciInfo": pci,
    }.items():
        monkeypatch.setattr(pynvml, name, does)


def test_the_address_of_each(driver):
    """A GPU's own, an instance's parent's; unknown for a GPU that is gone, and for one that is no device."""
    asked = (gpu("GPU-1"), gpu("MIG-1"), gpu("GPU-2"), gpu("GPU-1", simulated=True))
    assert binding.read_bus_ids(asked) == ("00000000:3B:00.0", "00000000:3B:00.0", None, None)


def test_no_driver(monkeypatch):
    def absent():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    with pytest.raises(DriverError):
        binding.read_bus_ids((gpu("GPU-1"),))
