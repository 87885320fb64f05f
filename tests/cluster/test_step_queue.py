"""More steps at once than slots, on real daemons: who waits, in which order, and that no step is lost unreported."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from hooked import PATIENCE_S

from localcluster import Cluster
from slurm_share.core import names

pytestmark = pytest.mark.cluster

SLOTS = f"{names.STATE_ROOT}/{names.JOBS_FOLDER}/$SLURM_JOB_ID/{names.SLOTS_FOLDER}"
TOOLS = f"""
S={SLOTS}
I=$(printf %02x:%02x:%d $(stat -c "%Hd %Ld %i" $S/{names.SLOTS_QUEUE}))
taken() {{ until [ $(grep -l ^step $(printf "$S/%d " $(seq 0 $(($1 - 1)))) | wc -l) = $1 ]; do sleep .02; done; }}
waits() {{ grep -q "OFDLCK.*WRITE.* $I $1 $1$" /proc/locks; }}
queued() {{ until waits $1; do sleep .02; done; }}
rm -rf go.*
until_file() {{ echo "until [ -e go.$1 ]; do sleep .02; done"; }}
"""
"""Shell functions of the scripts. `$I`: the queue in /proc/locks, which has those of other clusters here, too;
`taken N`: the first N slots have a task; `queued P`: an srun waits in place P."""
FAILED = f"ExitCode={names.EXIT_REFUSED}:0"
LOSS = (
    "slurm-share: a task of this job was refused and did not run, as its srun said: the job ends with exit code "
    f"{names.EXIT_REFUSED}\n"
)
SLURMD = r"(\[\S+\] error: \*\*\* JOB \d+ ON \S+ FAILED \(non-zero exit code or other failure mode\) \*\*\*\n)?"
"""The line that slurmd adds to the output of a job that failed while one of its steps was still ending."""
STEPS = int(os.environ.get("SLURM_SHARE_TEST_STEPS", "100"))
"""How many steps go through eight slots. Each takes a twentieth of a second and more; a thousand were run once."""


@pytest.fixture(autouse=True)
def nodes_stay_well(cluster: Cluster) -> Iterator[None]:
    """Check after each test that no node is drained."""
    yield
    cluster.cancel_all()
    cluster.settle()
    assert set(cluster.status().nodes.values()) == {"idle"}


def run(cluster: Cluster, script: str, *options: str, more_s: int = 0) -> tuple[str, str]:
    """Run a job of alice's; return its state and output. `more_s`: seconds that it takes on an idle machine."""
    job = cluster.sbatch("alice", f"{TOOLS}{script}", *options)
    state = cluster.wait(job, PATIENCE_S + more_s)
    if state == "FAILED":
        state = f"FAILED {FAILED}" if FAILED in cluster.job(job) else "FAILED otherwise"
    return state, cluster.output(job)


def lines(output: str) -> list[str]:
    return re.findall(r"^ran (\S+)", output, re.MULTILINE)


@pytest.mark.release
def test_the_usual_step_loop_runs_every_step(cluster: Cluster) -> None:
    """`srun ... & wait` and xargs, with more steps than slots: as in a plain job, and nobody has to be told."""
    script = """for i in $(seq 6); do srun -n1 --exact bash -c "echo ran $i; sleep .3" & done; wait
        seq 12 | xargs -P8 -I{} srun -n1 bash -c 'echo ran x{}; sleep .1'; echo xargs=$?"""
    state, output = run(cluster, script, "-wn2", "--share-gpu=4", "--gres=gpu:1")
    assert sorted(lines(output)) == sorted([*map(str, range(1, 7)), *(f"x{i}" for i in range(1, 13))])
    assert "xargs=0" in output
    assert "error" not in output
    assert state == "COMPLETED"


def test_many_steps_that_wait_are_one_message(cluster: Cluster) -> None:
    """The message comes after ten seconds; the steps that wait then have all waited about as long."""
    script = """rm -f said; for i in $(seq 8); do srun -n1 bash -c "$(until_file a); echo ran $i" 2>>said & done
        until grep -q waits said; do sleep .1; done; sleep 1; touch go.a; wait; cat said"""
    _, output = run(cluster, script, "-wn2", "--share-gpu=2", "--gres=gpu:1")
    assert len(lines(output)) == 8
    assert output.count("slurm-share: this step waits for 1 of the 2 slots that job") == 1, output


@pytest.mark.release
def test_steps_wait_in_the_order_of_arrival(cluster: Cluster) -> None:
    """One that is killed leaves its place at once; one that wants two slots gets both; Ctrl-C ends a wait."""
    script = """srun -n1 bash -c "$(until_file last)" & srun -n1 bash -c "$(until_file first)" & taken 2
        for name in a killed b c; do
            srun -n1 bash -c "echo ran $name" & pids[n]=$!; queued $((n++))
        done
        srun -n2 bash -c 'echo ran both' & queued 4
        env --default-signal=INT srun -n1 echo ran interrupted & queued 5
        while kill -INT $! 2>/dev/null; do sleep .1; done; wait $!; echo interrupted=$?
        kill -9 ${pids[1]}; while waits 1; do sleep .02; done
        touch go.first; wait ${pids[3]}; touch go.last; wait"""
    state, output = run(cluster, f"n=0\n{script}", "-wn2", "--share-gpu=2", "--gres=gpu:1")
    assert lines(output) == ["a", "b", "c", "both", "both"]
    assert "interrupted=130" in output
    assert state == "COMPLETED"


@pytest.mark.release
def test_a_step_that_is_not_to_wait_is_refused(cluster: Cluster) -> None:
    """srun's exit code says so, and a --slot-wait that is over fails a job that ignores it."""
    script = """srun -n4 bash -c "$(until_file last)" & taken 4
        for no in --gres=none --share-gpu=off; do srun -n1 $no echo ran $no; done
        SLURM_SHARE_SLOT=none srun -n1 echo ran none
        srun -I -n1 true; echo immediate=$?; SLURM_IMMEDIATE=1 srun -n1 true; echo variable=$?
        [ -s $S/refused ] && echo marked
        srun --slot-wait=0 -n2 true; echo limit=$?; srun --slot-wait=1 -n1 true; echo longer=$?
        srun -n1 true; echo job=$?
        srun --slot-wait=soon -n1 true; srun -Q -n5 true
        touch go.last; wait"""
    state, output = run(cluster, script, "-wn2", "--share-gpu=4", "--gres=gpu:1", "--slot-wait=1s")
    assert lines(output) == ["--gres=none", "--share-gpu=off", "none"]
    for what in ("immediate", "variable", "limit", "longer", "job"):
        assert f"{what}={names.EXIT_REFUSED}\n" in output
    assert "marked" not in output
    assert re.search(
        r"this step is not started: it wants 2 of the 4 slots that job \d+ has on n2, 0 are free, and --s", output
    )
    assert "--slot-wait=1s is over; wait longer, start fewer steps at once, or submit the job with a larger" in output
    assert "--slot-wait=soon: this is not a time; write a number of seconds" in output
    assert output.count("of 5 on n2 has no slot: --share-gpu=4 on 1 GPU makes 4") == 5
    assert re.search(re.escape(LOSS) + SLURMD + r"\Z", output), output
    assert state == f"FAILED {FAILED}"


@pytest.mark.release
def test_in_a_job_of_two_nodes_a_step_waits_on_its_node(cluster: Cluster) -> None:
    """srun on its own node; on another node the step itself. A step of both nodes does not: each of two could wait for
    the other."""
    task = "echo ran $SLURM_STEP_ID; touch up.$SLURM_STEP_ID; until [ -e go.on ]; do sleep .02; done"
    step = f"srun -Q -n1 -w NODE bash -c '{task}'"
    both = "until [ -e up.0 ] && [ -e up.1 ]; do sleep .02; done"
    loop = f"rm -f up.*; {step} & {step} & {both}; {step} & THEN touch go.on; wait"
    options = ("-wn2,n3", "-N2", "--share-gpu=2", "--gres=gpu:1")
    state, output = run(cluster, loop.replace("NODE", "n2").replace("THEN", "queued 0;"), *options)
    assert sorted(lines(output)) == ["0", "1", "2"]
    assert state == "COMPLETED"
    then = "until squeue -s -h -j $SLURM_JOB_ID | grep -qF $SLURM_JOB_ID.2; do sleep .1; done;"
    then += "srun -n4 -N2 true;"
    state, output = run(cluster, loop.replace("THEN", then).replace("NODE", "n3"), *options)
    assert sorted(lines(output)) == ["0", "1", "2"]
    assert (
        "on n3 has no slot: --share-gpu=2 on 1 GPU makes 2 slots, 2 held by other steps of the job; a step of 2 nodes "
        "does not wait for slots, as one of a single node does (srun -w n3 -n1 PROGRAM); or have the tasks dealt out "
        "(llsub PROGRAM [2,2] --tasks FILE)"
    ) in output
    assert re.search(re.escape(LOSS) + SLURMD + r"\Z", output), output
    assert state == f"FAILED {FAILED}"


def test_a_step_of_an_srun_on_the_login_host_waits_on_its_node(cluster: Cluster) -> None:
    script = """rm -f go.login up.*
        srun -Q -n2 bash -c 'touch up.$SLURM_PROCID; until [ -e go.login ]; do sleep .02; done' &
        until [ -e up.0 ] && [ -e up.1 ]; do sleep .02; done
        srun -I -n1 true; echo immediate=$?; srun --slot-wait=1 -n1 true; echo limit=$?
        srun -Q -n1 echo ran & sleep 1; touch go.login; wait"""
    options = ["-wn2", "--share-gpu=2", "--gres=gpu:1"]
    done = cluster.as_user("alice", ["salloc", *options, "bash", "-c", script])
    assert f"immediate={names.EXIT_REFUSED}\nlimit={names.EXIT_REFUSED}\nran\n" in done.stdout, done.stderr
    assert "2 held by other steps of the job; --immediate does not wait for more; omit it" in done.stderr
    assert "too few of the 2 slots of the job were free, and --slot-wait=1 is over; wait longer" in done.stderr


def test_a_step_in_a_task_does_not_wait_for_that_tasks_own_step(cluster: Cluster) -> None:
    """Its slots are not free before it has ended: with room beside them it runs, without any it is refused at once."""
    inner = "srun -Q -n1 echo ran inner; echo inner=\\$?; touch up.\\$SLURM_PROCID"
    both = "until [ -e up.0 ] && [ -e up.1 ]; do sleep .02; done"
    script = f'srun -Q -n1 bash -c "{inner}"; rm -f up.*; srun -Q -n2 bash -c "{inner}; {both}"'
    state, output = run(cluster, script, "-wn2", "--share-gpu=2", "--gres=gpu:1")
    assert lines(output) == ["inner"]
    assert output.count(f"inner={names.EXIT_REFUSED}") == 2
    assert state == f"FAILED {FAILED}"


def test_many_steps_go_through_eight_slots_each_once(cluster: Cluster) -> None:
    step = "mkdir slot.$SLURM_SHARE_SLOT || echo clash; echo ran {}; rmdir slot.$SLURM_SHARE_SLOT"
    script = f"rm -rf slot.*; seq {STEPS} | xargs -P16 -I{{}} srun -Q -n1 bash -c '{step}'; echo xargs=$?"
    state, output = run(cluster, script, "-wn2", "--share-gpu=4", more_s=STEPS)
    others = [line for line in output.splitlines() if not line.startswith("ran ")]
    assert Counter(lines(output)) == Counter(map(str, range(1, STEPS + 1))), others
    assert "clash" not in output
    assert "xargs=0" in output
    assert state == "COMPLETED"
