"""Repeated readings of the driver, with a fake binding in place of NVIDIA's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from slurm_share.node.gpu_figures import Activity
from slurm_share.node.gpus.gpm import GPM_PAUSE_S
from slurm_share.node.gpus.load import RETRY_S, NvmlSession
from slurm_share.node.readings import DriverNow, GpuNow, ProcessSm
from slurm_share.node.records import GpuProcess
from slurm_share.testing import FakeBinding, FakeGpu

SM, OCCUPANCY, TENSOR, DRAM, FP64, FP32, FP16 = 2, 3, 5, 10, 11, 12, 13
ALL_METRICS = dict.fromkeys((SM, OCCUPANCY, TENSOR, DRAM, FP64, FP32, FP16), 40.0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def session(driver: FakeBinding, clock: Clock) -> NvmlSession:
    return NvmlSession(driver, clock)


def read_only_gpu(session: NvmlSession) -> GpuNow:
    (gpu,) = session.read().gpus
    return gpu


def test_a_gpu_is_read_whole(clock: Clock) -> None:
    gpu = FakeGpu("GPU-a", (81920, 2048), 30, compute={7: 2000}, sm={}, power_w=310.5, energy_j=9e6, temperature_c=61)
    seen = read_only_gpu(session(FakeBinding(gpu), clock))
    assert (seen.uuid, seen.index, seen.name, seen.minor) == ("GPU-a", 0, "Fake GPU", 0)
    assert (seen.memory_total_mib, seen.memory_used_mib, seen.utilization_percent) == (81920, 2048, 30.0)
    assert (seen.power_w, seen.energy_j, seen.temperature_c) == (310.5, 9e6, 61)
    assert seen.processes == (GpuProcess(7, 2000),)
    assert seen.process_sm == ()
    assert seen.unknown == {"activity": "this GPU has no GPM counters; Hopper and newer have them"}


def test_what_a_gpu_cannot_answer_has_a_reason_and_is_not_asked_again(clock: Clock) -> None:
    driver = FakeBinding(FakeGpu("GPU-a", utilization=None, fails={"nvmlDeviceGetPowerUsage": "NoPermission"}))
    reader = session(driver, clock)
    for _ in range(3):
        seen = read_only_gpu(reader)
        assert seen.unknown["utilization_percent"] == "this GPU or its driver does not have it"
        assert seen.unknown["power_w"] == "the driver tells it to root only"
        assert seen.process_sm is None
        assert seen.unknown["sm_time_percent"]
    assert driver.asked["nvmlDeviceGetUtilizationRates"] == 1
    assert driver.asked["nvmlDeviceGetPowerUsage"] == 1
    assert driver.asked["nvmlDeviceGetMemoryInfo"] == 3


def test_a_passing_error_of_one_question_loses_nothing_else(clock: Clock) -> None:
    gpu = FakeGpu("GPU-a", (100, 50), power_w=200, fails={"nvmlDeviceGetPowerUsage": "Unknown"})
    reader = session(FakeBinding(gpu), clock)
    seen = read_only_gpu(reader)
    assert (seen.power_w, seen.memory_used_mib, seen.problem) == (None, 50, None)
    assert "Unknown Error" in seen.unknown["power_w"]
    gpu.fails.clear()
    assert read_only_gpu(reader).power_w == 200


# ---- Process lists ----


def test_processes_are_the_union_of_three_lists(clock: Clock) -> None:
    """An MPS client that only its own list has is found; one in two lists is there once, with the memory it is told."""
    gpu = FakeGpu("GPU-a", compute={1: 10, 2: None}, graphics={3: 5}, mps={2: 20, 4: 40})
    assert read_only_gpu(session(FakeBinding(gpu), clock)).processes == (
        GpuProcess(1, 10),
        GpuProcess(2, 20),
        GpuProcess(3, 5),
        GpuProcess(4, 40),
    )


def test_one_list_is_believed_once_it_has_shown_the_others_processes(clock: Clock) -> None:
    gpu = FakeGpu("GPU-a", compute={1: 10}, mps={2: 20}, all_in_one={1: 10, 2: 20})
    driver = FakeBinding(gpu)
    reader = session(driver, clock)
    for _ in range(11):
        assert read_only_gpu(reader).processes == (GpuProcess(1, 10), GpuProcess(2, 20))
    assert driver.asked["nvmlDeviceGetRunningProcessDetailList"] == 11
    assert driver.asked["nvmlDeviceGetMPSComputeRunningProcesses"] == 1
    gpu.mps[3], gpu.all_in_one = 30, {1: 10, 2: 20}
    read_only_gpu(reader)
    assert GpuProcess(3, 30) in (read_only_gpu(reader).processes or ())


@pytest.mark.parametrize("whole", [{1: 10}, {1: 10, 2: None}])
def test_one_list_that_leaves_out_mps_clients_is_not_believed(clock: Clock, whole: dict[int, int | None]) -> None:
    driver = FakeBinding(FakeGpu("GPU-a", compute={1: 10}, mps={2: 20}, all_in_one=whole))
    reader = session(driver, clock)
    for _ in range(3):
        assert read_only_gpu(reader).processes == (GpuProcess(1, 10), GpuProcess(2, 20))
    assert driver.asked["nvmlDeviceGetRunningProcessDetailList"] == 1


def test_no_list_at_all_is_not_an_idle_gpu(clock: Clock) -> None:
    fails = {f"nvmlDeviceGet{kind}RunningProcesses": "NoPermission" for kind in ("Compute", "Graphics", "MPSCompute")}
    seen = read_only_gpu(session(FakeBinding(FakeGpu("GPU-a", fails=fails)), clock))
    assert seen.processes is None
    assert seen.unknown["processes"] == "the driver tells it to root only"


def test_use_by_processes_is_asked_since_the_last_answer(clock: Clock) -> None:
    """The newest time stamp is the next question's; figures above 100 are none; "Success" and NOT_FOUND are nothing."""
    gpu = FakeGpu("GPU-a", sm={1: 30, 2: 250})
    reader = session(FakeBinding(gpu), clock)
    assert read_only_gpu(reader).process_sm == (ProcessSm(1, 30.0),)
    gpu.sm = {}
    assert read_only_gpu(reader).process_sm == ()
    gpu.fails["nvmlDeviceGetProcessUtilization"] = "NotFound"
    assert read_only_gpu(reader).process_sm == ()


def test_use_by_processes_is_asked_for_what_is_new(clock: Clock) -> None:
    driver = FakeBinding(FakeGpu("GPU-a", sm={1: 30, 2: 10}))
    driver.clock_us = 7_000_000
    reader = session(driver, clock)
    since = []
    for _ in range(3):
        read_only_gpu(reader)
        since.append(driver.since_us)
    assert since == [0, 7_000_001, 7_000_002]


def test_use_by_processes_goes_on_when_the_clock_is_set_back(clock: Clock) -> None:
    """The driver's samples have the node's time of day: nothing is newer than the last one for an hour to come."""
    gpu = FakeGpu("GPU-a", sm={1: 30})
    driver = FakeBinding(gpu)
    hour_us, driver.clock_us = 3_600_000_000, 2_000_000_000_000_000
    reader = NvmlSession(driver, clock, wall_clock=lambda: driver.clock_us / 1e6)
    assert read_only_gpu(reader).process_sm == (ProcessSm(1, 30.0),)
    driver.clock_us -= hour_us
    for _ in range(2):
        assert read_only_gpu(reader).process_sm == (ProcessSm(1, 30.0),)
    assert driver.since_us == driver.clock_us - 1


def test_use_is_unknown_where_nothing_is_left_of_before_the_clock_was_set_back(clock: Clock) -> None:
    gpu = FakeGpu("GPU-a", sm={1: 30})
    driver = FakeBinding(gpu)
    hour_us, driver.clock_us = 3_600_000_000, 2_000_000_000_000_000
    reader = NvmlSession(driver, clock, wall_clock=lambda: driver.clock_us / 1e6)
    read_only_gpu(reader)
    driver.clock_us -= hour_us
    gpu.sm = {}
    seen = read_only_gpu(reader)
    assert (seen.process_sm, seen.unknown["sm_time_percent"]) == (None, "the node's clock was set back")
    seen = read_only_gpu(reader)
    assert (seen.process_sm, "sm_time_percent" in seen.unknown) == ((), False)


def test_of_samples_from_before_and_after_the_clock_was_set_back_the_later_count(clock: Clock) -> None:
    gpu = FakeGpu("GPU-a", sm={1: 30})
    driver = FakeBinding(gpu)
    wall = driver.clock_us = 2_000_000_000_000_000
    reader = NvmlSession(driver, clock, wall_clock=lambda: wall / 1e6)
    real = driver.nvmlDeviceGetProcessUtilization

    def ask(handle: FakeGpu, since_us: int) -> list[object]:
        return [*real(handle, since_us), SimpleNamespace(pid=1, smUtil=70, timeStamp=wall - 5)]

    driver.nvmlDeviceGetProcessUtilization = ask  # type: ignore[method-assign]
    assert read_only_gpu(reader).process_sm == (ProcessSm(1, 70.0),)
    driver.nvmlDeviceGetProcessUtilization = real  # type: ignore[method-assign]
    for _ in range(2):
        assert read_only_gpu(reader).process_sm == (ProcessSm(1, 30.0),)


# ---- GPM ----


def test_gpm_is_the_mean_since_the_look_before(clock: Clock) -> None:
    gpu = FakeGpu("GPU-a", gpm={**ALL_METRICS, SM: 20.0})
    driver = FakeBinding(gpu)
    reader = session(driver, clock)
    first = read_only_gpu(reader)
    assert (first.activity, first.unknown["activity"]) == (Activity(), "one sample so far")
    for before, now in ((20.0, 60.0), (60.0, 100.0)):
        clock.now += 5
        gpu.gpm = {**ALL_METRICS, SM: now}
        activity = read_only_gpu(reader).activity
        assert (activity.sm_percent, activity.tensor_percent) == ((before + now) / 2, 40.0)
    assert (driver.asked["nvmlGpmSampleGet"], driver.samples) == (3, 2)


def test_gpm_is_not_asked_twice_within_its_shortest_time(clock: Clock) -> None:
    driver = FakeBinding(FakeGpu("GPU-a", gpm=dict(ALL_METRICS)))
    reader = session(driver, clock)
    read_only_gpu(reader)
    clock.now += 1
    first = read_only_gpu(reader).activity
    clock.now += GPM_PAUSE_S / 2
    assert read_only_gpu(reader).activity == first
    assert driver.asked["nvmlGpmSampleGet"] == 2


def test_each_metric_answers_for_itself(clock: Clock) -> None:
    """One that this GPU has not is None with its reason; above 100, as MIG instances had, is 100; NaN is no number."""
    reader = session(FakeBinding(FakeGpu("GPU-a", gpm={SM: 130.0, TENSOR: float("nan"), DRAM: 3.0})), clock)
    read_only_gpu(reader)
    clock.now += 5
    seen = read_only_gpu(reader)
    assert seen.activity is not None
    assert (
        seen.activity.sm_percent,
        seen.activity.tensor_percent,
        seen.activity.dram_percent,
        seen.activity.fp64_percent,
    ) == (100.0, None, 3.0, None)
    assert {"activity.tensor", "activity.fp64", "activity.fp32"} <= seen.unknown.keys()


def test_a_gpu_that_claims_gpm_and_cannot_is_found_out_by_doing(clock: Clock) -> None:
    gpu = FakeGpu("GPU-a", gpm=dict(ALL_METRICS), fails={"nvmlGpmSampleGet": "NotSupported"})
    driver = FakeBinding(gpu)
    reader = session(driver, clock)
    for _ in range(2):
        assert read_only_gpu(reader).unknown["activity"] == "this GPU or its driver does not have it"
    assert (driver.samples, driver.asked["nvmlGpmSampleGet"]) == (0, 1)


def test_closing_gives_everything_back(clock: Clock) -> None:
    driver = FakeBinding(FakeGpu("GPU-a", gpm=dict(ALL_METRICS)), FakeGpu("GPU-b", gpm=dict(ALL_METRICS)))
    reader = session(driver, clock)
    reader.read()
    assert (driver.samples, driver.open) == (4, 1)
    reader.close()
    assert (driver.samples, driver.open) == (0, 0)


# ---- MIG ----


def test_mig_instances_stand_beside_their_gpu(clock: Clock) -> None:
    """Instances have memory, processes and GPM of their own; what they have is not listed on the GPU again."""
    part = FakeGpu("MIG-1", (40960, 1000), None, compute={5: 1000}, gpm=dict(ALL_METRICS))
    idle = FakeGpu("MIG-2", (40960, 0), None, gpm={**ALL_METRICS, SM: 0.0})
    whole = FakeGpu(
        "GPU-a", (81920, 1000), None, compute={5: 1000, 6: 1}, gpm=dict(ALL_METRICS), instances=[part, idle]
    )
    reader = session(FakeBinding(whole), clock)
    reader.read()
    clock.now += 5
    parent, first, second = reader.read().gpus
    assert (parent.mig_parent, first.mig_of, second.mig_of) == (True, "GPU-a", "GPU-a")
    assert parent.processes == (GpuProcess(6, 1),)
    assert first.processes == (GpuProcess(5, 1000),)
    assert first.activity is not None
    assert second.activity is not None
    assert (first.activity.sm_percent, second.activity.sm_percent) == (40.0, 0.0)
    assert first.utilization_percent is None
    assert first.unknown["utilization_percent"]


def test_an_instance_that_is_taken_away_goes(clock: Clock) -> None:
    whole = FakeGpu("GPU-a", instances=[FakeGpu("MIG-1", gpm=dict(ALL_METRICS))])
    driver = FakeBinding(whole)
    reader = session(driver, clock)
    assert len(reader.read().gpus) == 2
    whole.instances = None
    (gpu,) = reader.read().gpus
    assert (gpu.mig_parent, driver.samples) == (False, 0)


# ---- Trouble ----


def test_one_lost_gpu_loses_no_other(clock: Clock) -> None:
    lost, well = FakeGpu("GPU-a", (10, 5)), FakeGpu("GPU-b", (10, 6))
    reader = session(FakeBinding(lost, well), clock)
    reader.read()
    lost.fails["*"] = "GpuIsLost"
    seen = reader.read()
    first, second = seen.gpus
    assert (first.uuid, first.problem, first.memory_used_mib) == ("GPU-a", "GPU is lost", None)
    assert first.unknown["memory_used_mib"] == "GPU is lost"
    assert (second.memory_used_mib, second.problem) == (6, None)
    assert seen.problems == ("GPU 0 does not answer (GPU is lost); see nvidia-smi on this node",)
    assert seen.version == "550.0-fake"


def test_a_gpu_that_was_lost_is_looked_for_again(clock: Clock) -> None:
    gpu = FakeGpu("GPU-a", (10, 5), fails={"*": "GpuIsLost"})
    driver = FakeBinding(gpu)
    reader = session(driver, clock)
    for _ in range(5):
        assert read_only_gpu(reader).uuid == "GPU-unknown-0"
    assert driver.asked["nvmlInit"] == 1
    gpu.fails.clear()
    clock.now += RETRY_S + 1
    assert read_only_gpu(reader).memory_used_mib == 5
    assert (driver.asked["nvmlInit"], driver.open) == (2, 1)


def test_a_driver_that_was_loaded_anew_is_taken_up_at_once(clock: Clock) -> None:
    driver = FakeBinding(FakeGpu("GPU-a", (10, 5)))
    reader = session(driver, clock)
    reader.read()
    driver.void = "Uninitialized"
    assert read_only_gpu(reader).memory_used_mib == 5
    assert driver.asked["nvmlInit"] == 2


@pytest.mark.parametrize("error", ["LibraryNotFound", "DriverNotLoaded", "LibRmVersionMismatch"])
def test_without_a_driver_there_is_a_sentence(clock: Clock, error: str) -> None:
    driver = FakeBinding(FakeGpu("GPU-a"))
    driver.absent = error
    reader = session(driver, clock)
    seen = reader.read()
    assert (seen.version, seen.gpus, len(seen.problems)) == (None, (), 1)
    assert "driver" in seen.problems[0]
    assert reader.read() == seen
    assert driver.asked["nvmlInit"] == 1
    driver.absent = None
    clock.now += RETRY_S + 1
    assert len(reader.read().gpus) == 1


def test_a_driver_that_breaks_every_session_is_not_hammered(clock: Clock) -> None:
    class Broken(FakeBinding):
        def nvmlDeviceGetCount(self) -> int:
            raise self.error("Unknown")

    driver = Broken(FakeGpu("GPU-a"))
    reader = session(driver, clock)
    for _ in range(4):
        seen: DriverNow = reader.read()
        assert seen.gpus == ()
        assert "nvmlDeviceGetCount" in seen.problems[0]
    assert (driver.asked["nvmlInit"], driver.open) == (2, 0)
