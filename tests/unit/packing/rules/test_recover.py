import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.packing.records import PackSettings, Tries
from slurm_share.packing.rules.recover import FREE_TRIES, AttemptEnd, AttemptMemory, floor, recover

LARGEST = 40000


def had(reserved=6000, **fields):
    values = {"cap_mib": reserved, "peak_mib": reserved, "room_mib": reserved, "is_alone": False, "by_user": False}
    return AttemptMemory(reserved_mib=reserved, **{**values, **fields})


NEW = Tries()


def next_of(kind, what=None, tries=NEW, floor_mib=0, largest=LARGEST, **settings):
    return recover(AttemptEnd(kind, "it broke", what or had(), tries, floor_mib, PackSettings(**settings), largest))


@pytest.mark.parametrize(
    ("what", "before", "expected"),
    [
        (had(6000), 0, 12600),  # 2.1 times the reservation, as its log says nothing
        (had(6000, wanted_mib=7000), 0, 9000),  # 1.5 times the reservation
        (had(6000, wanted_mib=7000, by_user=True), 0, 12600),  # a user's number is mostly too small by half
        (had(1000, peak_mib=4000), 0, 5024),  # the peak and 1 GiB
        (had(6000, wanted_mib=12000), 0, 12000),  # what the log says
        (had(1000, peak_mib=None), 20000, 25000),  # a quarter more than before
        (had(0, peak_mib=None), 0, 1),
    ],
)
def test_floor_is_the_largest_of_what_is_known(what, before, expected):
    assert floor(what, before) == expected


@given(
    st.integers(0, 200000),
    st.integers(0, 200000),
    st.none() | st.integers(0, 200000),
    st.none() | st.integers(0, 200000),
)
def test_floor_always_rises(reserved, before, peak, wanted):
    assert floor(had(reserved, peak_mib=peak, wanted_mib=wanted), before) > before


def test_first_failure_goes_to_a_roomier_gpu():
    coming = next_of("gpu memory")
    assert (coming.is_retried, coming.wants_alone, coming.floor_mib, coming.had_room_mib) == (True, False, 12600, 6000)
    assert coming.why == "out of GPU memory (needed > 5.9 GiB, had 5.9 reserved); again on a GPU with 12.3 GiB"


def test_failure_alone_on_a_small_gpu_is_tried_once_on_a_larger_one():
    what = had(20000, is_alone=True, cap_mib=None, room_mib=20000)
    first = next_of("gpu memory", what, Tries(own_memory=1))
    assert (first.is_retried, first.wants_alone, first.tries.was_alone) == (True, True, True)
    second = next_of("gpu memory", what, first.tries)
    assert not second.is_retried


def test_a_gpu_that_gives_a_few_mib_more_is_not_a_larger_one():
    what = had(79700, is_alone=True, cap_mib=None, room_mib=79700)
    assert not next_of("gpu memory", what, Tries(own_memory=1), largest=79737).is_retried
    assert next_of("gpu memory", what, Tries(own_memory=1), largest=96000).is_retried


@pytest.mark.parametrize(
    ("fields", "settings", "expected"),
    [
        ({"what": had(33000), "largest": 40000}, {}, {"wants_alone": True}),  # there is no roomier GPU
        # Only a factor makes it larger than a GPU, so it books nearly all of one, and gives back what it does not use.
        ({"what": had(30000), "largest": 40000}, {}, {"wants_alone": False, "floor_mib": 38000}),
        ({"what": had(30000, wanted_mib=39000), "largest": 40000}, {}, {"wants_alone": True, "floor_mib": 45000}),
        ({"tries": Tries(own_memory=1), "floor_mib": 9000}, {}, {"wants_alone": True}),
        ({}, {"recovery": "exclusive"}, {"wants_alone": True}),
        ({}, {"policy": "magm"}, {"wants_alone": True}),
        ({}, {"oom_retries": 0}, {"is_retried": False}),
        ({"kind": "done"}, {"retries": 9}, {"is_retried": False}),
        ({"kind": "unfinished"}, {"retries": 9}, {"is_retried": False}),
        ({"kind": "saved"}, {"retries": 9}, {"is_retried": False}),
    ],
)
def test_what_follows(fields, settings, expected):
    coming = next_of(**{"kind": "gpu memory", **fields}, **settings)
    assert {name: getattr(coming, name) for name in expected} == expected


def test_suspicion_counts_once_and_is_then_an_ordinary_failure():
    first = next_of("gpu memory suspected")
    assert (first.is_retried, first.tries.suspected, first.tries.own_memory) == (True, 1, 1)
    second = next_of("gpu memory suspected", tries=first.tries)
    assert (second.is_retried, second.tries.failed, second.tries.own_memory) == (False, 1, 1)


@pytest.mark.parametrize("kind", ["failed", "signal", "host memory", "not started"])
def test_ordinary_failures_are_retried_as_often_as_asked(kind):
    assert not next_of(kind).is_retried
    assert next_of(kind, retries=1).is_retried
    assert not next_of(kind, tries=Tries(failed=1), retries=1).is_retried


@pytest.mark.parametrize(
    ("kind", "field"),
    [("neighbour's memory", "neighbour_memory"), ("neighbour's fault", "neighbour_fault"), ("device", "device")],
)
def test_what_is_not_its_own_is_free_a_few_times(kind, field):
    tries = Tries()
    for _ in range(FREE_TRIES):
        coming = next_of(kind, tries=tries, retries=0, oom_retries=0)
        assert coming.is_retried
        tries = coming.tries
    assert getattr(tries, field) == FREE_TRIES
    assert (tries.failed, tries.own_memory) == (0, 0)
    assert not next_of(kind, tries=tries, retries=0, oom_retries=0).is_retried


KINDS = st.sampled_from(
    ["gpu memory", "gpu memory likely", "gpu memory suspected", "neighbour's memory", "neighbour's fault", "device",
     "failed", "signal", "host memory"]
)  # fmt: skip


@given(st.lists(KINDS, min_size=60, max_size=60), st.integers(0, 4), st.integers(0, 4), st.integers(1, 80000))
def test_every_task_ends_after_a_bounded_number_of_attempts(kinds, retries, oom_retries, room):
    settings = PackSettings(retries=retries, oom_retries=oom_retries)
    tries, needs, alone, attempts = Tries(), 0, False, 0
    for kind in kinds:
        attempts += 1
        what = had(room, is_alone=alone, room_mib=room)
        coming = recover(AttemptEnd(kind, "", what, tries, needs, settings, 80000))
        if not coming.is_retried:
            break
        if coming.tries.own_memory > tries.own_memory:
            assert coming.floor_mib > needs
        tries, needs, alone = coming.tries, coming.floor_mib, coming.wants_alone or alone
    else:
        pytest.fail("it never ends")
    # One more of its own: alone on a larger GPU.
    assert attempts <= 1 + retries + (oom_retries + 1) + 3 * FREE_TRIES
