"""The contract of tests/contract/test_mps_contract.py, held against NVIDIA's own control program. Needs a GPU.

Run as root, so that a second user can be tried. MPS_CONTROL names the program where it is not on PATH. Compute mode,
clocks and MIG stay as they are.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "contract"))

from test_mps_contract import *  # noqa: F403  (every test of it, and its fixtures)
from test_mps_contract import Program

pytestmark = pytest.mark.gpu

CLIENT = """
import time, torch
held = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("ready", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    held[:1024].add_(1)
    torch.cuda.synchronize()
    time.sleep(0.1)
"""

PASSED_ON = ("HOME", "LD_LIBRARY_PATH", "PYTHONPATH")


def real_program() -> str | None:
    return os.environ.get("MPS_CONTROL") or shutil.which("nvidia-cuda-mps-control")


@pytest.fixture
def program() -> Program:
    return find_program()


def find_program() -> Program:
    """Return the real program; skip the test without one."""
    path = real_program()
    if not Path("/proc/driver/nvidia/version").exists() or path is None:
        pytest.skip("NOT TESTED: no NVIDIA driver, or no nvidia-cuda-mps-control (MPS_CONTROL names one)")
    pynvml = pytest.importorskip("pynvml", reason="NOT TESTED: nvidia-ml-py is not here")
    pytest.importorskip("torch", reason="NOT TESTED: the clients of this test are PyTorch programs")
    pynvml.nvmlInit()
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
        gpu = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
    finally:
        pynvml.nvmlShutdown()
    return Program(
        path=path,
        driver=int(version.partition(".")[0]),
        environ={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        client=[sys.executable, "-c", CLIENT],
        gpu=gpu,
    )
