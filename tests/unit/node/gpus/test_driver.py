"""The driver's library as hooks call it, replaced by Python functions."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path

import pynvml
import pytest

from slurm_share.core.errors import DriverError
from slurm_share.node.gpus import driver
from slurm_share.node.records import Gpu, GpuProcess


@dataclass
class Unit:
    """A GPU or an instance."""

    uuid: str
    processes: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    instances: list[Unit | None] = field(default_factory=list)
    mig: int | None = 0
    """The MIG mode; None: this GPU has none."""
    fails: dict[str, int] = field(default_factory=dict)
    """Function -> what it returns."""
    memory_mib: int = 81920


class Library:
    """NVML with such GPUs. Handles are positions in a list."""

    def __init__(self, *gpus: Unit, version: str = "550.163.01", init: int = 0) -> None:
        self.gpus = gpus
        self.units = [None, *gpus, *(one for gpu in gpus for one in gpu.instances)]
        self.version = version
        self.init = init
        self.closed = 0
        self.mode = 0

    def nvmlInitWithFlags(self, flags):
        return self.init

    def nvmlShutdown(self):
        self.closed += 1
        return 0

    def nvmlSystemGetDriverVersion(self, buffer, size):
        buffer.value = self.version.encode()
        return 0

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = 1 + index.value
        return self.gpus[index.value].fails.get("nvmlDeviceGetHandleByIndex", 0)

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        found = [place for place, one in enumerate(self.units) if one and one.uuid.encode() == uuid.value]
        handle._obj.value = found[0] if found else 0
        return 0 if found else 6

    def nvmlDeviceGetUUID(self, handle, buffer, size):
        buffer.value = self.units[handle.value].uuid.encode()
        return 0

    def nvmlDeviceGetName(self, handle, buffer, size):
        buffer.value = b"Fake GPU"
        return self.units[handle.value].fails.get("nvmlDeviceGetName", 0)

    def nvmlDeviceGetMinorNumber(self, handle, minor):
        minor._obj.value = 10 + handle.value
        return self.units[handle.value].fails.get("nvmlDeviceGetMinorNumber", 0)

    def nvmlDeviceGetMigMode(self, handle, mode, pending):
        mig = self.units[handle.value].mig
        mode._obj.value = mig or 0
        return 3 if mig is None else 0

    def nvmlDeviceGetMaxMigDeviceCount(self, handle, count):
        count._obj.value = len(self.units[handle.value].instances)
        return 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index, instance):
        one = self.units[handle.value].instances[index.value]
        instance._obj.value = 0 if one is None else self.units.index(one)
        return 6 if one is None else 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        memory._obj.total, memory._obj.used = self.units[handle.value].memory_mib << 20, 5 << 20
        return self.units[handle.value].fails.get("nvmlDeviceGetMemoryInfo", 0)

    def nvmlDeviceGetUtilizationRates(self, handle, rates):
        rates._obj.gpu = 30
        return self.units[handle.value].fails.get("nvmlDeviceGetUtilizationRates", 0)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, found):
        return self.listed("compute", handle, count, found)

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle, count, found):
        return self.listed("mps", handle, count, found)

    def listed(self, kind, handle, count, found):
        unit = self.units[handle.value]
        processes = unit.processes.get(kind, [])
        if kind in unit.fails:
            return unit.fails[kind]
        if found is None:
            count._obj.value = len(processes)
            return 7 if processes else 0
        for place, (pid, used) in enumerate(processes):
            found[place].pid, found[place].used = pid, used
        count._obj.value = len(processes)
        return 0

    def nvmlDeviceGetComputeMode(self, handle, mode):
        mode._obj.value = self.mode
        return 0

    def nvmlDeviceSetComputeMode(self, handle, mode):
        self.mode = mode.value
        return self.units[handle.value].fails.get("nvmlDeviceSetComputeMode", 0)


@pytest.fixture
def loads(monkeypatch):
    """Puts a library where the driver's is looked for."""

    def load(library):
        monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: library)
        return library

    return load


def test_gpus_and_instances(loads):
    """An instance comes after its parent; a place without one is left out; what a GPU does not say is None."""
    fails = {"nvmlDeviceGetMinorNumber": 3, "nvmlDeviceGetMemoryInfo": 4}
    library = loads(
        Library(Unit("GPU-0000", instances=[None, Unit("MIG-0001")], mig=1), Unit("GPU-0002", mig=None, fails=fails))
    )
    found = driver.read_driver()
    assert found.version == "550.163.01"
    assert found.gpus == (
        Gpu("GPU-0000", 0, 11, "Fake GPU", 81920, mig_parent=True),
        Gpu("MIG-0001", 0, None, "Fake GPU", 81920),
        Gpu("GPU-0002", 1, None, "Fake GPU", None),
    )
    assert library.closed == 1


def test_a_simulated_driver_says_so(loads):
    loads(Library(Unit("GPU-0000"), version="570.0-simulated"))
    assert driver.read_driver().gpus[0].simulated


def test_processes_of_three_lists(loads):
    lists = {"compute": [(9, 2**64 - 1), (4, 3 << 20)], "mps": [(9, 7 << 20)]}
    loads(Library(Unit("GPU-0000", lists)))
    (reading,) = driver.read_gpu_readings()
    assert reading.processes == (GpuProcess(4, 3), GpuProcess(9, 7))
    assert (reading.memory_used_mib, reading.utilization_percent) == (5, 30)


@pytest.mark.parametrize(
    ("call", "code"),
    [("nvmlDeviceGetHandleByIndex", 15), ("nvmlDeviceGetName", 15), ("nvmlDeviceGetMemoryInfo", 999), ("compute", 16)],
)
def test_a_gpu_that_does_not_answer_is_named_and_the_others_are_read(loads, call, code):
    library = loads(Library(Unit("GPU-0000", fails={call: code}), Unit("GPU-0001")))
    lost, other = driver.read_gpu_readings()
    assert (lost.gpu.index, lost.gpu.problem) == (0, str(pynvml.NVMLError(code)))
    assert (lost.memory_used_mib, lost.utilization_percent, lost.processes) == (None, None, ())
    assert (other.gpu.uuid, other.gpu.problem, other.memory_used_mib) == ("GPU-0001", None, 5)
    assert library.closed == 1


@pytest.mark.parametrize("code", [1, 9, 18])
def test_an_error_of_the_driver_is_not_one_gpus(loads, code):
    library = loads(Library(Unit("GPU-0000", fails={"nvmlDeviceGetName": code}), Unit("GPU-0001")))
    with pytest.raises(DriverError) as caught:
        driver.read_driver()
    assert (caught.value.call, caught.value.reason) == ("nvmlDeviceGetName", str(pynvml.NVMLError(code)))
    assert library.closed == 1


def test_zero_bytes_of_memory_are_unknown(loads):
    loads(Library(Unit("GPU-0000", memory_mib=0)))
    (reading,) = driver.read_gpu_readings()
    assert (reading.gpu.memory_total_mib, reading.memory_used_mib, reading.gpu.is_host_memory) == (None, None, False)


def test_memory_that_is_not_supported_is_the_nodes(loads):
    loads(Library(Unit("GPU-0000", fails={"nvmlDeviceGetMemoryInfo": 3})))
    (reading,) = driver.read_gpu_readings()
    kib = int(Path("/proc/meminfo").read_text(encoding="ascii").split()[1])  # the first line is MemTotal
    assert (reading.gpu.memory_total_mib, reading.gpu.is_host_memory) == (kib // 1024, True)
    assert reading.memory_used_mib is None


def test_no_driver(loads, monkeypatch):
    loads(Library(init=9))
    with pytest.raises(DriverError, match=r"nvmlInit: Driver Not Loaded"):
        driver.read_driver()

    def absent(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(driver.ctypes, "CDLL", absent)
    with pytest.raises(DriverError, match=r"nvmlInit: NVML Shared Library Not Found"):
        driver.read_gpu_readings()


def test_every_error_has_pynvmls_words():
    assert {code: str(pynvml.NVMLError(code)) for code in driver._ERRORS} == driver._ERRORS


@pytest.mark.parametrize("uuid", ["GPU-00", "gpu-0000", "GPU-00 00", "GPU-" + "0" * 81, "GPU-00\n00", "GPU-000é"])
def test_a_uuid_that_is_none(loads, uuid):
    loads(Library(Unit(uuid)))
    with pytest.raises(DriverError, match="a UUID that is none"):
        driver.read_driver()


def test_the_compute_mode(loads):
    library = loads(Library(Unit("GPU-0000"), Unit("GPU-0001", fails={"nvmlDeviceSetComputeMode": 4})))
    assert driver.read_compute_mode("GPU-0000") == 0
    driver.set_compute_mode("GPU-0000", driver.EXCLUSIVE_PROCESS)
    assert library.mode == 3
    for uuid, why in (("GPU-0001", "Insufficient Permissions"), ("GPU-0009", "Not Found")):
        with pytest.raises(DriverError, match=f"compute mode of {uuid}: {why}"):
            driver.set_compute_mode(uuid, 0)
    library.nvmlDeviceSetComputeMode = lambda *_: 0  # says yes and does nothing
    library.mode = 3
    with pytest.raises(DriverError, match="GPU-0000 is in mode 3 and not in 0"):
        driver.set_compute_mode("GPU-0000", 0)
    assert library.closed == 5


def test_the_structures_are_the_bindings_own():
    for ours, theirs in (
        (driver._Memory, pynvml.c_nvmlMemory_t),
        (driver._Utilization, pynvml.c_nvmlUtilization_t),
        (driver._Process, pynvml.c_nvmlProcessInfo_v3_t),
    ):
        assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)
        places = [getattr(ours, name).offset for name, _ in ours._fields_]
        assert places == [getattr(theirs, name).offset for name, *_ in theirs._fields_]
