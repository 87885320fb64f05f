"""GPUs as `slurm-share doctor` examines them: what NVIDIA's binding answers, turned into what is wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from slurm_share.core.errors import DriverError
from slurm_share.doctor.facts import gpus
from slurm_share.doctor.facts.records import UnknownFact

WELL = {
    "nvmlDeviceGetUUID": "GPU-5131194a-af6f-47c0-8619-4e91f42a6279",
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetMinorNumber": 0,
    "nvmlDeviceGetMigMode": pynvml.NVML_ERROR_NOT_SUPPORTED,
    "nvmlDeviceGetCudaComputeCapability": [9, 0],
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=1 << 37, used=0),
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlDeviceGetGraphicsRunningProcesses": [],
    "nvmlDeviceGetMPSComputeRunningProcesses": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetAccountingMode": 1,
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetRemappedRows": [0, 0, 0, 0],
    "nvmlDeviceGetRetiredPagesPendingStatus": 0,
}
"""The result of each query; a number of NVML's errors for one that raises."""
OPTIONAL = tuple(WELL)[-6:]
"""Queries that not every GPU answers; the first is the compute mode."""
ERRORS = {"nvmlDeviceGetMigMode", "nvmlDeviceGetMPSComputeRunningProcesses"}


@pytest.fixture
def driver(monkeypatch):
    """Return a driver whose GPUs answer as told; it counts open sessions."""
    made = SimpleNamespace(gpus=[], open=0)

    def ask(name):
        def answer(handle, *_):
            told, fails = made.gpus[handle]
            if name in fails:
                raise pynvml.NVMLError(fails[name])
            if name in ERRORS and name not in told:
                raise pynvml.NVMLError(WELL[name])
            return told.get(name, WELL[name])

        return answer

    def count(by):
        made.open += by

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: count(1))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: count(-1))
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "570.124.06")
    monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion", lambda: 12080)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(made.gpus))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    for name in WELL:
        monkeypatch.setattr(pynvml, name, ask(name))

    def add(told=None, fails=None):
        made.gpus.append((told or {}, fails or {}))

    made.add = add
    return made


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({}, None),
        ({"nvmlDeviceGetTotalEccErrors": 3}, "3 uncorrected memory errors since the driver was loaded"),
        ({"nvmlDeviceGetRemappedRows": [1, 0, 0, 1]}, "a row of its memory could not be replaced"),
        ({"nvmlDeviceGetRemappedRows": [0, 1, 1, 0]}, "a row of its memory is to be replaced at the next reset"),
        ({"nvmlDeviceGetRetiredPagesPendingStatus": 1}, "a page of its memory is to be retired at the next reboot"),
    ],
)
def test_what_outlasts_a_job_is_a_problem(driver, told, problem):
    driver.add(told)
    version, (one,), _ = gpus.read_driver()
    assert (version, one.compute_mode, one.persistence, one.accounting) == ("570.124.06", 0, True, True)
    assert one.problems == ((problem,) if problem else ())
    assert driver.open == 0


def test_what_a_gpu_does_not_have_is_not_known(driver):
    lacks = dict.fromkeys(OPTIONAL, pynvml.NVML_ERROR_NOT_SUPPORTED)
    driver.add(fails=lacks)
    _, (one,), _ = gpus.read_driver()
    assert (one.compute_mode, one.persistence, one.accounting, one.problems) == (None, None, None, ())


def test_a_gpu_that_fell_off_the_bus_does_not_hide_the_others(driver):
    driver.add()
    driver.add(fails=dict.fromkeys(WELL, pynvml.NVML_ERROR_GPU_IS_LOST))
    _, (well, lost), cuda = gpus.read_driver()
    assert cuda == (12, 8)
    assert well.problems == ()
    assert (lost.gpu.uuid, lost.gpu.index) == ("index 1", 1)
    assert "GPU is lost" in lost.problems[0]


def test_a_driver_that_does_not_answer_is_a_fact(driver, monkeypatch, tmp_path):
    def refuse():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    with pytest.raises(DriverError, match="nvmlInit"):
        gpus.read_driver()
    found = gpus.read_gpus(tmp_path)
    assert isinstance(found.driver, UnknownFact)
    assert found.gpus == ()
