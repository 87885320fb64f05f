"""Tasks that wait for named tasks: what is refused, what starts when, and what a failure ends."""

from __future__ import annotations

import pytest

from slurm_share.core.errors import UsageError
from slurm_share.packing import TaskSpec
from slurm_share.triples.rules import task_files
from slurm_share.triples.rules.needs import Needs, check


def spec(name: str = "", *after: str, priority: int = 0) -> TaskSpec:
    return TaskSpec(name=name, after=after, priority=priority)


def needs_of(*specs: TaskSpec, done: frozenset[int] = frozenset()) -> Needs:
    found = Needs(done)
    found.add(specs)
    return found


def ready(needs: Needs) -> list[int]:
    found = []
    while (task := needs.first()) is not None:
        found.append(task)
        needs.drop_first()
    return found


@pytest.mark.parametrize(
    ("specs", "why"),
    [
        ((spec("prep"), spec("", "perp")), 'line 12 waits for perp, but no line has that "name"; did you mean prep?'),
        ((spec("a", "a"),), "line 11 waits for itself"),
        ((spec("a", "b"), spec("b", "c"), spec("c", "a")), "the lines 11, 12, 13 wait for each other in a circle"),
        ((spec("a"), spec("b", "c"), spec("c", "b")), "the lines 12, 13 wait for each other in a circle"),
    ],
)
def test_unknown_names_and_circles_are_refused_with_their_lines(specs: tuple[TaskSpec, ...], why: str) -> None:
    with pytest.raises(UsageError, match=r"f\.jsonl") as caught:
        check(specs, range(11, 20), "f.jsonl")
    assert why in str(caught.value)


def test_names_of_earlier_tasks_are_known_and_make_no_circle() -> None:
    check((spec("a", "old"), spec("", "a")), (1, 2), "f", known=("old",))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"run": "a", "after": 3}', 'has "after": 3, but it must be a name, or a list such as ["prep"]'),
        ('{"run": "a", "after": [""]}', '"after" has an empty name'),
        ('{"run": "a", "after": "x"}', "line 1 waits for x"),
        ('{"run": "a", "aftr": "x"}', "did you mean after?"),
    ],
)
def test_a_wrong_after_is_a_sentence_with_its_line(line: str, why: str) -> None:
    with pytest.raises(UsageError, match="f: line 1") as caught:
        task_files.parse(line.encode(), "f", TaskSpec(), is_json=True, is_packed=False)
    assert why in str(caught.value)


def test_a_task_starts_when_all_tasks_of_all_its_names_are_done() -> None:
    needs = needs_of(spec("", "p", "q"), spec("p"), spec("p"), spec("q"), spec("", "q", priority=5))
    assert [task in needs for task in range(5)] == [True, False, False, False, True]
    needs.ended(1, "done")
    needs.ended(3, "done")
    assert ready(needs) == [4]
    needs.ended(2, "done")
    needs.ended(2, "done")
    assert ready(needs) == [0]
    assert not needs.is_waiting


def test_what_starts_first_has_the_larger_priority() -> None:
    needs = needs_of(spec("p"), spec("", "p"), spec("", "p", priority=2), spec("", "p"))
    needs.ended(0, "done")
    assert ready(needs) == [2, 1, 3]


def test_what_was_done_in_an_earlier_job_is_done() -> None:
    needs = needs_of(spec("p"), spec("q", "p"), spec("", "q"), done=frozenset({0, 1}))
    assert ready(needs) == [2]


def test_a_failure_gives_up_what_needs_it_each_once() -> None:
    needs = needs_of(spec("p"), spec("p"), spec("q", "p"), spec("", "q", "p"), spec("", "other"), spec("other"))
    needs.ended(0, "failed", "which failed (exit code 3)")
    needs.ended(1, "failed", "which failed (exit code 4)")
    found = {one.task: one.why for one in needs.take_given_up()}
    assert set(found) == {2, 3}
    assert found[2] == "it needs task 0 (p), which failed (exit code 3)"
    assert needs.take_given_up() == []
    needs.ended(5, "done")
    assert ready(needs) == [4]
    assert not needs.is_waiting


def test_what_is_left_for_another_job_leaves_what_needs_it() -> None:
    needs = needs_of(spec("p"), spec("q", "p"), spec("", "q"))
    needs.ended(0, "left", "which was saved")
    assert needs.take_given_up() == []
    assert (needs.left, needs.is_waiting) == (2, False)


def test_added_tasks_wait_for_the_tasks_that_have_the_name_then() -> None:
    needs = needs_of(spec("p"), spec("", "p"))
    needs.add([spec("p"), spec("", "p")])
    needs.ended(0, "done")
    assert ready(needs) == [1], "it did not ask for the added one"
    needs.ended(2, "done")
    assert ready(needs) == [3]


def test_a_task_added_after_the_failure_of_what_it_needs_is_given_up() -> None:
    needs = needs_of(spec("p"), spec("", "p"))
    needs.ended(0, "failed", "which failed")
    needs.take_given_up()
    needs.add([spec("", "p")])
    assert [one.task for one in needs.take_given_up()] == [2]


def test_many_that_wait_for_many_cost_as_much_as_both() -> None:
    needs = needs_of(*[spec("p")] * 5_000, *[spec("", "p")] * 5_000)
    for task in range(5_000):
        needs.ended(task, "done")
    assert len(ready(needs)) == 5_000
