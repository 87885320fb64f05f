"""Jobs on the machine, what they hold while they run, and what they leave behind."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator

from whole_machine import WholeMachine

USER_GROUPS = "/sys/fs/cgroup/slurm-share/uid_2001"
"""The cgroups of the MPS daemons of alice, one for each GPU."""
WORK = """\
#!/bin/bash
simgpu-task --memory 1000M --load 5 --seconds 1000000 &
until [ -e go ]; do
    kill -0 $! 2>/dev/null || { wait $!; exit; }
    sleep 0.5
done
kill $!
"""
"""Work on the GPU until the test is done with it: no test depends on how long something takes."""
LEFT = """\
find /sys/fs/cgroup/slurm-share -mindepth 2 -type d 2>/dev/null
find /sys/fs/cgroup/slurm-share -mindepth 1 -maxdepth 1 -name 'uid_*' 2>/dev/null
find /sys/fs/cgroup/system.slice/n1_slurmstepd.scope -mindepth 1 -maxdepth 1 -name 's[0-9A-Z]*' 2>/dev/null
find /run/slurm-share \\( -path '*jobs/*' -o -path '*mps/*' \\) 2>/dev/null
find /dev/shm -user alice -o -user bob
pgrep -af nvidia-cuda-mps
pgrep -u alice,bob -a
sinfo -h -o '%T %E' | grep -v '^idle none'
true
"""
"""Prints groups of daemons and jobs, plans, files and processes of jobs; and the node, unless it takes jobs."""


def submit(machine: WholeMachine, options: str, script: str, user: str = "alice") -> str:
    """Submit a batch job and return its number."""
    said = machine.run(f"sbatch --parsable {options} --wrap {shlex.quote(script)}", user=user)
    found = re.search(r"^(\d+)$", said.text, re.MULTILINE)
    assert found, said.text
    return found[1]


def state(machine: WholeMachine, job: str) -> str:
    """Return a job's state, as Slurm names it."""
    return machine.ask(f"scontrol show job {job} | grep -oP 'JobState=\\K\\S+'")


def output(machine: WholeMachine, job: str, user: str = "alice") -> str:
    """Return what a job printed."""
    return machine.run(f"cat slurm-{job}.out", user=user).text


def finished(machine: WholeMachine) -> None:
    """Wait until no job is there, and the node takes the next one."""
    why = "squeue; sinfo -R; tail -n 5 /var/log/slurm-share.log"
    machine.until("[[ -z $(squeue -h) && $(sinfo -h -o %T) != *ing ]]", "the end of the jobs", why=why)


def completed(machine: WholeMachine, options: str, script: str, user: str = "alice") -> str:
    """Run a batch job, which must complete, and return its output."""
    job = submit(machine, options, script, user)
    finished(machine)
    said = output(machine, job, user)
    assert state(machine, job) == "COMPLETED", said
    return said


def start_sharing(machine: WholeMachine) -> str:
    """Start a job of alice that shares both GPUs, wait until its four tasks work, and return its number."""
    job = submit_work(machine)
    until_it_works(machine, job)
    return job


def submit_work(machine: WholeMachine) -> str:
    """Submit a job of alice that shares both GPUs and works until `let_end`; return its number."""
    machine.run(f"rm -f go; cat >work.sh <<'END'\n{WORK}END\nchmod 755 work.sh", user="alice", quiet=True)
    return submit(machine, "--share-gpu=2", "srun ./work.sh")


def until_it_works(machine: WholeMachine, job: str) -> None:
    """Wait until the four tasks of such a job work: each says so once it is connected to its MPS server."""
    file = f"/home/alice/slurm-{job}.out"
    why = f"squeue; sinfo -R; tail -n 5 /var/log/slurm-share.log; cat {file}"
    machine.until(f"[[ $(grep -c 'mps server' {file}) == 4 ]]", "work of four tasks on two GPUs", why=why)


def let_end(machine: WholeMachine, job: str) -> None:
    """Let a job of `start_sharing` end, which must complete and leave nothing."""
    machine.run("touch go", user="alice", quiet=True)
    finished(machine)
    assert state(machine, job) == "COMPLETED", output(machine, job)
    nothing_left(machine)


@contextlib.contextmanager
def sharing(machine: WholeMachine) -> Iterator[str]:
    """Have a job of alice that shares both GPUs; it must complete, and leave nothing."""
    job = start_sharing(machine)
    yield job
    let_end(machine, job)


def nothing_left(machine: WholeMachine) -> None:
    """Check that nothing of any job is left, and that the node takes jobs."""
    machine.until(f"[[ -z $({LEFT}) ]]", "a clean machine", why=LEFT)


def next_user_is_served(machine: WholeMachine) -> None:
    """Check that the job of another user starts, shares and ends cleanly at once."""
    said = completed(machine, "--share-gpu=2", "srun simgpu-task --memory 1000M --load 5 --seconds 1", user="bob")
    assert said.count("mps server") == 4, said
    nothing_left(machine)


def groups(machine: WholeMachine) -> list[str]:
    """Return the cgroups of the MPS daemons of alice."""
    return machine.ask(f"ls -d {USER_GROUPS}/*/").split()


def limits(machine: WholeMachine) -> list[str]:
    """Return what confines each MPS daemon of alice: memory, swap, processes, and programs for devices."""
    script = f"""\
    for group in {USER_GROUPS}/*/; do
        echo "memory $(cat $group/memory.max) swap $(cat $group/memory.swap.max) pids $(cat $group/pids.max)" \\
             "device programs $(bpftool cgroup show $group 2>/dev/null | grep -c cgroup_device)"
    done"""
    return machine.ask(script).splitlines()


CONFINED = ["memory 4294967296 swap 0 pids 256 device programs 1"] * 2
"""`limits` of an unchanged site with two GPUs."""
