"""Every row of packaging/docs/request-forms.md on real daemons: the command, and what Slurm made of it.

The tests make the table (tests/request_forms.sh), and each compares its row with what it finds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hooked import Node, configured
from job_outcome import TASK, allocated, caps, sentences, tasks

from localcluster import Cluster

pytestmark = pytest.mark.cluster

TABLE = Path(__file__).parents[2] / "packaging/docs/request-forms.md"
WRITE = "SLURM_SHARE_WRITE_REQUEST_FORMS" in os.environ

THIS = "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID-$SLURM_JOB_ID}"
SHOW = f"#!/bin/bash\nscontrol -o show job -d {THIS}\n"
JOB = SHOW + "srun ./task.sh\n"
FILES = {
    "task.sh": "#!/bin/bash\n" + TASK,
    "shown.sh": f"{SHOW.replace('scontrol', '[ $SLURM_PROCID != 0 ] || scontrol')}{TASK}",
    "job.sh": JOB,
    "nine.sh": JOB.replace("srun", "srun -n9"),
    "off.sh": JOB.replace("srun", "srun -n1 --share-gpu=off"),
    "bare.sh": SHOW + "./task.sh\n",
    "bound.sh": JOB.replace("srun", "srun --gpus-per-task=1 -n2"),
    "pair.sh": JOB.replace("srun", "srun --gpus-per-task=2 -n1")
    + "srun --share-gpu=off --gpus-per-task=2 -n1 ./task.sh\n",
    "torch.sh": JOB + ": torchrun train.py\n",
    "loop.sh": f"{SHOW}rm -f up.*; for i in $(seq 6); do srun -n1 --exact ./held.sh 3 & done; wait\n",
    "far.sh": f"{SHOW}rm -f up.*; for i in 1 2; do srun -n1 -w n3 ./held.sh 2 & done\n"
    "until [ -e up.0 ] && [ -e up.1 ]; do sleep .02; done; srun -n1 -w n3 ./task.sh & touch up.2; wait\n",
    "held.sh": f"#!/bin/bash\n{TASK}touch up.$SLURM_SHARE_SLOT; until [ -e up.$1 ]; do sleep .02; done\n",
    "outer.sh": "#!/bin/bash\nsbatch --wait -o inner.out job.sh >inner.id 2>&1; cat inner.out\n",
}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    written: str
    on: str = "n2"
    """Nodes the job must have; empty: Slurm chooses."""
    note: str = ""
    """Other conditions, for the table."""
    release: bool = False
    """Whether it depends on the release of Slurm: what its commands, plugin callbacks and controller do with it."""


WHOLE = [
    Row("sbatch --share-gpu=4 job.sh", release=True),
    Row("sbatch --share-gpu=4 job.sh", "n1"),
    Row("sbatch --share-gpu=2 -N2 job.sh", "n2,n3", release=True),
    Row("sbatch --share-gpu=1 job.sh"),
    Row("sbatch --share-gpu=4 -n3 job.sh"),
    Row("sbatch --share-gpu=4 -N2 --ntasks-per-node=3 job.sh", "n2,n3"),
    Row("sbatch --share-gpu=4 -c2 job.sh"),
    Row("sbatch --share-gpu=4 --mem=1000 job.sh"),
    Row("sbatch --share-gpu=2 --exclusive --gres=gpu:1 job.sh", release=True),
    Row("sbatch --share-gpu=2 --exclusive job.sh"),
    Row("salloc --share-gpu=2", note="`./job.sh` typed in its shell", release=True),
    Row("salloc --share-gpu=2 ./job.sh", release=True),
]
GPUS = [
    Row("sbatch --share-gpu=4 --gres=gpu:1 job.sh"),
    Row("sbatch --share-gpu=4 --gpus-per-node=1 job.sh", release=True),
    Row("sbatch --share-gpu=4 --gres=gpu:1 -N2 job.sh", "n2,n3", release=True),
    Row("sbatch --share-gpu=2 --gres=gpu:3 job.sh", "n1"),
    Row("sbatch --share-gpu=2 --gres=gpu:simulated:2 job.sh", "n1"),
    Row("sbatch --share-gpu=4 --gpus=1 job.sh", release=True),
    Row("sbatch --share-gpu=2 --gpus=2 job.sh"),
    Row("sbatch --share-gpu=2 --gpus-per-task=1 -n2 job.sh", release=True),
    Row("sbatch --share-gpu=10 --gres=gpu:1 -p small job.sh", note="more slots than CPUs"),
    Row("srun --share-gpu=4 --gres=gpu:2 -n8 ./shown.sh", release=True),
    Row("srun --share-gpu=4 --gres=gpu:1 -n1 ./shown.sh"),
]
PARTS = [
    Row("sbatch --share-gpu=4 --gres=gpu:1 -n1 job.sh", release=True),
    Row("sbatch --share-gpu=4 --gpus=1 -n1 job.sh", release=True),
    Row("sbatch --share-gpu=4 --gres=gpu:simulated:1 -n1 job.sh"),
    Row("sbatch --share-gpu=3,mem=8G,sm=even --gres=gpu:1 -n1 job.sh"),
    Row("sbatch --share-gpu=4 --gres=gpu:1 -n1 -c2 job.sh"),
    Row("sbatch --array=1-6 --share-gpu=3 --gres=gpu:1 -n1 job.sh", release=True),
    Row("salloc --share-gpu=4 --gres=gpu:1 -n1 ./job.sh", release=True),
    Row("salloc --share-gpu=4 --gpus-per-node=1 -n1 ./job.sh"),
    Row("sbatch --array=1-2 --share-gpu=4 -n1 job.sh", release=True),
    Row("sbatch --share-gpu=4 --gres=gpu:1 -n1 nine.sh", note="`srun -n9` in it"),
]
CAPS = [
    Row("sbatch --share-gpu=4,mem=8G job.sh"),
    Row("sbatch --share-gpu=2,mem=50G job.sh"),
    Row("sbatch --share-gpu=4,sm=even job.sh"),
    Row("sbatch --share-gpu=3,sm=30 job.sh"),
    Row("sbatch --share-gpu=1,sm=25 job.sh"),
    Row("sbatch --share-gpu=4,mem=8G,sm=even --gres=gpu:1 job.sh"),
    Row("sbatch --share-gpu=2,mem=8G,sm=20 --gpus=2 job.sh"),
    Row("srun --share-gpu=4,mem=8G,sm=20 --gres=gpu:1 -n4 ./shown.sh", release=True),
    Row("salloc --share-gpu=2,mem=8G,sm=even", note="`./job.sh` typed in its shell"),
    Row("sbatch --share-gpu=4,sharing=time-slicing job.sh"),
    Row("sbatch --share-gpu=4,mps=on job.sh"),
]
STEPS = [
    Row("sbatch --share-gpu=4 nine.sh", note="`srun -n9` in it", release=True),
    Row(
        "sbatch --share-gpu=4 --gres=gpu:1 loop.sh",
        note="6 x `srun -n1 --exact ... &`, then `wait`, in it",
        release=True,
    ),
    Row(
        "sbatch --share-gpu=2 --gres=gpu:1 -N2 far.sh",
        "n2,n3",
        note="3 x `srun -n1 -w n3 ... &`, then `wait`, in it",
        release=True,
    ),
    Row("sbatch --share-gpu=4 off.sh", note="`srun -n1 --share-gpu=off` in it", release=True),
    Row("sbatch --share-gpu=4 bound.sh", note="`srun --gpus-per-task=1 -n2` in it", release=True),
    Row(
        "sbatch --share-gpu=4 pair.sh",
        note="`srun --gpus-per-task=2 -n1` in it, then with `--share-gpu=off`",
        release=True,
    ),
    Row("sbatch --share-gpu=4 bare.sh", note="no `srun` in it", release=True),
    Row("sbatch --share-gpu=4 outer.sh", note="`sbatch job.sh` in it; of that job", release=True),
    Row("sbatch --share-gpu=2 torch.sh", note="`torchrun` in it"),
]
REFUSED = [
    Row("sbatch --share-gpu=0 job.sh"),
    Row("sbatch --share-gpu=8,mem=8 job.sh"),
    Row("sbatch --share-gpu=4,sharing=time-slicing,sm=50 job.sh"),
    Row("sbatch --share-gpu=4,sharing=exclusive job.sh"),
    Row("sbatch --share-gpu=4,mps=off,sharing=mps job.sh"),
    Row("sbatch --share-gpu=4,mem=20G:8G job.sh"),
    Row("sbatch --share-gpu=4 -n1 : --share-gpu=4 -n1 job.sh", "", release=True),
    Row("sbatch --share-gpu=4 --gpus=1 --ntasks-per-gpu=4 job.sh", release=True),
    Row("sbatch --share-gpu=4 --gpus-per-task=2 -n1 job.sh", release=True),
    Row("srun --share-gpu=4 --gpus-per-task=2 -n1 ./shown.sh", release=True),
    Row("sbatch --share-gpu=4 --gres=shard:4 job.sh", release=True),
    Row("srun --share-gpu=4 ./shown.sh", release=True),
    Row("sbatch --share-gpu=2 -N2 job.sh", "n1,n2", note="different numbers of GPUs", release=True),
    Row("sbatch --share-gpu=2 --gpus=3 -N2 job.sh", "n2,n3", note="different numbers of GPUs", release=True),
]
SPECIAL = [
    Row("sbatch --share-gpu=4 --gres=gpu:1 -n1 job.sh", note="a site without shards (shards_per_gpu = 0)"),
    Row("sbatch --share-gpu=4 job.sh", note="max_share = 3"),
    Row("sbatch --share-gpu=4 job.sh", note='mode = "observe"'),
    Row("sbatch --share-gpu=4 job.sh", note='mode = "off"'),
    Row("sbatch --share-gpu=4 job.sh", note='mps_control = ""'),
    Row("sbatch --share-gpu=4 --gres=gpu:1 job.sh", note="the GPU is in MIG mode"),
]
CHAPTERS = {
    "Whole nodes": WHOLE, "Some GPUs of a node": GPUS, "A part of one GPU": PARTS, "Caps": CAPS,
    "In the script": STEPS, "Refused": REFUSED, "What the site says": SPECIAL,
}  # fmt: skip
HEADING = """\
# Forms of a share request, and the jobs that Slurm makes of them

For users who want to know exactly what a line gives them, and for administrators. Made by `tests/request_forms.sh`
on the local cluster, and checked on Slurm 26.05 and 24.11 by `tests/cluster/test_request_forms.py`.
Nodes: n1 has 16 CPUs and 4 GPUs, n2 and n3 have 8 CPUs and 2 GPUs each, 500 MB of memory a CPU unless the job says
otherwise. The GPUs are simulated (80 GB each); nothing was computed on them. `job.sh` is a plain `srun ./task.sh`.
"""
WEEKLY = dict.fromkeys(CHAPTERS, pytest.mark.weekly) | {"Refused": ()}
"""The mark of rows in which our own rules decide, which have unit tests, and not Slurm."""
COLUMNS = ("written", "on", "allocated", "tasks", "caps of a task", "said")


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, str]]:
    """Yield the rows of the table by the command written; fill in and write the table when it is being made."""
    if not WRITE:
        lines = TABLE.read_text().splitlines()
        yield {line.rpartition(" | ")[0].split(" | ")[0]: line for line in lines if line.startswith("| `")}
        return
    found: dict[str, str] = {}
    yield found
    text = HEADING
    for chapter, rows in CHAPTERS.items():
        made = [found[first_cell(row)] for row in rows if first_cell(row) in found]
        text += f"\n## {chapter}\n\n| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n" + "\n".join(made) + "\n"
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(text)


@pytest.fixture(autouse=True)
def small(cluster: Cluster) -> Iterator[None]:
    """Add a partition of small nodes, and the files of the rows to alice's home."""
    cluster.exec("ctl", ["scontrol", "create", "partition=small", "nodes=n2,n3"], check=True)
    for name, text in FILES.items():
        file = cluster.home / "alice" / name
        file.write_text(text)
        file.chmod(0o755)
    yield
    cluster.exec("ctl", ["scontrol", "delete", "partition=small"], check=True)


def first_cell(row: Row) -> str:
    return (
        f"| `{row.written}`"
        + (f"; {row.note}" if row.note else "")
        + (f" (on {row.on})" if row.on not in ("", "n2") else "")
    )


ROWS = [
    pytest.param(row, id=first_cell(row), marks=pytest.mark.release if row.release else WEEKLY[chapter])
    for chapter, rows in CHAPTERS.items()
    for row in rows
]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table_holds(cluster: Cluster, table: dict[str, str], row: Row) -> None:
    with special(cluster, row.note):
        made = " | ".join([first_cell(row), *outcome(cluster, row)]) + " |"
    if WRITE:
        table[first_cell(row)] = made
    else:
        assert made == table.get(first_cell(row), "a row that the table has not; make it with tests/request_forms.sh")
    assert set(cluster.status().nodes.values()) <= {"idle", "completing"}


def special(cluster: Cluster, note: str):  # type: ignore[no-untyped-def]
    node = Node(cluster, "n2")
    if "MIG" in note:
        return node.gpu_file(0, "mig=1")
    line = re.search(r"\w+ = .*?(?=\)|$)", note)
    return configured(cluster, *([line[0]] if line else []))


def outcome(cluster: Cluster, row: Row) -> list[str]:
    program, rest = row.written.split(" ", 1)
    where = f"-w {row.on} " if row.on else ""
    typed = "./job.sh\nexit\n" if "typed" in row.note else None
    done = cluster.as_user("alice", f"rm -f *.out inner.id; {program} {where}{rest}", input=typed)
    said, output = done.stderr, done.stdout
    if program == "sbatch" and done.returncode == 0:
        job = int(re.findall(r"\d+", done.stdout)[-1])
        cluster.wait(job)
        output = cluster.as_user("alice", "cat slurm-*.out", check=True).stdout
        said += output
    cluster.settle()
    return [row.on or "-", allocated(output), tasks(output), caps(output), sentences(said)]
