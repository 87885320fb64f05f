"""The agent as a service: it goes on whatever the sampler meets, and knows after a restart what it knew before."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time

import pytest
from agents import NODE, FakeSampler, running, until
from msgspec.structs import replace

from slurm_share.cli import main
from slurm_share.core.errors import DriverError, StateError
from slurm_share.core.settings import Settings
from slurm_share.load.agent import service
from slurm_share.load.agent.client import ask
from slurm_share.load.agent.connections import Connections
from slurm_share.load.agent.service import Meter, as_text


def test_a_restart_goes_on_from_what_was_known(tmp_path):
    first, second = FakeSampler(), FakeSampler()
    with running(tmp_path, http=False, sampler=first):
        until(lambda: first.samples > 3)
    assert first.closed == 1
    assert service.read_state(tmp_path / "run/state") == b"peaks of sample %d" % first.samples
    with running(tmp_path, http=False, sampler=second):
        until(lambda: second.samples)
    assert second.recalled == [b"peaks of sample %d" % first.samples]


def test_it_is_written_with_the_second_sample_and_then_once_a_minute(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(service, "write_state", lambda file, data: written.append(data))
    sampler = FakeSampler()
    with running(tmp_path, http=False, sampler=sampler):
        until(lambda: sampler.samples > 6)
        assert written == [b"peaks of sample 2"]
        monkeypatch.setattr(service, "REMEMBER_S", 0.0)
        until(lambda: len(written) > 2)


@pytest.mark.parametrize("damage", ["short", "changed", "other", "empty", "link"])
def test_a_torn_file_is_left_aside_with_a_line_in_the_log(tmp_path, capfd, damage):
    file = tmp_path / "run/state"
    file.parent.mkdir()
    service.write_state(file, b"x" * 1000)
    data = file.read_bytes()
    if damage == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.write_bytes({"short": data[:-1], "changed": data[:-1] + b"y", "other": b"hello\n", "empty": b""}[damage])
    sampler = FakeSampler()
    with running(tmp_path, http=False, sampler=sampler):
        until(lambda: sampler.samples > 2)
    assert sampler.recalled == []
    assert "windows and peaks start empty" in capfd.readouterr().err


def test_a_file_appears_whole_and_for_the_agent_alone(tmp_path):
    (tmp_path / ".state.new").write_bytes(b"half")
    service.write_state(tmp_path / "state", b"data")
    assert service.read_state(tmp_path / "state") == b"data"
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["state"]
    assert service.read_state(tmp_path / "none") is None


def test_a_sample_that_fails_ends_nothing(tmp_path, capfd):
    sampler = FakeSampler()

    def fail():
        if 2 < sampler.samples < 10:
            raise DriverError("nvmlInit", "GPU is lost")
        if sampler.samples == 10:
            raise KeyError("a fault of ours")

    sampler.fail = fail
    with running(tmp_path, http=False, sampler=sampler) as agent:
        until(lambda: sampler.samples > 12)
        assert ask(agent.settings.agent_socket, 120.0).node == "n1"
    said = capfd.readouterr().err
    assert said.count("the NVIDIA driver does not answer (nvmlInit: GPU is lost)") == 1
    assert "no sample: KeyError('a fault of ours') (test_agent_service.py:" in said
    assert sampler.closed == 2  # anew after five failures, and at the end


def test_a_driver_that_hangs_keeps_nobody_from_an_answer(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(service, "_CHECK_S", 0.05)
    monkeypatch.setattr(service, "_END_S", 0.2)
    sampler, go = FakeSampler(), threading.Event()
    sampler.fail = lambda: sampler.samples > 2 and go.wait(300) and None
    with running(tmp_path, http=False, sampler=sampler) as agent:
        until(lambda: sampler.samples > 2)
        until(lambda: ask(agent.settings.agent_socket, 5.0, True).problems)
        seen = ask(agent.settings.agent_socket, 5.0, True)
        assert seen.problems == ("the agent has taken no sample since `taken`; see its log",)
        assert seen.taken == NODE.taken
    go.set()
    assert "the last sample hangs in the driver" in capfd.readouterr().err


def forget(hears):
    """Read what has come; how much."""
    hears.setblocking(False)
    for count in range(1000):
        try:
            hears.recv(100)
        except BlockingIOError:
            hears.settimeout(120)
            return count
    raise AssertionError("it does not stop")


def test_systemd_hears_of_start_life_and_end(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hears:
        hears.bind(str(tmp_path / "notify"))
        hears.settimeout(120)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        sampler = FakeSampler()
        with running(tmp_path, http=False, sampler=sampler):
            assert hears.recv(100) == b"READY=1"
            assert hears.recv(100) == b"WATCHDOG=1"
            monkeypatch.setattr(service, "_STUCK_S", -1.0)
            time.sleep(0.5)
            forget(hears)
            time.sleep(0.2)
            assert forget(hears) == 0
        assert hears.recv(100) == b"STOPPING=1"


def test_without_systemd_nothing_is_said():
    assert not service.notify("READY=1", {})
    assert not service.notify("READY=1", {"NOTIFY_SOCKET": "nonsense"})
    assert not service.notify("READY=1", {"NOTIFY_SOCKET": "@nobody-is-there"})
    assert service.watchdog_s({"WATCHDOG_USEC": "3000000"}) == 3.0
    assert service.watchdog_s({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}) is None
    assert service.watchdog_s({"WATCHDOG_USEC": "x"}) is None


def test_there_is_one_agent_on_a_node(tmp_path):
    with running(tmp_path, http=False) as agent:
        again = service.serve(agent.settings, FakeSampler, stop=asyncio.Event())
        with pytest.raises(StateError, match="another agent runs on this node"):
            asyncio.run(again)
        until(lambda: agent.sampler.samples > 1)  # the second begins when the first has been handed over
        assert ask(agent.settings.agent_socket, 120.0).node == "n1"


def test_a_socket_that_a_killed_agent_left_is_taken_over(tmp_path):
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "run/socket"))
    with running(tmp_path, http=False) as agent:
        until(lambda: agent.sampler.samples > 1)  # the second begins when the first has been handed over
        assert ask(agent.settings.agent_socket, 120.0).node == "n1"
    assert not (tmp_path / "run/socket").exists()


def test_a_file_in_the_sockets_place_is_not_removed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/socket").write_text("mine")
    settings = Settings(agent_socket=str(tmp_path / "run/socket"))
    with pytest.raises(StateError, match="run/socket: cannot listen: Address already in use"):
        asyncio.run(service.serve(settings, FakeSampler, stop=asyncio.Event()))
    assert (tmp_path / "run/socket").read_text() == "mine"


def test_the_agent_is_not_for_root(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main.main(["agent"]) == 2
    assert "does not run as root; start slurm-share-agent.service" in capsys.readouterr().err


def test_it_measures_what_it_takes():
    meter = Meter()
    assert meter.read().cpu_ratio is None
    sum(range(300_000))
    meter.round(0.012, failed=False)
    meter.round(0.5, failed=True)
    cost = meter.read()
    assert 0 < cost.cpu_ratio <= 1.5
    assert 2**20 < cost.resident_bytes < 2**34
    assert (cost.round_s, cost.rounds, cost.failed) == (0.5, 2, 1)
    assert as_text(replace(cost, cpu_ratio=0.0021, resident_bytes=40 * 2**20)) == (
        "own cost: 0.21 % of one core, 40 MiB, last sample 500.0 ms; 2 samples, 1 failed"
    )


def test_the_oldest_connection_of_the_busiest_caller_is_closed():
    out = []
    connections = Connections(4, 2)
    first, second, third = (connections.add("bob", lambda number=number: out.append(number)) for number in (1, 2, 3))
    assert out == [1]
    connections.add("alice", lambda: out.append("alice"))
    connections.add("carol", lambda: out.append("carol"))
    connections.add("dora", lambda: out.append("dora"))
    assert (out, len(connections)) == ([1, 2], 4)
    assert [connections.remove(one) for one in (first, second, third, third)] == [False, False, True, False]
