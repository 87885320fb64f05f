"""Read the NVIDIA driver once: its GPUs, their processes, and their compute mode.

Calls the driver's library (NVML) through ctypes. Importing pynvml, which makes several hundred structures and a class
for each error, takes a third of the time of a Prolog, and every shared job would pay for it. Names, numbers and
structures: nvml.h of CUDA 12.
"""

from __future__ import annotations

import ctypes
import os

from msgspec.structs import replace

from ...core.errors import DriverError, shown
from ..records import Driver, Gpu, GpuProcess, GpuReading

TYPE_CHECKING = False  # as mypy knows it, without the import of `typing`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, TypeVar

    Answer = TypeVar("Answer")

LIBRARY = "libnvidia-ml.so.1"
MIB = 1024 * 1024
SIMULATED_DRIVER = "-simulated"
"""Suffix of the driver version that the simulated NVML library of `packaging/demo/simgpu` reports."""
EXCLUSIVE_PROCESS = 3
"""NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: one process, or one MPS server, at a time."""

_TEXT_BYTES = 96
"""NVML_DEVICE_UUID_V2_BUFFER_SIZE and NVML_DEVICE_NAME_V2_BUFFER_SIZE; a driver's version has at most 80."""
_NOT_AVAILABLE = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE: memory of a process that the driver does not tell."""
_MIG_ON = 1
"""NVML_DEVICE_MIG_ENABLE."""
_INSUFFICIENT_SIZE = 7
_NOT_SUPPORTED = 3
_NOT_FOUND = 6
_LIBRARY_NOT_FOUND = 12
_FUNCTION_NOT_FOUND = 13
_OF_DRIVER = (1, 9, _LIBRARY_NOT_FOUND, 18)
"""Codes of the driver and not of one GPU: uninitialized, not loaded, no library, another version than the kernel's."""
_CANNOT = (2, 3, 4, 6, _FUNCTION_NOT_FOUND)
"""Codes for queries that a GPU or driver does not support: invalid argument, not supported, no permission, not found.
"""
_ERRORS = {
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    5: "Already Initialized",
    6: "Not Found",
    7: "Insufficient Size",
    8: "Insufficient External Power",
    9: "Driver Not Loaded",
    10: "Timeout",
    11: "Interrupt Request Issue",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    14: "Corrupted infoROM",
    15: "GPU is lost",
    16: "GPU requires restart",
    17: "The operating system has blocked the request.",
    18: "RM has detected an NVML/RM version mismatch.",
    20: "Insufficient Memory",
    999: "Unknown Error",
}
"""Texts of nvmlReturn_t as in pynvml, so that all messages agree."""
_LETTERS = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-/")
_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)
"""Which of these lists an MPS client depends on the driver."""


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t, in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t of the `_v3` lists."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _CallError(Exception):
    """An NVML function did not return NVML_SUCCESS."""

    def __init__(self, call: str, code: int) -> None:
        self.call = call
        self.code = code
        super().__init__(call, code)


class _Session:
    """An NVML session, from init to shutdown."""

    def __enter__(self) -> _Session:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError:
            raise DriverError("nvmlInit", _ERRORS[_LIBRARY_NOT_FOUND]) from None
        try:
            self.ask("nvmlInitWithFlags", ctypes.c_uint(0))
        except _CallError as error:
            raise DriverError("nvmlInit", self._error_text(error.code)) from None
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._library.nvmlShutdown()
        if isinstance(error, _CallError):
            raise DriverError(error.call.partition("_v")[0], self._error_text(error.code)) from None

    def _error_text(self, code: int) -> str:
        if code in _ERRORS:
            return _ERRORS[code]
        try:
            text = self._library.nvmlErrorString
        except AttributeError:
            return f"NVML Error with code {code}"
        text.restype = ctypes.c_char_p
        return (text(code) or b"").decode("utf-8", "replace")

    def code_of(self, call: str, *arguments: Any) -> int:
        """Call a function of the library and return its code."""
        try:
            function = getattr(self._library, call)
        except AttributeError:
            return _FUNCTION_NOT_FOUND
        return int(function(*arguments))

    def ask(self, call: str, *arguments: Any) -> None:
        """Call a function of the library. Raises _CallError."""
        code = self.code_of(call, *arguments)
        if code:
            raise _CallError(call, code)

    def can(self, call: str, *arguments: Any) -> bool:
        """Call a function that not every GPU or driver has; return False if this one does not. Raises _CallError."""
        code = self.code_of(call, *arguments)
        if code and code not in _CANNOT:
            raise _CallError(call, code)
        return not code

    def text(self, call: str, *handle: Any) -> str:
        """Return the text that a function writes into a buffer."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self.ask(call, *handle, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode("utf-8", "replace")

    def uuid(self, handle: Any) -> str:
        """Return the UUID of a GPU or instance. Raises DriverError for text that NVML does not write (nvml.h,
        nvmlDeviceGetUUID).

        It becomes a word of a plan and, without slashes, the name of a folder.
        """
        text = self.text("nvmlDeviceGetUUID", handle)
        if not is_uuid(text):
            raise DriverError("nvmlDeviceGetUUID", f"a UUID that is none: {shown(text)}")
        return text

    def number(self, call: str, handle: Any) -> int | None:
        """Return a number of a GPU; None if it has none."""
        found = ctypes.c_uint()
        return found.value if self.can(call, handle, ctypes.byref(found)) else None

    def compute_capability(self, handle: Any) -> tuple[int, int] | None:
        """Return the compute capability of a GPU; None if the driver does not tell it, as for a MIG instance."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        call = "nvmlDeviceGetCudaComputeCapability"
        is_told = self.can(call, handle, ctypes.byref(major), ctypes.byref(minor))
        return (major.value, minor.value) if is_told else None

    def memory_mib(self, handle: Any) -> tuple[int | None, int | None, bool]:
        """Return total and used memory in MiB, None if the driver does not tell, and whether it is the node's memory.

        `Not supported` is the answer for unified memory (GB10: drivers 580 to 595). Other drivers answer 0 bytes.
        """
        memory = _Memory()
        code = self.code_of("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        if code == _NOT_SUPPORTED:
            return host_memory_mib(), None, True
        if code and code not in _CANNOT:
            raise _CallError("nvmlDeviceGetMemoryInfo", code)
        if code or not memory.total:
            return None, None, False
        return memory.total // MIB, memory.used // MIB, False

    def units(self) -> Iterator[tuple[Gpu, Any]]:
        """Yield all GPUs, each followed by its MIG instances, with the driver's handles.

        A GPU that does not answer has a `problem` and no handle. Raises _CallError if the driver does not answer.
        """
        version = self.version()
        count = ctypes.c_uint()
        self.ask("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for index in range(count.value):
            simulated = version.endswith(SIMULATED_DRIVER)
            try:
                yield from list(self._gpu_and_instances(index, simulated))
            except _CallError as error:
                yield self.silent(index, simulated, error), None

    def silent(self, index: int, simulated: bool, error: _CallError) -> Gpu:
        """Return the record of a GPU that does not answer. Raises the error again if it concerns the whole driver."""
        if error.code in _OF_DRIVER:
            raise error
        return silent_gpu(index, self._error_text(error.code), simulated=simulated)

    def version(self) -> str:
        """Return the driver's version, such as 550.163.01."""
        return self.text("nvmlSystemGetDriverVersion")

    def _gpu_and_instances(self, index: int, simulated: bool) -> Iterator[tuple[Gpu, Any]]:
        handle = ctypes.c_void_p()
        self.ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        mode, pending = ctypes.c_uint(), ctypes.c_uint()
        has_mode = self.can("nvmlDeviceGetMigMode", handle, ctypes.byref(mode), ctypes.byref(pending))
        is_parent = has_mode and mode.value == _MIG_ON
        minor = self.number("nvmlDeviceGetMinorNumber", handle)
        yield self._gpu(handle, index, minor, is_parent=is_parent, simulated=simulated), handle
        if not is_parent:
            return
        for number in range(self.number("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            instance = ctypes.c_void_p()
            place = ctypes.c_uint(number)
            if self.can("nvmlDeviceGetMigDeviceHandleByIndex", handle, place, ctypes.byref(instance)):
                found = self._gpu(instance, index, None, is_parent=False, simulated=simulated)
                yield replace(found, mig_place=self._place(handle, instance)), instance

    def _place(self, parent: Any, instance: Any) -> str | None:
        """Return a MIG instance's place, as in its name before driver 470; None if the driver does not tell it."""
        ids = [self.number(f"nvmlDeviceGet{kind}InstanceId", instance) for kind in ("Gpu", "Compute")]
        return None if None in ids else f"{self.uuid(parent)}/{ids[0]}/{ids[1]}"

    def _gpu(self, handle: Any, index: int, minor: int | None, *, is_parent: bool, simulated: bool) -> Gpu:
        total_mib, _, is_host_memory = self.memory_mib(handle)
        return Gpu(
            uuid=self.uuid(handle),
            index=index,
            minor=minor,
            name=self.text("nvmlDeviceGetName", handle),
            memory_total_mib=total_mib,
            mig_parent=is_parent,
            simulated=simulated,
            is_host_memory=is_host_memory,
            compute_capability=self.compute_capability(handle),
        )

    def reading(self, gpu: Gpu, handle: Any) -> GpuReading:
        """Return the present load of a GPU. Nothing is known of one that does not answer."""
        if gpu.problem is not None:
            return GpuReading(gpu, None, None, ())
        try:
            _, used, _ = self.memory_mib(handle)
            rates = _Utilization()
            is_told = self.can("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates))
            processes = union(self._listed(call, handle) for call in _PROCESS_LISTS)
        except _CallError as error:
            problem = self.silent(gpu.index, gpu.simulated, error).problem
            return GpuReading(replace(gpu, problem=problem), None, None, ())
        return GpuReading(gpu, used, int(rates.gpu) if is_told else None, processes)

    def _listed(self, call: str, handle: Any) -> list[GpuProcess]:
        """Return the processes in one of NVML's lists; empty if this GPU or driver does not have the list."""
        count = ctypes.c_uint(0)
        code = self.code_of(call, handle, ctypes.byref(count), None)
        if code != _INSUFFICIENT_SIZE:
            if code and code not in _CANNOT:
                raise _CallError(call, code)
            return []
        count.value = 2 * count.value + 5  # more may start before the second call
        found = (_Process * count.value)()
        if not self.can(call, handle, ctypes.byref(count), found):
            return []
        return [
            GpuProcess(one.pid, None if one.used == _NOT_AVAILABLE else one.used // MIB) for one in found[: count.value]
        ]


def read_driver() -> Driver:
    """Return the driver's version and all GPUs of this node (`nvidia-smi -L`), in one session: without persistence mode
    each nvmlInit may wait until the GPUs wake up.

    A GPU that does not answer is listed with its `problem`. Raises DriverError if the driver does not answer.
    """
    with _Session() as session:
        return Driver(session.version(), tuple(gpu for gpu, _ in session.units()))


def read_gpu_readings() -> tuple[GpuReading, ...]:
    """Return all GPUs with their present load; those that do not answer have a `problem`. Raises DriverError as
    `read_driver` does."""
    with _Session() as session:
        return tuple(session.reading(gpu, handle) for gpu, handle in session.units())


def read_compute_mode(uuid: str) -> int:
    """Return the compute mode of a GPU, as NVML numbers it. Raises DriverError."""
    return _with_gpu(uuid, _compute_mode, "compute mode")


def set_compute_mode(uuid: str, mode: int) -> None:
    """Set the compute mode of a GPU and read it back; only root may. Raises DriverError if the driver refuses or
    ignores it."""

    def act(session: _Session, handle: Any) -> int:
        session.ask("nvmlDeviceSetComputeMode", handle, ctypes.c_int(mode))
        return _compute_mode(session, handle)

    found = _with_gpu(uuid, act, "compute mode")
    if found != mode:
        raise DriverError("nvmlDeviceSetComputeMode", f"{uuid} is in mode {found} and not in {mode}")


def read_instance_id(uuid: str) -> int:
    """Return the driver's id of the GPU instance that a MIG instance belongs to. Raises DriverError."""

    def act(session: _Session, handle: Any) -> int:
        found = ctypes.c_uint()
        session.ask("nvmlDeviceGetGpuInstanceId", handle, ctypes.byref(found))
        return found.value

    return _with_gpu(uuid, act, "instance id")


class _MemoryLimits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t, in bytes; nvmlSetMemoryLimits_v1_t is its first three fields."""

    _fields_ = (
        ("folder", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


NO_LIMIT = 2**64 - 1
"""NVML_DEVICE_MEMORY_LIMIT_MAX: no limit."""


def read_memory_limits(uuid: str, folder: str) -> tuple[int, int, int] | None:
    """Return the soft limit, the hard limit and the present use of a cgroup's processes on a GPU, in bytes; None: none
    is set. `folder`: the cgroup's, below /sys/fs/cgroup. Raises DriverError where the driver has no such limits."""

    def act(session: _Session, handle: Any) -> tuple[int, int, int] | None:
        found = _MemoryLimits(folder.encode(), 0, 0, 0)
        code = session.code_of("nvmlDeviceGetMemoryLimits_v1", handle, ctypes.byref(found))
        if code == _NOT_FOUND:
            return None
        if code:
            raise _CallError("nvmlDeviceGetMemoryLimits_v1", code)
        return found.soft, found.hard, found.used

    return _with_gpu(uuid, act, "memory limits")


def set_memory_limits(uuid: str, folder: str, soft: int, hard: int) -> None:
    """Limit the memory that a cgroup's processes have on a GPU, in bytes; only root may. Raises DriverError."""

    def act(session: _Session, handle: Any) -> None:
        wanted = _MemoryLimits(folder.encode(), soft, hard, 0)
        session.ask("nvmlDeviceSetMemoryLimits_v1", handle, ctypes.byref(wanted))

    _with_gpu(uuid, act, "memory limits")


def why_no_memory_limits(uuids: Iterable[str], folder: str) -> dict[str, str]:
    """Return why the driver cannot limit the memory of cgroups on which of the GPUs, in one session; empty: it can.

    Reading tells nothing: the answer for a cgroup without limits is the one of a driver without them (615, back end
    misc). So the limits of `folder`, which must have none, are set to none. Raises DriverError if the driver does not
    answer.
    """
    found = {}
    with _Session() as session:
        for uuid in uuids:
            handle, none = ctypes.c_void_p(), _MemoryLimits(folder.encode(), 0, NO_LIMIT, 0)
            code = session.code_of("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(handle))
            code = code or session.code_of("nvmlDeviceSetMemoryLimits_v1", handle, ctypes.byref(none))
            if code:
                found[uuid] = _ERRORS.get(code, f"NVML Error with code {code}")
    return found


def _compute_mode(session: _Session, handle: Any) -> int:
    found = ctypes.c_int()
    session.ask("nvmlDeviceGetComputeMode", handle, ctypes.byref(found))
    return found.value


def _with_gpu(uuid: str, act: Callable[[_Session, Any], Answer], what: str) -> Answer:
    try:
        with _Session() as session:
            handle = ctypes.c_void_p()
            session.ask("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(handle))
            return act(session, handle)
    except DriverError as error:
        raise DriverError(f"{what} of {uuid}", error.reason) from error


def silent_gpu(index: int, problem: str, *, simulated: bool) -> Gpu:
    """Return the record of a GPU that does not answer. Its UUID is not known; the text in its place is unique here."""
    return Gpu(f"GPU-unknown-{index}", index, None, "unknown", None, simulated=simulated, problem=problem)


def host_memory_mib() -> int:
    """Return the node's memory in MiB: MemTotal of /proc/meminfo, which sysinfo(2) reports as well."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB


def is_uuid(text: str) -> bool:
    """Return whether the text is a UUID of a GPU or instance as NVML writes it (MIG-GPU-UUID/G/C before driver 470)."""
    return text[:4] in ("GPU-", "MIG-") and 8 <= len(text) <= 84 and _LETTERS.issuperset(text[4:])


def union(lists: Iterable[Iterable[GpuProcess]]) -> tuple[GpuProcess, ...]:
    """Return the processes of NVML's lists by pid, without duplicates: a process may be in two lists, with memory in
    one."""
    found: dict[int, GpuProcess] = {}
    for processes in lists:
        for process in processes:
            known = found.get(process.pid)
            if known is None or known.memory_used_mib is None:
                found[process.pid] = process
    return tuple(found[pid] for pid in sorted(found))
