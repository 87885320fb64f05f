"""This node as a source: what its watcher says, and of other nodes that they are elsewhere."""

from __future__ import annotations

import pytest

from slurm_share.core.errors import UsageError
from slurm_share.core.settings import Settings
from slurm_share.load.snapshot import Snapshot
from slurm_share.load.sources.base import Asked
from slurm_share.load.sources.local import LocalSource


class FakeWatcher:
    node = "n1"
    agent_problem = ""

    def __init__(self):
        self.asked = []
        self.closed = False

    def read(self, user, timeout_s):
        self.asked.append((user, timeout_s))
        return Snapshot(node="n1", taken=1.0, cpus=1, cores=1, source="agent")

    def close(self):
        self.closed = True


@pytest.fixture
def watcher():
    return FakeWatcher()


@pytest.fixture
def source(watcher):
    return LocalSource(Settings(), watcher=watcher)


def test_this_node_and_no_other(source, watcher):
    answer = source.read(Asked(nodes=("n1", "n2"), user="me"), 5)
    assert (set(answer.snapshots), answer.silent, answer.notes) == ({"n1"}, {"n2": "another node"}, [])
    assert answer.snapshots["n1"].source == "local"
    assert source.read(Asked(nodes=("n2",), user="me"), 5).silent == {"n2": "another node"}
    assert watcher.asked == [("me", 5)]
    source.close()
    assert watcher.closed


def test_an_agent_that_is_done_without_is_told(source, watcher):
    watcher.agent_problem = "it answers for node n2, and this is n1"
    answer = source.read(Asked(nodes=("n1",), user="me"), 5)
    assert answer.notes == ["n1: sampled without the agent: it answers for node n2, and this is n1"]


def test_a_name_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "n1\x1b[2J")
    with pytest.raises(UsageError, match="is no node's name"):
        LocalSource(Settings())
