"""The limits of MPS daemons and of tasks of a share, as the kernel keeps them."""

from __future__ import annotations

from collections.abc import Iterator

import machine_jobs
import pytest
from whole_machine import WholeMachine

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed")]

ENTER = """\
import os, sys, time
group, what = sys.argv[1:]
with open(group + "/cgroup.procs", "w") as file:
    file.write("0")
os.setgid(2001)
os.setuid(2001)
if what == "processes":
    try:
        for number in range(400):
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
    except OSError as error:
        print(f"{number} processes, then: {error.strerror}")
if what == "devices":
    for name in ("nvidia0", "nvidia1", "nvidiactl", "null"):
        try:
            os.open("/dev/" + name, os.O_RDWR)
            print(name, "opened")
        except OSError as error:
            print(name, error.strerror)
if what == "memory":
    kept = []
    while True:
        kept.append(bytearray(20 << 20))
"""
"""A process of alice in a daemon's group. The GPUs have no driver: an allowed one gives ENXIO, a denied one EPERM."""
DEVICES = """\
import os
said = []
for name in ("nvidia0", "nvidia1", "nvidiactl"):
    try:
        os.open("/dev/" + name, os.O_RDWR)
    except OSError as error:
        said.append(name + ": " + error.strerror)
gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
cpus = open("/proc/self/status").read().split("Cpus_allowed_list:")[1].split()[0]
print("rank", os.environ.get("SLURM_PROCID"), "GPU", gpus, "; ".join(said), "CPUs", cpus, flush=True)
"""
OURS, OTHERS = "No such device or address", "Operation not permitted"


@pytest.fixture(scope="module", autouse=True)
def scripts(machine: WholeMachine) -> None:
    """Put the programs of these tests on the machine."""
    machine.run(
        f"cat >/root/enter.py <<'END'\n{ENTER}END\ncat >/home/alice/devices.py <<'END'\n{DEVICES}END", quiet=True
    )


def test_a_job_opens_its_own_gpu_only(machine: WholeMachine) -> None:
    script = "srun python3 devices.py; echo unshared step:; srun -n1 --share-gpu=off python3 devices.py"
    said = machine_jobs.completed(machine, "--share-gpu=2 --gres=gpu:1 --mem=300M", script)
    assert said.count(f"nvidia1: {OTHERS}; nvidiactl: {OURS}") == 3, said
    assert f"nvidia0: {OTHERS}" not in said
    said = machine_jobs.completed(machine, "--share-gpu=2 --mem=300M", "srun python3 devices.py")
    assert said.count(f"nvidia0: {OURS}; nvidia1: {OURS}") == 4, said
    machine_jobs.nothing_left(machine)


def test_each_task_has_a_cpu_of_its_own(machine: WholeMachine) -> None:
    """ConstrainCores, on a kernel with cpusets."""
    if "cpuset" not in machine.ask("cat /sys/fs/cgroup/cgroup.controllers").split():
        pytest.skip("NOT TESTED: this kernel has no cpusets; tests/systemd.sh --qemu has")
    said = machine_jobs.completed(machine, "--share-gpu=1", "srun python3 devices.py")
    cpus = [line.rpartition("CPUs ")[2] for line in said.splitlines() if line.startswith("rank ")]
    assert len(set(cpus)) == 2, said
    assert all(one.isdecimal() for one in cpus), said
    machine_jobs.nothing_left(machine)


@pytest.fixture(scope="module")
def group(machine: WholeMachine, scripts: None) -> Iterator[str]:
    """Yield the cgroup of an MPS daemon of a running share, which completes after the last test of this module."""
    with machine_jobs.sharing(machine):
        yield machine_jobs.groups(machine)[0]


def test_the_limits_of_a_daemon_are_written(machine: WholeMachine, group: str) -> None:
    machine.run(
        f"cat /proc/$(pgrep -f nvidia-cuda-mps-server | head -n 1)/cgroup; bpftool cgroup show {group} 2>/dev/null"
    )
    assert machine_jobs.limits(machine) == machine_jobs.CONFINED


def test_a_daemons_group_forks_no_further(machine: WholeMachine, group: str) -> None:
    said = machine.run(f"python3 /root/enter.py {group} processes").text
    machine.run(f"cat {group}/pids.events; pkill -KILL -f enter.py", check=False)
    number, _, why = said.partition(" processes, then: ")
    assert 250 <= int(number) <= 256
    assert why.strip() == "Resource temporarily unavailable"


def test_a_daemons_group_opens_its_own_gpu_only(machine: WholeMachine, group: str) -> None:
    said = [
        machine.run(f"python3 /root/enter.py {one} devices").text.splitlines() for one in machine_jobs.groups(machine)
    ]
    gpus = sorted(tuple(lines[:2]) for lines in said)
    assert gpus == [(f"nvidia0 {OURS}", f"nvidia1 {OTHERS}"), (f"nvidia0 {OTHERS}", f"nvidia1 {OURS}")]
    assert all(lines[2:] == [f"nvidiactl {OURS}", "null opened"] for lines in said)


def test_memory_beyond_the_limit_ends_the_offender_only(machine: WholeMachine, group: str) -> None:
    """With a limit that this machine can reach."""
    daemons = machine.ask("pgrep -f nvidia-cuda-mps")
    said = machine.run(f"echo 300M >{group}/memory.max; python3 /root/enter.py {group} memory", check=False)
    assert said.code == 137
    assert "oom_kill 1" in machine.run(f"cat {group}/memory.events").text.splitlines()
    assert machine.ask("pgrep -f nvidia-cuda-mps") == daemons
    machine.run(f"echo 4294967296 >{group}/memory.max", quiet=True)
