"""The agent's HTTP: everything for whoever has the token, nothing for anybody else."""

from __future__ import annotations

import itertools
import socket
import time
from pathlib import Path

import httpx
import pytest
from agents import NODE, TOKEN, running, until, users
from prometheus_client.parser import text_string_to_metric_families

from slurm_share.core.errors import UsageError
from slurm_share.load import snapshot as snapshots
from slurm_share.load.agent import http_server

SHOWN = {"authorization": f"Bearer {TOKEN}"}
CLIENT = httpx.Client(timeout=120, trust_env=False, verify=False)
"""One for all tests: a client takes a tenth of a second to make."""


@pytest.fixture
def agent(tmp_path, monkeypatch):
    users(monkeypatch)
    with running(tmp_path) as agent:
        get_when_ready(agent)
        yield agent


def get(agent, path="/snapshot", headers=SHOWN):
    return CLIENT.get(agent.url + path, headers=headers)


def get_when_ready(agent):
    return until(lambda: answer if (answer := get(agent)).status_code != 503 else None)


def connected(agent):
    return socket.create_connection(("127.0.0.1", int(agent.url.rpartition(":")[2])), timeout=120)


def test_the_snapshot_is_everybodys(agent):
    answer = get(agent)
    assert answer.headers["content-type"] == "application/json"
    seen = snapshots.parse_snapshot(answer.content, "test")
    assert (seen.view, seen.source) == ("", "agent")
    assert (seen.processes, seen.jobs, seen.gpus) == (NODE.processes, NODE.jobs, NODE.gpus)


def test_a_line_per_node_needs_little_of_it(agent):
    seen = snapshots.parse_snapshot(get(agent, "/snapshot?details=no").content, "test")
    assert (seen.gpus, seen.processes, seen.jobs, seen.users) == ((), (), (), ())
    assert seen.sums == NODE.sums
    assert seen.sums.gpu_load == 0.5
    assert "left out" in seen.unknown["jobs"]


def test_the_metrics_are_prometheuss_own_format(agent):
    answer = get(agent, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (one.name, one.labels.get("user")): one.value
        for family in text_string_to_metric_families(answer.text)
        for one in family.samples
    }
    assert samples["slurm_share_node_cpus", None] == 16
    assert samples["slurm_share_job_gpu_memory_bytes", "alice"] == 100 * 2**20
    assert samples["slurm_share_agent_rounds_total", None] > 0
    assert samples["slurm_share_agent_resident_memory_bytes", None] > 2**20


def test_without_the_token_there_is_nothing(agent):
    paths = ("/snapshot", "/metrics", "/", "/nothing", "/snapshot?details=no", "//snapshot")
    wrong = (None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer \xe9")
    for path, authorization in itertools.product(paths, wrong):
        headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
        answer = get(agent, path, headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "alice" not in answer.text
        assert "slurm_share_" not in answer.text


def test_with_it_there_is_nothing_but_two_pages(agent):
    assert [get(agent, path).status_code for path in ("/", "/snapshot/", "/metrics?x=1", "/../etc/passwd")] == [404] * 4
    assert CLIENT.post(agent.url + "/snapshot", headers=SHOWN, content=b"x" * 100_000).status_code == 405
    assert CLIENT.head(agent.url + "/snapshot", headers=SHOWN).status_code == 405


def test_a_new_token_counts_from_the_next_request_on(agent):
    file = Path(agent.settings.agent_token_file)
    file.write_text("f" * 40)
    assert get(agent).status_code == 401
    assert get(agent, headers={"authorization": "bearer " + "f" * 40}).status_code == 200
    file.chmod(0o644)
    assert get(agent, headers={"authorization": "Bearer " + "f" * 40}).status_code == 503
    file.unlink()
    assert get(agent).status_code == 503


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (TOKEN, 0o644, "open to everybody on this host (mode 0644); chmod 0640"),
        (TOKEN, 0o602, "open to everybody"),
        ("two words of sixteen characters", 0o600, "has no token"),
        ("short", 0o600, "has no token: one word of at least 16 characters"),
        (None, 0, "cannot be read: No such file or directory; write a token into it"),
    ],
)
def test_a_token_that_is_none_keeps_http_closed_and_the_socket_open(tmp_path, capfd, text, mode, why):
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with running(tmp_path, agent_token_file=str(file if text is not None else tmp_path / "none")) as agent:
        assert agent.http_server is None
        assert Path(agent.settings.agent_socket).exists()
    assert why in capfd.readouterr().err


def test_connections_that_say_nothing_do_not_close_it(agent):
    """More than there is room for, from one address, each with half a request: the next request is answered."""
    silent = []
    for _ in range(http_server.MOST + 50):
        link = connected(agent)
        link.sendall(b"GET /snapshot HTTP/1.1\r\nAuthorization: Bea")
        silent.append(link)
    assert get(agent).status_code == 200
    assert len(agent.http_server._unauthenticated) <= http_server.MOST_EACH
    for link in silent:
        link.close()


def test_who_is_too_slow_is_let_go(agent, monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_S", 0.3)

    def dribble(link):
        for _ in range(100):
            link.sendall(b"G")
            time.sleep(0.05)

    with connected(agent) as link, pytest.raises(OSError):
        dribble(link)


LONG = b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n"


@pytest.mark.parametrize("request_", [b"\r\n\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", LONG, b"SSH-2.0-x\r\n\r\n"])
def test_what_is_no_request_is_refused(agent, request_):
    with connected(agent) as link:
        link.sendall(request_)
        link.shutdown(socket.SHUT_WR)
        try:
            answer = link.recv(1000)
        except ConnectionResetError:
            answer = b""
        assert answer == b"" or answer.split()[1] in (b"400", b"431")
    assert get(agent).status_code == 200


def test_an_address_is_split():
    assert http_server.split_address("10.0.0.5:594") == ("10.0.0.5", 594)
    assert http_server.split_address(":594") == (None, 594)
    assert http_server.split_address("[::]:594") == ("::", 594)
    for wrong in ("594", "host", "host:", "host:x", "host:70000", "host:-1"):
        with pytest.raises(UsageError, match="is no ADDRESS:PORT"):
            http_server.split_address(wrong)


def test_a_port_that_any_user_could_take_is_told(tmp_path, capfd):
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with running(tmp_path, agent_http=f"127.0.0.1:{port}"):
        pass
    assert f"any user may listen on port {port}" in capfd.readouterr().err
