"""Read the load of all GPUs repeatedly in one NVML session.

The session stays open because nvmlInit is slow without persistence mode, and because GPM counters and the use by
processes are counted since the previous query. Queries that a GPU does not support are not repeated until NVML is
initialized again, which happens after a GPU or the driver was lost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, cast

import pynvml
from msgspec import Struct
from msgspec.structs import replace

from ...core.errors import DriverError
from ..gpu_figures import Activity
from ..readings import DriverNow, EnergyNow, GpuNow, ProcessSm
from ..records import Gpu, GpuProcess
from .binding import (
    SIMULATED_DRIVER,
    MemoryNow,
    failed_call,
    memory_of,
    process_lists,
    text_of,
    union,
    why_unknown,
)
from .gpm import Gpm, GpmReader

RETRY_S = 30.0
"""Seconds between attempts to find a missing driver or a lost GPU again; an attempt may take seconds."""
DOUBLE_CHECK = 12
"""Every so many rounds the list of all processes is compared with the three separate lists."""
_CANNOT = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLError_InvalidArgument,
)
"""Permanent errors, after which the query is not repeated."""
_GONE = (
    pynvml.NVMLError_GpuIsLost,
    pynvml.NVMLError_ResetRequired,
    pynvml.NVMLError_Uninitialized,
    pynvml.NVMLError_DriverNotLoaded,
    pynvml.NVMLError_LibRmVersionMismatch,
)
"""After one of these the GPU is not queried any more, and NVML must be initialized again."""
HOST_MEMORY = "the GPU uses the node's memory, and the driver does not say how much of it"
NO_SIZE = "the driver reports 0 bytes of memory"
_NO_QUESTION = "NVIDIA's Python binding here is too old to ask for it"


class _Question(Struct, frozen=True):
    """A figure with its own NVML call."""

    field: str
    """Field of GpuLoad."""
    call: str
    """Function of the binding; its first argument is the GPU's handle."""
    figure: Callable[[Any], float]
    """Converts the answer to the field's unit."""
    more: tuple[int, ...] = ()
    """Further arguments of the function."""


_QUESTIONS = (
    _Question("utilization_percent", "nvmlDeviceGetUtilizationRates", lambda rates: float(rates.gpu)),
    _Question("power_w", "nvmlDeviceGetPowerUsage", lambda milliwatts: milliwatts / 1000),
    _Question("energy_j", "nvmlDeviceGetTotalEnergyConsumption", lambda millijoules: millijoules / 1000),
    _Question("temperature_c", "nvmlDeviceGetTemperature", int, (pynvml.NVML_TEMPERATURE_GPU,)),
)
_ENERGY = tuple(one for one in _QUESTIONS if one.field in ("energy_j", "power_w"))
_READ_FIELDS = (
    *("memory_total_mib", "memory_used_mib", *(one.field for one in _QUESTIONS)),
    *("activity", "processes", "sm_time_percent"),
)


class _Unit:
    """A GPU or MIG instance in this session."""

    def __init__(self, handle: Any, identity: GpuNow) -> None:
        self.handle = handle
        self.identity = identity
        self.refused: dict[str, str] = {}
        """Query -> why it is not repeated."""
        self.seen_us = 0
        """Time stamp of the newest sample of use by processes, in microseconds of the node's time of day."""
        self.gpm: Gpm | None = None
        self.rounds = 0
        self.one_list: bool | None = None
        """Whether nvmlDeviceGetRunningProcessDetailList lists what the three lists do; None: unknown yet."""


def _note_refusal(unit: _Unit, what: str, unknown: dict[str, str], error: pynvml.NVMLError) -> None:
    """Add the reason to `unknown`; note a permanent one, so that the query is not repeated."""
    unknown[what] = why_unknown(error)
    if isinstance(error, _CANNOT):
        unit.refused[what] = unknown[what]


class NvmlSession:
    """An open driver. Never raises for a driver or GPU that does not answer: the reading says so."""

    def __init__(
        self,
        nvml: ModuleType | Any = pynvml,
        clock: Callable[[], float] = time.monotonic,
        retry_s: float = RETRY_S,
        wall_clock: Callable[[], float] = time.time,
        known: Iterable[Gpu] = (),
    ) -> None:
        """Prepare the session. `known`: GPUs that the driver listed before, for one that is lost at the first read."""
        self._nvml = nvml
        self._clock = clock
        self._retry_s = retry_s
        self._wall_clock = wall_clock
        self._units: dict[str, _Unit] = {}
        """By UUID."""
        self._by_index: dict[int, _Unit] = {}
        self._open = False
        self._opened_at = -math.inf
        self._stale = False
        self._problem: str | None = None
        self._version: str | None = None
        self._names: dict[int, GpuNow] = {
            gpu.index: GpuNow(uuid=gpu.uuid, index=gpu.index, name=gpu.name, minor=gpu.minor)
            for gpu in known
            if gpu.is_listed and gpu.problem is None and not gpu.uuid.startswith("MIG-")
        }
        """Identity of all GPUs seen so far, by index: a lost GPU does not tell it."""
        self._gpm = GpmReader(nvml, clock)

    def read(self) -> DriverNow:
        """Return the load of all GPUs, each followed by its MIG instances."""
        if self._stale and self._clock() - self._opened_at >= self._retry_s:
            self.close()
        for broke_just_now in (False, True):
            if not self._open and not self._start(broke_just_now):
                break
            try:
                return self._read()
            except pynvml.NVMLError as error:
                # The session is invalid, for example after the driver was reloaded.
                self._problem = str(DriverError(failed_call(error), str(error)))
                self.close()
        return DriverNow(problems=() if self._problem is None else (self._problem,))

    def read_energy(self) -> dict[str, EnergyNow]:
        """Return UUID -> energy and power of the GPUs of the last `read`, without asking anything else.

        Empty: there was no `read`, or the driver is gone. A GPU that does not answer is missing.
        """
        found = {}
        for unit in self._by_index.values() if self._open else ():
            try:
                power_w, energy_j = (self._figure(unit, one, {}, {}) for one in _ENERGY)
            except pynvml.NVMLError:
                continue  # the next `read` says why
            found[unit.identity.uuid] = EnergyNow(energy_j, power_w)
        return found

    def close(self) -> None:
        """Free the samples and end the session; a later `read` opens it again."""
        for unit in self._units.values():
            self._free(unit)
        self._units, self._by_index = {}, {}
        if self._open:
            self._open = False
            try:
                self._nvml.nvmlShutdown()
            except pynvml.NVMLError:
                pass  # the driver is gone

    # ---- the session ----

    def _start(self, at_once: bool) -> bool:
        if not at_once and self._problem is not None and self._clock() - self._opened_at < self._retry_s:
            return False
        self._opened_at = self._clock()
        self._stale = False
        try:
            self._nvml.nvmlInit()
            self._open = True
            self._version = text_of(self._nvml.nvmlSystemGetDriverVersion())
        except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
            self._problem = f"this node has no NVIDIA driver, or it is not loaded ({error})"
        except pynvml.NVMLError as error:
            self._problem = str(DriverError(failed_call(error), str(error)))
        else:
            self._problem = None
            return True
        self.close()
        return False

    def _read(self) -> DriverNow:
        found: list[GpuNow] = []
        problems: list[str] = []
        for index in range(int(self._nvml.nvmlDeviceGetCount())):
            try:
                found += self._read_gpu(index)
            except _GONE as error:
                if isinstance(error, (pynvml.NVMLError_Uninitialized, pynvml.NVMLError_DriverNotLoaded)):
                    raise
                self._stale = True
                found.append(self._lost(index, str(error)))
                problems.append(f"GPU {index} does not answer ({error}); see nvidia-smi on this node")
            except pynvml.NVMLError as error:
                found.append(self._lost(index, str(error)))
                problems.append(f"GPU {index} does not answer ({failed_call(error)}: {error})")
        listed = {gpu.uuid for gpu in found}
        for uuid in [uuid for uuid in self._units if uuid not in listed]:
            self._free(self._units.pop(uuid))  # a MIG instance that does not exist any more
        return DriverNow(version=self._version, gpus=tuple(found), problems=tuple(problems))

    def _lost(self, index: int, why: str) -> GpuNow:
        known = self._names.get(index) or GpuNow(uuid=f"GPU-unknown-{index}", index=index, name="unknown")
        return replace(known, problem=why, unknown=dict.fromkeys(_READ_FIELDS, why))

    # ---- a GPU ----

    def _read_gpu(self, index: int) -> list[GpuNow]:
        unit = self._by_index.get(index)
        if unit is None:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            unit = self._keep(_Unit(handle, self._identify(index, handle)))
        handle = unit.handle
        mig = self._ask(unit, "mig", {}, self._nvml.nvmlDeviceGetMigMode, handle)
        is_parent = mig is not None and mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        if is_parent != unit.identity.mig_parent:
            # The mode has changed, so the GPU may support other queries.
            self._free(unit)
            unit = self._keep(_Unit(handle, self._identify(index, handle, is_parent)))
        instances = self._read_instances(unit) if is_parent else []
        inside = {process.pid for instance in instances for process in instance.processes or ()}
        return [self._read_unit(unit, handle, None, inside), *instances]

    def _keep(self, unit: _Unit) -> _Unit:
        index = unit.identity.index
        self._by_index[index] = self._units[unit.identity.uuid] = unit
        self._names[index] = unit.identity
        return unit

    def _identify(self, index: int, handle: Any, mig_parent: bool = False) -> GpuNow:
        return GpuNow(
            uuid=text_of(self._nvml.nvmlDeviceGetUUID(handle)),
            index=index,
            name=text_of(self._nvml.nvmlDeviceGetName(handle)),
            minor=self._try(self._nvml.nvmlDeviceGetMinorNumber, handle),
            mig_parent=mig_parent,
            simulated=(self._version or "").endswith(SIMULATED_DRIVER),
        )

    def _read_instances(self, parent: _Unit) -> list[GpuNow]:
        found = []
        most = self._try(self._nvml.nvmlDeviceGetMaxMigDeviceCount, parent.handle) or 0
        for number in range(most):
            handle = self._try(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex, parent.handle, number)
            if handle is None:
                continue
            uuid = text_of(self._nvml.nvmlDeviceGetUUID(handle))
            unit = self._units.get(uuid)
            if unit is None:
                identity = GpuNow(
                    uuid=uuid,
                    index=parent.identity.index,
                    name=text_of(self._nvml.nvmlDeviceGetName(handle)),
                    mig_of=parent.identity.uuid,
                    simulated=parent.identity.simulated,
                )
                unit = self._units[uuid] = _Unit(handle, identity)
            unit.handle = handle
            slice_id = self._try(self._nvml.nvmlDeviceGetGpuInstanceId, handle)
            found.append(self._read_unit(unit, parent.handle, slice_id, frozenset()))
        return found

    def _read_unit(
        self, unit: _Unit, gpm_handle: Any, gpu_instance: int | None, elsewhere: set[int] | frozenset[int]
    ) -> GpuNow:
        """Read the figures of a GPU or an instance. elsewhere: pids on its instances."""
        unknown: dict[str, str] = {}
        memory = self._memory(unit, unknown)
        told: dict[tuple[str, tuple[int, ...]], tuple[Any, str]] = {}
        answers = {one.field: self._figure(unit, one, unknown, told) for one in _QUESTIONS}
        processes = self._processes(unit, unknown)
        if processes is not None and elsewhere:
            processes = tuple(process for process in processes if process.pid not in elsewhere)
        return replace(
            unit.identity,
            memory_total_mib=memory.total_mib,
            memory_used_mib=memory.used_mib,
            is_host_memory=memory.is_host,
            activity=self._activity(unit, gpm_handle, gpu_instance, unknown) or Activity(),
            processes=processes,
            process_sm=self._process_sm(unit, unknown),
            unknown=unknown,
            **answers,
        )

    def _memory(self, unit: _Unit, unknown: dict[str, str]) -> MemoryNow:
        """Return the memory of a GPU or instance; add to `unknown` why a part of it is not known."""
        memory = self._ask(unit, "memory_used_mib", unknown, memory_of, self._nvml.nvmlDeviceGetMemoryInfo, unit.handle)
        if memory is None:
            unknown["memory_total_mib"] = unknown["memory_used_mib"]
            return MemoryNow(None)
        if memory.is_host:
            unknown["memory_used_mib"] = HOST_MEMORY
        elif memory.total_mib is None:
            unknown["memory_total_mib"] = unknown["memory_used_mib"] = NO_SIZE
        return cast("MemoryNow", memory)

    def _figure(
        self,
        unit: _Unit,
        question: _Question,
        unknown: dict[str, str],
        told: dict[tuple[str, tuple[int, ...]], tuple[Any, str]],
    ) -> Any:
        """Return one figure, or None and add the reason to `unknown` if the driver does not tell.

        told: answer of each call, and the field that needed it first, so that a call for several figures is made once.
        """
        ask = getattr(self._nvml, question.call, None)
        if ask is None:
            unknown[question.field] = _NO_QUESTION
            return None
        call = (question.call, question.more)
        if call not in told:
            asked = self._ask(unit, question.field, unknown, ask, unit.handle, *question.more)
            told[call] = (asked, question.field)
        answer, first = told[call]
        if answer is None:
            unknown[question.field] = unknown[first]
            return None
        return question.figure(answer)

    # ---- processes ----

    def _processes(self, unit: _Unit, unknown: dict[str, str]) -> tuple[GpuProcess, ...] | None:
        """Return the processes on a GPU or instance.

        From Hopper on, one call lists all. It is used once it has listed the same as the three lists, and compared from
        time to time: a list without MPS clients would make a full GPU look idle.
        """
        unit.rounds += 1
        whole = None
        if unit.one_list is not False:
            whole = self._whole_list(unit)
            if whole is not None and unit.one_list and unit.rounds % DOUBLE_CHECK:
                return union([whole])
        calls = enumerate(process_lists(self._nvml))
        lists = [self._ask(unit, f"list {number}", {}, call, unit.handle) for number, call in calls]
        answered = [one for one in lists if one is not None]
        if not answered and whole is None:
            unknown["processes"] = unit.refused.get("list 0", "the driver does not list processes now")
            return None
        three = union(answered)
        if whole is None or not three:
            return three
        one = union([whole])
        unit.one_list = {process.pid for process in three} <= {process.pid for process in one}
        return union([whole, *answered])

    def _whole_list(self, unit: _Unit) -> list[Any] | None:
        ask, mode = self._nvml.nvmlDeviceGetRunningProcessDetailList, pynvml.NVML_PROCESS_MODE_ALL
        try:
            found: list[Any] | None = self._ask(
                unit, "detail list", {}, ask, unit.handle, pynvml.nvmlProcessDetailList_v1, mode
            )
        except TypeError:
            # nvidia-ml-py 13.615 fails if a process's memory is unknown: it puts None where C has a number.
            unit.one_list = False
            return None
        return found

    def _process_sm(self, unit: _Unit, unknown: dict[str, str]) -> tuple[ProcessSm, ...] | None:
        """Return the use of the multiprocessors by each process.

        Without samples, the binding raises NVMLError "Success" and the driver NOT_FOUND: nothing ran.
        """
        if "sm_time_percent" in unit.refused:
            unknown["sm_time_percent"] = unit.refused["sm_time_percent"]
            return None
        set_back = unit.seen_us > self._wall_clock() * 1e6  # no sample is newer until the clock gets there
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(unit.handle, 0 if set_back else unit.seen_us)
        except pynvml.NVMLError_NotFound:
            samples = []
        except _GONE:
            raise
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_SUCCESS:
                _note_refusal(unit, "sm_time_percent", unknown, error)
                return None
            samples = []
        if set_back and not samples:
            unit.seen_us = 0
            unknown["sm_time_percent"] = "the node's clock was set back"
            return None
        # Samples from before the clock was set back seem to lie in the future.
        now_us = self._wall_clock() * 1e6
        samples = [sample for sample in samples if sample.timeStamp <= now_us] or samples
        unit.seen_us = max([0 if set_back else unit.seen_us, *(int(sample.timeStamp) for sample in samples)])
        newest: dict[int, Any] = {}
        for sample in samples:
            # Drivers without data have reported values above 100 (nvtop's issue 110).
            if sample.smUtil <= 100 and (sample.pid not in newest or sample.timeStamp >= newest[sample.pid].timeStamp):
                newest[int(sample.pid)] = sample
        return tuple(ProcessSm(pid, float(newest[pid].smUtil)) for pid in sorted(newest))

    # ---- GPM ----

    def _activity(self, unit: _Unit, handle: Any, gpu_instance: int | None, unknown: dict[str, str]) -> Activity | None:
        if "activity" in unit.refused:
            unknown["activity"] = unit.refused["activity"]
            return None
        if gpu_instance is None and unit.identity.mig_of is not None:
            unknown["activity"] = "the driver does not say which instance this is"
            return None
        try:
            if unit.gpm is None:
                if not self._nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                    unit.refused["activity"] = "this GPU has no GPM counters; Hopper and newer have them"
                    unknown["activity"] = unit.refused["activity"]
                    return None
                unit.gpm = self._gpm.alloc()
            return self._gpm.read(unit.gpm, handle, gpu_instance, unknown)
        except _GONE:
            raise
        except pynvml.NVMLError as error:
            # A GPU may report support without having it, such as a part of a GPU in a virtual machine.
            self._free(unit)
            _note_refusal(unit, "activity", unknown, error)
            return None

    # ---- asking ----

    def _ask(self, unit: _Unit, what: str, unknown: dict[str, str], ask: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a call, or None and add the reason to `unknown`. Raises NVML's error for a lost GPU."""
        if what in unit.refused:
            unknown[what] = unit.refused[what]
            return None
        try:
            return ask(*args)
        except _GONE:
            raise
        except pynvml.NVMLError as error:
            _note_refusal(unit, what, unknown, error)
            return None

    def _try(self, ask: Callable[..., Any], *args: Any) -> Any:
        try:
            return ask(*args)
        except _GONE:
            raise
        except pynvml.NVMLError:
            return None

    def _free(self, unit: _Unit) -> None:
        if unit.gpm is not None:
            self._gpm.free(unit.gpm)
            unit.gpm = None
