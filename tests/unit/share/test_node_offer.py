"""What a host has for sharing its GPUs, as anybody can read it."""

from __future__ import annotations

import pytest

from slurm_share.core.errors import DriverError
from slurm_share.core.settings import Settings
from slurm_share.node.records import Driver, Gpu
from slurm_share.share import node_offer

GPU = Gpu("GPU-1", 0, 0, "H100", 80000)


class Nvml:
    """A driver of a release, whose answer about memory limits is an error or none."""

    def __init__(self, version, reason=""):
        self.version, self.reason, self.asked = version, reason, []

    def read_driver(self):
        return Driver(self.version, (GPU,))

    def read_memory_limits(self, uuid, folder):
        self.asked.append((uuid, folder))
        if self.reason:
            raise DriverError("memory limits", self.reason)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("cpu dmem\n")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("", ""), (node_offer.NOT_SUPPORTED, ""), ("Insufficient Permissions", "Insufficient Permissions")],
    ids=["none is set", "none is set, and the driver keeps the books", "an error"],
)
def test_not_supported_is_no_proof_that_the_driver_has_no_limits(monkeypatch, root, reason, shown):
    driver = Nvml("615.1", reason)
    monkeypatch.setattr(node_offer, "nvml", driver)
    found = node_offer.read_offer(Settings(), root)
    assert (found.no_limits, found.cgroup, found.controllers) == (shown, 2, ("cpu", "dmem"))
    assert driver.asked[0][0] == "GPU-1"
    assert driver.asked[0][1].startswith(root)


def test_an_older_driver_is_not_asked(monkeypatch, root):
    driver = Nvml("610.1", "never")
    monkeypatch.setattr(node_offer, "nvml", driver)
    assert node_offer.read_offer(Settings(), root).no_limits == ""
    assert driver.asked == []


@pytest.mark.parametrize(("folder", "version"), [("memory", 1), (None, None)])
def test_the_version_of_the_cgroups_is_told(monkeypatch, tmp_path, folder, version):
    if folder:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tasks").touch()
    monkeypatch.setattr(node_offer, "nvml", Nvml("615.1"))
    found = node_offer.read_offer(Settings(), str(tmp_path))
    assert (found.cgroup, found.controllers) == (version, ())


def test_a_missing_mps_program_is_told(monkeypatch, root):
    monkeypatch.setattr(node_offer, "nvml", Nvml("580.1"))
    assert not node_offer.read_offer(Settings(mps_control="/nonexistent/mps"), root).has_mps_program
    assert node_offer.read_offer(Settings(mps_control="/bin/true"), root).has_mps_program
