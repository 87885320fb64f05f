import pytest
from packing_values import gpu, running, view, waiting

from slurm_share.packing.rules import explain
from slurm_share.packing.rules.place import decide


def said(task, state):
    return explain.of_task(task, state, decide(state))


def test_a_start_is_said_with_its_neighbours_and_what_it_books():
    state = view([gpu(0)], [waiting(31, 6861)], [running(7, 0, 20000), running(12, 0, 8672)])
    (start,) = decide(state).actions
    assert start.why == "GPU 0 beside 7, 12: 6.7 of 11.2 GiB free booked"


NO_ROOM = "not on GPU 0: not enough room (9.9 GiB to be booked, {} GiB wanted)"
SAME_NEED = view([gpu(0)], [waiting(3, 20480), waiting(4, 20480)], [running(1, 0, 30000)])
IN_ORDER = view([gpu(0)], [waiting(3, 30000), waiting(4, 1000)], [running(1, 0, 30000)], backfills=False)


@pytest.mark.parametrize(
    ("task", "state", "expected"),
    [
        (
            3,
            view([gpu(0), gpu(1, problem="x")], [waiting(3, 20480)], [running(1, 0, 30000)]),
            (NO_ROOM.format("20.0"), "not on GPU 1: the GPU has a problem"),
        ),
        (4, SAME_NEED, ("does not start: as task 3, which needs the same", NO_ROOM.format("20.0"))),
        (
            4,
            view([gpu(0)], [waiting(3, 1000), waiting(4, 1000)], workers=0),
            ("does not start: no cores are free for a further task (task 3 is before it)",),
        ),
        (
            4,
            view([gpu(0)], [waiting(3, 20480), waiting(4, 1000, word=1024)]),
            (
                "starts on GPU 0 beside 3: 1.0 of 19.2 GiB free booked; 1.0 GiB reserved, "
                "a cap of 1.0 GiB for each process",
            ),
        ),
        (99, view([gpu(0)], [waiting(3, 1000)]), ()),
        (4, IN_ORDER, ("does not start: an earlier task goes first",)),
        (3, IN_ORDER, (NO_ROOM.format("29.3"),)),
    ],
)
def test_explanation_of_a_decision(task, state, expected):
    assert said(task, state) == expected


def test_task_far_behind_that_fits_nowhere_gets_one_reason_for_all_gpus():
    waits = [waiting(number, 20000 + number) for number in range(1, 30)]
    cards = [gpu(index) for index in range(16)]
    state = view(cards, waits, [running(50 + index, index, 30000) for index in range(16)])
    assert said(29, state) == ("does not start: no GPU has enough room (9.9 GiB to be booked, 19.6 GiB wanted)",)
    assert len(said(3, state)) == 16
    assert len(decide(state).refused) == 16 * 8 + 21
