"""Profiles of Slurm by release, each with the checks of everyday use.

The other tests run on clusters of the usual kind, without cgroups and with munge. Here one cluster with all profiles
together, on the newest release, gets the quicker checks; SLURM_SHARE_MATRIX=full makes one for each release and
profile, with all checks. tests/releases.sh runs these and writes packaging/docs/releases.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from clusters import FULL, ON_V2, WANTED, cluster_of
from hooked import Node, completed, output_of, requeue, until, why_not_idle

from localcluster import RELEASES, Cluster
from localcluster.records import CURRENT

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.weekly_on_v2]

PARTITION = "PartitionName=gpu Nodes=n1,n2 Default=YES DefMemPerCPU=500 MaxTime=1-0 State=UP"
WITNESS = "/etc/slurm/witness"
"""A Prolog that writes down what slurmd sets and then runs ours."""
WITNESS_TEXT = """\
#!/bin/bash
echo "$SLURM_JOB_ID $CUDA_VISIBLE_DEVICES" >>/run/witness
exec /opt/slurm-share/bin/slurm-share-prolog
"""
TASK = 'echo "slot $SLURM_SHARE_SLOT/$SLURM_SHARE_SLOTS $SLURM_SHARE_MPS"; simgpu-task --memory 100M --seconds 0.1'
JOB = f"srun bash -c '{TASK}'"


@dataclass(frozen=True)
class Profile:
    """A way to set Slurm up."""

    options: Mapping[str, object] = field(default_factory=dict)
    """Options of the local cluster."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Lines of slurm.conf by release."""


PROFILES = {
    "cgroup": Profile({"cgroup": True}, dict.fromkeys(RELEASES, "PrologFlags=Contain")),
    "auth": Profile({"auth": "slurm"}),
    "uuids": Profile({"uuids": True}, dict.fromkeys(RELEASES, f"Prolog={WITNESS}")),
    "exclusive": Profile(conf={"26.05": f"{PARTITION} Exclusive=USER", "24.11": f"{PARTITION} ExclusiveUser=YES"}),
}
TOGETHER = "together"
V2 = "cgroup2"
PROFILES[TOGETHER] = Profile(
    {key: value for one in PROFILES.values() for key, value in one.options.items()},
    {release: "\n".join(one.conf[release] for one in PROFILES.values() if release in one.conf) for release in RELEASES},
)
PROFILES[V2] = Profile({"cgroup_v2": True})
"""Only in the kernel of tests/kernel.sh, where it is the only one."""
EVERY_DAY = [(WANTED if WANTED in RELEASES else CURRENT, V2 if ON_V2 else TOGETHER)]
in_full = pytest.mark.skipif(not FULL, reason="NOT TESTED here on every profile: tests/releases.sh does")
IN_FULL = [(release, name) for release in RELEASES for name in PROFILES if (name == V2) == ON_V2]
KINDS = IN_FULL if FULL else EVERY_DAY


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(f"{release}-{name}", marks=pytest.mark.xdist_group(f"matrix-{release}-{name}"))
        for release, name in KINDS
    ],
)
def kind(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[tuple[str, Cluster]]:
    """Return the profile's name and a cluster of that profile."""
    release, _, name = request.param.partition("-")
    profile = PROFILES[name]
    extra = profile.conf.get(release, "")
    with cluster_of(f"m{name}", release, nodes=2, slurm_conf_extra=extra, **profile.options) as made:
        (made.conf / "witness").write_text(WITNESS_TEXT)
        (made.conf / "witness").chmod(0o755)
        if name in ("exclusive", TOGETHER):  # Slurm alone is to keep others out
            made.write_config((made.site / "config.toml").read_text().replace('["gpu"]', "[]"))
        yield name, made


@pytest.fixture
def made(kind: tuple[str, Cluster]) -> Iterator[Cluster]:
    """Yield the cluster; check after every test that its nodes are idle and empty."""
    cluster = kind[1]
    yield cluster
    cluster.cancel_all()
    remains = {name: Node(cluster, name).remains() for name in cluster.compute_nodes}
    states = cluster.status().nodes
    for name in [name for name in remains if remains[name] or states[name] != "idle"]:
        cluster.reboot(name)
    assert remains == {"n1": [], "n2": []}
    assert set(states.values()) == {"idle"}, why_not_idle(cluster)


def slots(text: str) -> list[str]:
    return sorted(re.findall(r"slot (\d+/\d+ \w+)$", text, re.MULTILINE))


def start(cluster: Cluster, *options: str, user: str = "alice") -> int:
    job = cluster.sbatch(user, "echo up; sleep 600", "-wn2", *options)
    cluster.wait_running(job)
    until(lambda: "up\n" in output_of(cluster, job, user), "its first word")
    return job


def test_share(made: Cluster) -> None:
    text = completed(made, JOB, "-wn2", "--share-gpu=2")
    assert slots(text) == [f"{number}/4 on" for number in range(4)], text
    assert len(set(re.findall(r"gpu (GPU-\S+), .* mps server \d+", text))) == 2, text


def test_part(made: Cluster) -> None:
    output = completed(made, JOB, "-wn2", "--array=1-2", "--share-gpu=2", "--gres=gpu:1", "-n1")
    assert len(slots(output)) == 2, output


@in_full
def test_triple(made: Cluster) -> None:
    text = "#!/bin/bash\necho rank $LLSUB_RANK of $LLSUB_SIZE\n"
    made.as_user("alice", "rm -rf LLSUB.*; cat >triple.sh; chmod +x triple.sh", input=text, check=True)
    made.as_user("alice", ["llsub", "./triple.sh", "[1,4,1]", "--wait"], check=True)
    text = made.as_user("alice", "cat LLSUB.*/p*/triple.sh.log.*", check=True).stdout
    assert sorted(text.splitlines()) == [f"rank {rank} of 4" for rank in range(4)]


def test_refusal(made: Cluster) -> None:
    """A bad value at submission, and one task too many on the node: a sentence each, and the node stays in service."""
    refused = made.as_user("alice", ["sbatch", "--share-gpu=0", "--wrap=true"])
    assert refused.returncode != 0
    assert "--share-gpu" in refused.stderr
    job = made.sbatch("alice", f"srun -n5 bash -c '{TASK}'", "-wn2", "--share-gpu=2")
    assert made.wait(job) == "FAILED"
    assert "slurm-share: " in made.output(job)
    assert re.search(r"ExitCode=69:0", made.job(job)), made.output(job)


def test_llload(made: Cluster) -> None:
    job = start(made, "--share-gpu=2")
    done = made.as_user("alice", ["llload", "-g", "--json"], check=True)
    assert '"n2"' in done.stdout
    assert str(job) in done.stdout
    assert '"why":""' in done.stdout.replace(" ", ""), done.stdout


@in_full
def test_requeue(made: Cluster) -> None:
    job = made.sbatch("alice", f"{JOB}\n[ $SLURM_RESTART_COUNT ] || sleep 600", "-wn2", "--share-gpu=2", "--requeue")
    until(lambda: len(slots(output_of(made, job))) == 4, "the first run")
    requeue(made, job)
    assert made.wait(job) == "COMPLETED"
    assert slots(made.output(job)) == [f"{number}/4 on" for number in range(4)], made.output(job)


def test_itself(kind: tuple[str, Cluster], made: Cluster) -> None:
    for prove in ALL_AT_ONCE.values() if kind[0] == TOGETHER else [PROOFS[kind[0]]]:
        prove(made)
        made.cancel_all()


def _cgroup(cluster: Cluster) -> None:
    """Check that a task is in Slurm's cgroup and cannot open a GPU of another job."""
    script = "srun -n1 bash -c 'cat /proc/self/cgroup; for n in 0 1; do head -c1 /dev/nvidia$n; done'"
    job = cluster.sbatch("alice", script, "-wn2", "--share-gpu=2", "--gres=gpu:1")
    cluster.wait(job)
    text = cluster.output(job)
    assert re.search(rf"/slurm(_\w+)?/uid_2001/job_{job}/step_0", text), text
    assert "'/dev/nvidia0' for reading: No such device or address" in text
    assert "'/dev/nvidia1' for reading: Operation not permitted" in text
    _contain(cluster)


def _cgroup2(cluster: Cluster) -> None:
    """Check that a task's folder has the job's SLUID (26.05) or number, that our sampler finds its owner by it, and
    that it cannot open a GPU of another job."""
    script = """srun -n1 bash -c 'cat /proc/self/cgroup; for n in 0 1; do head -c1 /dev/nvidia$n; done'
        srun -n1 simgpu-task --memory 100M --seconds 600"""
    job = cluster.sbatch("alice", script, "-wn2", "--share-gpu=2", "--gres=gpu:1")
    cluster.wait_running(job)
    name = f"job_{job}"
    if cluster.slurm_release == "26.05":
        found = re.search(
            r"\bSLUID=(s[0-9A-Z]{13})\b", cluster.exec("ctl", ["scontrol", "show", "job", "-d", str(job)]).stdout
        )
        assert found
        name = found[1]
    look = ["slurm-share", "sample", "--all"]
    seen: list[tuple[object, ...]] = []

    def task_on_gpu() -> bool:
        processes = json.loads(cluster.exec("n2", look, check=True).stdout)["processes"]
        # the MPS server is of no step
        seen[:] = [(one["job"], one["step"], one["task"], one["user"]) for one in processes if one["step"]]
        return bool(seen)

    until(task_on_gpu, "its task on the GPU")
    assert seen == [(job, "1", 0, "alice")]
    text = output_of(cluster, job)
    assert f"0::/system.slice/n2_slurmstepd.scope/{name}/step_0/user/task_0\n" in text, text
    assert "'/dev/nvidia0' for reading: No such device or address" in text
    assert "'/dev/nvidia1' for reading: Operation not permitted" in text


def _contain(cluster: Cluster) -> None:
    """Check that Prolog and Slurm's own step start as soon as the job has its node."""
    before = Node(cluster, "n2").log()
    steps = "sleep 1; squeue -s -h -j $SLURM_JOB_ID -o %i"
    done = cluster.as_user("alice", ["salloc", "-wn2", "--share-gpu=2", "bash", "-c", steps], check=True)
    assert ".extern" in done.stdout
    assert ": 4 slots, 4 under MPS" in Node(cluster, "n2").log().removeprefix(before)


def _auth(cluster: Cluster) -> None:
    """Check that no host has munge and that Slurm knows the caller."""
    settings = cluster.exec("login", ["scontrol", "show", "config"], check=True).stdout
    assert re.search(r"^AuthType\s+= auth/slurm$", settings, re.MULTILINE)
    assert re.search(r"^CredType\s+= auth/slurm$", settings, re.MULTILINE)
    assert [host for host in cluster.hosts if cluster.exec(host, ["pgrep", "-x", "munged"]).returncode == 0] == []
    assert "bob\n" in completed(cluster, "id -un", "-wn2", "--share-gpu=2", user="bob")


def _uuids(cluster: Cluster) -> None:
    """Check that Prolog gets UUIDs in 26.05 and numbers in 24.11, and that the share is the same."""
    node = Node(cluster, "n2")
    job = cluster.sbatch("alice", JOB, "-wn2", "--share-gpu=2")
    assert cluster.wait(job) == "COMPLETED"
    told = re.findall(rf"^{job} (\S+)$", node.run("cat", "/run/witness").stdout, re.MULTILINE)
    uuids = f"{node.uuid(0)},{node.uuid(1)}"
    assert told == [uuids if cluster.slurm_release == "26.05" else "0,1"]
    assert set(re.findall(r"gpu (GPU-[^ ,]+)", cluster.output(job))) == set(uuids.split(","))


def _exclusive(cluster: Cluster) -> None:
    """Check that Slurm keeps a second user from the node and lets the same user in."""
    start(cluster, "--gres=gpu:1", "-n1")
    assert cluster.wait(cluster.sbatch("alice", "true", "-wn2", "--gres=gpu:1", "-n1")) == "COMPLETED"
    other = cluster.sbatch("bob", "true", "-wn2", "--share-gpu=2", "--gres=gpu:1")
    until(lambda: re.search(r"Reason=(?!None)\w+", cluster.job(other)), "why bob's job waits")
    assert "JobState=PENDING" in cluster.job(other)
    cluster.exec("ctl", ["scancel", "-u", "alice"], check=True)
    assert cluster.wait(other) == "COMPLETED"


ALL_AT_ONCE = {"cgroup": _cgroup, "auth": _auth, "uuids": _uuids, "exclusive": _exclusive}
PROOFS = {**ALL_AT_ONCE, V2: _cgroup2}
