"""The mode is the lesser of the controller's and the node's, whichever is switched first, with jobs in both states."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest
from hooked import Node, configured

from localcluster import Cluster

pytestmark = pytest.mark.cluster

SLOTS = "srun bash -c 'echo slot ${SLURM_SHARE_SLOT-none}'"
ONE_GPU = ("-wn2", "--share-gpu=2", "--gres=gpu:1")
WHOLE = ("-wn2", "--share-gpu=2")
ORDER = ("off", "observe", "on")


@pytest.fixture
def n2(cluster: Cluster) -> Node:
    """The node of these tests."""
    return Node(cluster, "n2")


@contextlib.contextmanager
def own_configuration(node: Node, *lines: str) -> Iterator[None]:
    """A config.toml of this node's own: that of the other hosts with these lines in place of those with their keys."""
    folder = node.cluster.root(node.name) / "var/own"
    folder.mkdir(exist_ok=True)
    keys = tuple(line.split(" =")[0] for line in lines)
    before = (node.cluster.site / "config.toml").read_text().splitlines()
    (folder / "config.toml").write_text(
        "\n".join([*lines, *(old for old in before if not old.startswith(keys))]) + "\n"
    )
    node.run("mount", "--bind", "/var/own", "/etc/slurm-share")
    try:
        yield
    finally:
        node.run("umount", "/etc/slurm-share")


def said(cluster: Cluster, job: int, user: str = "alice") -> str:
    """What a job has written so far."""
    return cluster.exec("login", ["cat", f"/home/{user}/slurm-{job}.out"]).stdout


def slots(cluster: Cluster, job: int) -> list[str]:
    """What the tasks of SLOTS said."""
    return sorted(re.findall("^slot .*", said(cluster, job), re.MULTILINE))


def extra(cluster: Cluster, job: int) -> str:
    """The field in which the verdict travels."""
    found = re.search(r"\bExtra=(\S*)", cluster.job(job))
    return found[1] if found else ""


# --- the lesser of the two -----------------------------------------------------------------------------------------


@pytest.mark.release
@pytest.mark.parametrize("own", ORDER)
@pytest.mark.parametrize("controllers", ORDER)
def test_a_job_shares_where_controller_and_node_both_do_and_fails_nowhere(
    cluster: Cluster, n2: Node, controllers: str, own: str
) -> None:
    """Every pair of modes: the job runs to its end, and is told what it got."""
    with configured(cluster, f'mode = "{controllers}"'), own_configuration(n2, f'mode = "{own}"'):
        job = cluster.sbatch("alice", SLOTS, *ONE_GPU, "--extra=hers")
        assert cluster.wait(job) == "COMPLETED", said(cluster, job)
        assert extra(cluster, job).startswith(f"hers;slurm-share={controllers}")
    if controllers == own == "on":
        assert slots(cluster, job) == ["slot 0", "slot 1"]
    else:
        assert set(slots(cluster, job)) == {"slot none"}
        assert "node n2 does not share its GPUs: this runs unshared" in said(cluster, job)
    assert n2.run("find", "/run/slurm-share/jobs", "/run/slurm-share/unshared", "-mindepth", "1").stdout == ""


@pytest.mark.release
@pytest.mark.parametrize("who", ["controller", "node"])
def test_an_srun_in_sallocs_shell_runs_unshared_where_either_is_off(cluster: Cluster, n2: Node, who: str) -> None:
    """The shell is on the login host, which knows the controller's verdict and no node's: nothing ends with 69."""
    lines = ['mode = "off"'] if who == "controller" else []
    own = 'mode = "on"' if who == "controller" else 'mode = "off"'
    with configured(cluster, *lines), own_configuration(n2, own):
        done = cluster.as_user("alice", ["salloc", *ONE_GPU, "bash", "-c", SLOTS], timeout=60)
    assert (done.returncode, set(done.stdout.split("\n"))) == (0, {"slot none", ""}), done.stderr
    assert "node n2 does not share its GPUs: this runs unshared" in done.stderr


@pytest.mark.release
def test_a_job_that_came_past_our_script_shares_only_where_the_site_says_it_has_none(
    cluster: Cluster, n2: Node
) -> None:
    """No verdict is off; with job_submit = false the node's own mode counts, whatever a user wrote himself."""
    lua = cluster.conf / "job_submit.lua"
    before = lua.read_text()
    try:
        lua.write_text("function slurm_job_submit() return 0 end\nfunction slurm_job_modify() return 0 end\n")
        rows = {(): "slot none", ("job_submit = false",): "slot 0", ("job_submit = false", 'mode = "off"'): "slot none"}
        for lines, expected in rows.items():
            with configured(cluster, *lines):
                job = cluster.sbatch("alice", SLOTS, *ONE_GPU)
                assert cluster.wait(job) == "COMPLETED", said(cluster, job)
                assert slots(cluster, job)[0] == expected, lines
    finally:
        lua.write_text(before)


@pytest.mark.release
def test_the_verdict_is_the_administrators_to_change(cluster: Cluster) -> None:
    """A user's own is taken out and cannot be put in; his other text, and every other field, is his to change."""

    def update(user: str | None, *words: str) -> str:
        argv = ["scontrol", "update", f"jobid={job}", *words]
        done = cluster.as_user(user, argv) if user else cluster.exec("ctl", argv)
        return done.stderr if done.returncode else ""

    job = cluster.sbatch("alice", SLOTS, *ONE_GPU, "--hold", "--extra=slurm-share=off;hers")
    try:
        assert extra(cluster, job) == "hers;slurm-share=on"
        assert "is for your administrators to say" in update("alice", "extra=slurm-share=off")
        assert update("alice", "extra=new") == ""
        assert extra(cluster, job) == "new;slurm-share=on"
        assert update("alice", "timelimit=3", "comment=mine") == ""
        assert "is for your administrators to say" in update("alice", "comment=slurm-share=off")
        as_slurm = ["setpriv", "--reuid=slurm", "--regid=slurm", "--clear-groups"]
        done = cluster.exec("ctl", [*as_slurm, "scontrol", "update", f"jobid={job}", "extra=new;slurm-share=off"])
        assert done.returncode == 0, done.stderr
        assert update(None, "extra=new;slurm-share=on") == ""
        cluster.exec("ctl", ["scontrol", "release", str(job)], check=True)
        assert cluster.wait(job) == "COMPLETED"
        assert slots(cluster, job) == ["slot 0", "slot 1"]
    finally:
        cluster.exec("ctl", ["scancel", str(job)])
        cluster.wait(job)
