"""Simulated GPUs for the tests of packed runs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from packed_machine import HOME, Machine


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the simulated NVML."""
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("NOT TESTED: a real NVIDIA driver is loaded, beside which the simulated GPU refuses to work")
    if shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("NOT TESTED: the simulated NVML is built with make and cc, and they are not here")
    folder = tmp_path_factory.mktemp("library")
    subprocess.run(["make", "-s", "-C", HOME, f"BUILD={folder}"], check=True)
    return folder


@pytest.fixture
def machine(request: pytest.FixtureRequest, library: Path) -> Iterator[Machine]:
    """The GPUs of the test's parameter, else of its module's MACHINE: their number, MiB, and whether they have MPS."""
    made = Machine(library, *getattr(request, "param", getattr(request.module, "MACHINE", (2, 40960, True))))
    yield made
    made.close()
