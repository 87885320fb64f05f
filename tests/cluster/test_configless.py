"""Nodes that have their configuration from the controller: Slurm's files reach them, hooks and plugin do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bare_site import files, reconfigure, strip
from conftest import name_for
from hooked import Node

from localcluster import RELEASES, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.release]

START = """\
pkill -x slurmd || true
while pgrep -x slurmd >/dev/null; do sleep 0.05; done
mount -t tmpfs -o mode=755 none /etc/slurm
"""
"""Nothing of Slurm's files is on the host any more."""
PLUGIN, PROLOG = "/usr/lib/slurm-share/share_gpu.so", "/opt/slurm-share/bin/slurm-share-prolog"


@pytest.fixture(scope="module", params=list(RELEASES))
def site(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Cluster]:
    """Our packages everywhere, none of our lines; the node has no file of Slurm's but what the controller sends."""
    release = request.param
    extra = "SlurmctldParameters=enable_configless\n"
    with Cluster.up(name_for(f"configless{release}"), release, nodes=1, slurm_conf_extra=extra) as made:
        if made.slurm_release != release:
            pytest.skip(f"NOT TESTED on Slurm {release}: only {made.slurm_version} can be made on this machine today")
        strip(made)
        made.exec("n1", ["bash", "-ec", START + "slurmd --conf-server ctl:6817"], check=True)
        reconfigure(made)
        yield made


def doctor(cluster: Cluster, *words: str) -> str:
    """What it says on the node."""
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
    job = site.sbatch("alice", "srun printenv SLURM_SHARE_SLOT", "--share-gpu=2")
    assert site.wait(job) == "COMPLETED", site.job(job)
    assert sorted(site.output(job).split()[-8:]) == list("01234567"), site.output(job)
    assert node.remains() == []
    site.exec("ctl", ["slurm-share", "install", "--undo"], check=True)
    assert files(site) == before
    reconfigure(site)
    plain = site.sbatch("alice", "srun true", "--gres=gpu:1")
    assert site.wait(plain) == "COMPLETED"
