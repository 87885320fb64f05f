"""A node whose one GPU is divided into MIG instances, which slurmd names by their UUIDs and by type.

The instances are simulated. slurmd finds them as it finds GPUs (AutoDetect=nvidia), for Debian's Slurm has no plugin
for NVML; each has a device file of its own, which real instances have not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from bare_site import reconfigure
from clusters import cluster_of
from hooked import Node, configured, why_not_idle

from localcluster import Cluster
from localcluster.records import CURRENT
from slurm_share.core import names

pytestmark = [pytest.mark.cluster, pytest.mark.weekly]

PROFILES = ("3g.40gb", "1g.10gb", "1g.10gb")
DIVIDE = r"""
simgpu-init 1 --mig "$1" --host n1 --replace
rm -r /proc/driver/nvidia/gpus/*
minor=0
sed -n 's/^mig[0-6]=//p' /run/simgpu/gpu0 | while read -r gi ci mib profile uuid; do
    folder=/proc/driver/nvidia/gpus/0000:0$((minor + 1)):00.0
    mkdir -p "$folder"
    printf '%s: \t %s\n' Model "Simulated H100 80GB MIG $profile" IRQ 0 'GPU UUID' "$uuid" 'Bus Type' PCIe \
        'Device Minor' "$minor" >"$folder/information"
    minor=$((minor + 1))
done
"""
GRES = [
    "NodeName=n1 Name=gpu Type=3g.40gb File=/dev/nvidia0",
    "NodeName=n1 Name=gpu Type=1g.10gb File=/dev/nvidia[1-2]",
]
TASK = (
    'echo "task $SLURM_SHARE_SHARING $SLURM_SHARE_MEM_LIMIT $CUDA_VISIBLE_DEVICES"; '
    "simgpu-task --memory 1G --seconds 0.2"
)
SCRIPT = f"echo granted $SLURM_JOB_GPUS; srun bash -c '{TASK}'"


@pytest.fixture(scope="module")
def site(can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster whose n1 has three instances of two profiles."""
    with cluster_of("mig", CURRENT, nodes=2, uuids=True) as made:
        made.exec("n1", ["bash", "-ec", DIVIDE, "divide", ",".join(PROFILES)], check=True)
        slurm = (made.conf / "slurm.conf").read_text()
        slurm = re.sub(r"(?m)^(NodeName=n1 .*)Gres=\S+", r"\1Gres=gpu:3g.40gb:1,gpu:1g.10gb:2", slurm)
        (made.conf / "slurm.conf").write_text(slurm)
        kept = [line for line in (made.conf / "gres.conf").read_text().splitlines() if "NodeName=n1 " not in line]
        (made.conf / "gres.conf").write_text("\n".join([*kept, *GRES, ""]))
        reconfigure(made)
        yield made


@pytest.fixture
def node(site: Cluster) -> Iterator[Node]:
    """Yield n1, on which nothing may be left, and which stays in service."""
    here = Node(site, "n1")
    here.forget_log()
    here.forget_refusals()
    yield here
    assert not site.settle()
    assert site.status().nodes["n1"] == "idle", why_not_idle(site)
    assert here.remains() == []


def instances(node: Node) -> list[str]:
    """Return the UUIDs of the instances in the order of their numbers."""
    return re.findall(r"(?m)^mig\d=.* (MIG-\S+)$", node.run("cat", "/run/simgpu/gpu0").stdout)


def run(site: Cluster, *options: str, script: str = SCRIPT) -> tuple[str, str]:
    """Return the state and the output of a job on n1."""
    job = site.sbatch("alice", script, "-wn1", *options)
    return site.wait(job), site.output(job)


def tasks(output: str) -> list[tuple[str, str, str]]:
    """Return (sharing, who enforces the cap, instance) of each task, sorted."""
    return sorted(re.findall(r"^task (\S+) (\S+) (\S+)$", output, re.MULTILINE))


@pytest.mark.parametrize(
    ("options", "numbers", "sharing"),
    [
        (("--share-gpu=1",), (0, 1, 2), "mig"),
        (("--share-gpu=1", "--gres=gpu:1g.10gb:2"), (1, 2), "mig"),
        (("--share-gpu=1", "--gres=gpu:3g.40gb:1,gpu:1g.10gb:1"), (0, 1), "mig"),
        (("--share-gpu=1,sharing=exclusive", "--gres=gpu:3g.40gb:1"), (0,), "mig"),
        (("--share-gpu=2,sharing=time-slicing", "--gres=gpu:1g.10gb:1"), (1, 1), "time-slicing"),
        (("--share-gpu=2", "--gres=gpu:1g.10gb:2"), (1, 1, 2, 2), "time-slicing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) and isinstance(value[0], str) else None,
)
def test_tasks_have_the_instances_that_slurm_gave_the_job(
    site: Cluster, node: Node, options: tuple[str, ...], numbers: tuple[int, ...], sharing: str
) -> None:
    state, output = run(site, *options)
    assert state == "COMPLETED", output
    uuids = instances(node)
    assert tasks(output) == sorted((sharing, "none", uuids[number]) for number in numbers), output
    assert output.count("simgpu-task: host n1") == len(numbers)
    is_told = "the GPUs are shared without MPS: MPS is not used on MIG instances here" in output
    assert is_told == (options[0] == "--share-gpu=2"), output


@pytest.mark.parametrize("share", ["2,sharing=mps", "2,sm=static"])
def test_what_an_instance_cannot_give_is_refused_with_the_reason(site: Cluster, node: Node, share: str) -> None:
    state, output = run(site, f"--share-gpu={share}", "--gres=gpu:3g.40gb:1")
    assert state == "FAILED"
    assert f"it asked for {share[2:]}, and MPS is not used on MIG instances here" in output
    assert tasks(output) == []


def test_a_size_that_only_the_driver_could_enforce_is_refused_on_an_instance_with_a_way_out(
    site: Cluster, node: Node
) -> None:
    share = "2,mem=4G,sharing=time-slicing"
    state, output = run(site, f"--share-gpu={share}", "--gres=gpu:1g.10gb:1")
    assert (state, tasks(output)) == ("FAILED", [])
    assert "only the driver can enforce the cap" in output
    assert "write sharing=mps" not in output, output
    state, output = run(site, "--share-gpu=2,sharing=time-slicing", "--gres=gpu:1g.10gb:1")
    assert (state, len(tasks(output))) == ("COMPLETED", 2), output


@pytest.mark.parametrize("share", ["1,mem=4G", "2,mem=4G", "2,mem=4G,sharing=auto"])
@pytest.mark.parametrize("default", ["auto", "time-slicing"])
def test_a_size_on_an_instance_is_said_not_to_be_enforced(site: Cluster, node: Node, share: str, default: str) -> None:
    with configured(site, f'sharing = "{default}"'):
        state, output = run(site, f"--share-gpu={share}", "--gres=gpu:1g.10gb:1")
    assert state == "COMPLETED", output
    assert {limit for _, limit, _ in tasks(output)} == {"none"}
    assert "no cap is enforced" in output


def test_a_prolog_finds_an_instance_by_its_older_name(node: Node) -> None:
    uuids, card = instances(node), node.run("sed", "-n", "s/^uuid=//p", "/run/simgpu/gpu0").stdout.strip()
    with node.job(9001, gpus=f"MIG-{card}/7/0", share="1"):
        assert f"uuid={uuids[1]} " in node.plan(9001)


def test_a_launcher_gives_each_process_an_instance(site: Cluster, node: Node) -> None:
    script = f"#!/bin/bash\n{TASK}\n"
    site.as_user("alice", "cat > mig.sh; chmod +x mig.sh; rm -rf LLSUB.*", input=script, check=True)
    words = "llsub ./mig.sh [1,3] -g 1g.10gb:2 --sharing=time-slicing --options='-w n1' --wait"
    done = site.as_user("alice", words)
    assert done.returncode == 0, done.stdout + done.stderr
    output = site.as_user("alice", "cat LLSUB.*/p*/*.log.*", check=True).stdout
    assert {uuid for _, _, uuid in tasks(output)} == set(instances(node)[1:])
    assert [sharing for sharing, _, _ in tasks(output)] == ["time-slicing"] * 3


def test_status_names_the_instances_and_their_card(site: Cluster, node: Node) -> None:
    lines = [line.split() for line in site.exec("n1", ["slurm-share", "status"], check=True).stdout.splitlines()]
    assert [line[1] for line in lines if line[:1] == ["0"]][1:] == instances(node)
    assert names.OPTION_SHARING.upper() not in str(lines), "no job is here"
