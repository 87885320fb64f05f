"""The assignment of tasks to processes."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.triples.records import Run, TaskKind
from slurm_share.triples.rules import deal


def run(tasks, processes, **settings):
    return Run(
        name="x", command=("/x",), cwd="/", triple=None, processes=processes, tasks=tasks, task_kind="input", **settings
    )


def shares(of):
    return [list(deal.tasks_of(of, rank)) for rank in range(of.processes)]


def test_a_block_each_and_the_first_ones_have_one_more():
    assert [len(tasks) for tasks in shares(run(16, 3))] == [6, 5, 5]
    assert shares(run(5, 3)) == [[0, 1], [2, 3], [4]]
    assert shares(run(2, 3)) == [[0], [1], []]


def test_cyclic():
    assert shares(run(5, 3, distribution="cyclic")) == [[0, 3], [1, 4], [2]]
    assert shares(run(1, 3, distribution="cyclic")) == [[0], [], []]


def test_so_many_each_and_the_last_has_the_rest():
    assert [len(tasks) for tasks in shares(run(16, 3, per_process=7))] == [7, 7, 2]
    assert [len(tasks) for tasks in shares(run(16, 3, per_process=4))] == [4, 4, 8]
    assert [len(tasks) for tasks in shares(run(3, 3, per_process=7))] == [3, 0, 0]


def test_a_queue_belongs_to_nobody():
    with pytest.raises(ValueError, match="no process"):
        deal.tasks_of(run(5, 3, distribution="dynamic"), 0)


@given(
    st.integers(0, 500),
    st.integers(1, 50),
    st.sampled_from(["block", "cyclic"]),
    st.none() | st.integers(1, 40),
)
def test_every_task_once(tasks, processes, distribution, per_process):
    of = run(tasks, processes, distribution=distribution, per_process=per_process)
    dealt = shares(of)
    assert sorted(chain.from_iterable(dealt)) == list(range(tasks))
    if per_process is None or distribution == "cyclic":
        sizes = [len(one) for one in dealt]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)


@given(st.integers(0, 20_000), st.integers(1, 300))
def test_chunks_cover_every_task_once_and_shrink(tasks, processes):
    table = deal.chunks(tasks, processes)
    assert list(chain.from_iterable(table)) == list(range(tasks))
    sizes = [len(chunk) for chunk in table]
    assert sizes == sorted(sizes, reverse=True)
    assert all(1 <= size <= 1000 for size in sizes)
    assert sizes[-1:] in ([], [1])


def test_a_hundred_thousand_tasks_are_few_chunks():
    table = deal.chunks(100_000, 24)
    assert len(table[0]) == 1000
    assert len(table) < 1000


@pytest.mark.parametrize(
    ("kind", "line", "argv"),
    [
        ("command", "a 'b c' | d", ("/bin/sh", "-c", "a 'b c' | d")),
        ("input", "x y", ("/t.sh", "-v", "x y")),
        ("arguments", '["x", "y z"]', ("/t.sh", "-v", "x", "y z")),
        ("rank", "", ("/t.sh", "-v")),
    ],
)
def test_a_line_becomes_a_program_with_arguments(kind: TaskKind, line: str, argv: tuple[str, ...]) -> None:
    of = Run(name="t", command=("/t.sh", "-v"), cwd="/", triple=None, processes=1, tasks=1, task_kind=kind)
    assert deal.task_argv(of, line) == argv
