"""A simulated host for each test, with the library built once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_host import Host, MpsAnswers, StartMps, build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("NOT TESTED: the simulated NVML is built with make and cc, and they are not here")
    return build(tmp_path_factory.mktemp("simgpu") / "lib")


@pytest.fixture
def host(tmp_path: Path, library: Path) -> Iterator[Host]:
    # Another user's tasks must reach the folder too.
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.owner() == Path.home().owner() and os.geteuid() == 0:
            folder.chmod(folder.stat().st_mode | 0o111)
    host = Host(tmp_path, library)
    yield host
    host.end()


@pytest.fixture
def two_gpus(host: Host) -> Host:
    made = host.init("2")
    assert made.returncode == 0, made.stderr
    return host


@pytest.fixture
def mps(tmp_path: Path) -> Iterator[StartMps]:
    """Yield a function that starts a daemon with that answer, and returns the environment that leads to it."""
    started: list[MpsAnswers] = []

    def start(answer: str) -> dict[str, str]:
        pipe = tmp_path / f"p{len(started)}"
        started.append(MpsAnswers(pipe, answer))
        return {"CUDA_MPS_PIPE_DIRECTORY": str(pipe)}

    yield start
    for daemon in started:
        daemon.close()
