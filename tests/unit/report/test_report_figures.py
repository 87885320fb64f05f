"""The sums of a report over starts, nodes and GPUs."""

from __future__ import annotations

import report_cases as cases

from slurm_share.report.rules import wording
from slurm_share.report.rules.figures import figures
from slurm_share.usage import GpuEnergy


def test_a_job_on_one_node() -> None:
    found = figures(cases.report())
    assert (found.elapsed_s, found.limit_s, found.cpus, found.gpu_count) == (600, 3600, 16, 2)
    assert (found.cpu_percent, found.gpu_load_percent, found.load_is_sm) == (20.0, 50.0, True)
    assert (found.gpu_s, found.gpu_idle_s, found.gpu_measured_s) == (1200, 240, 1200)
    assert (found.gpu_peak_mib, found.gpu_cap_mib, found.gpu_memory_mib) == (8192, 38 * 1024, 80 * 1024)
    assert (found.memory_peak_mib, found.memory_limit_mib, found.memory_percent) == (12288, 65536, 18.75)
    assert found.sources == ("cgroup", "agent")


def test_energy_adds_up_to_that_of_the_gpus() -> None:
    found = figures(cases.report())
    assert (found.energy_j, found.unattributed_j, found.device_j) == (360_000, 40_000, 400_000)
    assert found.energy_rule == "counter"


def test_the_least_exact_rule_of_dividing_energy_is_told() -> None:
    from slurm_share.usage.records import EnergyUse

    gpus = (cases.gpu(0), cases.gpu(1, energy=EnergyUse(joules=1.0, rule="equal parts")))
    assert figures(cases.report(uses=(cases.use(gpus=gpus),))).energy_rule == "equal parts"


def test_load_is_never_a_mixture_of_two_counters() -> None:
    gpus = (cases.gpu(0), cases.gpu(1, sm_percent=None))
    found = figures(cases.report(uses=(cases.use(gpus=gpus),)))
    assert (found.gpu_load_percent, found.load_is_sm) == (70.0, False)


def test_means_count_each_gpu_by_the_time_that_it_was_measured() -> None:
    gpus = (cases.gpu(0, sm_percent=100.0, measured_s=100.0), cases.gpu(1, sm_percent=0.0, measured_s=300.0))
    assert figures(cases.report(uses=(cases.use(gpus=gpus),))).gpu_load_percent == 25.0


def test_without_any_source_accounts_tell_what_they_know() -> None:
    found = figures(cases.report(uses=(), starts=(cases.accounted(memory_peak_mib=3000),)))
    assert (found.cpu_percent, found.memory_peak_mib, found.gpu_s) == (20.0, 3000, 1200)
    assert (found.gpu_load_percent, found.energy_j, found.gpu_count) == (None, None, 2)
    assert found.by == {"memory_peak_mib": "sacct", "cpu_s": "sacct"}
    assert found.silent == ("n1",)


def test_cpu_time_is_of_all_nodes_or_said_by_the_accounts() -> None:
    """A node that does not answer would make the CPUs of the others look idle."""
    two = cases.accounted(nodes=("n1", "n2"), cpus=32, cpu_s=3840.0)
    found = figures(cases.report(starts=(two,)))
    assert (found.cpu_s, found.by["cpu_s"], found.silent) == (3840.0, "sacct", ("n2",))


def test_a_running_job_has_no_cpu_time_in_the_accounts() -> None:
    runs = cases.accounted(state="RUNNING", end=None, cpu_s=0.1)
    found = figures(cases.report(starts=(runs,), uses=(cases.use(ended=None, cpu_s=1120.0),)))
    assert found.cpu_percent == 10.0  # of the 700 s up to now


def test_two_starts_are_added() -> None:
    starts = (cases.accounted(state="NODE_FAIL"), cases.accounted(restarts=1))
    found = figures(cases.report(starts=starts, uses=(cases.use(), cases.use(restarts=1))))
    assert (found.elapsed_s, found.gpu_s, found.energy_j, found.cpu_percent) == (1200, 2400, 720_000, 20.0)
    assert (found.gpu_count, len(found.gpus), found.gpus[0].use.idle_s) == (2, 2, 240)


def test_without_accounts_the_records_tell_the_time() -> None:
    found = figures(cases.report(starts=(), uses=(cases.use(), cases.use(node="n2"))))
    assert (found.elapsed_s, found.cpus, found.gpu_count) == (600, 32, 4)


def test_the_reason_of_an_unknown_figure_is_kept() -> None:
    uses = (cases.use(cpu_wait_s=None, unknown={"cpu_wait_s": "no pressure in this kernel"}),)
    assert figures(cases.report(uses=uses)).unknown == {"cpu_wait_s": "n1: no pressure in this kernel"}


def test_energy_adds_up_if_one_node_has_counters_of_hooks_only() -> None:
    hooks = cases.use(node="n2", others=(), gpus=(cases.gpu(0, device_j=180_000.0),))
    found = figures(cases.report(uses=(cases.use(), hooks)))
    assert found.energy_j is not None
    assert found.unattributed_j is not None
    assert found.device_j == found.energy_j + found.unattributed_j == 580_000


def test_cpus_that_no_source_measured_are_those_of_the_accounts() -> None:
    runs = cases.accounted(state="RUNNING", end=None, cpu_s=None)
    found = figures(cases.report(starts=(runs,), uses=(cases.use(ended=None, cpus=None, cpu_s=1120.0),)))
    assert found.cpu_percent == 10.0


def test_energy_of_other_jobs_on_the_same_gpus_is_told() -> None:
    shared = GpuEnergy(uuid="GPU-00000000", unattributed_j=20_000.0, total_j=300_000.0)
    found = figures(cases.report(uses=(cases.use(gpus=(cases.gpu(0),), others=(shared,)),)))
    assert wording.energy(found) == "180.0 kJ of the 300.0 kJ of its GPUs; 20.0 kJ is nobody's, 100.0 kJ other jobs'"


def test_the_energy_of_a_gpu_that_elements_had_together_is_not_counted_for_each() -> None:
    starts = tuple(cases.accounted(job=4711 + n, id=f"4711_{n}") for n in range(2))
    together = figures(cases.report(starts=starts, uses=(cases.use(), cases.use(job=4712))))
    assert together.energy_j == 720_000
    assert (together.device_j, together.unattributed_j, together.gpus[0].use.device_j) == (None, None, None)
    assert "at the same time" in together.unknown["device_j"]
    # One sample is at the end of the one and the beginning of the other.
    later = cases.use(job=4712, began=cases.BEGAN + 595, ended=cases.BEGAN + 1195)
    assert figures(cases.report(starts=starts, uses=(cases.use(), later))).device_j == 800_000


def test_the_cap_of_a_range_says_its_guaranteed_part_too() -> None:
    gpus = tuple(cases.gpu(index, memory_cap_mib=20480, memory_least_mib=8192) for index in range(2))
    found = figures(cases.report(uses=(cases.use(gpus=gpus),)))
    assert (found.gpu_least_mib, wording.cap(found)) == (8192, "8 to 20 GiB")
    assert wording.cap(figures(cases.report())) == "38.0 GiB"
