"""The source that asks all agents: what answers is a snapshot, and what does not is told in few words."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
from agents import NODE, QuietHandler, QuietServer, until
from msgspec.structs import replace

from slurm_share.core.errors import UsageError
from slurm_share.core.settings import Settings
from slurm_share.load import snapshot as snapshots
from slurm_share.load.agent import http_client
from slurm_share.load.snapshot import Snapshot
from slurm_share.load.sources import agents
from slurm_share.load.sources.agents import AgentsSource
from slurm_share.load.sources.base import SourceRequest

TOKEN = "the-token-of-the-operators"


def node(name: str) -> Snapshot:
    return replace(NODE, node=name, taken=time.time(), source="agent")


class Handler(QuietHandler):
    """Plays every node: the name in the Host header says which, and what it does."""

    asked: list[str] = []  # noqa: RUF012 - emptied by the fixture

    def do_GET(self) -> None:
        name = self.headers["Host"].split(":")[0]
        self.asked.append(self.path)
        seen = node(name)
        status, body = 200, snapshots.render(replace(seen, gpus=() if "details=no" in self.path else seen.gpus))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            status, body = 401, b"show the token"
        elif name == "slow":
            time.sleep(200.0)
        elif name == "starting":
            status, body = 503, b"no sample yet"
        elif name == "garbage":
            body = b"<html>hello</html>"
        elif name == "newer":
            body = snapshots.render(replace(node(name), schema=99))
        elif name == "renamed":
            body = snapshots.render(node("other"))
        elif name == "hostile":
            body = snapshots.render(node("other\x1b[31m"))
        elif name == "ssh":
            self.wfile.write(b"SSH-2.0-OpenSSH\r\n")
            return
        elif name == "web":
            status, body = 404, b"no such page"
        elif name == "cut":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
            return
        elif name == "mute":
            return
        self.answer(status, body)


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A source, and a server that every node's name leads to but `gone`'s and `nowhere`'s."""
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(TOKEN + "\n")
    server = QuietServer(("127.0.0.1", 0), Handler)
    Handler.asked.clear()
    with socket.create_server(("127.0.0.2", 0)) as closed:
        free = closed.getsockname()[1]
    real = socket.getaddrinfo

    def getaddrinfo(host, port, *args, **kwargs):
        if host in ("nowhere", b"nowhere"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if host in ("gone", b"gone"):
            return real("127.0.0.2", free, *args, **kwargs)
        return real("127.0.0.1", port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with server.serving():
        yield AgentsSource(Settings(agent_token_file=str(tmp_path / "token"), agents_port=server.server_port))


def test_every_node_is_in_one_of_the_two(source):
    wrong = {
        "gone": "no agent answers",
        "nowhere": "no such host",
        "starting": "agent starting",
        "garbage": "not slurm-share's agent",
        "newer": "newer release",
        "renamed": "answers as 'other'",
        "hostile": "not slurm-share's agent",
        "web": "not slurm-share's agent (HTTP 404)",
        "cut": "connection lost",
        "ssh": "not slurm-share's agent",
        "mute": "connection lost",
    }
    answer = source.read(SourceRequest(nodes=("n1", "n2", *wrong)), 5.0)
    assert dict(answer.silent) == wrong
    assert sorted(answer.snapshots) == ["n1", "n2"]
    assert [job.user for job in answer.snapshots["n1"].jobs] == ["alice", "bob"]
    assert answer.snapshots["n1"].source == "agent"


def test_a_node_is_asked_at_the_address_that_slurm_has(source, monkeypatch):
    """A name or a number; it answers under its own name, and a number is asked of no name server."""
    resolved = []
    real = socket.getaddrinfo

    def getaddrinfo(host, port, *args, **kwargs):
        resolved.append((host, kwargs.get("flags", 0)))
        return real(host, port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    addresses = {"nowhere": "127.0.0.1", "gone": "n2-ib"}
    answer = source.read(SourceRequest(nodes=("nowhere", "gone"), addresses=addresses), 5.0)
    assert {name: seen.node for name, seen in answer.snapshots.items()} == {"nowhere": "nowhere", "gone": "gone"}
    assert sorted(resolved) == [("127.0.0.1", socket.AI_NUMERICHOST), ("n2-ib", 0)]


def test_the_deadline_is_for_all_of_them(source):
    begin = time.monotonic()
    question = SourceRequest(nodes=("n1", "slow", "n2"))
    answer = until(lambda: (found := source.read(question, 2.0)).snapshots.keys() == {"n1", "n2"} and found)
    assert time.monotonic() - begin < 150  # it answers later
    assert dict(answer.silent) == {"slow": "timeout"}


def test_more_nodes_than_connections(source, monkeypatch):
    monkeypatch.setattr(http_client, "AT_ONCE", 3)
    names = tuple(f"n{number}" for number in range(20))
    assert sorted(source.read(SourceRequest(nodes=names), 5.0).snapshots) == sorted(names)
    assert source.read(SourceRequest(nodes=()), 5.0).snapshots == {}


def test_for_very_many_nodes_by_tls_it_names_the_source_for_them(source, monkeypatch):
    monkeypatch.setattr(agents, "MANY", 2)
    assert source.read(SourceRequest(nodes=("n1", "n2")), 5.0).notes == []
    source._is_tls = True
    (note,) = source.read(SourceRequest(nodes=("n1", "n2")), 5.0).notes
    assert note == "2 agents were asked by TLS; from 2 nodes on use --source prometheus"


def test_an_answer_in_parts_and_one_that_is_longer_than_it_says_are_whole(source):
    assert http_client._is_whole(bytearray(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"))
    assert not http_client._is_whole(bytearray(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"))
    assert not http_client._is_whole(bytearray(b"HTTP/1.1 200 OK\r\n\r\nContent-Length: 3\r\nabc"))
    assert not http_client._is_whole(bytearray(b"HTTP/1.1 200 OK\r\nContent-Len"))


def test_a_wrong_token_is_told_once_with_what_to_look_at(source, tmp_path):
    source._caller._token = "other"
    answer = source.read(SourceRequest(nodes=("n1", "n2")), 5.0)
    assert dict(answer.silent) == {"n1": "wrong token", "n2": "wrong token"}
    assert answer.notes == ["2 agents refused the token; agent_token_file must be the same there and here"]


def test_without_any_agent_it_says_what_to_install(source):
    (note,) = source.read(SourceRequest(nodes=("gone",)), 5.0).notes
    assert "start slurm-share-agent.service there and set agent_http" in note
    assert source.read(SourceRequest(nodes=("gone", "n1")), 5.0).notes == []


def test_a_line_per_node_asks_for_a_line(source):
    source.read(SourceRequest(nodes=("n1",), details=False), 5.0)
    seen = source.read(SourceRequest(nodes=("n1",), details=False, user="alice"), 5.0).snapshots["n1"]
    assert Handler.asked == ["/snapshot?details=no", "/snapshot"]
    assert (seen.view, [one.user for one in seen.processes], seen.hidden_gpus) == ("alice", ["alice"], 1)
    assert "bob" not in str(seen)


def test_a_user_who_is_not_there_has_the_node_alone(source):
    seen = source.read(SourceRequest(nodes=("n1",), user="carol"), 5.0).snapshots["n1"]
    assert (seen.view, seen.processes, seen.jobs, seen.gpus, seen.hidden_gpus) == ("carol", (), (), (), 2)


def test_a_name_server_that_hangs_holds_up_neither_the_others_nor_the_end(source, monkeypatch):
    real, let_go = socket.getaddrinfo, threading.Event()

    def getaddrinfo(host, *args, **kwargs):
        if str(host).startswith("lost"):
            let_go.wait(300)
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    answer = source.read(SourceRequest(nodes=("lost", "n1", "n2")), 0.5)
    assert (dict(answer.silent), sorted(answer.snapshots)) == ({"lost": "timeout"}, ["n1", "n2"])
    let_go.set()


def test_a_name_that_no_host_can_have_is_a_word(source, monkeypatch):
    monkeypatch.undo()  # the system's own addresses
    assert dict(source.read(SourceRequest(nodes=("x" * 300, "a..b")), 5.0).silent) == {
        "x" * 300: "no such host",
        "a..b": "no such host",
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "there is no token .* on this host .*readable by operators only"),
        ("", "has no token"),
        ("two words of sixteen letters", "has no token"),
        ("short", "has no token: one word of at least 16 characters"),
        (TOKEN, "open to everybody on this host .mode 0604.; chmod 0640"),
    ],
)
def test_without_a_token_the_sentence_says_what_to_do(tmp_path, text, why):
    if text is not None:
        (tmp_path / "token").write_text(text)
        (tmp_path / "token").chmod(0o604 if text == TOKEN else 0o600)
    with pytest.raises(UsageError, match=why):
        AgentsSource(Settings(agent_token_file=str(tmp_path / "token")))


def test_a_token_that_is_not_the_callers_to_read_says_whose_it_is(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 0, 4)  # adm, on every Debian

    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(
        UsageError, match=r"it is for root and the group .*: an administrator can add you; llload --source srun"
    ):
        AgentsSource(Settings(agent_token_file=str(file)))
