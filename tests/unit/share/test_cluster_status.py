"""Parsing the nodes' answers to `slurm-share status --cluster`."""

from __future__ import annotations

import pytest

from slurm_share.share import cluster_status
from slurm_share.share.records import NodeShares
from slurm_share.share.rules import switch as rules


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"mode": 1}', '{"jobs": []}', '{"mode": "on", "jobs": [{}]}'])
def test_a_node_that_answers_something_else_has_a_problem(text):
    found = cluster_status.parse("n1", text)
    assert found.mode is None
    assert "slurm-share status --json" in (found.problem or "")


def test_a_command_that_fails_or_hangs_is_a_problem_of_its_node_alone(monkeypatch):
    monkeypatch.setattr(cluster_status, "NODE_S", 0.5)
    script = 'case $0 in n1) echo \'{"mode": "on"}\';; n2) sleep 9;; n3) echo why >&2; exit 255;; esac'
    found = cluster_status.read_nodes(["sh", "-c", script, "NODE"], ["n1", "n2", "n3"])
    assert (found["n1"].mode, found["n1"].problem) == ("on", None)
    assert found["n2"].problem == "no answer within 0.5 s"
    assert found["n3"].problem == "code 255: why"


def test_a_remote_command_that_is_not_there_is_said_with_the_way_out():
    assert cluster_status.read_nodes(["no-such-ssh", "NODE"], ["n4"])["n4"].problem == (
        "no-such-ssh is not on this host: install it, or set remote_command in config.toml"
    )


def test_nodes_with_another_mode_than_the_controllers_are_together():
    nodes = {
        "n1": NodeShares("n1", "on"),
        "n2": NodeShares("n2", "off", {"gpu": "on"}),
        "n3": NodeShares("n3", "off", {"gpu": "on", "cpu": "off"}),
        "n4": NodeShares("n4", problem="no answer"),
    }
    assert rules.nodes_by_other_mode("on", nodes) == {"off, gpu: on": ["n2", "n3"]}


def test_a_node_without_gpus_needs_no_driver():
    assert rules.without_driver_problem(NodeShares("n1", "on", problem="no driver"), has_gpus=False) == NodeShares(
        "n1", "on"
    )
    silent = NodeShares("n1", problem="no answer")
    assert rules.without_driver_problem(silent, has_gpus=False) == silent
