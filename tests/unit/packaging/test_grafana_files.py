"""The Grafana dashboard and the alert rules as files; tests/cluster/test_grafana.py has a Prometheus run them."""

from __future__ import annotations

import re
import sys
from itertools import combinations
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "cluster"))
from monitoring import alerts, dashboard, expressions, panels

from slurm_share.core.metric import measured
from slurm_share.load import metrics
from slurm_share.load.metrics import Cost
from slurm_share.load.snapshot import GpuLoad, JobLoad, Means, Snapshot, UserLoad
from slurm_share.node.gpu_figures import Activity

MEANS = Means(m1=1, m5=1, m15=1, over_s=900, m10=1)


def figures(record):
    """Return a value for each plain figure that Prometheus has."""
    return {one.name: 1 for one in measured(record) if one.metric.exported and not one.is_windows}


FULL = Snapshot(
    node="n1",
    taken=1.8e9,
    interval_s=5.0,
    cpus=1,
    cores=1,
    load=(1, 1, 1),
    cpu_cores=1,
    memory_total_mib=1,
    memory_used_mib=1,
    gpus=(
        GpuLoad(
            uuid="GPU-0",
            index=0,
            name="A",
            problem="lost",
            utilization_percent_windows=MEANS,
            sm_percent_windows=MEANS,
            **figures(GpuLoad),
            activity=Activity(sm_percent=1.0),
        ),
    ),
    jobs=(JobLoad(job=1, uid=1, user="a", share=2, gpus=("GPU-0",), cpu_cores_windows=MEANS, **figures(JobLoad)),),
    users=(UserLoad(uid=1, user="a", gpus=("GPU-0",), **figures(UserLoad)),),
)
"""A node of which everything is known."""


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return every metric of an agent's page, with its labels."""
    cost = Cost(cpu_ratio=1.0, resident_bytes=1, round_s=1.0, rounds=1, failed=1)
    page = (metrics.render(FULL) + metrics.render_cost(cost, "n1")).decode()
    found: dict[str, set[str]] = {"up": {"instance", "job"}}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} ", page, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def test_panels_lie_side_by_side_on_the_grid():
    """24 columns wide, nothing over anything else, every panel below the heading of its row."""
    places = [(panel["title"], panel["gridPos"]) for panel in dashboard()["panels"]]
    assert [name for name, at in places if at["x"] < 0 or at["x"] + at["w"] > 24 or at["h"] < 1] == []
    over = [
        (one, other)
        for (one, a), (other, b) in combinations(places, 2)
        if a["x"] < b["x"] + b["w"]
        and b["x"] < a["x"] + a["w"]
        and a["y"] < b["y"] + b["h"]
        and b["y"] < a["y"] + a["h"]
    ]
    assert over == []
    numbers = [panel["id"] for panel in dashboard()["panels"]]
    assert sorted(set(numbers)) == sorted(numbers)


def test_every_panel_says_what_it_shows():
    for panel in panels():
        assert len(panel["description"]) > 20, panel["title"]
        if panel["type"] != "table":
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert {one["datasource"]["uid"] for one in (panel, *panel["targets"])} == {"${datasource}"}, panel["title"]
        letters = [one["refId"] for one in panel["targets"]]
        assert sorted(set(letters)) == letters, panel["title"]


def test_every_variable_is_defined_and_used():
    """All but the data source can be All, which also matches where no series has the label."""
    variables = {one["name"]: one for one in dashboard()["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    queries = [one["definition"] for one in variables.values() if one["type"] == "query"]
    used = set(re.findall(r"\$(\w+)", " ".join([*(text for _, text in expressions()), *queries])))
    assert used - {"__rate_interval"} == set(variables) - {"datasource"}
    assert {one["allValue"] for one in variables.values() if one["type"] == "query"} == {".*"}


def test_every_expression_is_of_metrics_that_an_agent_exports(exported: dict[str, set[str]]):
    rules = [(rule["alert"], rule["expr"]) for rule in alerts()]
    variables = [(one["name"], one["definition"]) for one in dashboard()["templating"]["list"] if "definition" in one]
    for where, text in [*expressions(), *rules, *variables]:
        names = set(re.findall(r"\bslurm_share_\w+|\bup\b", text))
        assert names, where
        assert names <= set(exported), where
        labels = {"cluster"}.union(*(exported[name] for name in names))
        for said in re.findall(r"(?:by|on|group_left) \(([\w, ]*)\)", text):
            assert set(said.split(", ")) <= labels, where
        assert set(re.findall(r'(\w+)(?:=|!=|=~|!~)"', text)) <= labels, where


def test_no_metric_and_no_label_of_an_alert_is_missing_from_its_words(exported: dict[str, set[str]]):
    for rule in alerts():
        names = set(re.findall(r"\bslurm_share_\w+|\bup\b", rule["expr"]))
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        words = rule["annotations"]["summary"] + rule["annotations"]["description"]
        named = set(re.findall(r"\$labels\.(\w+)", words))
        assert named <= set().union(*(exported[name] for name in names)), rule["alert"]
        assert len(rule["annotations"]["description"]) > 40, rule["alert"]


def test_tables_are_joined_by_what_all_their_queries_have():
    """Grafana merges rows whose common fields are equal, and the name of the metric would be one of them."""
    for panel in panels():
        if panel["type"] == "table" and len(panel["targets"]) > 1:
            for one in panel["targets"]:
                assert re.match(r"(time\(\) - )?(max|sum) by \(cluster, node\b", one["expr"]), one["expr"]
