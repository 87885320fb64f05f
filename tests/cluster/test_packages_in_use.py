"""A cluster installed from the packages: in containers, upgraded under a job, from installation to removal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apptainer
import pytest
from bare_site import files, install, reconfigure, strip
from clean_roots import newer
from clusters import CONFINED, name_for
from hooked import Node, completed, until

from localcluster import Cluster, packaged
from localcluster.errors import Misuse

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.xdist_group("packages-at-work")]

INSTALL = "dpkg -i /root/new/slurm-share_*.deb /root/new/slurm-share-spank_*.deb /root/new/slurm-share-tui_*.deb"
CONTAINER = """\
# A container as enroot makes one, as far as this matters: an empty /run of its own, /dev, /proc and /usr of the host,
# and then the lines of mounts.d. The driver (here: the simulated one) is brought by the container's GPU support.
set -e
root=/tmp/container
mkdir -p $root
mount -t tmpfs none $root
for folder in usr etc dev proc; do mkdir $root/$folder; mount --rbind /$folder $root/$folder; done
for link in bin sbin lib lib64; do [ ! -L /$link ] || ln -s usr/$link $root/$link; done
mkdir -p $root/tmp $root/run/simgpu
mount --rbind /run/simgpu $root/run/simgpu
mkdir -p $root/home
mount --rbind /home $root/home
grep -v '^#' "$1" | while read -r from to kind options rest; do
    [ "$kind" = none ]
    case ,$options, in *,x-create=dir,*) mkdir -p "$root$to" ;; esac
    mount --rbind "$from" "$root$to"
done
chroot $root bash "$HOME/task"
"""
TASK = """\
simgpu-task --memory 100M --seconds 1
slot=/run/slurm-share/jobs/$SLURM_JOB_ID/slots/$SLURM_SHARE_SLOT
if [ -e $slot ]; then flock -n $slot true && echo lease free || echo lease held; else echo lease unseen; fi
"""
EXAMPLES = "/usr/share/doc/slurm-share/examples/apptainer.txt"


@pytest.fixture(scope="module")
def cluster(can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster of one node, installed from the packages and configured except for our lines."""
    try:
        made = Cluster.up(name_for("packages"), packages=True, nodes=1, **CONFINED)
    except Misuse:  # cgroups are not to be had on this machine
        made = Cluster.up(name_for("packages"), packages=True, nodes=1)
    with made:
        yield made


def test_tasks_in_a_container_share_too(cluster: Cluster) -> None:
    """With the file for enroot the task finds its MPS daemon and its lease; without it, in the same container, not."""
    folder = cluster.home / "alice"
    (folder / "container").write_text(CONTAINER)
    (folder / "task").write_text(TASK)
    (folder / "nothing").write_text("# no mount of ours\n")
    enter = "unshare --user --map-current-user --keep-caps --mount bash container"
    inside, without = (
        completed(cluster, f"srun -n1 {enter} {file}", "--share-gpu=2")
        for file in ("/etc/enroot/mounts.d/50-slurm-share.fstab", "nothing")
    )
    assert "mps server" in inside
    assert "lease held" in inside
    assert "mps off" in without
    assert "lease unseen" in without


def test_tasks_in_an_apptainer_share_too(cluster: Cluster) -> None:
    """With a line of our examples the task finds its MPS daemon and its lease; without, not."""
    apptainer.put_on(cluster, "n1")
    (cluster.home / "alice/task").write_text(TASK)
    lines = cluster.exec("n1", ["grep", "-E", "^(apptainer|export) ", EXAMPLES], check=True).stdout.splitlines()
    [administrator, user] = lines
    # what `apptainer --nv` does for a real driver
    driver = "--bind /run/simgpu,/usr/local"
    enter = f"srun -n1 apptainer --quiet exec {driver} {apptainer.IMAGE} bash task"

    told = completed(cluster, f"{enter}\n{user}\n{enter}", "--share-gpu=2")
    assert (told.count("mps off"), told.count("mps server")) == (1, 1), told
    assert (told.count("lease unseen"), told.count("lease held")) == (1, 1)
    cluster.exec("n1", ["bash", "-c", administrator], check=True)
    told = completed(cluster, enter, "--share-gpu=2")
    assert "mps server" in told
    assert "lease held" in told


def test_an_upgrade_under_a_running_job_loses_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """Tasks and MPS daemons are not touched, and the new release's Epilog takes back what the old one gave."""
    node = Node(cluster, "n1")
    job = cluster.sbatch(
        "alice", "srun bash -c 'touch up.$SLURM_PROCID; until [ -e go ]; do sleep 0.1; done'", "--share-gpu=2"
    )
    home = cluster.home / "alice"
    until(lambda: len(list(home.glob("up.*"))) == 8, "the tasks")
    before = node.mps()
    assert len(before) == 4
    packages = newer(packaged.built(), tmp_path / "newer", "99.1")
    # node by node: the controller has the old release for now
    folder = cluster.root("n1") / "root/new"
    folder.mkdir()
    for package in packages.glob("*.deb"):
        (folder / package.name).write_bytes(package.read_bytes())
    cluster.exec("n1", ["bash", "-c", INSTALL], check=True)
    version = "import importlib.metadata; print(importlib.metadata.version('slurm-share'))"
    assert cluster.exec("n1", ["/opt/slurm-share/bin/python", "-Ic", version], check=True).stdout == "99.1\n"
    assert node.mps() == before
    assert node.jobs() == [job]
    (home / "go").touch()
    assert cluster.wait(job) == "COMPLETED"
    assert node.remains() == []
    assert cluster.status().nodes == {"n1": "idle"}


def test_from_the_first_line_to_the_removal(cluster: Cluster) -> None:
    """An administrator installs, shares a job and removes the lines; only then the packages can go."""
    strip(cluster)
    reconfigure(cluster)
    before = files(cluster)
    assert cluster.exec("ctl", ["dpkg", "--verify", "slurm-share-spank"], check=True).stdout == ""
    assert cluster.exec("n1", ["readlink", "-f", "/usr/bin/slurm-share"], check=True).stdout == (
        "/opt/slurm-share/bin/slurm-share\n"
    )
    install(cluster, "--apply", "--shards")
    reconfigure(cluster)
    for host in ("ctl", "login", "n1"):
        # without cgroups the controller's doctor has to warn, and the others have nothing to say
        well = 0 if cluster.cgroup or cluster.cgroup_v2 or host != "ctl" else 1
        # a reconfigure puts a new slurmctld in the place of the old one, and for a moment its pid file names neither
        doctor = ["slurm-share", "doctor", "--except", "prolog-flags"]
        until(lambda: cluster.exec(host, doctor).returncode == well, f"a green doctor on {host}")  # noqa: B023

    output = completed(cluster, "srun simgpu-task --memory 100M --seconds 1", "--share-gpu=2")
    lines = [line for line in output.splitlines() if "simgpu-task: host n1" in line]
    assert len(lines) == 8
    assert all("mps server" in line for line in lines)
    assert Node(cluster, "n1").remains() == []

    done = cluster.exec("n1", ["dpkg", "-r", "slurm-share-tui", "slurm-share"])
    assert done.returncode != 0
    assert "still names our hooks" in done.stderr
    assert cluster.wait(cluster.sbatch("alice", "srun true", "--share-gpu=2")) == "COMPLETED"

    install(cluster, "--undo")
    assert files(cluster) == before
    reconfigure(cluster)
    for host in cluster.hosts:
        cluster.exec(host, ["dpkg", "-r", "slurm-share-tui", "slurm-share-spank", "slurm-share"], check=True)
        gone = ["bash", "-c", "ls -d /opt/slurm-share /opt/slurm-share-tui /usr/lib/slurm-share /usr/bin/llload"]
        assert cluster.exec(host, gone).stdout == ""
    assert cluster.wait(cluster.sbatch("alice", "srun true", "--gres=gpu:1")) == "COMPLETED"
    assert cluster.status().nodes == {"n1": "idle"}
