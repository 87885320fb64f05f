"""The division of a GPU's energy: it adds up to the millijoule, nothing is negative, and each rule says so."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.usage.rules.energy import (
    GAP_S,
    IDLE_SAMPLES,
    GpuMoment,
    Holder,
    Meter,
    MigInstance,
    add_charges,
    divide,
    mig_holders,
    slices_of,
)

GPU, NAME = "GPU-a", "NVIDIA Simulated"


def moment(
    counter_j: float | None, *holders: Holder[str], power_w: float | None = None, empty: bool = False
) -> GpuMoment[str]:
    counter = None if counter_j is None else round(1000 * counter_j)
    return GpuMoment(uuid=GPU, name=NAME, counter_mj=counter, power_w=power_w, holders=holders, is_empty=empty)


def metered(*moments: GpuMoment[str], every_s: float = 1.0) -> Meter[str]:
    meter: Meter[str] = Meter()
    for number, one in enumerate(moments):
        meter.add(100.0 + every_s * number, [one])
    return meter


def joules(meter: Meter[str], key: str) -> float:
    return add_charges(meter.charges(key).values()).mj / 1000


def idle_first(idle_w: float = 50.0) -> Meter[str]:
    """Return a meter that has seen the empty GPU: at 102 s its counter was 100 J."""
    return metered(*(moment(idle_w * number, power_w=idle_w, empty=True) for number in range(IDLE_SAMPLES)))


# ---- Who gets what ----


def test_one_alone_gets_everything_by_the_counter() -> None:
    meter = metered(moment(10.0), moment(310.0, Holder("a")), moment(510.5, Holder("a")))
    charge = meter.charges("a")[GPU]
    assert (charge.mj, charge.rule) == (500_500, "counter")
    assert meter.gpus[GPU].unit.unattributed_j == 0


def test_idle_power_in_equal_parts_and_the_rest_by_sm_time() -> None:
    meter = idle_first()
    meter.add(103.0, [moment(400.0, Holder("a", 60.0), Holder("b", 20.0))])
    assert joules(meter, "a") == 25 + 250 * 0.75
    assert joules(meter, "b") == 25 + 250 * 0.25
    assert meter.charges("b")[GPU].idle_mj == 25_000
    assert meter.charges("a")[GPU].rule == "sm time"
    assert meter.gpus[GPU].unattributed_mj == 100_000


@pytest.mark.parametrize("sm", [None, 0.0])
def test_without_sm_time_all_in_equal_parts(sm: float | None) -> None:
    meter = idle_first()
    meter.add(103.0, [moment(400.0, Holder("a", sm), Holder("b", sm))])
    assert joules(meter, "a") == joules(meter, "b") == 150
    assert meter.charges("a")[GPU].rule == "equal parts"


def test_one_whose_sm_time_is_not_known_gets_an_equal_part_of_the_rest() -> None:
    meter = idle_first(0.0)
    meter.add(103.0, [moment(300.0, Holder("a", 90.0), Holder("b", 10.0), Holder("c"))])
    assert [joules(meter, key) for key in "abc"] == pytest.approx([180, 20, 100], abs=0.002)
    assert [meter.charges(key)[GPU].rule for key in "abc"] == ["sm time", "sm time", "equal parts"]


def test_what_falls_to_foreign_processes_is_nobodys() -> None:
    meter = idle_first()
    meter.add(103.0, [moment(400.0, Holder("a", 25.0), Holder(None, 75.0))])
    assert joules(meter, "a") == 25 + 62.5
    assert meter.gpus[GPU].unattributed_mj == 100_000 + 25_000 + 187_500


def test_an_empty_gpu_is_nobodys() -> None:
    meter = metered(moment(0.0), moment(52.0), moment(104.0))
    assert meter.gpus[GPU].unattributed_mj == meter.gpus[GPU].total_mj == 104_000


def test_idle_power_of_the_time_before_a_start_is_nobodys() -> None:
    """It came after three quarters of the interval: its own idle power is for the last quarter."""
    meter = idle_first()
    meter.add(103.0, [moment(200.0, Holder("a", None, 102.75))])
    assert meter.charges("a")[GPU].idle_mj == 12_500
    assert joules(meter, "a") == 12.5 + 50
    assert meter.gpus[GPU].unattributed_mj == 100_000 + 37_500
    assert meter.charges("a")[GPU].rule == "counter"


def test_unknown_idle_power_the_time_before_a_start_is_nobodys() -> None:
    meter = metered(moment(0.0), moment(200.0, Holder("a", None, 100.75)))
    assert joules(meter, "a") == 50
    assert any("idle power is not known" in line for line in meter.gpus[GPU].sentences())


def test_tasks_one_after_another_in_one_interval_are_charged_by_their_time() -> None:
    """Shorter than the time between samples: by the time that each was there, a moment that two have halved."""
    meter = metered(
        moment(0.0),
        moment(100.0, Holder("a", None, 100.0, 100.2), Holder("b", None, 100.2, 100.6), Holder("c", None, 100.4)),
    )
    assert [joules(meter, key) for key in "abc"] == pytest.approx([20, 30, 50], abs=0.002)
    assert meter.charges("b")[GPU].rule == "equal parts"


def test_idle_power_is_the_low_quantile_of_the_empty_gpu() -> None:
    powers = [90.0, 80.0, 70.0, *[60.0] * 17]
    meter = metered(*(moment(None, power_w=power, empty=True) for power in powers))
    assert (meter.gpus[GPU].idle_w, meter.gpus[GPU].idle_source) == (60.0, "measured")


def test_a_counter_that_is_renewed_late_keeps_its_idle_part() -> None:
    """The driver renews the counter every 100 ms, and somebody reads it every 10 ms."""
    meter = idle_first()
    for number in range(1, 101):
        at = 102.0 + number / 100
        meter.add(at, [moment(100.0 + 30 * (number // 10), Holder("a", 100.0), Holder("b", 0.0))])
    assert meter.charges("b")[GPU].idle_mj == pytest.approx(25_000, rel=0.01)
    assert joules(meter, "a") == pytest.approx(275, rel=0.01)


# ---- Counters that cannot be used ----


def test_a_reset_counter_begins_again_and_the_interval_is_power_times_time() -> None:
    meter = metered(
        moment(900.0, power_w=100.0), moment(3.0, Holder("a"), power_w=200.0), moment(203.0, Holder("a"), power_w=200.0)
    )
    charge = meter.charges("a")[GPU]
    assert (charge.mj, charge.rule) == (150_000 + 200_000, "power")
    assert meter.gpus[GPU].resets == 1
    assert "went back or jumped once" in meter.gpus[GPU].sentences()[0]


def test_a_counter_that_rises_faster_than_any_gpu_was_reset() -> None:
    meter = metered(moment(0.0, power_w=300.0), moment(9000.0, Holder("a"), power_w=300.0))
    assert (joules(meter, "a"), meter.gpus[GPU].resets) == (300, 1)


def test_without_a_counter_power_times_time() -> None:
    meter = metered(moment(None, power_w=100.0), moment(None, Holder("a"), power_w=300.0), every_s=2.0)
    assert (joules(meter, "a"), meter.charges("a")[GPU].rule) == (400, "power")
    assert "for 2 s without a usable counter" in meter.gpus[GPU].sentences()[0]


def test_without_counter_and_power_nothing_is_invented() -> None:
    meter = metered(moment(None), moment(None, Holder("a")), moment(5.0, Holder("a")), moment(7.0, Holder("a")))
    assert (joules(meter, "a"), meter.gpus[GPU].missing_s) == (2, 2.0)
    assert any("neither energy nor power" in line for line in meter.gpus[GPU].sentences())


def test_power_does_not_stand_for_a_long_gap_but_the_counter_does() -> None:
    long_s = 2 * GAP_S
    without = metered(moment(None, power_w=100.0), moment(None, Holder("a"), power_w=100.0), every_s=long_s)
    assert (without.gpus[GPU].total_mj, without.gpus[GPU].missing_s) == (0, long_s)
    counted = metered(moment(0.0), moment(600.0, Holder("a", 90.0), Holder("b", 10.0)), every_s=long_s)
    assert (joules(counted, "a"), counted.charges("a")[GPU].rule) == (300, "equal parts")


def test_a_rule_that_made_up_less_than_a_hundredth_is_not_named() -> None:
    meter = metered(
        moment(0.0), moment(1.0, Holder("a"), Holder("b")), *(moment(200.0 * n, Holder("a")) for n in range(1, 9))
    )
    assert meter.charges("a")[GPU].rule == "counter"
    assert meter.charges("b")[GPU].rule == "equal parts"


def test_an_older_sample_is_ignored() -> None:
    meter = metered(moment(0.0), moment(100.0, Holder("a")))
    meter.add(101.0, [moment(900.0, Holder("a"))])
    meter.add(102.0, [moment(300.0, Holder("a"))])
    assert joules(meter, "a") == 300


def test_a_gpu_that_was_missing_from_samples_is_charged_when_it_is_back() -> None:
    meter = metered(moment(0.0), moment(100.0, Holder("a")))
    meter.add(102.0, [])
    meter.add(103.0, [moment(400.0, Holder("a"))])
    assert joules(meter, "a") == 400


def test_taken_charges_are_forgotten() -> None:
    meter = metered(moment(0.0), moment(100.0, Holder("a")))
    assert meter.take("a")[GPU].mj == 100_000
    assert meter.charges("a") == {}
    assert meter.gpus[GPU].total_mj == 100_000


# ---- MIG ----


def test_mig_instances_weigh_activity_times_slices() -> None:
    holders = mig_holders(
        [
            MigInstance(slices=3, sm_percent=50.0, holders=[Holder("a"), Holder("b")]),
            MigInstance(slices=4, sm_percent=25.0, holders=[Holder("c")]),
        ]
    )
    meter = idle_first(0.0)
    meter.add(103.0, [moment(100.0 + 250.0 - 100.0, *holders)])
    assert [joules(meter, key) for key in "abc"] == [75, 75, 100]


@pytest.mark.parametrize(
    ("name", "slices"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 3),
        ("NVIDIA H100 MIG 1c.4g.40gb", 4),
        ("NVIDIA H100 MIG 1g.10gb+me", 1),
        ("GPU", 1),
    ],
)
def test_slices_of_an_instance_are_in_its_name(name: str, slices: int) -> None:
    assert slices_of(name) == slices


# ---- It adds up ----


@given(st.integers(0, 10**15), st.lists(st.floats(0, 1e9), max_size=9))
def test_a_division_adds_up(whole: int, weights: list[float]) -> None:
    parts = divide(whole, weights)
    assert all(part >= 0 for part in parts)
    assert sum(parts) == (whole if sum(weights) > 0 else 0)


class Step(NamedTuple):
    """The load and the holders until the next sample."""

    seconds: float
    power_w: float | None
    counter: str
    holders: list[tuple[int | None, float | None, float, float]]
    is_empty: bool
    is_missing: bool


_PART = st.floats(0, 1)
_HOLDER = st.tuples(
    st.one_of(st.none(), st.integers(0, 5)), st.one_of(st.none(), st.just(0.0), st.floats(0, 100)), _PART, _PART
)
_STEPS = st.lists(
    st.builds(
        Step,
        st.one_of(st.floats(0.001, 5), st.floats(10, 100)),
        st.one_of(st.none(), st.floats(0, 700)),
        st.sampled_from(["rises", "rises", "rises", "is reset", "jumps", "is missing", "stands still"]),
        st.lists(_HOLDER, max_size=8),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


def holders_of(step: Step, since: float, until: float) -> list[Holder[int]]:
    found = []
    for key, sm, begins, ends in step.holders:
        first, last = sorted((begins, ends))
        is_all = first < 0.2
        found.append(
            Holder(
                key,
                sm,
                None if is_all else since + first * (until - since),
                None if last > 0.8 else since + last * (until - since),
            )
        )
    return found


@given(_STEPS, st.booleans())
def test_all_parts_add_up_to_the_counter_and_none_is_negative(steps: list[Step], is_mig: bool) -> None:
    """Over resets, jumps, missing counters, gaps, and holders that come and go."""
    meter: Meter[int] = Meter()
    at, counter, base = 0.0, 1_000_000, None
    counted = 0
    """Differences of the counter that can be used, by this test's own account."""
    seen_at = 0.0
    for step in steps:
        at += step.seconds
        if step.counter == "is reset":
            counter = 0
        elif step.counter == "jumps":
            counter += 10**12
        elif step.counter != "stands still":
            counter += round(1000 * step.seconds * (step.power_w or 0.0))
        now = None if step.counter == "is missing" else counter
        if step.is_missing and at != steps[0].seconds:
            continue
        holders = holders_of(step, seen_at, at)
        if is_mig:
            holders = mig_holders([MigInstance(slices=2, sm_percent=40.0, holders=holders)])
        before = meter.gpus[GPU].power_s + meter.gpus[GPU].missing_s if meter.gpus else 0.0
        total = meter.gpus[GPU].total_mj if meter.gpus else 0
        meter.add(
            at,
            [
                GpuMoment(
                    uuid=GPU, name=NAME, counter_mj=now, power_w=step.power_w, holders=holders, is_empty=step.is_empty
                )
            ],
        )
        gpu = meter.gpus[GPU]
        if base is not None and now is not None and gpu.power_s + gpu.missing_s == before:
            assert gpu.total_mj - total == now - base
            counted += now - base
        base, seen_at = now, at
        charges = [charge for key in range(6) for charge in meter.charges(key).values()]
        assert gpu.unattributed_mj >= 0
        assert all(0 <= charge.idle_mj <= charge.mj == sum(charge.by_rule_mj) for charge in charges)
        assert sum(charge.mj for charge in charges) + gpu.unattributed_mj == gpu.total_mj
        assert gpu.charged == add_charges(charges)
    assert meter.gpus[GPU].total_mj >= counted
