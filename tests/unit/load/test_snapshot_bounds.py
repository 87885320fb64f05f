"""A foreign file with a figure that is no number, or with a name of no node, is not a record of load."""

from __future__ import annotations

import json

import pytest

from slurm_share.core.errors import StateError
from slurm_share.load import snapshot
from slurm_share.load.sources.demo import Demo


@pytest.fixture(scope="module")
def whole():
    """A survey with everything in it, as JSON."""
    return json.loads(snapshot.render(Demo(everybody=True, clock=lambda: 1.8e9).read()))


def with_value(whole, path, value):
    """The same survey with one value changed; `path` in dots, `0` for the first."""
    changed = json.loads(json.dumps(whole))
    nodes = [node for node in changed["nodes"] if node["snapshot"] and node["snapshot"]["processes"]]
    changed["nodes"] = nodes
    at, keys = changed, [int(key) if key.isdigit() else key for key in path.split(".")]
    for key in keys[:-1]:
        at = at[key]
    assert keys[-1] in at or isinstance(at, list)
    at[keys[-1]] = value
    return json.dumps(changed)


NUMBERS = [
    *("taken", "jobs_taken", "jobs.0.job_id", "jobs.0.cpus", "jobs.0.start"),
    *(f"nodes.0.slurm.{name}" for name in ("cpus", "gpus_allocated", "memory_mib", "load5")),
    *(f"nodes.0.snapshot.{name}" for name in ("taken", "cpus", "memory_total_mib", "load.1", "users.0.gpu_load")),
    *(f"nodes.0.snapshot.gpus.0.{name}" for name in ("memory_total_mib", "utilization.m5", "power_w", "temperature_c")),
    *(f"nodes.0.snapshot.processes.0.{name}" for name in ("memory_mib", "gpus.0.peak_mib", "pid")),
    *(f"nodes.0.snapshot.jobs.0.{name}" for name in ("task_peak_mib", "measured_s")),
]


@pytest.mark.parametrize("path", NUMBERS)
@pytest.mark.parametrize("value", [10**30, 10**400, -(10**30)])
def test_a_number_that_cannot_be_is_no_survey(whole, path, value):
    with pytest.raises(StateError, match="not a record of load"):
        snapshot.parse_survey(with_value(whole, path, value), "test")


@pytest.mark.parametrize("path", ["nodes.0.name", "nodes.0.slurm.name", "nodes.0.snapshot.node"])
@pytest.mark.parametrize("name", ["", "n[1-99999999]", "n" + "9" * 5000, "\x1bc", "a b", "a,b", "@all", "\u0661\u0662"])
def test_a_name_that_no_node_has_is_no_survey(whole, path, name):
    with pytest.raises(StateError, match="not a record of load"):
        snapshot.parse_survey(with_value(whole, path, name), "test")


@pytest.mark.parametrize("nodes", ["n[", "n[1-", "\x1b[2J", "a b", "$(id)"])
def test_what_is_no_list_of_nodes_is_no_survey(whole, nodes):
    with pytest.raises(StateError, match="not a record of load"):
        snapshot.parse_survey(with_value(whole, "jobs.0.nodes", nodes), "test")


def test_what_a_cluster_can_say_is_one(whole):
    for path, value in (
        ("nodes.0.snapshot.cpus", 0),
        ("nodes.0.snapshot.memory_total_mib", 2**40),
        ("nodes.0.snapshot.gpus.0.temperature_c", -20),
        ("nodes.0.snapshot.gpus.0.energy_j", 1e13),
        ("nodes.0.snapshot.processes.0.uid", 2**32 - 2),
        ("nodes.0.name", "rack-1_n01.example.org"),
        ("jobs.0.nodes", "a[01-03,7]b[1-2],c"),
        ("jobs.0.nodes", ""),
    ):
        snapshot.parse_survey(with_value(whole, path, value), "test")
