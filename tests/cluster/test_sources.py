"""A user's view of his nodes through srun, on a real cluster: one step a node, nothing taken, only his own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import msgspec
import pytest
from hooked import PATIENCE_S

from localcluster import Cluster, process
from slurm_share.load.snapshot import NodeLoad, ProcessLoad, Survey

pytestmark = pytest.mark.cluster

PYTHON = "/opt/slurm-share/bin/python"
VIEW = """\
import json, pathlib, pwd, os, sys, time
from slurm_share.load import snapshot
from slurm_share.load.sources.srun import SrunSource
from slurm_share.load.sources.survey_reader import SurveyReader

refresh_s, of_source = json.loads(sys.argv[1])
folder = pathlib.Path.home() / "view"
folder.mkdir(exist_ok=True)
source = SrunSource(interval_s=0.3, **of_source)
view = SurveyReader(source, user=pwd.getpwuid(os.getuid()).pw_name, refresh_s=refresh_s)
while True:
    (folder / "new").write_bytes(snapshot.render(view.read(8)))
    (folder / "new").rename(folder / "now")
    with (folder / "all").open("a") as file:
        file.write("x")
    time.sleep(0.3)
"""
"""Reads again and again and leaves the newest survey in a file, as `llload --watch` does without the screen."""


class View:
    """A view of alice's that runs on the login host."""

    def __init__(self, cluster: Cluster, refresh_s: float = 60, **of_source: float) -> None:
        self.cluster = cluster
        self.folder = cluster.home / "alice/view"
        for name in ("now", "all"):
            (self.folder / name).unlink(missing_ok=True)
        line = f'setsid {PYTHON} -I view.py "$1" </dev/null >view.out 2>&1 & echo $!'
        words = ["/bin/bash", "-c", line, "-", json.dumps([refresh_s, of_source])]
        self.pid = int(cluster.as_user("alice", words, check=True).stdout)

    def now(self) -> Survey:
        self.wait(lambda: (self.folder / "now").exists())
        return msgspec.json.decode((self.folder / "now").read_bytes(), type=Survey)

    def looks(self) -> int:
        return (self.folder / "all").stat().st_size

    def wait(self, condition: Callable[[], bool]) -> None:
        wait_for(condition, lambda: (self.cluster.home / "alice/view.out").read_text())

    def wait_for_node(self, name: str, condition: Callable[[NodeLoad], bool]) -> None:
        def seen() -> bool:
            return any(node.name == name and condition(node) for node in self.now().nodes)

        wait_for(seen, lambda: str([(node.name, node.why, tasks_of(node)) for node in self.now().nodes]))

    def kill(self) -> None:
        self.cluster.exec("login", ["kill", "-9", str(self.pid)], check=True)


def wait_for(condition: Callable[[], bool], why: Callable[[], str] = str) -> None:
    process.wait_until(condition, "what was waited for", PATIENCE_S, every_s=0.1, why=why)


@pytest.fixture(autouse=True)
def scene(cluster: Cluster) -> Iterator[None]:
    """Put the program into alice's home; end the jobs and views of each test."""
    (cluster.home / "alice/view.py").write_text(VIEW)
    yield
    cluster.exec("login", ["pkill", "-9", "-f", "view.py"])
    cluster.cancel_all()


def tasks_of(node: NodeLoad) -> list[ProcessLoad]:
    """Return the jobs' own programs on GPUs, without MPS servers."""
    return [one for one in node.snapshot.processes if one.job is not None] if node.snapshot is not None else []


def our_steps(cluster: Cluster) -> dict[str, str]:
    """Return the steps that collectors started: ID -> nodes."""
    said = cluster.exec("ctl", ["scontrol", "-o", "show", "step"]).stdout.splitlines()
    found = {}
    for line in said:
        words = dict(re.findall(r"(\w+)=(\S+)", line))
        if words.get("Name") == "llload" and words.get("State") == "RUNNING":
            found[words["StepId"]] = words["NodeList"]
    return found


def questions_of(cluster: Cluster, user: str) -> int:
    said = cluster.exec("ctl", ["sdiag"], check=True).stdout
    found = re.search(rf"^\s*{user}\s*\(\s*\d+\)\s+count:(\d+)", said, re.MULTILINE)
    return int(found[1]) if found else 0


def signal_controller(cluster: Cluster, name: str) -> None:
    """Signal slurmctld by its PID file: after `scontrol reconfigure` it may be called slurmctld-wlm."""
    cluster.exec("ctl", ["bash", "-c", f"kill -{name} $(cat /run/slurm/slurmctld.pid)"], check=True)


TASK = "simgpu-task --memory 1G --load 20 --seconds 600"


def test_a_user_s_nodes_through_srun(cluster: Cluster) -> None:
    """A whole node, one GPU on each of two nodes, parts of a GPU in an array, and another user beside."""
    whole = cluster.sbatch("alice", f"srun {TASK}", "--share-gpu=2", "-wn2")
    pair = cluster.sbatch("alice", f"srun --gres=gpu:1 {TASK}", "-pplain", "-wn1,n3", "-N2", "-n2", "--gres=gpu:1")
    cluster.wait_running(pair)
    parts = cluster.sbatch("alice", "sleep 600", "-a1-2", "--share-gpu=4", "--gres=gpu:1", "-n1", "-pplain", "-wn1")
    bobs = cluster.sbatch("bob", f"srun {TASK}", "-pplain", "-wn3", "--gres=gpu:1")
    for job in (whole, parts, bobs):
        cluster.wait_running(job)
    view = View(cluster)
    for name, count in (("n1", 1), ("n2", 4), ("n3", 1)):
        view.wait_for_node(name, lambda node, count=count: len(tasks_of(node)) == count)
    survey = view.now()
    assert [(node.name, node.why) for node in survey.nodes] == [("n1", ""), ("n2", ""), ("n3", "")]
    assert survey.notes == ()
    assert (survey.cluster, survey.slurm_version, survey.source) == ("demo", cluster.slurm_version, "srun")
    nodes = {node.name: node for node in survey.nodes}

    # What it shows: Slurm's numbers and the sampler's, of her own jobs.
    assert {name: node.slurm.gpus for name, node in nodes.items() if node.slurm} == {"n1": 4, "n2": 2, "n3": 2}
    for name, job, count in (("n1", pair, 1), ("n2", whole, 4), ("n3", pair, 1)):
        seen = nodes[name].snapshot
        assert seen is not None
        assert {(task.user, task.job) for task in tasks_of(nodes[name])} == {("alice", job)}
        assert len(tasks_of(nodes[name])) == count
        assert seen.view == "alice"
    assert "bob" not in msgspec.json.encode(survey).decode()

    # What it takes: no slot (the share's own tasks have all four), and one step on a node but for GPUs of two jobs.
    steps = our_steps(cluster)
    assert sorted(steps.values()) == ["n1", "n2", "n[1,3]"]
    assert {step.partition(".")[0] for step in steps if steps[step] != "n1"} == {str(whole), str(pair)}

    # What it costs slurmctld: nothing, look after look, but for the questions of once a minute.
    asked, looks = questions_of(cluster, "alice"), view.looks()
    view.wait(lambda: view.looks() >= looks + 10)
    assert our_steps(cluster) == steps
    assert 0 < asked <= questions_of(cluster, "alice") < asked + 10

    # kill -9: no step stays.
    view.kill()
    wait_for(lambda: our_steps(cluster) == {}, lambda: str(our_steps(cluster)))


def test_jobs_that_pause_and_end_and_a_controller_that_hangs(cluster: Cluster) -> None:
    """Each case is reported for the node, and the figures come back by themselves."""
    job = cluster.sbatch("alice", f"srun --gres=gpu:1 {TASK}", "-pplain", "-wn2,n3", "-N2", "-n2", "--gres=gpu:1")
    cluster.wait_running(job)
    view = View(cluster, refresh_s=0.5, silence_s=2)
    for name in ("n2", "n3"):
        view.wait_for_node(name, lambda node: len(tasks_of(node)) == 1)

    signal_controller(cluster, "STOP")
    try:
        looks = view.looks()
        view.wait(lambda: view.looks() >= looks + 4)
        assert view.now().answered == 2
    finally:
        signal_controller(cluster, "CONT")

    cluster.exec("ctl", ["scontrol", "suspend", str(job)], check=True)
    view.wait_for_node("n2", lambda node: node.why == "the job is suspended")
    before = view.now().taken
    cluster.exec("ctl", ["scontrol", "resume", str(job)], check=True)
    view.wait_for_node("n2", lambda node: node.snapshot is not None and node.snapshot.taken > before)

    second = cluster.sbatch("alice", "sleep 600", "-pplain", "-wn1")
    cluster.wait_running(second)
    view.wait_for_node("n1", lambda node: node.snapshot is not None)
    assert sorted(our_steps(cluster).values()) == ["n1", "n[2-3]"]
    (step,) = (step for step, nodes in our_steps(cluster).items() if nodes == "n[2-3]")
    cluster.as_user("alice", ["scancel", step], check=True)
    view.wait_for_node("n2", lambda node: node.why == "the job or its step was ended")
    assert "RUNNING" in cluster.job(job)

    cluster.as_user("alice", ["scancel", str(job)], check=True)
    wait_for(lambda: [node.name for node in view.now().nodes] == ["n1"], lambda: str(view.now()))
    assert set(our_steps(cluster).values()) == {"n1"}

    # srun is gone without a word, as when its host loses power: slurmstepd tells the sampler nothing, and it ends.
    cluster.exec("login", ["pkill", "-9", "-x", "srun"], check=True)
    wait_for(lambda: our_steps(cluster) == {}, lambda: str(our_steps(cluster)))
