"""The dashboard on a full cluster that loses a node: pending jobs are shown, and silent nodes come back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from clusters import WITHOUT, name_for
from hooked import until
from terminal import Terminal, Terminals, terminals
from test_tui import as_alice, goes_to

from localcluster import RELEASES, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("full-queue")]

WORK = "srun simgpu-task --memory 2000M --load 40 --seconds 900"


@pytest.fixture(scope="module")
def cluster(can_make_clusters: None) -> Iterator[Cluster]:
    with Cluster.up(name_for("full"), next(iter(RELEASES)), without=WITHOUT) as made:
        yield made


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminals]:
    with terminals(tmp_path_factory.mktemp("tmux")) as made:
        yield made


def steps(cluster: Cluster) -> int:
    return cluster.exec("ctl", ["squeue", "-h", "-s", "-o", "%j"], check=True).stdout.split().count("llload")


def names(screen: Terminal) -> list[str]:
    """Return the first words of the table's rows."""
    return [line.split()[0] for line in screen.lines if line.split()[:1] and line.split()[0] in ("n1", "n2", "n3")]


def of_waiting(screen: Terminal, job: int) -> list[str]:
    """Return what stands behind the state of a waiting job: its time, its start, ..."""
    row = screen.row(str(job))
    return row[row.index("PD") + 1 :]


def llload(cluster: Cluster) -> Any:
    return json.loads(cluster.as_user("alice", ["llload", "--json"], check=True).stdout)


def test_jobs_that_wait_are_on_the_screen_and_take_part_in_nothing_else(cluster: Cluster, opened: Terminals) -> None:
    """Three jobs and an array of twenty, with reason and expected start."""
    work = cluster.sbatch("alice", WORK, "--share-gpu=2", "-wn1", "-t60", "-Jwork")
    cluster.wait_running(work)
    before = llload(cluster)
    waits = [cluster.sbatch("alice", WORK, "--share-gpu=2", "-wn1", "-t5", f"-Jwaits{one}") for one in range(3)]
    array = cluster.sbatch("alice", WORK, "--share-gpu=2", "-wn1", "-t5", "-a0-19", "-Jsweep")
    held = cluster.sbatch("alice", WORK, "--hold", "-Jheld")
    try:
        screen = opened.open("queue", as_alice(cluster, "llload-tui", "--interval", "1", "--view", "jobs"), (200, 50))
        for job in waits:
            assert of_waiting(screen, job)[0] == "-"
        assert "PD" in screen.row(str(array), "x20")
        assert "(JobHeldUser)" in screen.row(str(held))
        screen.shows("25 jobs of yours  1 R, 24 PD")
        assert of_waiting(screen, held)[1] == "?"

        def starts() -> bool:
            """Wait until the scheduler has predicted a start and the screen has asked again."""
            screen.press("F5")
            row = of_waiting(screen, waits[0])
            # "14:05", and "11-24 00:05" of another day
            return ":" in f"{row[1]} {row[2]}" and "(Resources)" in row

        screen.until(starts, "an expected start")
        goes_to(screen, "2", "Users")
        screen.shows(" 1+24 ")
        assert steps(cluster) == 1
        # llload is as it was: its lines, its JSON, its refusal.
        after = llload(cluster)
        assert [node["name"] for node in after["nodes"]] == [node["name"] for node in before["nodes"]] == ["n1"]
        assert [job["job_id"] for job in after["jobs"]] == [job["job_id"] for job in before["jobs"]] == [work]
        refused = cluster.as_user("alice", ["llload", "-j", str(waits[0])])
        assert (refused.returncode, "not a running job of alice" in refused.stderr) == (2, True)
        # A recording has them.
        cluster.as_user("alice", ["llload", "--record", "queue.jsonl"], check=True)
        recorded = json.loads((cluster.home / "alice" / "queue.jsonl").read_text())
        assert {work, *waits, array, held} == {job["job_id"] for job in recorded["jobs"]}
        screen.press("q")
        screen.until(lambda: screen.code == 0, "its end")
    finally:
        cluster.cancel_all()


def test_a_node_that_was_rebooted_under_a_job_is_seen_again(cluster: Cluster, opened: Terminals) -> None:
    """The job goes on, and so do the figures of its other node; by the dashboard and by llload --watch."""
    job = cluster.sbatch("alice", WORK, "--share-gpu=2", "-N2", "-wn2,n3", "-Jpair")
    hog = cluster.sbatch("alice", "sleep 900", "--gres=gpu:1", "-wn1", "-Jhog")
    cluster.wait_running(job)
    cluster.wait_running(hog)
    try:
        gpus = opened.open("gpus", as_alice(cluster, "llload-tui", "--interval", "1", "--view", "gpus"), (80, 24))
        gpus.shows(f"held by {hog}")
        assert gpus.row("n1")[2] == "alice"
        gpus.press("q")
        cluster.exec("ctl", ["scancel", str(hog)], check=True)
        dashboard = opened.open("power", as_alice(cluster, "llload-tui", "--interval", "1", "--view", "nodes"))
        watch = opened.open("watch", as_alice(cluster, "llload", "--watch", "1"))
        dashboard.shows("2 of 2 nodes answered")
        watch.shows("n2 ", "n3 ", "source: srun")
        cluster.kill("n3")
        for screen in (dashboard, watch):
            screen.shows("1 of 2 nodes answered", "nothing for ")
            assert "nothing for" not in " ".join(screen.row("n2"))
            assert "nothing for" in " ".join(screen.row("n3"))
        # The node that needs somebody comes first; f shows it alone, and the line above has their number.
        dashboard.shows("1 needs attention (f)  1 dead")
        dashboard.until(lambda: names(dashboard) == ["n3", "n2"], "n3 before n2")
        dashboard.press("f")
        dashboard.until(lambda: names(dashboard) == ["n3"], "n3 alone")
        dashboard.press("f")
        cluster.reboot("n3")
        dashboard.shows("2 of 2 nodes answered")
        watch.hides("1 of 2 nodes answered")
        until(lambda: "nothing for" not in " ".join(watch.row("n3")), "n3 in llload --watch")
        assert "RUNNING" in cluster.job(job)
        for screen in (dashboard, watch):
            screen.press("q")
        for screen in (dashboard, watch):
            screen.until(lambda screen=screen: screen.code == 0, "its end")  # type: ignore[misc]
        # Slurm keeps the step's record, for the node that was lost, until the job ends; nothing of it runs.
        until(lambda: cluster.exec("login", ["pgrep", "-x", "srun"]).stdout == "", "the end of every srun")
    finally:
        cluster.cancel_all()
