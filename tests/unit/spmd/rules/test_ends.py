"""Which ends end the run, who waits for ever, and the sentences about it: values only."""

from __future__ import annotations

import pytest

from slurm_share.spmd import wire
from slurm_share.spmd.rules import ends
from slurm_share.spmd.rules.run_state import AGAIN_S, BYE_S, RunState

COLLECTIVE = 1 << 32


def waiting(source=None, tag=None, *, call="recv", context=0, sent=0, taken=0) -> wire.RankWaiting:
    return wire.RankWaiting(call, context, source, tag, 2.0, sent, taken)


def state(size: int = 2, **options) -> RunState:
    """Return a run of one node whose ranks have all said hello and were welcome."""
    run = RunState("1.0", (("n1", size),), 300.0, **options)
    run.joined(0, "")
    for rank in range(size):
        run.hear(rank, wire.Hello(rank, 1, 0), 0.0)
    assert [type(message) for message in run.take()] == [wire.Welcome]
    return run


def answer(run: RunState, now: float, nodes=(0,)) -> None:
    """Let all nodes answer the question that was asked last."""
    asked = [message for message in run.take() if isinstance(message, wire.DrainQuestion)]
    assert len(asked) == 1
    for node in nodes:
        run.answered(node, asked[0].number, now)


@pytest.mark.parametrize(
    ("code", "signal", "cause", "text"),
    [
        (0, None, "", "has ended and sends nothing more"),
        (3, None, "", "ended with code 3"),
        (None, 11, "", "was killed by SIGSEGV"),
        (None, 9, "out of host memory", "was killed (out of host memory)"),
        (None, 40, "", "was killed by signal 40"),
        (1, None, "time limit", "ended with code 1 (time limit)"),
    ],
)
def test_the_reason_of_an_end(code, signal, cause, text):
    assert ends.reason(code, signal, cause) == text


@pytest.mark.parametrize(
    ("wait", "text"),
    [
        (waiting(3, "x"), "in recv for (3, 'x')"),
        (waiting(3, 7, call="probe"), "in probe for (3, 7)"),
        (waiting(), "in recv for (any rank, any tag)"),
        (waiting(2, "bcast(root=2)", context=COLLECTIVE | 5), "in bcast(root=2) (collective call 5) for rank 2"),
        (waiting(None, "barrier()", context=COLLECTIVE | 6), "in barrier() (collective call 6)"),
        (waiting(1, "y" * 500), ("in recv for (1, '" + "y" * 500)[:117] + "..."),
    ],
)
def test_what_a_wait_reads_like(wait, text):
    assert ends.wait_text(wait) == text


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([waiting(sent=2, taken=1), waiting(taken=1)], True),
        ([waiting(sent=2, taken=1), waiting()], False),
        ([waiting(), wire.RankWorking()], False),
        ([waiting(taken=2), wire.Bye(0, 2, 0)], True),
        ([waiting(), wire.RankEnded(1, "n1", 0, None, ends.NOTHING_MORE)], False),
        ([wire.Bye(0), wire.Bye(0)], False),
    ],
)
def test_nobody_can_go_on_where_all_wait_and_the_messages_add_up(said, expected):
    run = state()
    for rank, message in enumerate(said):
        run.hear(rank, message, 0.0)
    run.tick(0.0)
    assert any(isinstance(message, wire.DrainQuestion) for message in run.take()) is expected


def test_other_arguments_of_one_collective_call_are_a_mismatch_and_other_numbers_are_not():
    same = {
        0: waiting(1, "bcast(root=1)", context=COLLECTIVE | 5),
        1: waiting(0, "bcast(root=0)", context=COLLECTIVE | 5),
    }
    assert ends.judge(same) == wire.CallMismatch(5, (0, "bcast(root=1)"), (1, "bcast(root=0)"))
    other = {0: waiting(1, "barrier()", context=COLLECTIVE | 5), 1: waiting(0, "barrier()", context=COLLECTIVE | 6)}
    assert isinstance(ends.judge(other), wire.RanksStuck)
    users = {0: waiting(1, "a"), 1: waiting(0, "b")}
    assert isinstance(ends.judge(users), wire.RanksStuck)


def test_a_table_of_1024_waits_fits_into_a_line():
    told = ends.judge({rank: waiting(rank, "é" * 400) for rank in range(1024)})
    assert len(wire.encode(told)) <= wire.CONTROL_BYTES
    assert wire.decode(wire.encode(told)) == told


@pytest.mark.parametrize(
    ("message", "others", "code", "why"),
    [
        (
            wire.RankEnded(5, "n2", None, 9, "was killed (out of host memory)"),
            95,
            1,
            "rank 5 on n2 was killed (out of host memory); the other 95 were ended",
        ),
        (
            wire.RankEnded(0, "n1", 3, None, "ended with code 3"),
            1,
            1,
            "rank 0 on n1 ended with code 3; the other one was ended",
        ),
        (wire.RankEnded(0, "n1", 3, None, "ended with code 3"), 0, 1, "rank 0 on n1 ended with code 3"),
        (wire.RunAborted(2, 7, ""), 3, 7, "rank 2 called abort(7); the other 3 were ended"),
        (
            wire.NodeLoss("n2", (4, 5)),
            4,
            1,
            "node n2 with ranks 4 to 5 does not answer any more; the other 4 were ended",
        ),
    ],
)
def test_the_sentence_about_the_end_of_a_run(message, others, code, why):
    assert (ends.ending(message, others).code, ends.ending(message, others).why) == (code, why)


def test_1024_ranks_are_welcome_in_one_line():
    nodes = tuple((f"{'long-name-of-a-node' * 4}-{number}", 1) for number in range(1024))
    run = RunState("1.0", nodes, 300.0)
    for number in range(1024):
        run.joined(number, "2001:db8:1234:5678:9abc:def0:1234:5678")
        run.hear(number, wire.Hello(number, 1, 65535), 0.0)
    (welcome,) = run.take()
    assert isinstance(welcome, wire.Welcome)
    assert welcome.nodes[1023].first == 1023
    assert wire.decode(wire.encode(welcome)) == welcome


def test_two_equal_counts_one_second_apart_tell_the_deadlock():
    run = state()
    run.hear(0, waiting(1, 1, sent=1), 10.0)
    run.hear(1, waiting(0, 1, taken=1), 10.0)
    run.tick(10.0)
    answer(run, 10.1)
    run.tick(10.1 + AGAIN_S - 0.01)
    assert run.take() == []
    assert run.due_at() == 10.1 + AGAIN_S
    run.tick(10.1 + AGAIN_S)
    answer(run, 11.2)
    run.tick(11.2)
    assert [type(message) for message in run.take()] == [wire.RanksStuck, wire.RunEnding]
    assert run.is_ending
    assert run.due_at() is None


def test_a_node_that_does_not_answer_holds_the_count_up():
    run = RunState("1.0", (("n1", 1), ("n2", 1)), 300.0)
    for node in (0, 1):
        run.joined(node, "")
        run.hear(node, wire.Hello(node, 1, 0), 0.0)
    for rank in (0, 1):
        run.hear(rank, waiting(), 0.0)
    run.tick(0.0)
    answer(run, 0.0, nodes=(0,))
    for now in range(1, 100):
        run.tick(float(now))
    assert run.take() == []
    run.left(1)
    assert not run.is_ending


@pytest.mark.parametrize("change", [wire.RankWorking(), waiting(0, 1, sent=1), wire.Bye(0, 0, 0)])
def test_whatever_changes_between_the_counts_begins_them_anew(change):
    run = state(3)
    for rank in range(3):
        run.hear(rank, waiting(), 0.0)
    run.tick(0.0)
    answer(run, 0.0)
    run.tick(1.0)
    (asked,) = run.take()
    assert isinstance(asked, wire.DrainQuestion)
    run.hear(2, change, 1.1)
    run.answered(0, asked.number, 1.2)
    run.tick(1.2)
    assert not any(isinstance(message, wire.RanksStuck) for message in run.take())


def test_a_goodbye_is_told_after_a_while_and_not_twice():
    run = state()
    run.hear(0, wire.Bye(0), 1.0)
    run.tick(1.0 + BYE_S / 2)
    assert run.take() == []
    run.tick(1.0 + BYE_S)
    assert run.take() == [wire.RankEnded(0, "n1", 0, None, ends.FINISHED)]
    run.hear(0, wire.RankEnded(0, "n1", 0, None, ends.NOTHING_MORE), 9.0)
    assert run.take() == []


def test_a_lost_node_whose_ranks_have_ended_is_no_reason():
    run = RunState("1.0", (("n1", 1), ("n2", 1)), 300.0)
    for node in (0, 1):
        run.joined(node, "")
        run.hear(node, wire.Hello(node, 1, 0), 0.0)
    run.take()
    run.hear(1, wire.RankEnded(1, "n2", 0, None, ends.NOTHING_MORE), 0.0)
    run.lost(1)
    assert [type(message) for message in run.take()] == [wire.RankEnded]


@pytest.mark.parametrize(
    ("code", "why"), [(0, "collective call 3"), (3, "rank 0 on n1 ended with code 3; the other one was ended")]
)
def test_a_rank_that_ends_after_another_call_than_its_peer_ends_the_run(code: int, why: str) -> None:
    run = state()
    told = wire.CallMismatch(3, (0, "no such call any more"), (1, "bcast(root=1)"))
    run.hear(0, told, 1.0)
    run.hear(0, wire.Bye(0, 1, 1), 1.0)
    assert run.take() == []
    run.hear(0, wire.RankEnded(0, "n1", code, None, ends.reason(code, None)), 1.1)
    found = run.take()
    assert (told in found) is (code == 0)
    (ending,) = [one for one in found if isinstance(one, wire.RunEnding)]
    assert ending.code == 1
    assert why in ending.why
