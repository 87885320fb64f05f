"""Records of several sources become one: the first that knows a figure has it."""

from __future__ import annotations

import report_cases as cases

from slurm_share.report.rules.merge import merged, merged_series
from slurm_share.usage import EnergyUse, UseSeries


def test_the_first_source_that_knows_a_figure_has_it() -> None:
    launcher = cases.use(cpu_s=100.0, memory_peak_mib=None, by={"cpu_s": "launcher"}, unknown={"memory_peak_mib": "?"})
    agent = cases.use(cpu_s=200.0, memory_peak_mib=900, by={"cpu_s": "agent", "memory_peak_mib": "agent"})
    (use,) = merged([[launcher], [agent]])
    assert (use.cpu_s, use.memory_peak_mib) == (100.0, 900)
    assert use.by == {"cpu_s": "launcher", "memory_peak_mib": "agent"}
    assert use.unknown == {}


def test_zero_is_measured_and_stays() -> None:
    (use,) = merged([[cases.use(memory_kills=0, cpu_s=0.0)], [cases.use(memory_kills=3, cpu_s=9.0)]])
    assert (use.memory_kills, use.cpu_s) == (0, 0.0)


def test_gpus_are_merged_by_their_uuid() -> None:
    first = cases.use(gpus=(cases.gpu(0, sm_percent=None, unknown={"sm_percent": "no GPM"}),))
    second = cases.use(gpus=(cases.gpu(1), cases.gpu(0, simulated=True)))
    (use,) = merged([[first], [second]])
    assert [gpu.index for gpu in use.gpus] == [0, 1]
    assert (use.gpus[0].sm_percent, use.gpus[0].simulated, use.gpus[0].unknown) == (50.0, True, {})


def test_a_job_begins_and_ends_with_the_widest_of_its_records() -> None:
    inner = cases.use(began=cases.BEGAN + 5, ended=cases.BEGAN + 500)
    (use,) = merged([[inner], [cases.use()]])
    assert (use.began, use.ended) == (cases.BEGAN, cases.BEGAN + 600)


def test_a_source_that_was_killed_comes_after_one_that_saw_the_end() -> None:
    """The tasks of a run are there up to the kill: their energy would be more than that of the job."""
    early = EnergyUse(joules=30_000.0, rule="sm time")
    killed = cases.use(ended=None, gpus=(cases.gpu(0, energy=early, measured_s=60.0, memory_booked_mib=9),), others=())
    (use,) = merged([[killed], [cases.use(gpus=(cases.gpu(0),))]])
    (gpu,) = use.gpus
    assert gpu.energy is not None
    assert (gpu.energy.joules, gpu.measured_s, gpu.memory_booked_mib) == (180_000.0, 600.0, 9)
    assert use.ended == cases.BEGAN + 600
    assert use.others


def test_starts_and_nodes_stay_apart() -> None:
    uses = merged([[cases.use(), cases.use(node="n2"), cases.use(restarts=1)], [cases.use(job=4712)]])
    assert [(use.job, use.restarts, use.node) for use in uses] == [
        (4711, 0, "n1"), (4711, 0, "n2"), (4711, 1, "n1"), (4712, 0, "n1"),
    ]  # fmt: skip


def test_no_start_is_the_first_start() -> None:
    assert len(merged([[cases.use(restarts=None)], [cases.use(restarts=0)]])) == 1


def test_the_series_that_is_much_longer_wins() -> None:
    def series(seconds: int) -> UseSeries:
        return UseSeries(job=1, uid=1, node="n1", every_s=1.0, at=[float(at) for at in range(seconds)])

    assert merged_series([[series(10)], [series(12)]]) == (series(10),)
    assert merged_series([[series(10)], [series(20)]]) == (series(20),)


def test_charged_and_nobodys_energy_are_of_one_source() -> None:
    """Else they would not add up to the GPU's."""
    exact = cases.use(others=(), gpus=(cases.gpu(0, device_j=None),))
    sampled = cases.use(gpus=(cases.gpu(0, energy=EnergyUse(joules=170_000.0)),))
    (use,) = merged([[exact], [sampled]])
    assert (use.gpus[0].energy, use.gpus[0].device_j, use.others) == (exact.gpus[0].energy, None, ())
    without = cases.use(others=(), gpus=(cases.gpu(0, energy=None, device_j=None),))
    (use,) = merged([[without], [sampled]])
    assert (use.gpus[0].energy, use.others) == (sampled.gpus[0].energy, sampled.others)


def test_idle_time_is_part_of_the_measured_time_of_the_same_source() -> None:
    short = cases.use(gpus=(cases.gpu(0, measured_s=10.0, idle_s=None, idle_longest_s=None),))
    (use,) = merged([[short], [cases.use()]])
    assert (use.gpus[0].measured_s, use.gpus[0].idle_s) == (10.0, None)


def test_without_energy_of_its_own_a_source_tells_nothing_of_nobodys() -> None:
    first = cases.use(gpus=(cases.gpu(0, energy=None, device_j=None),))
    second = cases.use(others=(), gpus=(cases.gpu(0),))
    (use,) = merged([[first], [second]])
    assert (use.gpus[0].device_j, use.others) == (200_000.0, ())
