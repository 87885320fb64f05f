"""A node made ready by its launcher, on real slurmctld, slurmd and slurmstepd: with the Prolog's plan, with GPUs of its
own dealing, and what of either is left when it has given everything back."""

from __future__ import annotations

import json

import pytest

from localcluster import Cluster

pytestmark = pytest.mark.cluster

PROGRAM = """
import json, os, sys
from pathlib import Path
from slurm_share.core import config
from slurm_share.share import option as share_option
from slurm_share.triples.rules import triple as triples
from slurm_share.core.errors import LaunchError
from slurm_share.triples.launcher import node
from slurm_share.core.paths import Paths
from slurm_share.share import leases
from slurm_share.mps import processes as mps
from slurm_share.triples.records import Run

triple = triples.parse(sys.argv[1])
share = share_option.parse(sys.argv[2]) if len(sys.argv) > 2 else None
size = triple.nodes * triple.per_node
run = Run(name="x", command=("/x",), cwd="/", triple=triple, processes=size, tasks=size, share=share)

def daemons():
    return sum(one.role == "daemon" for one in mps.read_processes())

def leased():
    return sorted(leases.read_leased(Paths(), int(os.environ["SLURM_JOB_ID"]), 8) or ())

try:
    made = node.prepare(run, Path("/x"), os.environ, Paths(), config.load().settings)
except LaunchError as error:
    print(json.dumps({"refused": str(error)}))
    sys.exit(1)
said = {
    "node": [made.name, made.index, made.count, made.job, made.first_rank, made.last_rank],
    "slots": [worker.slot for worker in made.workers],
    "gpus": [worker.place.gpu for worker in made.workers],
    "seen": [{one.name: one.value for one in worker.environment} for worker in made.workers],
    "notes": made.notes,
    "daemons": daemons(),
    "leased": leased(),
}
said["problems"] = node.release(made)
said["after"] = [daemons(), leased(), [name for name in os.listdir("/tmp") if name.startswith("slurm-share")]]
print(json.dumps(said))
"""


def workers(cluster: Cluster, words: str, *options: str) -> list[dict]:
    """Return the workers of each node's launcher, in the order of the nodes."""
    script = (
        f"cat > seats-$SLURM_JOB_ID.py <<'END'\n{PROGRAM}END\n"
        "SLURM_SHARE_SLOT=none srun --ntasks-per-node=1 -o seats-%j-%n.json "
        f"/opt/slurm-share/bin/python3 -I seats-$SLURM_JOB_ID.py {words}"
    )
    job = cluster.sbatch("alice", script, *options)
    cluster.wait(job)
    nodes = 2 if "-N2" in options else 1
    files = [f"/home/alice/seats-{job}-{node}.json" for node in range(nodes)]
    done = cluster.exec("login", ["cat", *files])
    assert done.returncode == 0, cluster.output(job)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_slots_of_the_plan_are_leased_and_given_back(cluster: Cluster) -> None:
    """[1,5] of eight slots; the plan's daemons are the Prolog's and stay until the job ends."""
    (made,) = workers(cluster, "[1,5]", "-wn2", "--gres=gpu:2", "--share-gpu=4")
    assert made["node"][:3] == ["n2", 0, 1]
    assert made["node"][4:] == [0, 4]
    assert (made["slots"], made["gpus"]) == ([0, 1, 2, 3, 4], [0, 1, 0, 1, 0])
    assert [seen["SLURM_SHARE_SLOT"] for seen in made["seen"]] == ["0", "1", "2", "3", "4"]
    assert len({seen["CUDA_VISIBLE_DEVICES"] for seen in made["seen"]}) == 2
    assert made["leased"] == [0, 1, 2, 3, 4]
    assert any("3 of the 8 slots of n2 are not used" in note for note in made["notes"])
    assert (made["problems"], made["after"]) == ([], [made["daemons"], [], []])
    assert made["daemons"] == 2


def test_more_processes_than_the_plan_has_slots(cluster: Cluster) -> None:
    (made,) = workers(cluster, "[1,9]", "-wn2", "--gres=gpu:2", "--share-gpu=4")
    assert "9 processes are more than 2 GPUs x 4 = 8 slots; write --share-gpu=5" in made["refused"]


def test_without_a_plan_the_launcher_deals_and_has_daemons_of_its_own(cluster: Cluster) -> None:
    """A partition that the administrators left alone: in turn, under MPS, no cap; nothing of it stays."""
    (made,) = workers(cluster, "[1,5,8]", "-wn2", "-pplain", "--gres=gpu:2")
    assert (made["slots"], made["gpus"]) == ([None] * 5, [0, 1, 0, 1, 0])
    pipes = {seen["CUDA_VISIBLE_DEVICES"]: seen["CUDA_MPS_PIPE_DIRECTORY"] for seen in made["seen"]}
    assert len(pipes) == len(set(pipes.values())) == 2
    assert all(pipe.startswith("/tmp/slurm-share-2001-") for pipe in pipes.values())
    assert all("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in seen for seen in made["seen"])
    assert made["daemons"] == 2
    assert (made["problems"], made["after"]) == ([], [0, [], []])


def test_two_nodes_each_with_its_ranks(cluster: Cluster) -> None:
    first, second = workers(cluster, "[2,2]", "-N2", "-wn1,n2", "-pplain", "--gres=gpu:2")
    assert (first["node"][0], first["node"][4:]) == ("n1", [0, 1])
    assert (second["node"][0], second["node"][4:]) == ("n2", [2, 3])
    assert (first["gpus"], second["gpus"]) == ([0, 1], [0, 1])
    assert first["node"][3] == second["node"][3]
    assert len({seen["CUDA_VISIBLE_DEVICES"] for made in (first, second) for seen in made["seen"]}) == 4


def test_a_job_without_gpus_sees_none_of_the_nodes(cluster: Cluster) -> None:
    (made,) = workers(cluster, "[1,2]", "-wn2", "-pplain")
    assert (made["gpus"], made["seen"], made["daemons"]) == ([None, None], [{}, {}], 0)
