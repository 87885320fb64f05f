"""The energy of a run's tasks, through the launcher and the simulated NVML."""

from __future__ import annotations

import re

import pytest
from energy_mixes import run_mix
from msgspec import UNSET
from packed_machine import TASK, Machine

from slurm_share.usage import JobUse, UseSeries, files

BAR = 0.01


@pytest.mark.parametrize("seed", [2])
def test_the_parts_of_a_random_mix_add_up_to_what_the_counters_show(machine: Machine, seed: int) -> None:
    found = run_mix(machine, seed, foreign=seed == 2)
    assert found.error <= BAR, found
    assert found.least_j >= 0
    assert found.listed_j > 0


def test_a_result_has_its_energy_and_the_records_have_the_rest(machine: Machine) -> None:
    run = machine.run([f"{TASK} --load 50 --memory 700 --seconds 2.5", "sleep 1.5", "true"], pack=None, at_once=1)
    said = run.go_well()
    busy, idle, short = (run.ended()[number] for number in range(3))
    assert busy.energy_j > 2 * 150
    assert 0 < busy.gpu_sm_percent <= 50
    assert 0 < idle.gpu_idle_s <= idle.seconds
    assert idle.energy_j <= idle.seconds * 60  # idle power is 52 W
    assert (short.energy_j is UNSET) == (short.seconds < 1)
    (use,), (series,) = (files.read_folder(run.node, kind)[0] for kind in (JobUse, UseSeries))
    assert use.gpus[0].memory_peak_mib == 700
    assert use.gpus[0].was_shared is False
    assert busy.energy_rule == "counter"
    assert use.gpus[0].energy is not None
    assert use.gpus[0].energy.joules == pytest.approx(busy.energy_j + idle.energy_j + use.others[0].short_j)
    assert max(one or 0 for one in series.gpus[0].power_w) > 100
    assert re.search(r"energy [1-9][0-9.]* k?J by tasks", said)


def test_a_reset_and_a_driver_without_a_counter_are_said(machine: Machine) -> None:
    (machine.state / "energy1").unlink()
    with (machine.state / "gpu0").open("a") as file:
        file.write("energy_j=5\n")
    fall = f"sed -i s/energy_j=5/energy_j=3/ {machine.state}/gpu0; sleep 1.5"
    run = machine.run([f"sleep 1.5; {fall}", f"{TASK} --device 0 --load 20 --seconds 3"], pack=None, at_once=2)
    said = run.go_well()
    assert "energy of GPU 0: its energy counter went back or jumped once" in said
    assert "energy of GPU 1: for" in said
    assert "without a usable counter its energy is power times time" in said
    assert run.ended()[1].energy_rule == "power"
