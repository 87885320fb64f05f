"""A node with GPUs of two types: slurmd names a Prolog those of one type, and the job has slots on all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from bare_site import reconfigure
from clusters import by_release, cluster_of
from hooked import BIN, Node, why_not_idle

from localcluster import Cluster
from slurm_share.core import names

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.release]

SHARDS = 720720
NODE = (
    "NodeName=n1 CPUs=16 Boards=1 SocketsPerBoard=2 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=16000 "
    f"Gres=gpu:a100:2,gpu:v100:2,shard:a100:{2 * SHARDS},shard:v100:{2 * SHARDS} State=UNKNOWN"
)
GRES = [
    f"NodeName=n1 Name={name} Type={kind} Count={count} File=/dev/nvidia[{files}]"
    for kind, files in (("a100", "0-1"), ("v100", "2-3"))
    for name, count in (("gpu", 2), ("shard", 2 * SHARDS))
]
WRAPPER = f"#!/bin/sh\n[ -e /etc/slurm/scrubbed ] && unset SLURM_CONF\nexec {BIN}prolog\n"
"""A site's script around our Prolog, which takes the path of slurm.conf away if told so."""
SMALL_MIB, SMALL_CAP, LARGE_CAP = 32768, "0=15800M", "0=39884M"
TASK = 'echo "task $SLURM_SHARE_GPU_INDEX $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"'
SCRIPT = f"echo granted $SLURM_JOB_GPUS; srun bash -c '{TASK}'"


@pytest.fixture(scope="module", params=by_release("typed"))
def site(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster whose n1 has GPUs of two models, and whose n2 has two of another one."""
    with cluster_of("typed", request.param, nodes=2) as made:
        (made.conf / "prolog.sh").write_text(WRAPPER)
        (made.conf / "prolog.sh").chmod(0o755)
        for name, ours in (("slurm.conf", [NODE, "Prolog=/etc/slurm/prolog.sh"]), ("gres.conf", GRES)):
            lines = (made.conf / name).read_text().splitlines()
            kept = [line for line in lines if not line.startswith(("NodeName=n1 ", "Prolog="))]
            # nodes stand before the partitions that have them
            (made.conf / name).write_text("\n".join([*ours, *kept, ""]))
        for gpu in (2, 3):
            state = made.root("n1") / f"run/simgpu/gpu{gpu}"
            model = state.read_text().replace("Simulated H100 80GB", "Simulated V100 32GB")
            state.write_text(model + f"memory_mib={SMALL_MIB}\n")
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


def tasks(output: str) -> list[tuple[str, str]]:
    """Return (GPU, cap) of each task, sorted."""
    return sorted(re.findall(r"^task (\d+) (\S*)$", output, re.MULTILINE))


def test_eight_tasks_have_slots_on_gpus_of_both_types(site: Cluster, node: Node) -> None:
    """Each GPU has the caps of its own memory, and the next user's job finds all GPUs."""
    job = site.sbatch("alice", SCRIPT, "--share-gpu=2", "-n8", "-wn1")
    assert site.wait(job) == "COMPLETED", site.output(job)
    caps = {"0": LARGE_CAP, "1": LARGE_CAP, "2": SMALL_CAP, "3": SMALL_CAP}
    assert tasks(site.output(job)) == sorted([*caps.items()] * 2), site.output(job)
    bobs = site.sbatch("bob", SCRIPT, "--share-gpu=1", "--gres=gpu:a100:2,gpu:v100:2", "-wn1")
    assert site.wait(bobs) == "COMPLETED"
    assert [gpu for gpu, _ in tasks(site.output(bobs))] == ["0", "1", "2", "3"]


def test_a_process_that_a_job_leaves_on_a_gpu_of_the_first_type_is_ended(site: Cluster, node: Node) -> None:
    script = """srun -n1 bash -c '(setsid -f simgpu-task --seconds 600 >left 2>&1 </dev/null)
        until grep -q host left; do sleep 0.05; done; echo "task $SLURM_SHARE_GPU_INDEX "'"""
    job = site.sbatch("alice", script, "--share-gpu=2,mps=off", "-wn1", "--gres=gpu:a100:1,gpu:v100:1")
    assert site.wait(job) == "COMPLETED"
    assert tasks(site.output(job)) == [("0", "")]
    site.settle()
    assert re.search(rf"job {job}: leftover process \d+ \(simgpu-task\) of uid 2001 on a GPU: ended", node.log())


def test_jobs_on_parts_of_the_node_have_the_gpus_that_slurm_gave_them(site: Cluster, node: Node) -> None:
    forms = (
        ("--gres=gpu:a100:1,gpu:v100:1", "-n2", "--array=1-2"),
        ("--gres=gpu:3",),
        ("--gres=gpu:a100:1",),
        ("--gres=gpu:v100:1", "-n1"),
        ("--gpus-per-task=1", "-n3"),
        ("--exclusive", "-n4"),
    )
    jobs = [site.sbatch("alice", SCRIPT, "--share-gpu=1", "-wn1", *form) for form in forms[:3]]
    jobs += [site.sbatch("alice", SCRIPT, "--share-gpu=2", "-N1", "-wn1", *form) for form in forms[3:]]
    for job, form in zip(jobs, forms, strict=True):
        assert site.wait(job) == "COMPLETED", (form, site.output(job))
        text = site.output(job)
        granted = ",".join(re.findall(r"^granted ([\d,]+)$", text, re.MULTILINE))
        assert granted, (form, text)
        assert [gpu for gpu, _ in tasks(text)] == sorted(granted.split(",")), (form, text)
    assert "granted 0,2\n" in site.output(jobs[0])


def test_two_nodes_of_unlike_types_have_slots_for_all_tasks(site: Cluster, node: Node) -> None:
    job = site.sbatch("alice", SCRIPT, "--share-gpu=2", "-N2", "--gres=gpu:2")
    assert site.wait(job) == "COMPLETED", site.output(job)
    assert len(tasks(site.output(job))) == 8


def test_a_controller_that_does_not_know_the_gpus_is_a_refusal_and_no_drain(site: Cluster, node: Node) -> None:
    conf = {"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_JOB_GPUS": "2,3"}
    for _ in range(4):
        with node.job(9001, gpus="2,3", **conf):
            assert "refused" in node.plan(9001)
            assert "slurmd names the Prolog those of one type (2, 3), and the controller did not name" in node.log()


def test_a_plan_for_other_gpus_than_the_jobs_runs_nothing(site: Cluster, node: Node) -> None:
    """A Prolog without slurm.conf cannot know of the types. The plugin sees all GPUs of the job."""
    (site.conf / "scrubbed").touch()
    try:
        job = site.sbatch("alice", f"echo begun; {SCRIPT}", "--share-gpu=2", "-wn1")
        assert site.wait(job) == "FAILED"
    finally:
        (site.conf / "scrubbed").unlink()
    assert f"job {job} has GPU 0,1,2,3 on node n1, and its plan there is of 2 GPUs" in site.output(job)
    assert "begun" not in site.output(job)
    assert f"ExitCode={names.EXIT_REFUSED}:0" in site.job(job)
