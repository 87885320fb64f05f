"""Reports of jobs that have ended, as users ask for them, on a cluster with accounting and agents.

All jobs run at once, on nodes of their own, so that the file takes little more than the longest of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from clusters import cluster_of
from hooked import until

from localcluster import Cluster
from localcluster.paths import CHECKOUT
from localcluster.records import CURRENT
from slurm_share.usage import JobUse, comment

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("report")]

EVIL = "<script>alert(1)</script>\x1b[2J"
HOG = """#!/bin/bash
srun bash -c 'load=10; [ $SLURM_PROCID = 0 ] && load=90; exec simgpu-task --memory ${load}00M --load $load --seconds 4'
"""
TASK = """#!/bin/bash
seconds=0.$(($1 % 5 + 2))
[ $1 = 0 ] && seconds=2.5
exec simgpu-task --memory $(($1 % 4 * 512 + 512))M --load $(($1 % 7 * 12 + 5)) --seconds $seconds
"""


class Scene:
    """A cluster with alice's jobs, which have ended."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.hog = cluster.sbatch("alice", HOG, "--share-gpu=2", "-wn1", "-J", EVIL, "--gres=gpu:2")
        cluster.as_user("alice", "cat >task.sh; chmod +x task.sh; seq 0 59 >list", input=TASK, check=True)
        made = cluster.as_user("alice", "llsub ./task.sh '[1,8,1]' --tasks list --report --options=-wn2", check=True)
        found = re.search(r"^job (\d+):", made.stdout + made.stderr, re.MULTILINE)
        assert found, made
        self.run = int(found[1])
        work = "srun simgpu-task --memory 1G --load 40 --seconds 3"
        self.array = cluster.sbatch("alice", work, "--array=1-3", "-n1", "-wn3", "--gres=gpu:1", "--mem=900M", "-t10")
        self.failed = cluster.sbatch("alice", "sleep 0.1; exit 3", "-n1", "-wn3", "--mem=100M")
        for job in (self.hog, self.run, self.array, self.failed):
            cluster.wait(job)

    def said(self, *words: object, user: str = "alice", code: int = 0) -> str:
        done = self.cluster.as_user(user, ["slurm-share", "report", *map(str, words)])
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        assert done.stdout.replace("\n", "").isprintable()
        return done.stdout if code == 0 else done.stderr

    def report(self, *words: object) -> dict[str, Any]:
        (found,) = json.loads(self.said(*words, "--json"))["reports"]
        return dict(found)

    def measured(self, *words: object) -> dict[str, Any]:
        """Return a report once the last sample of the agents, one a second, is in it."""
        found: list[dict[str, Any]] = []

        def is_whole() -> bool:
            found[:] = [self.report(*words)]
            uses = found[0]["uses"]
            return bool(uses) and all(use["ended"] and use["gpus"] and use["gpus"][0]["measured_s"] for use in uses)

        until(is_whole, f"the figures of {words}")
        return found[0]


@pytest.fixture(scope="module")
def scene(can_make_clusters: None) -> Iterator[Scene]:
    with cluster_of("report", CURRENT, accounting=True, agents=True) as made:
        yield Scene(made)


def adds_up(figures: dict[str, Any]) -> None:
    """Check that charged and nobody's energy are that of the GPUs, within 1 %."""
    assert figures["energy_j"] > 0
    whole = figures["energy_j"] + (figures["unattributed_j"] or 0.0)
    assert figures["device_j"] == pytest.approx(whole, rel=0.01)


def test_a_share_with_a_hog(scene: Scene) -> None:
    report = scene.measured(scene.hog)
    figures = report["figures"]
    adds_up(figures)
    loads = [gpu["use"]["sm_percent"] for gpu in figures["gpus"]]
    assert len(loads) == 2
    assert loads[0] > 2 * loads[1]
    # The hog of 9000 MiB and a task of 1000 MiB beside it.
    assert figures["gpu_peak_mib"] >= 10_000
    elapsed = report["starts"][0]["elapsed_s"]
    assert figures["gpu_s"] == 2 * elapsed
    assert figures["gpu_idle_s"] <= figures["gpu_measured_s"] <= figures["gpu_s"] + 4
    text = scene.said(scene.hog)
    assert "Completed after" in text
    assert "SIMULATED GPUs" in text
    assert "--share-gpu=2" in text
    assert "sharing=mps" in text  # the Prolog noted it: the agent may not read the environment of tasks
    page = scene.cluster.as_user("alice", f"slurm-share report {scene.hog} --html r.html && cat r.html", check=True)
    assert "<script" not in page.stdout
    assert "<figcaption>GPU load</figcaption>" in page.stdout


def test_a_run_of_60_unlike_tasks(scene: Scene) -> None:
    report = scene.measured("LLSUB.1")
    assert (report["run_tasks"], len({task["task"] for task in report["tasks"]})) == (60, 60)
    adds_up(report["figures"])
    # Tasks that end between two samples have no energy of their own; the run has it.
    charged = [gpu["energy"]["joules"] for task in report["tasks"] for gpu in task["gpus"] if gpu["energy"]]
    assert sum(charged) <= 1.01 * report["figures"]["energy_j"]
    text = scene.said("LLSUB.1")
    assert "60 done of 60" in text
    assert re.search("most wants? a look:\n.*\n +0 +done", text), text
    rows = scene.said(scene.run, "--csv").splitlines()
    assert len(rows) == 61
    log = scene.cluster.as_user("alice", "cat LLSUB.1/llsub-triple-mode-launch.log-*", check=True).stdout
    (head,) = re.findall(r"^slurm-share: run LLSUB\.1 ended after .*", log, re.MULTILINE)
    short = log[log.index(head) :].splitlines()
    assert len(short) <= 12
    assert short[-1] == "  all of it   slurm-share report LLSUB.1"


def test_an_array_has_a_line_for_each_element_and_the_sums(scene: Scene) -> None:
    report = scene.measured(scene.array)
    assert len(report["starts"]) == 3
    figures = report["figures"]
    assert figures["gpu_s"] == sum(start["elapsed_s"] for start in report["starts"])
    # At a change of elements on a GPU a part of its energy is the next element's, in the time of both.
    assert 0 < figures["energy_j"] + (figures["unattributed_j"] or 0.0) <= 1.01 * figures["device_j"]
    text = scene.said(scene.array)
    assert all(re.search(rf"^  {scene.array}_{n}  COMPLETED", text, re.MULTILINE) for n in (1, 2, 3))
    one = scene.report(f"{scene.array}_2")
    assert [start["id"] for start in one["starts"]] == [f"{scene.array}_2"]


def test_after_its_end_a_share_is_in_slurmdbd_and_on_its_node_for_its_user_alone(scene: Scene) -> None:
    """The example of accounting.md."""
    assert "\n    sacct -X -n -P -o SystemComment -j 4711\n" in (CHECKOUT / "packaging/docs/accounting.md").read_text()
    argv = ["sacct", "-X", "-n", "-P", "-o", "SystemComment", "-j", str(scene.hog)]
    found: list[JobUse] = []

    def is_there() -> bool:
        text = scene.cluster.as_user("alice", argv, check=True).stdout.strip()
        found[:] = comment.decode(text).uses
        return bool(found)

    until(is_there, f"the record of job {scene.hog} in slurmdbd")
    (use,) = found
    assert (use.job, use.node, use.share, len(use.gpus)) == (scene.hog, "n1", 2, 2)
    for gpu in use.gpus:
        assert gpu.energy is not None
        assert gpu.energy.joules == gpu.device_j
        assert (gpu.energy.rule, gpu.was_shared, gpu.simulated) == ("counter", False, True)
    file = f"/var/lib/slurm-share/usage/use-{scene.hog}.json"
    read = {user: scene.cluster.exec("n1", ["runuser", "-u", user, "--", "cat", file]) for user in ("alice", "bob")}
    assert f'"job":{scene.hog},' in read["alice"].stdout
    assert "Permission denied" in read["bob"].stderr
    log = (scene.cluster.root("n1") / "var/log/slurm-share.log").read_text()
    assert " record: " not in log
    states = scene.cluster.status().nodes
    assert not [node for node, state in states.items() if "drain" in state]


def test_a_job_that_failed_and_what_is_refused(scene: Scene) -> None:
    assert "Failed (exit code 3) after" in scene.said(scene.failed)
    assert "is a job of alice" in scene.said(scene.hog, user="bob", code=2)
    assert "there is no job 999999" in scene.said(999999, code=2)
    assert "neither a job" in scene.said("nonsense", code=2)


def test_a_day_and_a_week(scene: Scene) -> None:
    day = scene.said()
    assert day.startswith("JOB ")
    assert re.search(rf"^{scene.failed} +wrap|^{scene.failed} .*FAILED", day, re.MULTILINE)
    week = json.loads(
        scene.said("--week", scene.cluster.exec("n1", ["date", "-u", "+%G-W%V"]).stdout.strip(), "--json")
    )
    assert week["week"]["jobs"] >= 5
    assert week["week"]["gpu_had_h"] > 0


@pytest.mark.weekly
def test_a_job_that_its_limit_ended_and_one_that_nobody_measured(scene: Scene) -> None:
    cluster = scene.cluster
    limit = cluster.sbatch("alice", "sleep 300", "-n1", "-wn3", "-t1", "--mem=100M")
    cluster.exec("n2", ["pkill", "-f", "slurm-share agent"])
    before = cluster.sbatch("alice", "srun simgpu-task --seconds 1", "-n1", "-wn2", "-pplain", "--gres=gpu:1")
    cluster.wait(before)
    text = scene.said(before)
    assert "GPUs         unknown: nobody measured" in text
    assert "Nothing was measured on n2" in text
    cluster.wait(limit)
    text = scene.said(limit)
    assert "Was ended by its time limit" in text
    assert "--time=00:05:00" in text
