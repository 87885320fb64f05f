"""The agent's local socket: each caller gets what is theirs, and nobody keeps it from the others."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from pathlib import Path

import pytest
from agents import ALICE, BOB, NODE, FakeSampler, running, until, users

from slurm_share.core.errors import StateError
from slurm_share.load.agent import socket_server
from slurm_share.load.agent.client import ask

NOBODY = 65534
"""The kernel's overflow uid: of the user nobody, and of users whom a user namespace does not map."""


@pytest.fixture
def agent(tmp_path, monkeypatch):
    users(monkeypatch)
    with running(tmp_path, http=False, operators_group="gpu-ops") as agent:
        yield agent


def as_user(agent, uid, *, everybody=False):
    agent.uid = uid
    return until_answered(agent, everybody)


def until_answered(agent, everybody=False):
    """Return the agent's answer; the first sample is a moment away."""

    def answer():
        try:
            return ask(agent.settings.agent_socket, 5.0, everybody)
        except StateError as error:
            if error.why != socket_server.NO_SAMPLE:
                raise

    return until(answer)


def raw(agent):
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(300)
    link.connect(agent.settings.agent_socket)
    return link


def test_each_user_gets_what_is_theirs(agent):
    for uid, own, other in ((ALICE, "alice", "bob"), (BOB, "bob", "alice")):
        seen = as_user(agent, uid)
        assert (seen.view, seen.source, seen.node) == (own, "agent", "n1")
        assert [one.user for one in (*seen.processes, *seen.jobs, *seen.users)] == [own] * 3
        assert (len(seen.gpus), seen.hidden_gpus) == (1, 1)
        text = str(seen)
        assert other not in text
        assert str({ALICE: BOB, BOB: ALICE}[uid]) not in text


def test_the_question_does_not_say_who_asks(agent):
    agent.uid = ALICE
    until_answered(agent)
    with raw(agent) as link:
        link.sendall(b'{"everybody":false,"uid":2002,"user":"bob"}\n')
        assert "bob" not in link.makefile().read()


def test_everybodys_is_for_root_the_agents_own_user_and_operators(agent):
    for uid in (0, os.geteuid(), 2003):
        assert [one.user for one in as_user(agent, uid, everybody=True).jobs] == ["alice", "bob"]
        assert as_user(agent, uid, everybody=True).view == ""
    for uid in (ALICE, BOB, 4711, NOBODY):
        with pytest.raises(StateError, match="everybody's load is for root, and for members of the group gpu-ops"):
            as_user(agent, uid, everybody=True)


def test_a_user_that_nobody_knows_gets_the_node_alone(agent):
    seen = as_user(agent, 4711)
    assert (seen.view, seen.processes, seen.jobs, seen.hidden_gpus) == ("4711", (), (), 2)
    assert seen.load == NODE.load


def test_anybody_may_connect_and_nobody_may_read_the_files(agent):
    folder = Path(agent.settings.agent_socket).parent
    modes = {file.name: oct(stat.S_IMODE(file.stat().st_mode)) for file in folder.iterdir()}
    assert modes.pop("socket") == "0o666"
    assert oct(stat.S_IMODE(folder.stat().st_mode)) == "0o755"
    assert set(modes.values()) <= {"0o600"}


@pytest.mark.parametrize("line", [b"\n", b"{}x\n", b'{"everybody":1}\n', b"\xff\n", b"[" * 200 + b"\n", b"no json"])
def test_a_question_that_is_none_is_answered_with_a_sentence(agent, line):
    agent.uid = ALICE
    with raw(agent) as link:
        link.sendall(line)
        link.shutdown(socket.SHUT_WR)
        assert "does not know this question" in json.loads(link.makefile().read())["why"]
    assert until_answered(agent).view == "alice"


def test_a_line_without_end_is_not_read(agent):
    with raw(agent) as link, pytest.raises((ConnectionResetError, BrokenPipeError)):
        link.sendall(b"x" * 65536 * 100)
    assert until_answered(agent)


def test_callers_that_say_nothing_and_read_nothing_keep_nobody_waiting(agent):
    silent = []
    agent.uid = BOB
    for number in range(100):
        link = raw(agent)
        if number % 2:
            link.sendall(b"{}\n")  # asks, and never reads
        silent.append(link)
    for uid in (ALICE, BOB):
        assert as_user(agent, uid).view in ("alice", "bob")
    # One that was answered leaves a moment later.
    until(lambda: len(agent.socket_server._connections) <= socket_server.MOST_EACH)
    for link in silent:
        link.close()


def test_who_is_too_slow_is_let_go(agent, monkeypatch):
    monkeypatch.setattr(socket_server, "QUESTION_S", 0.2)
    with raw(agent) as link:
        link.sendall(b'{"every')
        assert link.recv(1) == b""


def test_a_user_database_that_hangs_holds_up_its_own_caller_alone(tmp_path, monkeypatch):
    users(monkeypatch)
    let_go = threading.Event()
    real = socket_server.callers.identify

    def identify(uid, group):
        if uid == BOB:
            let_go.wait(300)
        return real(uid, group)

    monkeypatch.setattr(socket_server.callers, "identify", identify)
    with running(tmp_path, http=False) as agent:
        agent.uid = BOB
        bobs = raw(agent)
        bobs.sendall(b"{}\n")
        assert as_user(agent, ALICE).view == "alice"
        let_go.set()
        bobs.close()


def test_without_an_agent_the_sentence_says_what_to_do(tmp_path):
    with pytest.raises(StateError, match="no agent is there; start slurm-share-agent"):
        ask(str(tmp_path / "socket"), 1.0)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left"))
    with pytest.raises(StateError, match="no agent is there"):
        ask(str(tmp_path / "left"), 1.0)
    with pytest.raises(StateError, match="AF_UNIX path too long"):
        ask("/x" * 200, 1.0)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed the connection without an answer"),
        (b"hello\n", "not slurm-share's agent"),
        (b'{"snapshot":{"node":1}}\n', "not a record of load"),
        (b'{"snapshot":{"schema":99,"node":"n1","taken":1,"cpus":1,"cores":1}}', "newer slurm-share"),
        (None, "did not answer within 0.3 s"),
    ],
)
def test_whatever_else_answers_there_is_a_sentence(tmp_path, answer, why):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen(1)

        def serve():
            link, _ = server.accept()
            with link:
                link.recv(100)
                if answer is None:
                    time.sleep(0.6)
                else:
                    link.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(StateError, match=why):
            ask(str(tmp_path / "socket"), 0.3 if answer is None else 60.0)
        thread.join()


def test_before_the_first_sample_it_says_so(tmp_path):
    sampler, go = FakeSampler(), threading.Event()
    sampler.fail = lambda: go.wait(300) and None
    with running(tmp_path, http=False, sampler=sampler) as agent:
        with pytest.raises(StateError, match="no sample yet"):
            ask(agent.settings.agent_socket, 120.0)
        go.set()
        assert until_answered(agent).node == "n1"
