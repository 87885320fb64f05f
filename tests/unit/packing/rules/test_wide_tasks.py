"""Tasks with several GPUs: when GPUs are kept free for them, and what may still run there meanwhile."""

from __future__ import annotations

from packing_values import estimate, gpu, running, starts, view, waiting

from slurm_share.packing.decision_records import Hold
from slurm_share.packing.rules import place


def holds(decision):
    """Return the GPUs that are kept free from now on."""
    return [one.gpu for one in decision.actions if isinstance(one, Hold) and one.task is not None]


def busy(number):
    """Return a running task on the GPU of that number, of unknown duration."""
    return running(number, number, 10_000, memory=9000)


def test_gpus_drain_for_a_task_of_several_gpus_only_when_it_is_old():
    """Before, tasks behind it start beside those that run."""
    gpus, runs = [gpu(0), gpu(1)], [busy(0), busy(1)]
    young = place.decide(view(gpus, [waiting(7, gpus=2, waits_since_s=0.0), waiting(8, 5000)], runs, now=599.0))
    assert holds(young) == []
    assert starts(young) == [(8, "GPU-0")]
    old = place.decide(view(gpus, [waiting(7, gpus=2, waits_since_s=0.0), waiting(8, 5000)], runs, now=600.0))
    assert sorted(holds(old)) == ["GPU-0", "GPU-1"]
    assert starts(old) == []


def test_a_task_of_several_gpus_starts_at_once_where_enough_are_empty():
    decision = place.decide(view([gpu(0), gpu(1)], [waiting(7, gpus=2)]))
    assert starts(decision) == [(7, "GPU-0", "GPU-1")]


def test_a_short_task_runs_on_an_empty_held_gpu_while_another_one_is_still_in_use():
    """GPU 1 is in use for 1000 s more; GPU 0 is empty, and held for the same task."""
    gpus = [gpu(0, held_for=7), gpu(1, held_for=7)]
    runs = [running(1, 1, 10_000, memory=9000, size=estimate(10_000, seconds=2000.0), ends_s=1100.0)]
    waits = [waiting(7, gpus=2), waiting(8, 5000, seconds=900.0), waiting(9, 5000, seconds=1100.0)]
    decision = place.decide(view(gpus, waits, runs))
    assert starts(decision) == [(8, "GPU-0")]


def test_no_task_of_unknown_duration_runs_on_a_held_gpu():
    gpus = [gpu(0, held_for=7), gpu(1, held_for=7)]
    runs = [running(1, 1, 10_000, memory=9000, ends_s=1100.0)]
    decision = place.decide(view(gpus, [waiting(7, gpus=2), waiting(8, 5000)], runs))
    assert starts(decision) == []
