"""Nodes that get their configuration from the controller: Slurm's files reach them, hooks and plugin do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bare_site import ACCEPTED, files, install, put_back, reconfigure, strip
from clusters import cluster_of
from hooked import Node, completed, until, why_not_idle

from localcluster import RELEASES, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.release]

START = """\
pkill -x slurmd || true
while pgrep -x slurmd >/dev/null; do sleep 0.05; done
mount -t tmpfs -o mode=755 none /etc/slurm
"""
"""Removes all of Slurm's files from the host."""
PLUGIN, PROLOG = "/usr/lib/slurm-share/share_gpu.so", "/opt/slurm-share/bin/slurm-share-prolog"


@pytest.fixture(scope="module", params=list(RELEASES))
def site(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a configless cluster with our packages and none of our lines."""
    extra = "SlurmctldParameters=enable_configless\n"
    with cluster_of("configless", request.param, nodes=2, slurm_conf_extra=extra) as made:
        strip(made)
        for node in ("n1", "n2"):
            made.exec(node, ["bash", "-ec", START + "slurmd --conf-server ctl:6817"], check=True)
        reconfigure(made)
        yield made


def doctor(cluster: Cluster, *words: str) -> str:
    done = cluster.exec("n1", ["slurm-share", "doctor", *words])
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_written_on_the_controller_used_on_the_nodes(site: Cluster) -> None:
    """Doctor names what no controller sends; with it there, a job is shared, and everything comes out again."""
    before = files(site)
    node = Node(site, "n1")
    assert not node.run("ls", "/etc/slurm").stdout
    for word in ("--check", "--apply"):
        refused = site.exec("n1", ["slurm-share", "install", word])
        assert refused.returncode == 2
        assert "was sent by the controller" in refused.stderr
        assert "run this on the controller" in refused.stderr
    written = site.exec("ctl", ["slurm-share", "install", "--apply", "--shards"], check=True).stdout
    assert "note: configless:" in written
    assert "the plugin and the hooks do not" in written
    for file in (PLUGIN, PROLOG):
        site.exec("n1", ["mv", file, f"{file}.away"], check=True)
    reconfigure(site)
    said = doctor(site)
    for file in (PLUGIN, PROLOG):
        assert [line for line in said.splitlines() if "FAIL" in line and file.rpartition("/")[2] in line], (file, said)
    for file in (PLUGIN, PROLOG):
        site.exec("n1", ["mv", f"{file}.away", file], check=True)
    said = doctor(site)
    assert "FAIL  " not in said, said
    output = completed(site, "srun printenv SLURM_SHARE_SLOT", "--share-gpu=2", "-wn1")
    assert sorted(output.split()[-8:]) == list("01234567"), output
    assert node.remains() == []
    site.exec("ctl", ["slurm-share", "install", "--undo"], check=True)
    assert files(site) == before
    reconfigure(site)
    assert site.wait(site.sbatch("alice", "srun true", "--gres=gpu:1")) == "COMPLETED"


AWAY = "for folder in /opt/slurm-share /usr/lib/slurm-share; do mv $folder $folder.away; done"
HERE = "for folder in /opt/slurm-share /usr/lib/slurm-share; do mv $folder.away $folder; done"
FEATURE = "sed -i '1i node_feature = \"here\"' /etc/slurm-share/config.toml; slurm-share config write-lua"


@pytest.fixture
def partly(site: Cluster) -> Iterator[Cluster]:
    """Remove the package from the second node; restore it afterwards."""
    before = files(site)
    settings = (site.site / "config.toml").read_text()
    site.exec("n2", ["bash", "-ec", AWAY], check=True)
    # A node whose last job is not quite over takes no job of a moment, and would not be asked.
    until(lambda: set(site.status().nodes.values()) == {"idle"}, "idle nodes")
    yield site
    site.cancel_all()
    site.exec("n2", ["bash", "-ec", HERE], check=True)
    site.write_config(settings)
    if site.status().nodes["n2"].startswith("drain"):
        site.exec("ctl", ["scontrol", "update", "node=n2", "state=resume"], check=True)
    put_back(site, before)


def refused_with_answers(cluster: Cluster) -> str:
    """Run --apply, which must refuse to write, and return what it says.

    On a busy machine a job may not start in time. A node without an answer is named and does not stop --apply, so take
    back what was written, and try again.
    """
    before, said = files(cluster), ""

    def have_answered() -> bool:
        nonlocal said
        until(lambda: set(cluster.status().nodes.values()) == {"idle"}, "idle nodes")  # one that is not is not asked
        done = cluster.exec("ctl", ["slurm-share", "install", "--apply"])
        said = done.stdout + done.stderr
        assert "Traceback" not in said
        if "not checked, since they did not answer: n" in said:
            # What asks is a job. If it starts late, under the lines just written, it drains the node.
            cluster.exec("ctl", ["scontrol", "update", "nodename=n2", "state=resume"])
            put_back(cluster, before)
            return False
        assert done.returncode == 2, said
        return True

    until(have_answered, "an answer of both nodes", lambda: said)
    return said


def test_a_node_without_the_package_is_found_before_it_is_drained(partly: Cluster) -> None:
    """By a job of a moment, for the controller has no ssh here. What it is refused for does happen: anybody's job."""
    mine = files(partly)
    said = refused_with_answers(partly)
    assert "n2 lacks /opt/slurm-share/bin/slurm-share-prolog" in said
    assert "anybody's next job there would drain the node" in said
    assert "n1" not in said.split("nothing was written:")[1]
    assert files(partly) == mine
    with (partly.conf / "slurm.conf").open("a") as file:
        file.write(f"PrologFlags=Alloc\nProlog={PROLOG}\n")
    reconfigure(partly)
    assert "not checked, since they did not answer: n[1-2]" in install(partly, "--apply", "--with", "partial", code=2)
    # What asks is no job then: it would drain the node itself.
    until(lambda: set(partly.status().nodes.values()) == {"idle"}, "idle nodes", lambda: why_not_idle(partly))
    partly.sbatch("alice", "srun true", "-wn2")
    until(lambda: partly.status().nodes["n2"].startswith("drain"), "the node's drain")


def test_nodes_without_the_package_take_ordinary_jobs_and_no_shared_ones(partly: Cluster) -> None:
    """The hooks are wrappers, sent with slurm.conf; shared jobs keep to the feature's nodes; all of it comes out."""
    slurm = partly.conf / "slurm.conf"
    text = slurm.read_text()
    slurm.write_text(text.replace("NodeName=n1 ", "NodeName=n1 Feature=here "))
    partly.exec("ctl", ["scontrol", "reconfigure"], check=True)
    mine = files(partly)
    assert 'node_feature = "share"' in install(partly, "--apply", "--with", "partial", code=2)
    assert files(partly) == mine
    partly.exec("ctl", ["bash", "-ec", FEATURE], check=True)
    assert "without the package, and left alone: n2" in install(partly, "--apply", "--with", "partial")
    wrapper = partly.conf / "slurm-share-prolog.sh"
    assert wrapper.stat().st_mode & 0o777 == 0o755
    assert "Prolog=slurm-share-prolog.sh\n" in slurm.read_text()
    assert "no line is missing" in install(
        partly, "--check", "--with", "partial", *ACCEPTED, code=2
    )  # no shards here, but in config.toml
    reconfigure(partly)
    assert partly.wait(partly.sbatch("alice", "srun true", "-wn2")) == "COMPLETED"
    shared = [partly.sbatch("alice", "srun printenv SLURM_SHARE_SLOT", "--share-gpu=2") for _ in range(2)]
    for job in shared:
        assert partly.wait(job) == "COMPLETED", partly.job(job)
        assert "NodeList=n1" in partly.job(job)
        assert sorted(partly.output(job).split()[-8:]) == list("01234567")
    refused = partly.as_user("alice", ["sbatch", "-wn2", "--share-gpu=2", "--wrap", "true"])
    assert refused.returncode != 0, refused.stdout
    assert set(partly.status().nodes.values()) == {"idle"}
    assert "FAIL  " not in doctor(partly), doctor(partly)
    assert "/etc/slurm/slurm-share-prolog.sh stays" in install(partly, "--undo")
    assert wrapper.exists()  # slurmd has it until the reconfigure
    assert partly.wait(partly.sbatch("alice", "srun true", "-wn2")) == "COMPLETED"
    reconfigure(partly)
    assert "removed /etc/slurm/slurm-share-prolog.sh" in install(partly, "--undo")
    assert files(partly) == mine
