"""The bounded series of a job's figures."""

from __future__ import annotations

import pytest

from slurm_share.usage.series import GpuSample, Recorder


def recorder(points: int = 8, **more: object) -> Recorder:
    return Recorder(job=4711, uid=1000, node="n1", points=points, **more)  # type: ignore[arg-type]


def test_a_point_is_the_mean_of_its_samples_and_the_peak_of_memory() -> None:
    its = recorder()
    for second in range(11):
        gpu = GpuSample(load_percent=10.0 * second, memory_mib=100 + second, power_w=50.0, tasks=2)
        its.add(1000.0 + second, cpu_cores=1.0, memory_mib=second, gpus={"GPU-a": gpu})
    series = its.finish()
    assert series.at == [1000.0, 1005.0, 1010.0]
    assert series.gpus[0].load_percent == [0.0, 30.0, 80.0]
    assert series.gpus[0].memory_mib == [100, 105, 110]
    assert series.memory_mib == [0, 5, 10]
    assert series.cpu_cores == [1.0, 1.0, 1.0]
    assert series.rate_per_s == [None, None, None]


@pytest.mark.parametrize("every_s", [1.0, 5.0, 60.0])
def test_a_long_job_has_no_more_points_than_a_short_one(every_s: float) -> None:
    its = recorder(points=20)
    for number in range(5000):
        its.add(1e9 + every_s * number, memory_mib=number)
    series = its.finish()
    assert 10 <= len(series.at) <= 20
    assert series.at == sorted(series.at)
    assert series.at[-1] == 1e9 + every_s * 4999
    assert series.memory_mib[-1] == max(one or 0 for one in series.memory_mib) == 4999
    assert all(len(one) == len(series.at) for one in (series.cpu_cores, series.memory_mib, series.rate_per_s))
    steps = [b - a for a, b in zip(series.at[:-2], series.at[1:-1], strict=True)]
    assert max(steps) <= 2 * series.every_s


def test_a_gpu_that_comes_later_is_not_known_before() -> None:
    its = recorder()
    its.add(1000.0, memory_mib=1)
    its.add(1005.0, memory_mib=2, gpus={"GPU-a": GpuSample(tasks=1)})
    its.add(1010.0, memory_mib=2)
    assert its.finish().gpus[0].tasks == [None, 1, None]


def test_no_point_stands_for_a_time_without_samples() -> None:
    its = recorder()
    its.add(1000.0, memory_mib=1)
    its.add(2000.0, memory_mib=2)
    assert its.finish().at == [1000.0, 2000.0]


def test_a_clock_that_was_set_back_adds_nothing() -> None:
    its = recorder()
    its.add(1000.0, memory_mib=1)
    its.add(10.0, memory_mib=7)
    assert its.finish().memory_mib == [1]


def test_a_series_is_continued_from_its_file() -> None:
    first = recorder()
    for second in range(0, 100, 5):
        first.add(1000.0 + second, memory_mib=second)
    before = first.finish()
    again = recorder(before=before)
    assert again.series() == before
    for second in range(100, 200, 5):
        again.add(1000.0 + second, memory_mib=second)
    series = again.finish()
    assert len(series.at) <= 8
    assert series.memory_mib[-1] == 195
    assert series.every_s > before.every_s
