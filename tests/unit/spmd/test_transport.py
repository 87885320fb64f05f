"""The transport over sockets, between real processes."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from in_processes import RUN, Run, run_ranks

from slurm_share.spmd.errors import PeerEnded

MIB = 1 << 20
BOTH = pytest.mark.parametrize("per_node", [None, 1], ids=["one node", "two nodes"])
"""One node: Unix sockets and shared memory. Two: TCP on 127.0.0.1."""


@pytest.fixture(scope="module", params=[None, 1], ids=["one node", "two nodes"])
def two(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Results of several programs that run one after the other on two ranks."""
    programs = ["order", "tags", "forks", "threads", "thread_feeds_itself"]
    return run_ranks(2, "several", programs, per_node=request.param)


@pytest.fixture(scope="module", params=[None, 2], ids=["one node", "two nodes"])
def four(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Results of several programs that run one after the other on four ranks."""
    programs = ["any_source", *(["window"] if request.param is None else []), "leave_one_by_one"]
    return run_ranks(4, "several", programs, per_node=request.param)


@pytest.mark.parametrize(
    ("size", "count", "length", "per_node"),
    [
        pytest.param(4, 12, MIB, None, id="large"),
        pytest.param(3, 2000, 8, None, id="small", marks=pytest.mark.weekly),
        pytest.param(4, 6, MIB, 2, id="large over TCP", marks=pytest.mark.weekly),
        pytest.param(3, 500, 8, 1, id="small over TCP"),
        pytest.param(2, 3, 70 * MIB, None, id="in pieces", marks=pytest.mark.weekly),
    ],
)
def test_all_may_send_to_all_before_the_first_receive(size: int, count: int, length: int, per_node: int | None) -> None:
    assert run_ranks(size, "all_first", count, length, per_node=per_node) == [count * (size - 1)] * size


def test_messages_of_one_pair_stay_in_order_whatever_their_sizes(two: list[dict[str, Any]]) -> None:
    assert two[1]["order"] == [(number, True, True) for number in range(24)]


def test_tags_may_be_numbers_and_strings_in_any_order(two: list[dict[str, Any]]) -> None:
    last, waiting, missing, probed, values, rest = two[1]["tags"]
    assert (last, missing, probed) == ("last", None, "1")
    assert waiting == [(0, 1), (0, "1"), (0, -5), (0, ""), (0, "é" * 100)]
    assert (values, rest) == (["long", "string one", "one"], ["minus", "empty"])


def test_a_receive_from_any_source_keeps_the_order_of_each(four: list[dict[str, Any]]) -> None:
    assert four[0]["any_source"] is True


@pytest.mark.parametrize("four", [None], ids=["one node"], indirect=True)
def test_a_window_is_written_by_all_ranks_of_the_node_and_used_again(four: list[dict[str, Any]]) -> None:
    assert four[0]["window"] == [[0, 10 + turn, 20 + turn, 30 + turn] for turn in range(3)]


def test_the_same_message_many_times_needs_bounded_memory_and_files() -> None:
    for fds, shared in run_ranks(2, "many_times", 8 * MIB, 200):
        assert shared <= 512 * MIB
        assert fds < 40


def test_a_send_does_not_wait_for_a_receiver_that_computes(tmp_path: Path) -> None:
    sent = str(tmp_path / "sent")
    assert run_ranks(2, "receive_from_flag_on", 4 * MIB, 40, sent, sent) == [None, 160 * MIB]


def test_beyond_its_limit_a_send_waits_and_says_so(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said: list[str] = []
    begin, sent = tmp_path / "begin", tmp_path / "sent"
    limit = {"LLSUB_SEND_LIMIT": str(16 * MIB)}
    with Run(2, "receive_from_flag_on", 4 * MIB, 40, str(begin), str(sent), environ=limit) as run:
        while "rank 0 waits in send to rank 1" not in "".join(said):
            time.sleep(0.02)
            said.append(capfd.readouterr().err)
        assert not sent.exists()
        begin.touch()
        assert run.results() == [None, 160 * MIB]


@BOTH
def test_a_rank_that_ends_has_delivered_what_it_sent(per_node: int | None) -> None:
    _, found = run_ranks(2, "send_and_leave", 60, 300_000, per_node=per_node)
    assert found[0] == 60
    assert "rank 0 on n1 has ended and sends nothing more" in found[1]


def test_a_receive_from_any_source_ends_when_all_others_have(four: list[dict[str, Any]]) -> None:
    values, error = four[0]["leave_one_by_one"]
    assert values == [1, 2, 3]
    assert "has ended and sends nothing more" in error


def test_a_killed_rank_ends_a_collective_call_that_waits_for_another() -> None:
    with Run(3, "wait_for", 2, 1 << 32 | 1, 1) as run:
        run.wait_for_start()
        run.processes[1].kill()
        error, _when = run.results()[0]
    assert isinstance(error, PeerEnded)
    assert error.rank == 1


@pytest.mark.parametrize("size", [8, 3 * MIB])
@BOTH
def test_a_killed_rank_is_named_to_those_who_send_to_it(size: int, per_node: int | None) -> None:
    with Run(2, "send_until_error", size, per_node=per_node) as run:
        run.wait_for_start()
        time.sleep(0.5)
        run.processes[1].kill()
        error, _when = run.results()[0]
    assert isinstance(error, PeerEnded)
    assert (error.rank, error.signal) == (1, signal.SIGKILL)


def test_without_a_rendezvous_process_ranks_go_on_and_see_the_end_of_their_peer() -> None:
    with Run(2, "send_and_leave", 60, 300_000) as run:
        run.wait_for_start()
        run.stop_rendezvous()
        found = run.results()[1]
    assert found == (60, "rank 0 on n1 has ended and sends nothing more")


def test_a_stopped_rank_is_no_error(tmp_path: Path) -> None:
    begin = tmp_path / "begin"
    with Run(2, "receive_from_flag_on", MIB, 30, str(begin), str(tmp_path / "sent")) as run:
        run.wait_for_start()
        run.processes[1].send_signal(signal.SIGSTOP)
        begin.touch()
        time.sleep(2.5)
        run.processes[1].send_signal(signal.SIGCONT)
        assert run.results()[1] == 30 * MIB


def test_a_forked_child_is_refused_and_its_parent_goes_on(two: list[dict[str, Any]]) -> None:
    for found in two:
        said, *rest = found["forks"]
        assert "forked" in said
        assert rest == ["before", "after"]


def test_threads_may_send_and_receive_at_once(two: list[dict[str, Any]]) -> None:
    for found in two:
        assert found["threads"] == [(number, True) for number in range(8)]
        assert found["thread_feeds_itself"] == ["came"]


def test_ctrl_c_loses_no_message() -> None:
    right, interrupts = run_ranks(2, "interrupted", 3000)[0]
    assert right == 3000
    assert interrupts > 10


def test_a_rank_that_waits_costs_no_cpu_and_has_no_thread() -> None:
    cpu_s, threads = run_ranks(2, "idle", 1.0)[1]
    assert cpu_s < 0.1
    assert threads == 1


def test_nothing_is_left_in_shared_memory_or_temporary_folders(tmp_path: Path) -> None:
    run_ranks(3, "all_first", 3, MIB, environ={"TMPDIR": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
    assert list(Path("/dev/shm").glob("*slurm-share*")) == []
    assert RUN not in Path("/proc/net/unix").read_text()
