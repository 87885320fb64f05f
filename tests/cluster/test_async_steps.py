"""Steps of `srun --async`, which nobody waits for: they wait for slots on their node, and none is lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest
from clusters import cluster_of
from hooked import output_of, until
from test_step_queue import FAILED, SLURMD, TOOLS, nodes_stay_well, run  # noqa: F401

from localcluster import Cluster
from slurm_share.core import names

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("async-steps")]

SLURM_CONF = "SlurmctldParameters=enable_stepmgr\nPrologFlags=Contain\n"
SETUP = f"""{TOOLS}
cat >x.sh <<'END'
#!/bin/bash
mkdir slot.$SLURM_SHARE_SLOT || echo clash >>order
echo $1 >>order
[ -z "$2" ] || until [ -e go.$2 ]; do sleep .02; done
rmdir slot.$SLURM_SHARE_SLOT
END
chmod +x x.sh; rm -rf slot.* order ready
a() {{ srun --async -Q -n1 --exact ./x.sh "$@"; }}
known() {{ srun --async --parsable -n1 --exact ./x.sh $1 >id.$1; }}
has_place() {{ grep -q "^[0-9]*: OFDLCK.*WRITE.* $I $(($1 * {names.QUEUE_STEP_PLACES})) " /proc/locks; }}
waiting() {{ until [ $(pgrep -xc slot-wait) = $1 ]; do sleep .05; done; }}
queued_steps() {{ for s in $(seq $1 $2); do until has_place $s; do sleep .02; done; done; }}
left() {{ while has_place $1; do sleep .02; done; }}
ran() {{ until [ $(wc -l <order) = $1 ]; do sleep .02; done; }}
"""
"""Shell functions of the scripts: `waiting N`: N tasks wait; `queued_steps A B`: these steps have their places in the
queue; `left A`: step A has left it; `ran N`: N tasks have started."""
ENDS = f"the job ends with exit code {names.EXIT_REFUSED}\n"


@pytest.fixture(scope="module")
def cluster(can_make_clusters: None) -> Iterator[Cluster]:
    with cluster_of("async", nodes=2, slurm_conf_extra=SLURM_CONF) as made:
        yield made


def test_async_steps_wait_on_their_node_and_each_runs_once(cluster: Cluster) -> None:
    """srun returns while all slots are held. A step that is cancelled leaves the queue, and one whose slurmstepd is
    killed; a step of two tasks gets both slots; signals for programs do not end a step that waits."""
    script = f"""{SETUP}
        for name in first last last last; do a hold.$name $name; done; taken 4
        for i in $(seq 12); do a $i; done
        srun --async -Q -n2 ./x.sh pair; srun --async -Q -n2 --gpus-per-task=1 ./x.sh bound
        for i in $(seq 13 38); do a $i; done
        known cancelled; known killed; waiting 44; queued_steps 4 45
        scancel --signal=USR1 $(<id.cancelled); scancel --signal=USR2 $(<id.killed); scancel $(<id.cancelled); left 44
        has_place 45 && mv id.killed ready; left 45
        touch go.first; ran 16; touch go.last; ran 46"""
    job = cluster.sbatch("alice", script, "-wn2", "--stepmgr", "--share-gpu=2")
    until(lambda: (cluster.home / "alice" / "ready").exists(), "the queue", lambda: output_of(cluster, job))
    step = (cluster.home / "alice" / "ready").read_text().strip()
    cluster.exec("n2", ["pkill", "-9", "-o", "-f", rf"^slurmstepd: \[{re.escape(step)}\]"], check=True)
    assert cluster.wait(job) == "COMPLETED", cluster.output(job)
    order = (cluster.home / "alice" / "order").read_text().split()
    every = [str(number) for number in range(1, 39)]
    assert order[4:16] == every[:12]
    assert Counter(order) == Counter([*every, "pair", "pair", "bound", "bound", "hold.first", *["hold.last"] * 3])


def test_an_async_step_that_cannot_run_is_never_lost_silently(cluster: Cluster) -> None:
    """On several nodes none waits, so it is refused at once; the job's output names where the reason is."""
    script = f"""{SETUP}
        srun --async -n2 ./x.sh both; echo both=$?
        srun --async -n5 -N1 -w n1 ./x.sh five; echo five=$?"""
    state, output = run(cluster, script, "-N2", "-wn1,n2", "--stepmgr", "--share-gpu=4", "--gres=gpu:1")
    assert (
        "srun --async waits for slots on one node only, and this step may get several of the 2 nodes of job" in output
    )
    assert "this step is not started: it wants 5 slots, and job" in output
    assert f"both={names.EXIT_REFUSED}\n" in output
    assert f"five={names.EXIT_REFUSED}\n" in output
    assert re.search(r"was refused and did not run, as its srun said: " + ENDS + SLURMD + r"\Z", output), output
    assert state == f"FAILED {FAILED}"
    script = f"{SETUP}\na first end; a second end; taken 2; srun --async -n1 --slot-wait=0 ./x.sh third; swait & ran 2"
    script += "; until [ -s $S/refused ]; do sleep .02; done; touch go.end; wait"
    state, output = run(cluster, script, "-wn2", "--stepmgr", "--share-gpu=2", "--gres=gpu:1")
    found = re.search(r"as the output file of step (\d+\.2) says: " + ENDS + SLURMD + r"\Z", output)
    assert found, output
    assert "has no slot" in (cluster.home / "alice" / f"slurm-{found[1]}.out").read_text()
    assert state == f"FAILED {FAILED}"
    state, output = run(
        cluster,
        f"{SETUP}\na 1 no; a 2 no; taken 2; a 3; waiting 1; queued_steps 2 2",
        "-wn2",
        "--stepmgr",
        "--share-gpu=2",
        "--gres=gpu:1",
    )
    assert "steps of this job still wait for slots as its script ends, and do not run; end the script with" in output
    assert state == f"FAILED {FAILED}"
