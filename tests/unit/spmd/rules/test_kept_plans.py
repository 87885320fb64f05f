"""The plans that were made last are kept, up to a number and a size."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from slurm_share.spmd.rules import plans
from slurm_share.spmd.rules.maps import Map
from slurm_share.spmd.rules.plans import Part


def test_plan_is_made_once_for_equal_questions() -> None:
    first = plans.redistribution([24, 24], Map([4, 1]), Map([1, 4], "c"), 2)
    assert plans.redistribution((24, 24), Map([4, 1], {}), Map([1, 4], ("bc", 1)), 2) is first
    assert plans.redistribution((24, 24), Map([4, 1]), Map([1, 4], "c"), 3) is not first
    assert plans.redistribution((24, 25), Map([4, 1]), Map([1, 4], "c"), 2) is not first


def test_kept_plans_are_bounded_in_number_and_the_least_used_goes() -> None:
    kept, made = plans.Plans(max_plans=2, max_bytes=10**6), []

    def make(number: int) -> tuple[int, ...]:
        made.append(number)
        return (number,)

    for number in (1, 2, 1, 3, 1, 2):
        assert kept.get(("plan", number), make) == (number,)
        assert len(kept) <= 2
    assert made == [1, 2, 3, 2]


def test_kept_plans_are_bounded_in_bytes() -> None:
    kept = plans.Plans(max_plans=100, max_bytes=2500)

    def make(length: int) -> tuple[Part, ...]:
        vector = np.arange(length)
        return (Part(0, (length,), (vector,)), Part(1, (length,), (vector,)))

    assert plans.memory(make(100)) == 2 * 200 + 800
    for number in range(5):
        kept.get(("plan", 100 + number), make)
    assert len(kept) == 2
    kept.get(("plan", 1000), make)
    assert len(kept) == 2
    assert kept.get(("plan", 104), lambda length: pytest.fail("made again"))


def test_threads_can_ask_for_plans_at_once() -> None:
    kept, wrong = plans.Plans(max_plans=3, max_bytes=10**6), []

    def work() -> None:
        for number in range(3000):
            if kept.get(("plan", number % 7), lambda asked: (asked,)) != (number % 7,):
                wrong.append(number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(kept) == 3
