"""The rendezvous process: joining, refused connections, reports of ends. Real processes with scripted ranks."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rendezvous_ends import PATIENCE_S, Node, Speaker, wait_for

from slurm_share.spmd import key_folder, lines, wire
from slurm_share.spmd.handshake import NODES, HandshakeClient, HandshakeRefused
from slurm_share.spmd.lines import AwakeClock, ConnectionSet
from slurm_share.spmd.names import HALF_OPEN, HANDSHAKE_S, RANK_LINE_BYTES, VERSION
from slurm_share.spmd.node_links import Center
from slurm_share.spmd.rendezvous import Rendezvous
from slurm_share.spmd.rules import ends
from slurm_share.spmd.transport import NodePlace

QUICK = {"heartbeat_s": 0.2, "lost_s": 1000.0}
"""Heartbeats are quick, and no node is lost because the machine is busy."""


@pytest.fixture
def nodes():
    """Return a function that starts rendezvous processes, which end after the test."""
    made: list[Node] = []

    def start(setup: wire.Setup, *, is_awaited: bool = True) -> Node:
        node = Node(setup)
        made.append(node)
        if is_awaited:
            node.start()
        return node

    yield start
    for node in made:
        node.close()


class InTurns:
    """Rendezvous processes of a run as objects in this process, on a clock that only the test moves."""

    def __init__(self, setups: list[wire.Setup]) -> None:
        self.now = 100.0
        self._setups = setups
        self._said: list[list[wire.Record]] = [[] for _setup in setups]
        self._speakers: list[Speaker] = []

    def start(self) -> None:
        self._nodes = [Rendezvous(setup, said.append) for setup, said in zip(self._setups, self._said, strict=True)]

    def turn(self, *nodes: int) -> None:
        """Let these nodes, or all, do what they have to do."""
        for number in nodes or range(len(self._nodes)):
            for _step in range(5):  # accept, authenticate, read, answer
                self._nodes[number].step(0.0)

    def pass_s(self, seconds: float, *nodes: int) -> None:
        """Let time pass for these nodes, or all; the others are stopped."""
        beat_s = self._setups[0].heartbeat_s
        for _beat in range(round(seconds / beat_s)):
            self.now += beat_s
            self.turn(*nodes)

    def rank(self, rank: int) -> Speaker:
        """Return a rank that its node has heard."""
        nodes = [
            node for node, (_name, count) in zip(self._nodes, self._setups[0].nodes, strict=True) for _ in range(count)
        ]
        self._speakers.append(Speaker(nodes[rank].ready.name, rank))
        self.turn()
        return self._speakers[-1]

    def meet(self, size: int) -> list[Speaker]:
        """Return all ranks after Welcome."""
        ranks = [self.rank(number) for number in range(size)]
        for rank in ranks:
            wait_for(lambda rank=rank: self.turn() or not rank.hears_nothing(0), "no Welcome")
            rank.expect(wire.Welcome)
        return ranks

    def endings(self, node: int) -> list[str]:
        """Return why a node has said that the run must end."""
        return [message.why for message in self._said[node] if isinstance(message, wire.RunEnding)]

    def close(self) -> None:
        for one in [*self._speakers, *self._nodes]:
            one.close()


@pytest.fixture
def in_turns(monkeypatch):
    """Return a function that makes the nodes of a run in this process, for tests of limits of time."""
    made: list[InTurns] = []

    def start(setups: list[wire.Setup]) -> InTurns:
        made.append(InTurns(setups))
        monkeypatch.setattr(lines, "time", SimpleNamespace(monotonic=lambda: made[-1].now))
        made[-1].start()
        return made[-1]

    yield start
    for run in made:
        run.close()


def one_node(size: int, **changes) -> wire.Setup:
    return wire.Setup("4711.0", 0, (("n1", size),), **changes)


def both_nodes(folder: Path, sizes=(2, 2), **changes) -> list[wire.Setup]:
    """Return the setups of two nodes on this machine, with different addresses."""
    if not folder.exists():
        key_folder.make_folder(str(folder))
    names = tuple((f"n{number + 1}", size) for number, size in enumerate(sizes))
    what = {"folder": str(folder), **QUICK, **changes}
    return [wire.Setup("4711.0", node, names, interface=f"127.0.0.{node + 1}", **what) for node in range(len(sizes))]


def waits(call: str, source: int | None, tag, *, context: int = 0, sent: int = 0, taken: int = 0) -> wire.RankWaiting:
    return wire.RankWaiting(call, context, source, tag, 2.0, sent, taken)


def meet(node: Node, size: int) -> list[Speaker]:
    ranks = [node.rank(number) for number in range(size)]
    for rank in ranks:
        rank.expect(wire.Welcome)
    return ranks


def met(nodes, size: int, **changes) -> tuple[Node, list[Speaker]]:
    """Return a node, and its ranks after Welcome."""
    node = nodes(one_node(size, **changes))
    return node, meet(node, size)


def meet_on_two(nodes, folder: Path, **changes) -> tuple[list[Node], list[Speaker]]:
    """Return two nodes, and their four ranks after Welcome."""
    pair = [nodes(setup) for setup in both_nodes(folder, **changes)]
    ranks = [pair[rank >= 2].rank(rank) for rank in range(4)]
    for rank in ranks:
        rank.expect(wire.Welcome)
    return pair, ranks


# Meeting


def test_ranks_are_welcome_once_all_have_said_hello(nodes):
    node = nodes(one_node(3))
    early = [node.rank(2), node.rank(0)]
    assert early[0].hears_nothing(0.3)
    late = node.rank(1)
    welcome = late.expect(wire.Welcome)
    assert welcome.size == 3
    assert welcome.nodes == (NodePlace("n1", 0, 3, ""),)
    assert welcome.sockets == f"{node.ready.name}/r"
    assert (welcome.key, welcome.run) == ("", "4711.0")
    assert [rank.expect(wire.Welcome) for rank in early] == [welcome, welcome]


def test_256_ranks_that_come_at_once_all_meet(nodes):
    node = nodes(one_node(256))
    ranks = [node.rank(number, is_silent=True) for number in range(256)]
    for rank in ranks:
        rank.say(wire.Hello(rank.rank, 1, 0))
    for rank in ranks:
        rank.expect(wire.Welcome)
        rank.say(wire.Bye(0))
        node.end(rank.rank)
    assert node.wait() == 0


def test_thousand_half_open_connections_do_not_stop_a_run(nodes):
    node = nodes(one_node(2))
    first = node.rank(0)
    silent = [Speaker(node.ready.name, 9, is_silent=True) for _ in range(1000)]
    node.rank(1).expect(wire.Welcome)
    first.expect(wire.Welcome)
    open_files = len(os.listdir(f"/proc/{node.process.pid}/fd"))  # noqa: PTH208
    assert open_files < HALF_OPEN + 30
    for speaker in silent:
        speaker.close()


def test_the_process_ends_by_itself_when_all_ranks_have_ended(nodes):
    node, ranks = met(nodes, 2)
    ranks[0].say(wire.Bye(0))
    node.end(0)
    assert ranks[1].expect(wire.RankEnded) == wire.RankEnded(0, "n1", 0, None, ends.NOTHING_MORE)
    assert node.process.poll() is None
    node.end(1)
    assert node.wait() == 0
    assert not any(isinstance(message, wire.RunEnding) for message in node.messages(0.1))


def test_the_process_ends_with_its_parent(nodes):
    node = nodes(one_node(2))
    node.rank(0)
    node.process.stdin.close()
    assert node.wait() == 0


def test_signals_of_a_step_do_not_end_it(nodes):
    node = nodes(one_node(1))
    node.process.send_signal(signal.SIGTERM)
    node.process.send_signal(signal.SIGINT)
    node.rank(0).expect(wire.Welcome)


def test_the_process_needs_no_numpy():
    code = "import sys; sys.modules['numpy'] = None; import slurm_share.spmd.rendezvous, slurm_share.spmd.key_folder"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


# Who is refused


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (wire.Hello(2, 1, 0), "no rank 2 on this node; it has ranks 0 to 1"),
        (wire.Hello(-1, 1, 0), "no rank -1"),
        (wire.Hello(0, 1, 0), r"process \d+ is rank 0"),
        (wire.Hello(1, 1, 0, VERSION + 1), f"version {VERSION + 1}.*has {VERSION}"),
        (wire.Hello(1, 1, 0, 1), f"version 1 .*has {VERSION}: reinstall"),
        (wire.Bye(0), "sends Hello first"),
        (wire.Welcome(1, (), (), "", "", ""), "sends Hello first"),
    ],
)
def test_who_does_not_fit_is_told_why_and_the_run_goes_on(nodes, message, why):
    node = nodes(one_node(2))
    first = node.rank(0)
    wrong = node.rank(9, is_silent=True)
    wrong.say(message)
    text = wrong.expect(wire.RankRefused).why
    assert re.search(why, text), text
    assert wrong.hear() is None
    assert text in node.expect(wire.Note).text
    node.rank(1).expect(wire.Welcome)
    first.expect(wire.Welcome)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.0\r\n", b'{"kind":"Hello"}\n', b"[]\n", b'{"kind":"Hello","rank":"x"}\n']
)
def test_what_is_no_message_ends_only_its_connection(nodes, data):
    node = nodes(one_node(1))
    wrong = node.rank(0, is_silent=True)
    wrong.sock.sendall(data)
    wrong.expect(wire.RankRefused)
    node.rank(0).expect(wire.Welcome)


def test_a_line_without_end_is_cut_off_at_its_limit(nodes):
    node = nodes(one_node(1))
    wrong = node.rank(0, is_silent=True)
    with pytest.raises(OSError):  # noqa: PT012
        for _ in range(100):
            wrong.sock.sendall(b"x" * 8192)
    assert str(RANK_LINE_BYTES) in node.expect(wire.Note).text
    node.rank(0).expect(wire.Welcome)


def test_a_rank_that_does_not_read_keeps_nobody_waiting(nodes):
    node, ranks = met(nodes, 60, keep_going=True)
    for number in range(2, 60):  # together more than a socket holds
        node.say(wire.RankEnded(number, "n1", 1, None, "x" * 20_000))
    for number in range(2, 60):
        assert ranks[1].expect(wire.RankEnded).rank == number
    assert [ranks[0].expect(wire.RankEnded).rank for _ in range(58)] == list(range(2, 60))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_another_user_is_refused_before_a_byte_is_read(nodes):
    node = nodes(one_node(1))
    code = (
        "import os, socket, sys; os.setuid(65534)\n"
        "sock = socket.socket(socket.AF_UNIX); sock.connect(chr(0) + sys.argv[1])\n"
        "sock.settimeout(20)\n"
        "try:\n    sock.sendall(sys.argv[2].encode()); print(sock.recv(100))\n"
        'except ConnectionError: print(b"")\n'
    )
    command = [sys.executable, "-c", code, node.ready.name, wire.encode(wire.Hello(0, 1, 0)).decode()]
    said = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=True, cwd="/")
    assert said.stdout == b"b''\n", said
    assert "uid 65534" in node.expect(wire.Note).text
    node.rank(0).expect(wire.Welcome)


# Ends


def test_a_death_is_told_to_all_and_ends_the_run(nodes):
    node, ranks = met(nodes, 4)
    node.say(wire.RankEnded(1, "n1", None, 9, "was killed (out of host memory)"))
    for rank in (ranks[0], ranks[2], ranks[3]):
        assert rank.expect(wire.RankEnded) == wire.RankEnded(1, "n1", None, 9, "was killed (out of host memory)")
    ending = node.expect(wire.RunEnding)
    assert ending == wire.RunEnding(1, "rank 1 on n1 was killed (out of host memory); the other 3 were ended", (1,))
    node.end(2, code=1)
    assert ranks[0].expect(wire.RankEnded).rank == 2
    assert not any(isinstance(message, wire.RunEnding) for message in node.messages(0.3))


def test_a_death_does_not_end_a_run_that_keeps_going(nodes):
    node, ranks = met(nodes, 2, keep_going=True)
    node.end(1, code=3)
    assert ranks[0].expect(wire.RankEnded).why == "ended with code 3"
    assert not any(isinstance(message, wire.RunEnding) for message in node.messages(0.3))


def test_a_death_before_the_start_is_told_to_those_who_wait_and_to_those_who_come(nodes):
    node = nodes(one_node(3))
    early = node.rank(0)
    node.end(1, code=None, signal=11)
    assert early.expect(wire.RankEnded).why == "was killed by SIGSEGV"
    assert node.expect(wire.RunEnding).why == "rank 1 on n1 was killed by SIGSEGV; the other 2 were ended"
    assert node.rank(2).expect(wire.RankEnded).rank == 1


def test_what_a_rank_said_last_comes_before_its_end():
    said: list[wire.Record] = []
    rendezvous = Rendezvous(one_node(2), said.append)
    ranks = [Speaker(rendezvous.ready.name, rank) for rank in range(2)]
    for _turn in range(5):
        rendezvous.step(0.1)
    ranks[0].say(wire.RunAborted(0, 7, "bad input"))
    rendezvous.ended(wire.RankEnded(0, "n1", 7, None, "ended with code 7"))  # the parent is quicker than the socket
    rendezvous.step(0.0)
    assert ranks[1].expect(wire.Welcome).size == 2
    assert ranks[1].expect(wire.RunAborted) == wire.RunAborted(0, 7, "bad input")
    assert said == [wire.RunEnding(7, "rank 0 called abort(7): bad input; the other one was ended", (0,))]
    for rank in ranks:
        rank.close()
    rendezvous.close()


def test_ranks_that_do_not_come_are_named_after_the_start_limit(in_turns):
    run = in_turns([one_node(4, start_s=1.5, **QUICK)])
    run.pass_s(2.0)  # the limit begins with the first hello: a run may do without messages for as long as it likes
    ranks = [run.rank(1), run.rank(3)]
    run.pass_s(1.0)
    assert all(rank.hears_nothing(0) for rank in ranks)
    run.pass_s(1.0)
    for rank in ranks:
        assert rank.expect(wire.RanksMissing) == wire.RanksMissing((0, 2), 1.5)
    assert run.endings(0)[0].startswith("2 ranks have not started within 1.5 s: 0, 2;")
    late = run.rank(0)
    assert late.expect(wire.RanksMissing).ranks == (0, 2)


# Waits


def test_the_parent_sees_who_waits_for_whom(nodes):
    node, ranks = met(nodes, 2)
    ranks[1].say(wire.RankWaiting("recv", 0, 0, "x", 40.0, 0, 0))
    assert node.expect(wire.RankWaits) == wire.RankWaits(1, "in recv for (0, 'x')", 40.0)
    ranks[1].say(wire.RankWorking())
    assert node.expect(wire.RankWaits) == wire.RankWaits(1, "", 0.0)


def test_a_stop_of_the_process_does_not_count_for_the_start_limit(in_turns):
    run = in_turns([one_node(2, start_s=1.5, **QUICK)])
    ranks = [run.rank(0)]
    run.now += 1000.0
    run.turn()
    ranks.append(run.rank(1))
    for rank in ranks:
        rank.expect(wire.Welcome)


# Several nodes


def test_ranks_of_two_nodes_meet(nodes, tmp_path):
    pair = [nodes(setup) for setup in both_nodes(tmp_path / "r", sizes=(2, 3))]
    assert [node.ready.address for node in pair] == ["127.0.0.1", "127.0.0.2"]
    ranks = [pair[rank >= 2].rank(rank, port=5000 + rank) for rank in range(5)]
    welcomes = [rank.expect(wire.Welcome) for rank in ranks]
    assert welcomes[0].nodes == (NodePlace("n1", 0, 2, "127.0.0.1"), NodePlace("n2", 2, 3, "127.0.0.2"))
    assert welcomes[4].ports == (5000, 5001, 5002, 5003, 5004)
    assert {welcome.key for welcome in welcomes} == {(tmp_path / "r" / "key").read_bytes().hex()}
    assert [welcome.sockets for welcome in welcomes[1:3]] == [f"{node.ready.name}/r" for node in pair]
    ranks[3].say(wire.Bye(0))
    pair[1].end(3)
    assert ranks[0].expect(wire.RankEnded) == wire.RankEnded(3, "n2", 0, None, ends.NOTHING_MORE)
    assert ranks[4].expect(wire.RankEnded).rank == 3
    for rank in (0, 1):
        pair[0].end(rank)
    assert pair[0].process.poll() is None, "node 0 stays for the others"
    for rank in (2, 4):
        pair[1].end(rank)
    assert [node.wait() for node in pair] == [0, 0]
    assert not any(isinstance(message, wire.RunEnding) for node in pair for message in node.messages(0.1))


def test_node_0_may_start_last(nodes, tmp_path):
    setups = both_nodes(tmp_path / "r")
    late = nodes(setups[1])
    ranks = [late.rank(2), late.rank(3)]
    late.end(3, code=1)
    time.sleep(0.5)
    first = nodes(setups[0])
    assert first.rank(0).expect(wire.RankEnded).rank == 3
    assert ranks[0].expect(wire.RankEnded).rank == 3
    whys = {node.expect(wire.RunEnding).why for node in (first, late)}
    assert whys == {"rank 3 on n2 ended with code 1; the other 3 were ended"}


def test_what_a_stopped_node_has_not_passed_on_is_no_deadlock(in_turns, tmp_path):
    run = in_turns(both_nodes(tmp_path / "r"))
    ranks = run.meet(4)
    for rank in (2, 3):
        ranks[rank].say(waits("recv", 0, 7))
    run.pass_s(1.0)
    ranks[2].say(wire.RankWorking())  # its process is stopped and cannot say so
    for rank in (0, 1):
        ranks[rank].say(waits("recv", 2, 7))
    run.pass_s(10.0, 0)
    run.pass_s(10.0)
    assert all(rank.hears_nothing(0) for rank in ranks)
    ranks[2].say(waits("recv", 0, 7))
    run.pass_s(10.0)
    assert ranks[0].expect(wire.RanksStuck)


def test_nodes_that_are_stopped_together_for_longer_than_the_limit_are_not_lost(in_turns, tmp_path):
    """As by `scontrol suspend`."""
    run = in_turns(both_nodes(tmp_path / "r", lost_s=1.5))
    ranks = run.meet(4)
    run.now += 1000.0
    run.turn(0)
    run.turn()
    run.pass_s(3.0)
    assert all(rank.hears_nothing(0) for rank in ranks)


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_node_that_does_not_answer_is_lost(in_turns, tmp_path, stopped):
    run = in_turns(both_nodes(tmp_path / "r", lost_s=1.5))
    ranks = run.meet(4)
    left = ranks[2] if stopped == 0 else ranks[0]
    run.pass_s(1.0, 1 - stopped)
    assert left.hears_nothing(0)
    run.pass_s(1.0, 1 - stopped)
    assert left.expect(wire.NodeLoss) == wire.NodeLoss(f"n{stopped + 1}", (2 * stopped, 2 * stopped + 1))
    why = f"node n{stopped + 1} with ranks {2 * stopped} to {2 * stopped + 1} does not answer any more"
    assert run.endings(1 - stopped)[0].startswith(why)


def test_a_node_whose_process_is_killed_is_lost_at_once(nodes, tmp_path):
    pair, ranks = meet_on_two(nodes, tmp_path / "r", heartbeat_s=2.0)
    pair[1].process.kill()
    assert ranks[0].expect(wire.NodeLoss).ranks == (2, 3)


def test_a_node_that_never_comes_is_missing(nodes, tmp_path):
    setups = both_nodes(tmp_path / "r", start_s=1.0)
    node = nodes(setups[0])
    assert node.rank(0).expect(wire.RanksMissing).ranks == (2, 3)
    node.expect(wire.RunEnding)
    for rank in (0, 1):
        node.end(rank, code=1)
    assert node.wait() == 0


def test_a_node_whose_launcher_has_failed_is_told_to_the_others_at_once(nodes, tmp_path):
    node, other = (nodes(setup) for setup in both_nodes(tmp_path / "r", sizes=(1, 2, 1), start_s=1000.0)[::2])
    ranks = [node.rank(0), other.rank(3)]
    assert ranks[0].hears_nothing(0.5)
    key_folder.write_failure(str(tmp_path / "r"), "4711.0", 1, "n2 has no GPU 7")
    for rank in ranks:
        assert [rank.expect(wire.RankEnded).rank for _ in range(2)] == [1, 2]
    why = "rank 1 on n2 could not be started: n2 has no GPU 7; the other 3 were ended"
    assert {one.expect(wire.RunEnding).why for one in (node, other)} == {why}
    node.end(0, code=1)
    other.end(3, code=1)
    assert (other.wait(), node.wait()) == (0, 0)


def test_a_node_whose_node_0_has_ended_does_not_wait_for_it(nodes, tmp_path):
    node = nodes(both_nodes(tmp_path / "r", start_s=1000.0)[1])
    rank = node.rank(2)
    assert rank.hears_nothing(0.5)
    shutil.rmtree(tmp_path / "r")
    assert rank.expect(wire.NodeLoss).ranks == (0, 1)
    assert node.expect(wire.RunEnding).code == 1
    for number in (2, 3):
        node.end(number, code=1)
    assert node.wait() == 0


def test_a_node_that_does_not_find_node_0_says_so_and_ends(nodes, tmp_path):
    node = nodes(both_nodes(tmp_path / "r", start_s=1.0)[1])
    assert node.rank(2).expect(wire.RanksMissing).ranks == (0, 1)
    assert node.expect(wire.RunEnding).code == 1
    for rank in (2, 3):
        node.end(rank, code=1)
    assert node.wait() == 0


def test_strangers_at_the_port_of_node_0_do_not_stop_a_run(nodes, tmp_path):
    folder = tmp_path / "r"
    setups = both_nodes(folder)
    first = nodes(setups[0])
    key = key_folder.read_key(str(folder))
    address = key_folder.read_address(str(folder), "4711.0", key)
    loud = socket.create_connection(address, PATIENCE_S)
    wrong = HandshakeClient(bytes(32), "4711.0", 1, 0, NODES)
    with pytest.raises(OSError):  # noqa: PT012
        loud.sendall(wrong.feed(loud.recv(32)))
        if not loud.recv(32):
            raise ConnectionResetError
    unknown = HandshakeClient(key, "4711.0", 7, 0, NODES)
    stranger = socket.create_connection(address, PATIENCE_S)
    stranger.sendall(unknown.feed(stranger.recv(32)))
    assert stranger.recv(32) == b""
    silent = [socket.create_connection(address, PATIENCE_S) for _ in range(200)]
    second = nodes(setups[1])
    ranks = [first.rank(0), first.rank(1), second.rank(2), second.rank(3)]
    for rank in ranks:
        rank.expect(wire.Welcome)
    assert any(
        "does not know the key" in message.text for message in first.messages(0.1) if isinstance(message, wire.Note)
    )
    for sock in [*silent, loud, stranger]:
        sock.close()


def by_hand(node: Node, number: int) -> socket.socket:
    """Return an authenticated connection of another node to node 0."""
    key = key_folder.read_key(node.setup.folder)
    address = key_folder.read_address(node.setup.folder, node.setup.run, key)
    assert address is not None
    sock = socket.create_connection(address, PATIENCE_S)
    side = HandshakeClient(key, node.setup.run, number, 0, NODES)
    try:
        while not side.done:
            sock.sendall(side.feed(sock.recv(side.wants)))
    except HandshakeRefused:
        sock.close()
        raise
    return sock


@pytest.mark.parametrize(
    "line",
    [
        b"0 " + wire.encode(wire.RunAborted(0, 1, "")),
        b"2 " + wire.encode(wire.NodeLeft()),
        b"- " + wire.encode(wire.Bye(0)),
        b"x\n",
    ],
)
def test_a_node_that_speaks_for_others_is_cut_off(nodes, tmp_path, line):
    first = nodes(both_nodes(tmp_path / "r", heartbeat_s=2.0)[0])
    with by_hand(first, 1) as sock:
        sock.sendall(b"- " + wire.encode(wire.NodeJoined("127.0.0.2")))
        sock.sendall(b"".join(f"{rank} ".encode() + wire.encode(wire.Hello(rank, 1, 1)) for rank in (2, 3)))
        ranks = meet(first, 2)
        sock.sendall(line)
        assert ranks[0].expect(wire.NodeLoss).ranks == (2, 3)


def test_a_second_process_of_a_node_is_not_let_in(nodes, tmp_path):
    pair, ranks = meet_on_two(nodes, tmp_path / "r")
    with pytest.raises(HandshakeRefused):
        by_hand(pair[0], 1)
    assert ranks[0].hears_nothing(0.3)


def test_who_does_not_prove_itself_in_time_is_closed(tmp_path):
    class Clock(AwakeClock):
        def step(self) -> float:
            return self.now

    clock, said = Clock(1.0), []
    selector = selectors.DefaultSelector()
    watched = ConnectionSet(selector)
    center = Center(both_nodes(tmp_path / "r")[0], watched, clock, said.append, said.append)
    address = key_folder.read_address(str(tmp_path / "r"), "4711.0", center.key)
    with socket.create_connection(address, PATIENCE_S) as sock:
        for key, _events in selector.select(PATIENCE_S):
            key.data()
        watched.flush()
        assert len(sock.recv(100)) == 32
        clock.now = HANDSHAKE_S - 0.01
        center.take(clock.now)
        assert said == []
        clock.now = HANDSHAKE_S
        center.take(clock.now)
        assert sock.recv(100) == b""
    assert said == ["a connection was refused: it has not authenticated within 5 s"]
    center.close()
    selector.close()


def test_a_node_with_another_key_is_not_let_in(nodes, tmp_path):
    first = nodes(both_nodes(tmp_path / "r", start_s=3.0)[0])
    other = both_nodes(tmp_path / "other", start_s=3.0)[1]
    (tmp_path / "other" / "4711.0").write_bytes((tmp_path / "r" / "4711.0").read_bytes())
    (tmp_path / "other" / "4711.0").chmod(0o600)
    node = nodes(other)
    assert "was not written by node 0 of this run" in node.expect(wire.Note).text
    assert first.rank(0).expect(wire.RanksMissing).ranks == (2, 3)


# The folder with the key


def test_the_folder_and_its_key_are_the_users_own(tmp_path):
    folder = tmp_path / "r"
    before = os.umask(0)
    try:
        key_folder.make_folder(str(folder))
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "key").stat().st_mode & 0o777 == 0o600
    assert len(key_folder.read_key(str(folder))) == 32
    with pytest.raises(FileExistsError):
        key_folder.make_folder(str(folder))
    (folder / "key").unlink()
    with pytest.raises(key_folder.FolderRefused, match="no file key"):
        key_folder.read_key(str(folder))


def spoil(folder: Path, how: str) -> None:
    """Change the folder or its key so that others could have made it."""
    key = folder / "key"
    match how:
        case "mode":
            folder.chmod(0o750)
        case "key mode":
            key.chmod(0o640)
        case "owner" | "key owner":
            os.chown(key if "key" in how else folder, 65534, 65534)
        case "key link":
            key.symlink_to(key.rename(folder.parent / "elsewhere"))
        case "key kind":
            key.unlink()
            os.mkfifo(key, 0o600)
        case "key length":
            key.write_bytes(bytes(31))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("mode", "read or written by others"),
        ("key mode", "read or written by others"),
        ("owner", "belongs to uid 65534"),
        ("key owner", "belongs to uid 65534"),
        ("key link", "cannot be read"),
        ("key kind", "not a plain file"),
        ("key length", "31 bytes"),
    ],
)
def test_a_folder_or_key_that_others_could_have_made_is_refused(nodes, tmp_path, how, why):
    if "owner" in how and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    setup = both_nodes(tmp_path / "r")[1]
    spoil(tmp_path / "r", how)
    node = nodes(setup, is_awaited=False)
    assert node.wait() == 1
    error = node.error()
    assert why in error
    assert "Traceback" not in error
