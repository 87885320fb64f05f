"""The release that the simulated driver pretends to have, through the real nvidia-ml-py."""

from __future__ import annotations

import pytest
from simulated_host import Host, without_driver

from slurm_share.share.rules import drivers, mps

pytestmark = without_driver

VERSIONS = """
import json, sys
import pynvml as nvml
nvml.nvmlInit()
cuda = nvml.nvmlSystemGetCudaDriverVersion()
print(json.dumps([nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetNVMLVersion(), cuda]))
"""
RELEASES = (535, 550, 580, 590, 595, 610, 615, 620)
CUDA = dict(zip(RELEASES, (12020, 12040, 13000, 13010, 13020, 13030, 13040, 13050), strict=True))


def versions(release: int) -> list[object]:
    return [f"{release}.0-simulated", f"{CUDA[release] // 1000}.{release}.0-simulated", CUDA[release]]


@pytest.mark.parametrize("release", RELEASES)
def test_one_option_gives_the_versions_of_driver_nvml_and_cuda(host: Host, release: int) -> None:
    made = host.init("1", "--driver", str(release))
    assert (made.returncode, f"driver {release}" in made.stdout) == (0, True), made
    assert host.nvml(VERSIONS) == versions(release)


def test_without_the_option_the_driver_is_550(two_gpus: Host) -> None:
    assert two_gpus.nvml(VERSIONS) == versions(550)


def test_new_gpus_keep_the_hosts_driver_unless_another_is_named(host: Host) -> None:
    host.init("1", "--driver", "615", "--memory-limits", "misc")
    before = (host.state / "driver").read_text()
    assert host.init("2", "--replace").returncode == 0
    assert (host.state / "driver").read_text() == before
    assert host.init("2", "--replace", "--driver", "580").returncode == 0
    assert host.nvml(VERSIONS) == versions(580)
    assert "memory_limits" not in (host.state / "driver").read_text()


@pytest.mark.parametrize("words", [("--driver", "600"), ("--driver", "new"), ("--memory-limits", "swap")])
def test_a_driver_that_cannot_be_simulated_is_refused(host: Host, words: tuple[str, str]) -> None:
    refused = host.init("1", *words)
    assert (refused.returncode, words[0] in refused.stderr, host.state.exists()) == (2, True, False), refused.stderr


@pytest.mark.parametrize("release", RELEASES)
def test_the_simulated_driver_offers_what_ours_expects_of_its_release(host: Host, release: int) -> None:
    host.init("1", "--driver", str(release))
    values = dict(line.split("=", 1) for line in (host.state / "driver").read_text().splitlines())
    assert int(values["mps_clients"]) == mps.clients(values["version"])
    assert ("memory_limits" in values) == drivers.offers(values["version"], drivers.MEMORY_LIMITS)
