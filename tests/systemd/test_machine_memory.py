"""Jobs that take more memory than they may, the figures of memory, and shared memory at a logout."""

from __future__ import annotations

import json

import machine_jobs
import pytest
from whole_machine import COMMAND_S, WholeMachine

from localcluster import process

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed")]

EAT = """\
import os, sys
if "eat" in sys.argv or os.environ.get("SLURM_SHARE_RANK") in sys.argv:
    kept = []
    while True:
        kept.append(bytearray(20 << 20))
print("fine", os.environ.get("SLURM_SHARE_RANK"))
"""
ONE = """\
#!/bin/bash
#SBATCH --mem=400M
[ "$1" != bad ] || exec python3 ~/eat.py eat
echo ok "$1"
"""
KEEP = """\
import os, time
kept = bytearray(os.urandom(4096)) * (60 * 256)
rank = os.environ["SLURM_SHARE_RANK"]
with open(f"/dev/shm/alice.{rank}", "wb") as file:
    file.write(bytes(10 << 20))
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.5)
os.unlink(file.name)
"""
"""60 MiB of memory and 10 MiB in /dev/shm, until the test is done with it."""
LOGIND = "/etc/systemd/logind.conf.d/zz-test.conf"
SET_LOGIND = f"install -D -m 644 /dev/stdin {LOGIND} <<<$'[Login]\\nUserStopDelaySec=0\\nRemoveIPC='"


@pytest.fixture(scope="module", autouse=True)
def scripts(machine: WholeMachine) -> None:
    """Put the programs of these tests on the machine."""
    files = {"eat.py": EAT, "one.sh": ONE, "keep.py": KEEP, "lines.txt": "a\nbad\nc\nd\n"}
    script = "".join(f"cat >{name} <<'END'\n{text}END\n" for name, text in files.items())
    machine.run(f"{script}chmod 755 one.sh", user="alice", quiet=True)


def test_a_task_that_takes_too_much_ends_alone(machine: WholeMachine) -> None:
    job = machine_jobs.submit(machine, "--share-gpu=2 --mem=400M", "srun --kill-on-bad-exit=0 python3 eat.py 1")
    machine_jobs.finished(machine)
    said = machine_jobs.output(machine, job)
    assert all(f"fine {rank}" in said for rank in (0, 2, 3)), said
    assert "task 1: Killed" in said
    assert machine_jobs.state(machine, job) == "FAILED"
    machine_jobs.nothing_left(machine)


def test_a_triple_says_which_task_took_too_much(machine: WholeMachine) -> None:
    machine.run("llsub ./one.sh [1,2] --tasks lines.txt", user="alice")
    machine_jobs.finished(machine)
    said = machine.run("llsub --watch LLSUB.1", user="alice", check=False)
    assert said.code == 1
    assert "3 of 4 tasks are done" in said.text
    assert "llsub --resume LLSUB.1 runs what is left" in said.text
    assert "task 1, line 2 of lines.txt: bad" in said.text
    assert "the kernel killed it for memory" in said.text
    assert "the limit of the job on the node was 400 MiB" in said.text
    machine_jobs.nothing_left(machine)


def keep_memory(machine: WholeMachine) -> str:
    """Start a job whose four tasks keep memory, and return its number."""
    machine.run("rm -f go", user="alice", quiet=True)
    job = machine_jobs.submit(machine, "--share-gpu=2 --mem=500M", "srun python3 keep.py")
    machine.until(f"[[ $(grep -c ^ready /home/alice/slurm-{job}.out) == 4 ]]", "memory kept by four tasks")
    return job


def test_llloads_figures_are_the_kernels(machine: WholeMachine) -> None:
    job = keep_memory(machine)
    kernel = "awk '/^(anon|shmem) /{sum += $2} END {print int(sum / 1048576)}'"
    mib = int(machine.run(f"{kernel} /sys/fs/cgroup/system.slice/n1_slurmstepd.scope/s[0-9A-Z]*/memory.stat").text)
    found: list[dict[str, int]] = []

    def is_sampled() -> bool:
        said = machine.run("llload -g --json 2>/dev/null", user="alice", quiet=True).text
        found[:] = [one for node in json.loads(said)["nodes"] for one in node["snapshot"]["jobs"]]
        return any(abs((one["memory_mib"] or 0) - mib) <= 40 for one in found)

    process.wait_until(is_sampled, f"a sample with {mib} MiB", COMMAND_S, every_s=0.5, why=lambda: str(found))
    machine.run("llload -g", user="alice")
    machine_jobs.let_end(machine, job)
    assert [(str(one["job"]), one["memory_kills"]) for one in found] == [(job, 0)]


def log_in_and_out(machine: WholeMachine) -> None:
    """Have alice log in on the node and out again, and wait until systemd has forgotten her."""
    machine.run("su - alice -c true")
    machine.until(
        "! loginctl list-users --no-legend | grep -q alice", "the end of the login", why="loginctl list-users"
    )


def test_a_logout_takes_shared_memory_of_running_jobs_only_without_the_line(machine: WholeMachine) -> None:
    """RemoveIPC is on by default; install.md and doctor say to switch it off."""
    job = keep_memory(machine)
    machine.run(f"{SET_LOGIND}no; systemctl restart systemd-logind")
    log_in_and_out(machine)
    assert machine.run("ls /dev/shm").text.split() == [f"alice.{rank}" for rank in range(4)]
    machine.run(f"{SET_LOGIND}yes; systemctl restart systemd-logind")
    assert "RemoveIPC is yes" in machine.run("slurm-share doctor | grep -A 1 remove-ipc").text
    log_in_and_out(machine)
    machine.until("[[ -z $(ls /dev/shm) ]]", "the removal of the files in /dev/shm")
    machine.run(f"rm {LOGIND}; systemctl restart systemd-logind")
    machine.run("touch go", user="alice", quiet=True)
    machine_jobs.finished(machine)
    machine_jobs.nothing_left(machine)
    assert machine_jobs.state(machine, job) == "FAILED"  # each task finds its file gone
