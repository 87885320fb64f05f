import pytest
from packing_values import facts, gpu, running

from slurm_share.packing.rules import room


def test_room_is_the_size_less_reserve_others_and_bookings():
    assert room.usable(gpu(0, 40960, reserve=960, others_mib=1000, booked_elsewhere_mib=4000)) == 35000
    assert room.usable(gpu(0, 1000, reserve=900, others_mib=5000)) == 0
    runs = [running(1, 0, 4000, memory=30000), running(2, 0, 12000)]
    assert room.room(gpu(0, 40960, reserve=960), runs) == -2000  # tasks have outgrown their reservations
    assert room.capacity(facts(0, None)) == room.UNKNOWN_MIB


@pytest.mark.parametrize(
    ("used", "memories", "expected"),
    [
        (None, [5000], 0),
        (9000, [5000], 4000),
        (4000, [5000], 0),
        (9000, [None], 0),  # up to its 10,000 reserved it may be the new task's
        (12000, [None], 2000),
        (16000, [None, 5000], 1000),
    ],
)
def test_memory_of_others_is_what_no_task_has_or_has_just_reserved(used, memories, expected):
    runs = [running(number, 0, 10000, memory=memory) for number, memory in enumerate(memories)]
    assert room.others(used, runs) == expected
