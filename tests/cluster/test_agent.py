"""Agents and a real Prometheus on a real cluster: who sees what, what the sources report, and what kill -9 loses.

On n1 alice has a shared job on one GPU, which once had a larger task; bob has his own program on another GPU of n1, and
a shared job on n2. olga is an operator. Nothing of bob's may reach alice.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from certificates import Authority
from clusters import by_release, cluster_of
from hooked import BOB, Node, requeue, start_agent, until
from test_packing import SubmittedTasks

from localcluster import Cluster
from localcluster.conf import OPERATORS_GID
from localcluster.paths import CHECKOUT
from slurm_share.load import snapshot as snapshots
from slurm_share.load.columns import process_columns
from slurm_share.load.rules.gpu_rows import gpu_rows, slot_rows
from slurm_share.load.rules.node_rows import row_of
from slurm_share.load.snapshot import NodeLoad, Snapshot

pytestmark = pytest.mark.cluster

PYTHON = "/opt/slurm-share/bin/python"
OLGA = 2003
FOLDER = "/run/slurm-share-agent"
ASK = f"""
import sys
from slurm_share.load import snapshot
from slurm_share.load.agent.client import ask
from slurm_share.core.errors import SlurmShareError
try:
    print(snapshot.render(ask("{FOLDER}/socket", 5.0, "all" in sys.argv)).decode())
except SlurmShareError as error:
    sys.exit(str(error))
"""
COURSE = """
import sys, time
from msgspec.json import encode
from slurm_share.core import config
from slurm_share.report import prometheus
from slurm_share.slurm.accounts import AccountedJob
start, problems = time.time() - 60, []
job = AccountedJob(job=int(sys.argv[1]), id=sys.argv[1], user=sys.argv[2], uid=2001, start=start, nodes=("n1",))
print(encode([*prometheus.read((job,), (), config.load().settings, problems), problems]).decode())
"""
READ = """
import json, sys
from pathlib import Path
from slurm_share.core import config
from slurm_share.load import snapshot
from slurm_share.core.errors import SlurmShareError
from slurm_share.load.sources.base import SourceRequest
from slurm_share.load.sources.survey_reader import open_source
name, file, details = sys.argv[1:4]
try:
    source = open_source(name, config.load(Path(file)).settings)
    answer = source.read(SourceRequest(nodes=tuple(sys.argv[4:]), details=details == "details"), 4.0)
    print(json.dumps({"silent": dict(answer.silent), "notes": list(answer.notes)}))
    for one in answer.snapshots.values():
        print(snapshot.render(one).decode())
except SlurmShareError as error:
    sys.exit(str(error))
"""
OWN = """
import sys
from msgspec.structs import replace
from slurm_share.core import config
from slurm_share.load import NodeWatcher, snapshot, this_node
settings = config.load().settings
watcher = NodeWatcher(this_node(), replace(settings, agent_socket="") if "alone" in sys.argv else settings)
print(snapshot.render(watcher.read(watcher.caller)).decode())
"""
USAGE = """
import sys, msgspec
from slurm_share.core import config
from slurm_share.load import usage_of
print(msgspec.json.encode(usage_of(int(sys.argv[1]), sys.argv[2:], config.load().settings)).decode())
"""
GET = """
import sys, httpx
headers = {"authorization": sys.argv[2]} if len(sys.argv) > 2 else {}
answer = httpx.get(sys.argv[1], headers=headers, trust_env=False, timeout=10)
print(answer.status_code, answer.text)
"""
UP = """
import httpx, json
ask = {"query": 'up{job=~"tls|clear"}'}
answer = httpx.get("http://ctl:9090/api/v1/query", params=ask, auth=("operator", "local-cluster"), trust_env=False)
print(json.dumps([(one["metric"]["job"], one["value"][1]) for one in answer.json()["data"]["result"]]))
"""
YAML = re.findall(r"```yaml\n(.*?)```", (CHECKOUT / "packaging/docs/agent.md").read_text(), re.DOTALL)
TLS_FILES = {
    "/etc/prometheus/slurm-share.token": "agent.token",
    "/etc/prometheus/slurm-share-ca.pem": "tls/ca.pem",
    "/etc/prometheus/slurm-share.pem": "tls/operator.pem",
    "/etc/prometheus/slurm-share.key": "tls/operator.key",
}
TLS_CONFIG = """
agent_socket = "/run/agent-tls/socket"
agent_tls_certificate = "/etc/slurm-share/tls/n1.pem"
agent_tls_key = "/etc/slurm-share/tls/n1.key"
agent_tls_client_ca = "/etc/slurm-share/tls/ca.pem"
agents_ca = "/etc/slurm-share/tls/ca.pem"
agents_certificate = "/etc/slurm-share/tls/operator.pem"
agents_key = "/etc/slurm-share/tls/operator.key"
agent_textfile = "/run/agent-tls/slurm_share.prom"
agents_port = 595
"""
RUN = '{"run": "simgpu-task --load 10 --util 20 --progress 0.1 --work 3000 --memory 1G", "name": "a"}\n' * 2
JOB = """srun -n1 simgpu-task --memory 3G --load 20 --seconds 3
srun simgpu-task --memory 1G --load 20 --seconds 600"""


@dataclass
class Scene:
    """The cluster, and who is where."""

    cluster: Cluster
    n1: Node
    alices_job: int
    bobs_job: int
    bobs_gpu: str
    """UUID of the GPU on n1 that bob's own program uses."""
    run: int
    """alice's packed run on n3, which was requeued."""

    def as_alice(self, *argv: str, node: str = "n1") -> CompletedProcess[str]:
        return self.cluster.as_user("alice", argv, node=node)

    def as_olga(self, *argv: str, node: str = "login") -> CompletedProcess[str]:
        become = ["setpriv", f"--reuid={OLGA}", f"--regid={OLGA}", "--init-groups", "--"]
        return self.cluster.exec(node, [*become, *argv])

    def everything(self) -> Snapshot:
        return parsed(self.n1.run(PYTHON, "-c", ASK, "all"))

    def read(
        self, source: str, *nodes: str, details: bool = True, file: str = "/etc/slurm-share/config.toml"
    ) -> SourceAnswer:
        argv = [source, file, "details" if details else "line", *(nodes or ("n1", "n2", "n3"))]
        done = self.as_olga(PYTHON, "-c", READ, *argv)
        if done.returncode:
            return SourceAnswer({}, {}, [], done.stderr.strip())
        head, *lines = done.stdout.splitlines()
        found = [snapshots.parse_snapshot(line, source) for line in lines]
        return SourceAnswer({one.node: one for one in found}, **json.loads(head), error="")


@dataclass
class SourceAnswer:
    """A source's answer, or its error message."""

    snapshots: dict[str, Snapshot]
    silent: dict[str, str]
    notes: list[str]
    error: str


def parsed(done: CompletedProcess[str]) -> Snapshot:
    assert done.returncode == 0, done.stderr
    return snapshots.parse_snapshot(done.stdout, "test")


def agent_pid(node: Node) -> int | None:
    found = node.run("pgrep", "-u", "slurm-share", "-f", "slurm-share agent").stdout.split()
    return int(found[0]) if found else None


def answered(true: Callable[[], Snapshot], when: Callable[[Snapshot], object], what: str) -> Snapshot:
    found: list[Snapshot] = []

    def look() -> bool:
        found[:] = [true()]
        return bool(when(found[0]))

    until(look, what)
    return found[0]


@pytest.fixture(scope="module", params=by_release("agent-"))
def scene(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Scene]:
    """Start the work of two users and wait until every agent and Prometheus have seen it."""
    with cluster_of("agent", request.param, prometheus=True) as cluster:
        for host in ("login", "n1"):
            cluster.exec(host, ["useradd", "-M", "-u", str(OLGA), "-G", "gpu-operators", "olga"], check=True)
        n1 = Node(cluster, "n1")
        bobs_gpu = n1.uuid(3)
        n1.on_gpu("bob", {"CUDA_VISIBLE_DEVICES": "3"}, "700M")
        alices = cluster.sbatch("alice", JOB, "--share-gpu=2", "--gres=gpu:1", "-n2", "-w", "n1")
        bobs = cluster.sbatch("bob", "srun simgpu-task --memory 2G --seconds 600", "--share-gpu=1", "-w", "n2")
        run = SubmittedTasks(cluster, RUN, "[1,2,1]", "--pack", "--window=1", "--options=-w n3 --requeue").job
        cluster.wait_running(run)
        requeue(cluster, run)
        made = Scene(cluster, n1, alices, bobs, bobs_gpu, run)

        def has_both_tasks(seen: Snapshot) -> bool:
            jobs = [job for job in seen.jobs if job.job == alices]
            return bool(jobs) and jobs[0].tasks == 2 and jobs[0].gpu_memory_mib == 2048 and len(seen.processes) >= 3

        until(lambda: n1.run(PYTHON, "-c", ASK, "all").returncode == 0, "the first sample")
        answered(made.everything, has_both_tasks, "alice's two tasks on n1")
        until(lambda: len(made.read("prometheus").snapshots) == 3, "three nodes in Prometheus")
        yield made
        cluster.cancel_all()


def nothing_of_bob(text: str, scene: Scene) -> None:
    """Check that the text has no name, number, job, GPU or memory of bob's."""
    for word in ("bob", f'"job":{scene.bobs_job},', scene.bobs_gpu):
        assert word not in text
    assert not re.search(rf"(?<![\d.]){BOB}(?![\d.])", text)  # and not among the digits of a figure


def test_everybody_gets_their_own_from_the_socket(scene: Scene) -> None:
    done = scene.as_alice(PYTHON, "-c", ASK)
    seen = parsed(done)
    nothing_of_bob(done.stdout, scene)
    assert (seen.view, [job.job for job in seen.jobs], seen.hidden_gpus) == ("alice", [scene.alices_job], 1)
    assert (seen.jobs[0].share, seen.jobs[0].slots) == (2, 2)
    # A task's environment is not the agent's to read: its slot is not known, and it says why.
    assert {one.slot for one in seen.processes} == {None}
    assert all("environment" in one.unknown["slot"] for one in seen.processes)
    # It is hers: what she starts to look adds it to what the agent says.
    hers = parsed(scene.as_alice("slurm-share", "sample"))
    assert (hers.source, hers.jobs[0].task_peak_mib) == ("agent", seen.jobs[0].task_peak_mib)
    assert {one.slot for one in hers.processes if one.job == scene.alices_job} == {0, 1}
    assert all(one.cap_mib for one in hers.processes if one.job == scene.alices_job)
    bobs = parsed(scene.cluster.as_user("bob", [PYTHON, "-c", ASK], node="n1"))
    assert {one.user for one in bobs.processes} == {"bob"}
    assert (bobs.jobs, scene.bobs_gpu in {gpu.uuid for gpu in bobs.gpus}) == ((), True)
    for everything in (scene.everything(), parsed(scene.as_olga(PYTHON, "-c", ASK, "all", node="n1"))):
        assert {"alice", "bob"} <= {one.user for one in everything.processes}
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", PYTHON, "-c", ASK, "all")
    in_a_namespace = scene.as_alice("unshare", "--user", "--map-root-user", PYTHON, "-c", ASK, "all")
    for refused in (scene.as_alice(PYTHON, "-c", ASK, "all"), in_a_namespace, scene.n1.run(*nobody)):
        assert refused.returncode == 1
        assert "everybody's load is for root, and for members of the group gpu-operators" in refused.stderr


def test_alice_finds_nothing_of_bob_in_files_ports_and_processes(scene: Scene) -> None:
    """The token, the file of peaks, the runtime folder, the agent's process, both ports."""
    for file in (
        f"{FOLDER}/state",
        f"{FOLDER}/lock",
        *(f"/etc/slurm-share/{name}.token" for name in ("agent", "prometheus")),
    ):
        assert "Permission denied" in scene.as_alice("cat", file).stderr, file
    assert scene.n1.run("stat", "-c", "%a %U", FOLDER, f"{FOLDER}/socket", f"{FOLDER}/state").stdout.splitlines() == [
        "755 slurm-share",
        "666 slurm-share",
        "600 slurm-share",
    ]
    for do in (f"mv {FOLDER}/socket /tmp/", f"rm {FOLDER}/socket", f"touch {FOLDER}/mine", f"ln -s / {FOLDER}/link"):
        assert "Permission denied" in scene.as_alice("bash", "-c", do + " </dev/null").stderr, do
    # Nor can anybody be in the agent's place when it is down, and be shown the token.
    taken = scene.as_alice(PYTHON, "-c", "import socket; socket.create_server(('', 594))", node="n3")
    assert "Permission denied" in taken.stderr
    pid = agent_pid(scene.n1)
    for name in ("environ", "fd", "maps", "mem", "io", "stack"):
        assert scene.as_alice("bash", "-c", f"head -c1 /proc/{pid}/{name} || ls /proc/{pid}/{name}/").returncode != 0
    nothing_of_bob(
        scene.as_alice("bash", "-c", f"tr '\\0' ' ' </proc/{pid}/cmdline; cat /proc/{pid}/status").stdout, scene
    )
    for page in ("http://n1:594/snapshot", "http://n1:594/metrics", "http://n2:594/snapshot?details=no"):
        for authorization in ([], ["Bearer " + "0" * 26], ["Basic b2xnYTpvbGdh"]):
            said = scene.as_alice(PYTHON, "-c", GET, page, *authorization, node="login").stdout
            assert said.startswith("401 "), said
            nothing_of_bob(said, scene)
    said = scene.as_alice(
        PYTHON, "-c", GET, "http://ctl:9090/api/v1/query?query=slurm_share_user_info", node="login"
    ).stdout
    assert said.startswith("401 "), said
    for source in ("agents", "prometheus"):
        done = scene.as_alice(PYTHON, "-c", READ, source, "/etc/slurm-share/config.toml", "details", "n1", node="login")
        assert done.returncode == 1
        assert "it is for root and the group gpu-operators: an administrator can add you" in done.stderr


def test_a_job_is_known_after_its_end_to_its_user_on_another_node_and_energy_adds_up(scene: Scene) -> None:
    """Through the login node's agent; bob gets nothing. Charged energy and nobody's are the counters' difference."""

    def energy(seen: Snapshot) -> tuple[float, float]:
        charged = sum(user.energy_j or 0.0 for user in seen.users)
        return (
            charged + sum(gpu.unattributed_energy_j or 0.0 for gpu in seen.gpus),
            sum(gpu.energy_j or 0.0 for gpu in seen.gpus),
        )

    def usage(user: str, *nodes: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
        done = scene.cluster.as_user(user, [PYTHON, "-c", USAGE, str(job), *nodes], node="login")
        assert done.returncode == 0, done.stderr
        found: tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]] = json.loads(done.stdout)
        return found

    known, counted = energy(scene.everything())
    work = "srun simgpu-task --memory 2G --load 40 --seconds 5"
    job = scene.cluster.sbatch("alice", work, "--share-gpu=1", "--gres=gpu:1", "-n1", "-w", "n1")
    until(lambda: (found := usage("alice", "n1")[0]) and found[0]["ended"], "the record of an ended job")
    (use,), (series,), problems = usage("alice", "n1")
    assert (use["job"], use["uid"], use["node"], use["share"], problems) == (job, 2001, "n1", 1, [])
    (gpu,) = use["gpus"]
    assert (gpu["memory_peak_mib"], gpu["was_shared"], gpu["energy"]["joules"] > 0) == (2048, False, True)
    assert series["gpus"][0]["uuid"] == gpu["uuid"]
    assert usage("bob", "n1") == [[], [], [f"n1: its agent has no record of job {job} for bob"]]
    assert usage("bob", "evil")[2] == ["evil: Slurm has no such node"]
    later, counted_later = energy(scene.everything())
    assert later - known == pytest.approx(counted_later - counted, rel=0.01)
    files = scene.as_alice(
        "bash", "-c", "cat /var/lib/slurm-share-agent/jobs/* </dev/null; ls /var/lib/slurm-share-agent"
    )
    assert files.stderr.count("Permission denied") == 2


def test_operators_have_a_jobs_course_from_prometheus_and_users_have_none(scene: Scene) -> None:
    def course(ask: Callable[..., CompletedProcess[str]], user: str) -> Any:
        return json.loads(ask(PYTHON, "-c", COURSE, str(scene.alices_job), user).stdout)

    (use,), (series,), problems = course(scene.as_olga, "alice")
    (gpu,) = use["gpus"]
    assert (use["job"], use["by"]["memory_peak_mib"], problems) == (scene.alices_job, "prometheus", [])
    assert (gpu["memory_peak_mib"], gpu["simulated"]) == (2048, True)
    assert series["gpus"][0]["memory_mib"][-1] == 2048
    assert course(scene.as_olga, "bob") == [[], [], []]
    assert course(scene.as_alice, "alice") == [[], [], []]


@pytest.mark.weekly
def test_agents_and_prometheus_say_what_the_socket_says(scene: Scene) -> None:
    """Memory, jobs, peaks to the MiB; loads, which move, within five points of a hundred; times within ten seconds.

    Each answers of its own moment: once nothing changes on the nodes they have to agree.
    """
    until(lambda: scene.everything().measured_s > 6, "some seconds of measuring")
    for source in ("agents", "prometheus"):
        agreed(scene, source)


EQUAL = {
    "gpus": ("NOW", "GPUMEM", "TASKS", "OCC", "TENSOR", "DRAM", "JOBS", "USERS"),
    "jobs": ("SHARE", "SLOTS", "TASKS", "GPUS", "IDLE", "GPUMEM", "TASKPEAK", "TRIPLE"),
    "processes": ("JOB", "STEP", "TASK", "SLOT", "GPU", "SMTIME", "GPUMEM", "PEAK", "CAP"),
}
"""Columns of llload whose figures stand still while the tasks do the same."""
Table = dict[str, dict[str, str]]


def tables(text: str) -> dict[str, Table]:
    """Return llload's tables of GPUs, jobs and processes: the row's name -> heading -> cell."""
    found: dict[str, Table] = {"gpus": {}, "jobs": {}, "processes": {}}
    name, headings = "", []
    for line in text.splitlines():
        # Of TOTAL - USED = FREE what is used. Only the last columns, NAME and NOTE, have blanks or nothing in a cell.
        line = line.replace("GPUMEM - USED = FREE", "GPUMEM")
        words = re.sub(r"\S+ - +(\S+) = +\S+", r"\1", line).split()
        if words[:1] in (["HOSTNAME"], ["JOB"]):
            headings = words
            name = "jobs" if words[0] == "JOB" else "processes" if "PID" in words else "gpus"
        elif headings and "n1" in words[:3]:
            row = dict(zip(headings, words, strict=False))
            found[name][row[{"jobs": "JOB", "processes": "PID", "gpus": "GPU"}[name]]] = row
        else:
            headings = []
    return found


@pytest.mark.weekly
def test_every_source_shows_the_same_figures_or_a_question_mark(scene: Scene) -> None:
    """A share with tasks in all of its slots, a job that leaves its GPU idle, and one on CPUs, all on n1: two known
    cells of one column are never different, and nothing that is there is shown as none."""
    options = ("-p", "plain", "-w", "n1", "-n1")
    share = scene.alices_job
    idle = scene.cluster.sbatch("alice", "sleep 600", "--gres=gpu:1", *options)
    on_cpus = scene.cluster.sbatch("alice", "sleep 600", *options)
    for job in (idle, on_cpus):
        scene.cluster.wait_running(job)
    words = ("llload", "-n", "n1", "-g", "--detail", "--processes")
    operators = ("--all", *words[1:])

    def of_prometheus() -> Snapshot:
        return scene.read("prometheus", "n1").snapshots["n1"]

    answered(of_prometheus, lambda seen: [job.tasks for job in seen.jobs] == [2, 0, 0], "two tasks in Prometheus")
    answered(of_prometheus, lambda seen: seen.jobs[1].granted, "the GPU of the idle job in Prometheus")
    said = {
        "srun": scene.as_alice(*words, node="login"),
        "local": scene.as_alice(*words, "--source", "local", node="n1"),
        "root": scene.cluster.exec("n1", ["llload", "--source", "local", *operators]),
        "agents": scene.as_olga("llload", "--source", "agents", "--record", "/tmp/seen", *operators),
        "replay": scene.as_olga("llload", "--replay", "/tmp/seen", *operators[1:]),
        "prometheus": scene.as_olga("llload", "--source", "prometheus", *operators),
        "her operator": scene.as_olga("llload", "-u", "alice", "--source", "prometheus", *words[1:]),
    }
    found = {source: tables(done.stdout) for source, done in said.items()}
    for source, done in said.items():
        assert done.returncode == 0, (source, done.stderr)
        of_jobs = found[source]["jobs"]
        assert [of_jobs[str(job)]["GPUS"] for job in (share, idle, on_cpus)] == ["1", "1", "0"], (source, done.stdout)
        assert [of_jobs[str(job)]["TASKS"] for job in (share, idle, on_cpus)] == ["2", "0", "-"], source
        gpus = found[source]["gpus"].values()
        assert [row["TASKS"] for row in gpus if row["JOBS"] == str(share)] == ["2"], (source, done.stdout)
        held_and_free = [(str(idle), "alice"), ("-", "-")]
        assert [(row["JOBS"], row["USERS"]) for row in gpus if row["TASKS"] == "0"] == held_and_free, source
        assert "no process is on these GPUs" not in done.stdout, source
    for table, columns in EQUAL.items():
        rows = {key for of in found.values() for key in of[table]}
        assert rows, table
        for key in sorted(rows):
            for column in columns:
                cells = {source: of[table][key][column] for source, of in found.items() if key in of[table]}
                assert len(set(cells.values()) - {"?"}) <= 1, (table, key, column, cells)
    assert "the processes on n1 are not known: Prometheus keeps none" in said["prometheus"].stdout
    names = {"agents": set(), "prometheus": set()}
    for source, of in names.items():
        row = row_of(NodeLoad(name="n1", snapshot=scene.read(source, "n1").snapshots["n1"]))
        of |= {
            process_columns.name(slot) for gpu in gpu_rows([row]) for slot in slot_rows(gpu) if slot.number is not None
        }
    assert names == {"agents": set(), "prometheus": {"?"}}
    scene.cluster.as_user("alice", ["scancel", str(idle), str(on_cpus)], check=True)
    answered(of_prometheus, lambda seen: len(seen.jobs) == 1, "the end of both jobs")


def agreed(scene: Scene, source: str) -> None:
    """Wait until both report the same, at most two minutes."""
    end = time.monotonic() + 120
    while True:
        try:
            return same(scene.everything(), scene, source)
        except AssertionError:
            if time.monotonic() > end:
                raise
        time.sleep(1)


def same(everything: Snapshot, scene: Scene, source: str) -> None:
    """Check that the source reports for n1 what its agent reported, and that lines are its sums."""
    found = scene.read(source)
    assert (found.error, found.silent, found.notes) == ("", {}, [])
    seen = found.snapshots["n1"]
    assert seen.source == {"agents": "agent"}.get(source, source)
    assert abs(seen.taken - everything.taken) < 10
    for field in ("cpus", "memory_total_mib", "driver"):
        assert getattr(seen, field) == getattr(everything, field), field
    for ours, theirs in zip(everything.gpus, seen.gpus, strict=True):
        for field in ("uuid", "index", "name", "simulated", "memory_used_mib", "memory_total_mib", "clients"):
            assert getattr(ours, field) == getattr(theirs, field), field
        assert ours.load_percent_windows is not None
        assert theirs.load_percent_windows is not None
        assert abs(ours.load_percent_windows.m1 - theirs.load_percent_windows.m1) < 5
    for mine, other in zip(everything.jobs, seen.jobs, strict=True):
        for field in ("job", "user", "uid", "share", "tasks", "gpus", "gpu_memory_mib", "task_peak_mib"):
            assert getattr(mine, field) == getattr(other, field), field
    assert [job.user for job in found.snapshots["n2"].jobs] == ["bob"]
    line = scene.read(source, details=False).snapshots["n1"]
    assert (line.gpus, line.jobs) == ((), ())
    assert (line.sums.count, line.sums.memory_used_mib) == (4, everything.sums.memory_used_mib)


@pytest.mark.weekly
def test_peaks_outlive_a_restart_and_a_kill(scene: Scene) -> None:
    """The task of 3 GiB ended long ago; a kill -9 loses what came after the last writing, a minute at most."""

    def job() -> tuple[int | None, int]:
        (found,) = (one for one in scene.everything().jobs if one.job == scene.alices_job)
        return found.task_peak_mib, found.tasks_measured

    before, measured_s = job(), scene.everything().measured_s
    assert before[0] == 3072
    for signal in ("TERM", "KILL"):
        pid = agent_pid(scene.n1)
        scene.n1.run("kill", f"-{signal}", str(pid))
        until(lambda: agent_pid(scene.n1) is None, "the agent's end")
        if signal == "TERM":
            assert "no agent is there; start slurm-share-agent" in scene.n1.run(PYTHON, "-c", ASK, "all").stderr
        start_agent(scene.n1)
        until(lambda: scene.n1.run(PYTHON, "-c", ASK, "all").returncode == 0, "an answer of the new agent")
        answered(scene.everything, lambda seen: seen.interval_s is not None, "its second sample")
        assert job() == before
        assert scene.everything().measured_s >= measured_s
        time.sleep(1.5)  # the second sample is written down


@pytest.mark.weekly
def test_a_flood_of_callers_and_strange_ports_stop_nobody(scene: Scene) -> None:
    """bob holds a hundred connections to the socket and to the port; alice and the operator are answered."""
    hold = """
import socket, time
links = []
for _ in range(100):
    one = socket.socket(socket.AF_UNIX); one.connect("/run/slurm-share-agent/socket"); links.append(one)
    two = socket.create_connection(("n1", 594)); two.sendall(b"GET /snapshot HTTP/1.1\\r\\n"); links.append(two)
print("held", flush=True)
time.sleep(600)
"""
    pid = scene.n1.background([PYTHON, "-c", hold], "bob")
    until(lambda: "held" in scene.n1.run("cat", "/tmp/out").stdout, "bob's connections")
    assert parsed(scene.as_alice(PYTHON, "-c", ASK)).view == "alice"
    assert sorted(scene.read("agents").snapshots) == ["n1", "n2", "n3"]
    assert parsed(scene.cluster.as_user("bob", [PYTHON, "-c", ASK], node="n1")).view == "bob"
    scene.n1.run("kill", str(pid))


@pytest.mark.weekly
def test_with_the_agent_a_user_has_every_figure_that_there_is_without_it(scene: Scene) -> None:
    """A packed run that was requeued: environments, rates and bookings, which only its user may read."""

    def seen(*how: str) -> Snapshot:
        return parsed(scene.as_alice(PYTHON, "-c", OWN, *how, node="n3"))

    def has_rates(one: Snapshot) -> bool:
        """The run's, and those that the agent has after it saw the tasks on their GPU twice."""
        reports = [job.progress for job in one.jobs if job.job == scene.run]
        return (
            any(told is not None and told.rate_per_s is not None for told in reports)
            and any(gpu.utilization_percent_windows is not None for gpu in one.gpus)
            and all(process.cpu_cores is not None for process in one.processes)
        )

    hers = answered(seen, has_rates, "the rate of a requeued run")
    alone = seen("alone")
    assert (hers.source, alone.source) == ("agent", "local")
    tasks = [one for one in hers.processes if one.job == scene.run]
    assert {(one.task, one.progress is not None and one.progress.task) for one in tasks} == {(0, 0), (1, 1)}
    assert sum(gpu.booked_mib or 0 for gpu in hers.gpus) > 0
    for ours, theirs in (
        *zip(hers.gpus, alone.gpus, strict=True),
        *zip(hers.jobs, alone.jobs, strict=True),
        *zip(hers.processes, alone.processes, strict=True),
    ):
        for field in ours.__struct_fields__:
            is_missing = getattr(ours, field) in (None, ()) and getattr(theirs, field) not in (None, ())
            assert not is_missing, (field, ours, theirs)
        assert ours.unknown.keys() <= theirs.unknown.keys()

    rows = scene.as_alice("llload", "--processes", "--tsv", "-n", "n3", node="login").stdout.splitlines()
    head, *lines = (row.split("\t") for row in rows)
    found = [dict(zip(head, line, strict=True)) for line in lines]
    assert {(one["task"], one["rate_source"]) for one in found if one["job"] == str(scene.run)} == {
        ("0", "progress"),
        ("1", "progress"),
    }
    advice = scene.as_alice("llload", "--advise", str(scene.run), node="login").stdout
    assert re.search("measured on a node, from progress|rate of its tasks is not known yet", advice), advice
    # An operator's agent may not read them, and says so.
    theirs = scene.as_olga("llload", "--source", "agents", "--all", "--advise", str(scene.run)).stdout
    assert "the rate of its tasks is not known: only its user and root can read" in theirs


@pytest.mark.weekly
def test_a_node_that_is_down_is_told_from_one_without_an_agent(scene: Scene) -> None:
    scene.cluster.exec("n2", ["pkill", "-u", "slurm-share"])
    scene.cluster.kill("n3")
    found = scene.read("agents", "n1", "n2", "n3", "n4")
    assert sorted(found.snapshots) == ["n1"]
    assert (found.silent["n2"], found.silent["n4"]) == ("no agent answers", "no such host")
    assert found.silent["n3"] in ("unreachable", "timeout")
    until(lambda: sorted(scene.read("prometheus").snapshots) == ["n1"], "Prometheus without n2 and n3")
    silent = scene.read("prometheus", "n1", "n2", "n3", "n4").silent
    assert silent["n4"] == "not in Prometheus"
    assert all(silent[node].startswith("in Prometheus last ") for node in ("n2", "n3"))
    scene.cluster.reboot("n3")
    until(lambda: "n3" in scene.read("agents").snapshots, "n3's agent after its boot")


@contextlib.contextmanager
def agent_by_tls(scene: Scene, folder: Path) -> Iterator[None]:
    """Run a second agent on n1, with TLS on port 595, client certificates, and the file for node_exporter."""
    site = scene.cluster.site
    authority = Authority(folder)
    for name in ("n1", "operator"):
        authority.issue(name)
    shutil.copytree(folder, site / "tls")
    for key in (site / "tls").iterdir():
        os.chown(key, 0, OPERATORS_GID)
    before = (site / "prometheus.yml").read_text()
    scrapes = next(text for text in YAML if "tls_config" in text).partition("scrape_configs:\n")[2]
    for theirs, ours in TLS_FILES.items():
        scrapes = scrapes.replace(theirs, f"/etc/slurm-share/{ours}")
    scrapes = scrapes.replace('["n1:594", "n2:594"]', '["n1:595"]')
    clear = scrapes.replace("slurm-share\n    scheme: https", "clear\n    scheme: http")
    (site / "prometheus.yml").write_text(before + scrapes.replace("job_name: slurm-share", "job_name: tls") + clear)
    (site / "tls.toml").write_text(TLS_CONFIG + (site / "config.toml").read_text().replace('":594"', '":595"'))
    scene.cluster.exec("ctl", ["pkill", "-HUP", "-x", "prometheus"], check=True)
    start = (
        "install -d -o slurm-share -m 755 /run/agent-tls; "
        "setsid -f env -i PATH=/usr/bin setpriv --reuid slurm-share --regid slurm-share --init-groups "
        "--inh-caps +net_bind_service --ambient-caps +net_bind_service "
        "/usr/local/bin/slurm-share agent --config /etc/slurm-share/tls.toml >>/var/log/agent-tls.log 2>&1"
    )
    scene.n1.run("bash", "-c", start)
    try:
        yield
    finally:
        scene.n1.run("pkill", "-f", "slurm-share agent --config")
        (site / "prometheus.yml").write_text(before)
        scene.cluster.exec("ctl", ["pkill", "-HUP", "-x", "prometheus"], check=True)


@pytest.mark.weekly
def test_prometheus_and_operators_meet_the_agent_by_tls(scene: Scene, tmp_path: Path) -> None:
    """As the document's example says; who speaks clear text, or has no certificate, gets nothing."""
    metrics = scene.cluster.root("n1") / "run/agent-tls/slurm_share.prom"
    with agent_by_tls(scene, tmp_path / "tls"):
        until(lambda: metrics.exists(), "the file for node_exporter")
        found = scene.read("agents", "n1", file="/etc/slurm-share/tls.toml")
        assert [one.user for one in found.snapshots["n1"].jobs] == ["alice"], found
        for line, why in (
            ("agents_ca =", "takes TLS only"),
            ("agents_certificate =", "wants a certificate of the caller"),
        ):
            text = (scene.cluster.site / "tls.toml").read_text().replace(line, f"#{line}")
            (scene.cluster.site / "part.toml").write_text(text)
            assert scene.read("agents", "n1", file="/etc/slurm-share/part.toml").silent == {"n1": why}
        checked = scene.cluster.exec("ctl", ["promtool", "check", "metrics"], input=metrics.read_text())
        assert "error while linting" not in checked.stderr, checked.stderr
        assert scene.as_alice("cat", "/run/agent-tls/slurm_share.prom").returncode == 1
        asked = [PYTHON, "-c", UP]

        def ups() -> dict[str, str]:
            return dict(json.loads(scene.cluster.exec("ctl", asked, check=True).stdout))

        until(lambda: ups() == {"tls": "1", "clear": "0"}, "Prometheus's scrapes by TLS")
    until(lambda: not metrics.exists(), "the end of the agent with its file")


@pytest.mark.weekly
def test_a_wrong_token_and_a_stopped_prometheus_are_sentences(scene: Scene) -> None:
    files = {
        "token": "another-token-of-some-length",
        "config.toml": 'agent_token_file = "/tmp/token"\n',
        "nothing.toml": "",
    }
    for name, text in files.items():
        scene.cluster.exec("login", ["bash", "-c", 'printf %s "$1" >/tmp/$2; chmod 644 /tmp/$2', "-", text, name])
    scene.cluster.exec("login", ["bash", "-c", f"chown {OLGA} /tmp/token; chmod 600 /tmp/token"])
    found = scene.read("agents", "n1", "n3", file="/tmp/config.toml")
    assert found.silent == {"n1": "wrong token", "n3": "wrong token"}
    assert "2 agents refused the token" in found.notes[0]
    assert "no Prometheus is configured: set prometheus_url" in scene.read("prometheus", file="/tmp/nothing.toml").error
    scene.cluster.exec("ctl", ["pkill", "-x", "prometheus"])
    until(lambda: "does not answer" in scene.read("prometheus").error, "the sentence about Prometheus")
    assert "http://ctl:9090 does not answer" in scene.read("prometheus").error
    assert "--source agents (load_source in config.toml) reads the nodes themselves" in scene.read("prometheus").error


def test_the_agent_leaves_root_alone(scene: Scene) -> None:
    refused = scene.n1.run("slurm-share", "agent")
    assert (refused.returncode, "does not run as root" in refused.stderr) == (2, True)
    status = scene.n1.run("cat", f"/proc/{agent_pid(scene.n1)}/status").stdout
    caps: Sequence[str] = [line.split()[1] for line in status.splitlines() if line.startswith(("CapEff", "CapPrm"))]
    assert set(caps) == {f"{1 << 10:016x}"}  # CAP_NET_BIND_SERVICE
