import pytest
from hypothesis import given
from hypothesis import strategies as st
from packing_values import estimate

from slurm_share.packing.rules.reservation import at_start, cap_at_start, due, is_flat


@pytest.mark.parametrize(
    ("size", "floor", "expected"),
    [
        (estimate(7000), 0, 7000),
        (estimate(7000), 9000, 9000),  # it ran out of memory before
        (estimate(None), 0, 20000),
        (None, 0, 20000),
        (estimate(None), 30000, 30000),
        (estimate(None, floor_mib=30000), 0, 30664),  # an attempt had it when it was ended
        (estimate(None, floor_mib=50000), 0, 40000),
        (estimate(10), 0, 300),  # a CUDA context alone
    ],
)
def test_reservation_at_the_start(size, floor, expected):
    assert at_start(size, floor, 40000, 0.5) == expected


def due_of(source="unknown", reserved=20000, peak=4000, **fields):
    values = {"is_flat": False, "is_elastic": False, "is_alone": False, "growth": 1.3, "guard": "soft"}
    return due(source=source, reserved_mib=reserved, peak_mib=peak, **{**values, **fields})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 20000),
        ({"peak": 15000}, 22528),  # 1.5 times the peak, in steps of 64
        ({"is_flat": True}, 5248),  # 1.3 times the peak
        ({"is_flat": True, "growth": 1.0}, 4160),  # never below the peak by 2 % and 64 MiB
        ({"source": "user", "is_flat": True, "floor_mib": 3000}, 5248),  # the number was too small
        ({"is_flat": True, "floor_mib": 9000}, 9000),  # it is known to need more
        ({"is_flat": True, "is_alone": True}, 20000),
        ({"is_flat": True, "is_elastic": True}, 20000),
        ({"is_flat": True, "guard": "hard"}, 20000),
        ({"source": "exact", "is_flat": True}, 20000),
        ({"source": "exact", "peak": 21000}, 21504),
        ({"source": "user", "is_flat": True}, 20000),
        ({"source": "user", "peak": 19990}, 20000),
        ({"source": "family", "is_flat": True}, 5248),
        ({"source": "family"}, 20000),
        ({"source": "line", "is_flat": True}, 5248),
        ({"source": "family", "reserved": 5280, "is_flat": True}, 5280),  # not for less than a step
        ({"source": "family", "reserved": 5000, "is_flat": True}, 5248),
    ],
)
def test_reservation_while_it_runs(fields, expected):
    assert due_of(**fields) == expected


SOURCES = st.sampled_from(["user", "exact", "line", "family", "other-gpu", "static", "probe", "sibling", "unknown"])


@given(SOURCES, st.integers(300, 40000), st.integers(0, 60000), st.booleans(), st.floats(1, 2))
def test_reservation_is_never_below_the_peak_and_stays_where_nothing_changes(source, reserved, peak, flat, growth):
    one = due_of(source, reserved, peak, is_flat=flat, growth=growth)
    assert one >= peak
    assert due_of(source, one, peak, is_flat=flat, growth=growth) == one


@given(SOURCES, st.integers(300, 40000), st.integers(0, 60000), st.floats(1, 2))
def test_nothing_shrinks_before_it_is_flat(source, reserved, peak, growth):
    assert due_of(source, reserved, peak, growth=growth) >= reserved


@pytest.mark.parametrize(
    ("peaks", "age", "now", "expected"),
    [
        ([], 100.0, 100.0, False),  # nothing was seen
        ([(5.0, 4000)], 59.0, 59.0, False),  # too young
        ([(5.0, 4000)], 64.0, 64.0, False),  # seen for less than a minute
        ([(5.0, 4000)], 65.0, 65.0, True),
        ([(5.0, 4000), (50.0, 4063)], 100.0, 100.0, True),  # less than 64 MiB
        ([(5.0, 4000), (50.0, 4064)], 100.0, 100.0, False),
        ([(5.0, 40000), (50.0, 40399)], 100.0, 100.0, True),  # less than 1 %
        ([(5.0, 40000), (50.0, 41000)], 100.0, 100.0, False),
        ([(5.0, 40000), (50.0, 41000)], 110.0, 110.0, True),  # the rise is a minute ago
    ],
)
def test_memory_is_flat_when_it_has_not_risen_for_a_minute(peaks, age, now, expected):
    assert is_flat(peaks, age, now, 60.0) is expected


def cap(size, reserve=8000, room=30000, **fields):
    return cap_at_start(size, reserve, room, **{"guard": "soft", "is_mps": True, "is_alone": False, **fields})


@pytest.mark.parametrize(
    ("size", "fields", "expected"),
    [
        (estimate(8000), {}, 10000),  # a quarter more
        (estimate(2000), {"reserve": 2000}, 3024),  # 1 GiB more, where that is more
        (estimate(8000), {"room": 9000}, 9000),  # what the GPU has
        (estimate(8000), {"room": 8000}, 8000),
        (estimate(8000), {"guard": "hard"}, 8000),
        (estimate(8000, "user"), {}, 8000),
        (estimate(None), {}, 30000),  # its share is a guess, so it may take what is free
        (None, {}, 30000),
        (None, {"guard": "hard"}, 8000),
        (estimate(8000, is_elastic=True), {}, 8000),
        (estimate(8000, processes=4), {}, 2500),  # MPS limits each process
        (estimate(8000, processes=100), {"guard": "hard"}, 300),
        (estimate(8000), {"is_mps": False}, None),
        (estimate(8000), {"is_alone": True}, None),
    ],
)
def test_cap(size, fields, expected):
    assert cap(size, **fields) == expected
