from __future__ import annotations

from slurm_share.packing.history_records import TaskRun
from slurm_share.packing.rules.estimate.families import group, publish


def run(peak, when=0.0, **other):
    fields = {"exact": "e", "family": "f", "script": "p", "gpu_model": "A100", "kind": "done", "seconds": 60.0, **other}
    return TaskRun(when=when, peak_mib=peak, **fields)


def test_runs_are_grouped_by_family_and_gpu_model_the_last_first():
    runs = [
        run(1000, 1.0, family="g"),
        run(5000, 2.0, seconds=100.0),
        run(6000, 3.0, exact="x"),
        run(900, 4.0, kind="gpu memory", is_censored=True),
        run(7000, 9.0, gpu_model="H100", is_elastic=True),
        run(1, 10.0, family=""),
    ]
    h100, a100, other = group(runs)
    assert (h100.gpu_model, h100.is_elastic, other.family) == ("H100", True, "g")
    assert (a100.runs, a100.commands, a100.out_of_memory, a100.script) == (3, 2, 1, "p")
    assert (a100.least_mib, a100.most_mib, a100.median_s, a100.last) == (5000, 6000, 60.0, 4.0)


def test_a_family_whose_memory_was_never_seen_has_no_size():
    (one,) = group([run(None)])
    assert (one.least_mib, one.most_mib) == (None, None)


def test_a_site_publishes_families_of_three_runs_and_no_command():
    runs = [run(peak) for peak in range(1000, 2000, 100)] + [run(5000, family="two runs")] * 2
    (one,) = publish(runs)
    assert (one.family, one.gpu_model, one.runs, one.p90_mib, one.ratio) == ("f", "A100", 10, 1800, 1.25)


def test_the_published_ratio_is_the_quantile_of_what_was_seen():
    assert publish([run(1000)] * 50)[0].ratio == 1.0
    assert publish(([run(1000)] * 9 + [run(2000)]) * 8)[0].ratio == 2.0


def test_only_runs_that_say_what_is_needed_are_published():
    assert publish([run(5000, kind="failed")] * 5 + [run(5000, is_elastic=True)] * 5 + [run(None)] * 5) == ()
