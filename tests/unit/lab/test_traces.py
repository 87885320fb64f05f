from __future__ import annotations

import pytest

from slurm_share.lab import traces


@pytest.mark.parametrize(
    ("name", "count", "span_s", "two_gpus"), [("thesis60", 60, 8966, 3), ("thesis90", 90, 12514, 5)]
)
@pytest.mark.parametrize("seed", [1, 2, 77])
def test_a_thesis_trace_has_the_published_shape(name, count, span_s, two_gpus, seed):
    trace = traces.thesis(name, seed)
    assert len(trace.tasks) == count
    times = [task.submitted_s for task in trace.tasks]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(span_s)
    assert sum(task.gpus == 2 for task in trace.tasks) == two_gpus
    assert [task.task for task in trace.tasks] == list(range(count))
    assert (trace.gpus, trace.gpu_mib) == (4, 40960)


def test_shares_of_the_classes_are_those_of_the_thesis():
    light, medium, large = ({one.title for one in rows} for rows in (traces.LIGHT, traces.MEDIUM, traces.LARGE))
    for name, shares in (("thesis60", (0.0, 0.83, 0.17)), ("thesis90", (0.65, 0.27, 0.08))):
        names = [task.name for task in traces.thesis(name, 3).tasks]
        for kind, share in zip((light, medium, large), shares, strict=True):
            assert sum(one in kind for one in names) / len(names) == pytest.approx(share, abs=0.011)


def test_the_table_has_the_published_rows():
    """23 heavier runs of 4.5 to 27.9 GB and 9 to 65 minutes an epoch, and 12 on CIFAR-100 of 1.8 to 2.2 GB."""
    heavier = traces.LARGE + traces.MEDIUM
    assert len(heavier) == 23
    assert (min(one.memory_mib for one in heavier), max(one.memory_mib for one in heavier)) == (4540, 27900)
    assert (min(one.minutes for one in heavier), max(one.minutes for one in heavier)) == (8.95, 64.96)
    assert len(traces.LIGHT) == 12
    assert (min(one.memory_mib for one in traces.LIGHT), max(one.memory_mib for one in traces.LIGHT)) == (1780, 2190)


def test_seeds_differ_and_a_seed_gives_the_same_trace():
    for generator in traces.GENERATORS.values():
        assert generator(4) == generator(4)
        assert generator(4) != generator(5)


def test_a_sweep_is_a_line_in_its_number():
    trace = traces.sweep(3)
    assert len(trace.tasks) == traces.SWEEP_FAMILIES * traces.SWEEP_SETTINGS
    for family in {task.family for task in trace.tasks}:
        own = sorted((task.numbers[0][1], task.memory_mib) for task in trace.tasks if task.family == family)
        (x0, y0), (x1, y1) = own[0], own[-1]
        assert all(y == pytest.approx(y0 + (y1 - y0) * (x - x0) / (x1 - x0), rel=0.06) for x, y in own)
    wrong = [task for task in trace.tasks if task.gpu_mem_mib is not None]
    assert all(task.gpu_mem_mib < task.memory_mib for task in wrong)
