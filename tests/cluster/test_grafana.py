"""Every expression of the Grafana dashboard and of the alert rules, asked of a real Prometheus over real agents.

Two clusters in one Prometheus: n1 is of `east`, n2 and n3 of `west`. On n1 alice has a shared job with two tasks, and
two ordinary ones that leave their GPU idle: one fills it, and one has no process on it. On n2 bob has a shared job
without a task. On n3 there is no job, but an MPS server of bob's, and a GPU that the driver has lost. Later agents end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from clusters import name_for
from hooked import Node, start_agent, until
from monitoring import ALERTS, ALL, ZERO, alerts, chosen, dashboard, expressions, resolved

from localcluster import Cluster, process

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.xdist_group("grafana")]

PYTHON = "/opt/slurm-share/bin/python"
RULE_TESTS = Path(__file__).resolve().parents[1] / "data/prometheus/slurm-share-alerts-test.yaml"
PROMETHEUS = """\
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [/tmp/slurm-share-alerts.yaml]
scrape_configs:
  - job_name: slurm-share
    authorization: {credentials_file: /etc/slurm-share/agent.token}
    static_configs:
      - {targets: ["n1:594"], labels: {cluster: east}}
      - {targets: ["n2:594", "n3:594"], labels: {cluster: west}}
"""
START = """\
cd /tmp
setsid -f prometheus --config.file=/tmp/prometheus.yml --web.listen-address=127.0.0.1:9091 \
    --storage.tsdb.path=/tmp/prometheus --log.level=warn </dev/null >/tmp/prometheus.log 2>&1
"""
ASK = """
import json, sys, time, httpx
found = {}
with httpx.Client(trust_env=False, timeout=300) as client:
    for key, (expression, later_s) in json.load(sys.stdin).items():
        words = {"query": expression, "time": str(time.time() + later_s)}
        answer = client.post("http://127.0.0.1:9091/api/v1/query", data=words).json()
        if answer["status"] != "success":
            sys.exit(f"{key}: {expression}: {answer}")
        found[key] = [[one["metric"], one["value"][1]] for one in answer["data"]["result"]]
print(json.dumps(found))
"""
GET = "import sys, httpx; print(httpx.get('http://127.0.0.1:9091/api/v1/' + sys.argv[1], trust_env=False).text)"
SERVER = (
    "export CUDA_MPS_PIPE_DIRECTORY=/tmp/bob-mps CUDA_MPS_LOG_DIRECTORY=/tmp/bob-mps; mkdir -p /tmp/bob-mps;"
    " nvidia-cuda-mps-control -d"
)
SHARED = "srun simgpu-task --memory 1G --load 20 --seconds 600"
FILLS = "srun simgpu-task --memory 81500M --load 1 --seconds 600"
Series = list[tuple[dict[str, str], str]]

DATA_S = 180.0
OF_AGENTS_DOWN = {"SlurmShareAgentDown", "SlurmShareNoAgents"}
LATER_S = {"SlurmShareSamplesStale": 200.0}
"""Ask as of so much later: the samples then have that age."""
BY_PROMTOOL_ALONE = {
    "SlurmShareSamplesFail": "a driver of the local cluster does not fail so",
    "SlurmShareNodeProblem": "the same",
    "SlurmShareVersionsDiffer": "takes another release on a node",
}
"""Alerts whose condition is not made here, with the reason; `promtool test rules` tests all of them."""


@dataclass
class Scene:
    """The cluster and its Prometheus."""

    cluster: Cluster

    def ask(self, wanted: Mapping[str, tuple[str, float]]) -> dict[str, Series]:
        """Return each expression's answer, as of that many seconds later than now."""
        done = self.cluster.exec("ctl", [PYTHON, "-c", ASK], input=json.dumps(wanted), check=True)
        return {key: [(one, value) for one, value in rows] for key, rows in json.loads(done.stdout).items()}

    def answered(self, wanted: Mapping[str, tuple[str, float]], what: str) -> dict[str, Series]:
        """Return the answers once each has data; otherwise fail and name those without."""
        found: dict[str, Series] = {}
        missing = dict(wanted)

        def have_all() -> bool:
            for key, rows in self.ask(missing).items():
                if rows:
                    found[key] = rows
                    del missing[key]
            return not missing

        process.wait_until(have_all, what, DATA_S, every_s=0.3, why=lambda: f"there is none for {', '.join(missing)}")
        return found

    def end_agent(self, node: str) -> None:
        self.cluster.exec(node, ["pkill", "-u", "slurm-share"], check=True)


@pytest.fixture(scope="module")
def scene(can_make_clusters: None) -> Iterator[Scene]:
    """Start all jobs and Prometheus with our rules."""
    with Cluster.up(name_for("grafana"), prometheus=True) as cluster:
        n1, n3 = Node(cluster, "n1"), Node(cluster, "n3")
        for file, text in (("prometheus.yml", PROMETHEUS), (ALERTS.name, ALERTS.read_text())):
            (cluster.root("ctl") / "tmp" / file).write_text(text)
        cluster.exec("ctl", ["bash", "-c", START], check=True)
        jobs = [
            cluster.sbatch("alice", SHARED, "--share-gpu=2", "--gres=gpu:1", "-n2", "-w", "n1"),
            cluster.sbatch("alice", FILLS, "-p", "plain", "--gres=gpu:1", "-n1", "-w", "n1"),
            cluster.sbatch("alice", "sleep 600", "-p", "plain", "--gres=gpu:1", "-n1", "-w", "n1"),
            cluster.sbatch("bob", "sleep 600", "--share-gpu=1", "-w", "n2"),
        ]
        cluster.as_user("bob", SERVER, node="n3", check=True)
        n3.on_gpu("bob", {"CUDA_VISIBLE_DEVICES": "0", "CUDA_MPS_PIPE_DIRECTORY": "/tmp/bob-mps"})
        for job in jobs:
            cluster.wait_running(job)
        with n3.gpu_file(1, "lost=1"), n1.gpu_file(2, "power_w=250\ntemperature_c=61"):
            made = Scene(cluster)
            made.end_agent("n1")  # what a GPU does not have when the sampler begins it is not asked for again
            start_agent(n1)
            yield made
        cluster.cancel_all()


def without_zero(expression: str) -> str:
    """Return the expression without the 0 that it gives if it finds nothing: here it has to find something."""
    return expression.removesuffix(ZERO)


def test_every_expression_of_the_dashboard_has_data(scene: Scene) -> None:
    wanted = {name: (without_zero(resolved(text, ALL)), 0.0) for name, text in expressions() if "up{" not in text}
    found = scene.answered(wanted, "data for every panel")
    for name, rows in found.items():
        assert all(value != "NaN" for _, value in rows), name


def test_a_choice_narrows_every_panel_to_it(scene: Scene) -> None:
    one = {"cluster": chosen("east"), "node": chosen("n1"), "user": chosen("alice")}
    two = {"cluster": chosen("east", "west"), "node": chosen("n1", "n2"), "user": chosen("alice")}
    for choice, nodes in ((one, {"n1"}), (two, {"n1", "n2"})):
        found = scene.ask({name: (resolved(text, choice), 0.0) for name, text in expressions()})
        assert any(found.values())
        for name, rows in found.items():
            assert {labels.get("node", "n1") for labels, _ in rows} <= nodes, name
            assert {labels.get("user", "alice") for labels, _ in rows} <= {"alice"}, name
    [(_, gpus)] = scene.ask({"gpus": (resolved(dict(expressions())["GPUs (5A)"], one), 0.0)})["gpus"]
    assert gpus == "4"


def test_the_variables_offer_what_is_there(scene: Scene) -> None:
    """Grafana's label_values(SELECTOR, LABEL) gives the values of that label among the series."""
    offered = {}
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            selector, _, label = variable["definition"].removeprefix("label_values(").removesuffix(")").rpartition(", ")
            rows = scene.answered({"": (f"group by ({label}) ({resolved(selector, ALL)})", 0.0)}, variable["name"])[""]
            offered[variable["name"]] = sorted(labels.get(label, "") for labels, _ in rows)
    assert offered == {"cluster": ["east", "west"], "node": ["n1", "n2", "n3"], "user": ["alice", "bob"]}


def test_prometheus_takes_the_rules_and_their_tests_pass(scene: Scene) -> None:
    """It has evaluated each of them without an error; promtool goes through time for all of them."""
    names = {rule["alert"] for rule in alerts()}

    def health() -> dict[str, str]:
        groups = json.loads(scene.cluster.exec("ctl", [PYTHON, "-c", GET, "rules"], check=True).stdout)["data"][
            "groups"
        ]
        return {rule["name"]: rule["health"] + rule.get("lastError", "") for one in groups for rule in one["rules"]}

    until(lambda: "unknown" not in health().values(), "the evaluation of every rule")
    assert health() == dict.fromkeys(names, "ok")
    (scene.cluster.root("ctl") / "tmp/test.yaml").write_text(RULE_TESTS.read_text())
    scene.cluster.exec("ctl", ["promtool", "test", "rules", "/tmp/test.yaml"], check=True)
    tests = yaml.safe_load(RULE_TESTS.read_text())["tests"]
    fired = {one["alertname"] for test in tests for one in test["alert_rule_test"] if one.get("exp_alerts")}
    assert fired == names


def test_every_alert_finds_what_it_is_for(scene: Scene) -> None:
    expected = {
        "SlurmShareSamplesStale": {"n1", "n2", "n3"},
        "SlurmShareGpuUnusable": {"n3"},
        "SlurmShareMpsServerLeft": {"n3"},
        "SlurmShareJobWithoutTasks": {"n2"},
        "SlurmShareGpuHeldIdle": {"n1", "n2"},
        "SlurmShareGpuMemoryFull": {"n1"},
    }
    left = {rule["alert"]: rule["expr"] for rule in alerts() if rule["alert"] not in OF_AGENTS_DOWN}
    wanted = {name: (text, LATER_S.get(name, 0.0)) for name, text in left.items() if name not in BY_PROMTOOL_ALONE}
    assert set(wanted) == set(expected)
    found = scene.answered(wanted, "every alert")
    assert {name: {labels["node"] for labels, _ in rows} for name, rows in found.items()} == expected
    scene.ask({name: (left[name], 0.0) for name in BY_PROMTOOL_ALONE})


def test_a_gpu_is_held_and_idle_with_and_without_a_process_on_it(scene: Scene) -> None:
    """n1: a process that does nothing, and a job without one, of which only Slurm knows the GPU. n2: a shared job
    without a task. n1's fourth GPU and all of n3 are no job's."""
    panel = next(text for name, text in expressions() if name.startswith("GPUs held and idle") and "jobid" in text)
    (rule,) = (rule["expr"] for rule in alerts() if rule["alert"] == "SlurmShareGpuHeldIdle")
    expected = {("n1", "alice"): 2, ("n2", "bob"): 2}

    def held() -> dict[tuple[str, str], int]:
        rows = scene.ask({"": (resolved(panel, ALL), 0.0)})[""]
        return Counter((labels["node"], labels["user"]) for labels, _ in rows)

    until(lambda: held() == expected, "the GPUs that are held and idle", lambda: str(held()))
    rows = scene.ask({"": (rule, 0.0)})[""]
    assert Counter(labels["node"] for labels, _ in rows) == {"n1": 2, "n2": 2}


def test_a_hostile_name_is_a_label_and_nothing_else(scene: Scene) -> None:
    """A user database may have any name: it makes no series of its own, and the node's page is read whole."""
    name = r'ev"il\" 1 {jobid="7"} \n #'
    n3 = Node(scene.cluster, "n3")
    n3.run("bash", "-c", 'printf "%s:x:2010:2010::/:/bin/sh\n" "$1" >>/etc/passwd', "-", name)
    setpriv = ["setpriv", "--reuid=2010", "--regid=2010", "--clear-groups", "--"]
    pid = n3.background([*setpriv, "simgpu-task", "--memory", "100M", "--seconds", "600"])
    try:
        found = scene.answered({"": ('slurm_share_user_gpu_memory_bytes{user=~"ev.*"}', 0.0)}, "the user")[""]
        assert [(labels["user"], labels["node"]) for labels, _ in found] == [(name, "n3")]
        asked = {"jobs": ('slurm_share_job_info{jobid="7"}', 0.0), "up": ('up{instance="n3:594"}', 0.0)}
        answers = scene.ask(asked)
        assert (answers["jobs"], [value for _, value in answers["up"]]) == ([], ["1"])
    finally:
        n3.run("kill", str(pid))


def test_agents_that_end_are_seen(scene: Scene) -> None:
    """One, on the dashboard, where another cluster is not chosen, and as an alert; then all of them."""
    rules = {rule["alert"]: rule["expr"] for rule in alerts()}
    panel = {name: (without_zero(resolved(text, ALL)), 0.0) for name, text in expressions() if "up{" in text}
    down = {"SlurmShareAgentDown": (rules["SlurmShareAgentDown"], 0.0)}
    assert scene.ask({**panel, **down}) == {name: [] for name in (*panel, *down)}
    scene.end_agent("n2")
    found = scene.answered({**panel, **down}, "the agent that is down")
    assert [labels["instance"] for labels, _ in found["SlurmShareAgentDown"]] == ["n2:594"]
    assert [value for name in panel for _, value in found[name]] == ["1"]
    here = {"cluster": chosen("east"), "node": chosen("n1"), "user": ".*"}
    others = {name: (without_zero(resolved(text, here)), 0.0) for name, text in expressions() if name in panel}
    assert not any(scene.ask(others).values())
    none = {"SlurmShareNoAgents": (rules["SlurmShareNoAgents"], 0.0)}
    assert scene.ask(none) == {"SlurmShareNoAgents": []}
    for node in ("n1", "n3"):
        scene.end_agent(node)
    scene.answered(none, "that no agent is left")
