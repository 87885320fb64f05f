"""Slots where slurmstepd runs SPANK's callbacks in a child that shares its memory, not its files (contain_spank)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from clusters import by_release, cluster_of
from hooked import until

from localcluster import Cluster
from slurm_share.core import names

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.weekly]

STEPS = int(os.environ.get("SLURM_SHARE_TEST_STEPS", "60"))
"""Steps that go through eight slots. A thousand were run once."""
CALLBACKS = "PrologFlags=Contain\nSlurmdParameters=config_overrides,contain_spank\n"
ALONE = "d=held.$SLURM_JOB_ID.$SLURM_SHARE_SLOT; mkdir $d || echo DOUBLE $SLURM_SHARE_SLOT; echo ran $SLURM_SHARE_SLOT"
"""A task's first words: it has its slot alone. They end with `rmdir $d`."""
LATE = "--gres=gpu:2"
"""The step has two of the job's four GPUs, so that its task chooses its slot itself."""


@pytest.fixture(scope="module", params=by_release("contained"))
def contained(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Cluster]:
    """A node with contain_spank. Its jobs have no namespaces of their own, which the callbacks would enter as well: on
    these hosts Slurm's mount of a new namespace fails at times, with EINVAL."""
    with cluster_of("contained", request.param, nodes=1, slurm_conf_extra=CALLBACKS) as made:
        yield made


def run(cluster: Cluster, script: str) -> tuple[str, str]:
    """Run a job of alice's; return its state with its exit code, and its output."""
    job = cluster.sbatch("alice", script, "--share-gpu=2")
    state = cluster.wait(job, 60 + STEPS)
    code = re.search(r" ExitCode=(\S+)", cluster.job(job))
    assert code
    return f"{state} {code[1]}", cluster.output(job)


@pytest.mark.release
def test_every_slot_has_one_task_at_a_time(contained: Cluster) -> None:
    """Many steps at once. Every third one's task chooses its slot itself, on the GPUs that Slurm gives its step."""
    step = f"bash -c '{ALONE}; sleep .$((RANDOM % 3)); rmdir $d'"
    state, output = run(
        contained,
        f"""one() {{ o=; [ $(($1 % 3)) = 0 ] && o={LATE}; srun -Q -n1 --slot-wait=10m $o {step}; }}
        export -f one; seq {STEPS} | xargs -P12 -I{{}} bash -c 'one {{}}'; true""",
    )
    assert "DOUBLE" not in output, output
    ran = re.findall(r"^ran (\d+)$", output, re.MULTILINE)
    refused = output.count("has no slot on the 2 GPUs that Slurm gave it")
    assert len(ran) + refused == STEPS, output
    assert len(set(ran)) > 2, output
    assert state == ("FAILED 69:0" if refused else "COMPLETED 0:0")


@pytest.mark.release
def test_a_jobs_output_ends_with_what_it_made_of_its_slots(contained: Cluster) -> None:
    """And its result is not COMPLETED where a task was refused."""
    state, output = run(
        contained, "srun -Q -n3 true; ls -l /proc/self/fd | grep -v fd/255; srun -Q -n1 --gres=gpu:2 true"
    )
    assert (state, output.splitlines()[-1]) == ("COMPLETED 0:0", "slurm-share: 3 of 8 slots used")
    assert output.count("socket:") == 0
    state, output = run(contained, "srun -Q -n9 true; exit 0")
    assert state == f"FAILED {names.EXIT_REFUSED}:0"
    assert output.count("slurm-share: a task of this job was refused and did not run") == 1


@dataclass(frozen=True)
class Held:
    """A slot's file: the processes in it."""

    slurmstepd: str
    task: str


def held(cluster: Cluster, job: int, slot: int) -> Held | None:
    path = f"{names.STATE_ROOT}/{names.JOBS_FOLDER}/{job}/{names.SLOTS_FOLDER}/{slot}"
    said = cluster.exec("n1", ["cat", path]).stdout
    found = re.fullmatch(r"step \d+ holder (\d+) [1-9]\d* task ([1-9]\d*) [1-9]\d*\n", said)
    return Held(found[1], found[2]) if found else None


def end(cluster: Cluster, pid: str) -> None:
    cluster.exec("n1", ["kill", "-9", pid], check=True)
    until(lambda: cluster.exec("n1", ["kill", "-0", pid]).returncode != 0, f"the end of {pid}")


@pytest.mark.release
def test_the_slot_of_a_killed_slurmstepd_is_its_tasks(contained: Cluster) -> None:
    """Two cases: slurmstepd chose it, or the task itself. The next step that looks for slots finds the dead ones."""
    step = f"bash -c '{ALONE}; exec sleep 600'"
    job = contained.sbatch("alice", f"srun -Q -n1 {step} & srun -Q -n1 {LATE} {step} & sleep 600", "--share-gpu=2")

    def others() -> list[str]:
        more = [
            "srun",
            "-Q",
            f"--jobid={job}",
            "--slot-wait=0",
            "--overlap",
            "--overcommit",
            "--gres=gpu:4",
            "-n8",
            "bash",
            "-c",
        ]
        said = contained.as_user("alice", [*more, f"{ALONE}; sleep .2; rmdir $d"])
        assert "DOUBLE" not in said.stdout
        return sorted(re.findall(r"^ran (\d+)$", said.stdout, re.MULTILINE))

    found: dict[int, Held] = {}

    def are_two() -> bool:
        found.update({slot: one for slot in range(8) if (one := held(contained, job, slot)) is not None})
        return len(found) == 2

    until(are_two, "two leases")
    taken = sorted(found)
    free = [str(slot) for slot in range(8) if slot not in found]
    assert others() == free
    status = contained.exec("n1", ["slurm-share", "status"], check=True).stdout
    assert re.search(rf"^ *{job} +alice .* 8 +2 ", status, re.MULTILINE), status
    for one in found.values():
        name = contained.exec("n1", ["cat", f"/proc/{one.slurmstepd}/comm"], check=True).stdout
        assert name == "slurmstepd\n"
        end(contained, one.slurmstepd)
    assert others() == free
    end(contained, found[taken[0]].task)
    contained.as_user("alice", f"rmdir held.{job}.{taken[0]}", check=True)
    assert others() == sorted([*free, str(taken[0])])
    end(contained, found[taken[1]].task)
    contained.as_user("alice", f"rmdir held.{job}.{taken[1]}", check=True)
    assert others() == [str(slot) for slot in range(8)]
    contained.reboot("n1")  # Slurm would look for the killed slurmstepds for a minute
