"""Each way of sharing a GPU, on each driver, asked for through Slurm's hooks, llsub and llsub --local.

A cluster for each release of the simulated driver, with all requests at once. A cell of the matrix is granted, refused
with its sentence, or fallen back with its line. The machine's own kernel has cgroup v1, where the driver limits no
memory; in the kernel of tests/kernel.sh (by hand) it does.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest
from clusters import ON_V2, cluster_of
from hooked import configured

from localcluster import Cluster
from localcluster.records import CURRENT

pytestmark = pytest.mark.cluster

STATIC, LIMITS = 590, 615
"""The releases that brought static partitions and limits of a cgroup's memory (docs.nvidia.com/deploy/mps)."""
USUAL = (615,)
RELEASES = [
    pytest.param(
        release,
        marks=[pytest.mark.xdist_group(f"methods-{release}"), *([] if release in USUAL else [pytest.mark.weekly])],
    )
    for release in (550, 580, 595, 610, 615, 620)
]
METHODS = {
    "mps": "2,sharing=mps",
    "even": "2,sm=even",
    "static": "2,sm=static",
    "time-slicing": "2,sharing=time-slicing",
    "capped turns": "2,sharing=time-slicing,mem=8G",
    "elastic": "2,mem=8G:20G",
    "exclusive": "1,sharing=exclusive",
}
PATIENT = "BatchStartTimeout=60\nMessageTimeout=60"
"""Slurm waits as long for a job's start as a node needs on which one CPU starts the daemons of four jobs at once; our
hooks may then take `hook_deadline_s`, which is below (maintain.md, section 3)."""
MARK = "--- next ---"
FRONTS = ("hooks", "llsub", "llsub --local")
TASK = (
    'echo "got $SLURM_SHARE_SHARING sms=${SLURM_SHARE_SMS:-0} limit=$SLURM_SHARE_MEM_LIMIT"; '
    "exec simgpu-task --seconds 0.1 --memory 100M"
)
NO_STATIC = "sm=static needs driver 590 or newer, and this node has {release}; ask for sm=even"
NO_CAP = "only the driver can enforce the cap"
NO_GUARANTEE = "mem=8192M:20480M needs driver 615 or newer, and this node has {release}"
BOOKED = {
    "llsub": "books 8192M of GPU memory for each task and takes 20480M as its cap",
    "llsub --local": "8192M of GPU memory are booked for each task and 20480M are its cap",
}


@dataclass(frozen=True)
class Cell:
    """The outcome of a request."""

    said: str
    got: frozenset[str]
    """The output of the tasks about their slots; empty: none ran."""

    @classmethod
    def of(cls, text: str) -> Cell:
        return cls(text, frozenset(re.findall(r"^got (.*)$", text, re.MULTILINE)))


Matrix = Mapping[tuple[str, str], Cell]


@pytest.fixture(scope="module", params=RELEASES)
def matrix(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[tuple[int, Matrix]]:
    """Yield the release and what each method came to, by method and front end."""
    release = request.param
    # n1 and n2 have four GPUs each
    options = {"driver": release, "nodes": 2, "alike": True, "cgroup": True, "slurm_conf_extra": PATIENT}
    with (
        cluster_of(f"methods{release}", CURRENT, **options) as made,
        configured(made, "hook_deadline_s = 40.0", "release_deadline_s = 40.0"),
    ):
        yield release, ask_everything(made)


def ask_everything(cluster: Cluster) -> Matrix:
    """Submit all jobs for n1, and let n2 run meanwhile what needs no job."""
    made = f"printf '#!/bin/bash\\n%s\\n' {shlex.quote(TASK)} >task.sh; chmod +x task.sh; mkdir jobs local"
    cluster.as_user("alice", made, check=True)
    jobs = {}
    for name, share in METHODS.items():
        words = (f"-n{tasks(share)}", "--gres=gpu:1", "-wn1", f"--share-gpu={share}")
        jobs[name] = cluster.sbatch("alice", f"srun {words[0]} ./task.sh; echo code $?", *words)
    submitted = cluster.as_user("alice", "cd jobs\n" + llsub("-p gpu --gpus 1 --options=-wn1"), check=True).stdout
    local = cluster.as_user("alice", "cd local\n" + llsub("--local"), node="n2", env={"CUDA_VISIBLE_DEVICES": "0"})
    for job in [*jobs.values(), *map(int, re.findall(r"^job (\d+):", submitted, re.MULTILINE))]:
        cluster.wait(job)
    found = {(name, "hooks"): Cell.of(cluster.output(job)) for name, job in jobs.items()}
    for front, folder, said in (("llsub", "jobs", submitted), ("llsub --local", "local", local.stdout)):
        for number, name in enumerate(METHODS, 1):
            logs = sorted((cluster.home / "alice" / folder / f"LLSUB.{number}").glob("**/*log*"))
            texts = [log.read_text() for log in logs if log.is_file()]
            found[name, front] = Cell.of("\n".join([said.split(MARK)[number], *texts]))
    return found


def tasks(share: str) -> int:
    return int(share[0])


def llsub(options: str) -> str:
    """Return the lines of a shell that runs each method on one GPU."""
    runs = (
        f"echo {MARK}; llsub ../task.sh [1,{tasks(one)}] --share-gpu={one} {options} 2>&1" for one in METHODS.values()
    )
    return "\n".join([*runs, "true"])


# ---- What is expected ----


def is_limited(release: int) -> bool:
    """Return whether the driver limits the memory of a cgroup."""
    return release >= LIMITS and ON_V2


@pytest.mark.parametrize("front", FRONTS)
def test_what_every_driver_has_is_granted(matrix: tuple[int, Matrix], front: str) -> None:
    _, found = matrix
    for name, sharing in (
        ("mps", "mps"),
        ("even", "mps"),
        ("time-slicing", "time-slicing"),
        ("exclusive", "exclusive"),
    ):
        cell = found[name, front]
        assert {words.split()[0] for words in cell.got} == {sharing}, (name, cell)
        assert {words.split()[1] for words in cell.got} == {"sms=0"}, (name, cell)


@pytest.mark.parametrize("front", FRONTS)
def test_static_partitions_are_granted_from_590_on_and_refused_before(matrix: tuple[int, Matrix], front: str) -> None:
    release, found = matrix
    cell = found["static", front]
    if release < STATIC:
        assert (cell.got, NO_STATIC.format(release=release) in cell.said) == (frozenset(), True), cell
    else:
        assert {words.rpartition(" ")[0] for words in cell.got} == {"mps sms=56"}, cell


@pytest.mark.parametrize("front", FRONTS)
def test_a_cap_without_mps_is_granted_only_where_the_driver_enforces_it(matrix: tuple[int, Matrix], front: str) -> None:
    release, found = matrix
    cell = found["capped turns", front]
    if is_limited(release) and front != "llsub --local":
        assert cell.got == {"time-slicing sms=0 limit=driver"}, cell
    else:
        assert (cell.got, NO_CAP in cell.said) == (frozenset(), True), cell


@pytest.mark.parametrize("front", FRONTS)
def test_guaranteed_memory_is_granted_where_the_driver_enforces_it_else_booked_by_llsub_and_refused_by_srun(
    matrix: tuple[int, Matrix], front: str
) -> None:
    release, found = matrix
    cell = found["elastic", front]
    if is_limited(release) and front != "llsub --local":
        assert cell.got == {"mps sms=0 limit=driver"}, cell
    elif front == "hooks":
        assert (cell.got, "mem=8192M:20480M" in cell.said, "code 69" in cell.said) == (frozenset(), True, True), cell
    else:
        assert (cell.got, BOOKED[front] in cell.said) == ({"mps sms=0 limit=mps"}, True), cell
    if release < LIMITS:
        assert NO_GUARANTEE.format(release=release) in cell.said, cell
