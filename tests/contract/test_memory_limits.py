"""The driver's limits of the device memory of a cgroup: through the real nvidia-ml-py, and as tasks meet them.

The cgroups are real ones of v2; the back end dmem is pretended where the kernel has no such controller.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_host import MIB, TASK, Host, StartMps, until, without_driver

from localcluster import namespaces

pytestmark = [
    without_driver,
    pytest.mark.weekly,
    pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: cgroups need root"),
]
MAX = 2**64 - 1
OUT = "CUDA_ERROR_OUT_OF_MEMORY (simulated)"
NOBODY = 65534

CALL = """
import json, os, sys
import pynvml as n

words = json.loads(sys.argv[1])
n.nvmlInit()
if words.get("user"):
    os.setuid(words["user"])
handle = n.nvmlDeviceGetHandleByIndex(words.get("gpu", 0))
try:
    if "soft" in words:
        limits = n.c_nvmlSetMemoryLimits_v1_t(words["path"].encode(), words["soft"], words["hard"])
        n.nvmlDeviceSetMemoryLimits_v1(handle, limits)
        print("null")
    else:
        limits = n.c_nvmlGetMemoryLimits_v1_t(words["path"].encode())
        n.nvmlDeviceGetMemoryLimits_v1(handle, limits)
        print(json.dumps([limits.softLimit, limits.hardLimit, limits.currentUsed]))
except n.NVMLError as error:
    print(json.dumps(type(error).__name__.removeprefix("NVMLError_")))
"""


class Driver:
    """A host whose driver limits memory, and cgroups on it."""

    def __init__(self, host: Host, tree: Path) -> None:
        self.host = host
        self.tree = tree

    def cgroup(self, name: str) -> Path:
        made = self.tree / name
        made.mkdir(parents=True, exist_ok=True)
        return made

    def call(self, path: Path | str, *, user: int = 0, gpu: int = 0, **limits: int) -> object:
        words = {"path": str(path), "user": user, "gpu": gpu, **limits}
        done = self.host.run(sys.executable, "-c", CALL, json.dumps(words))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def set(self, path: Path | str, hard_mib: int | None = None, soft_mib: int = 0, **words: int) -> object:
        hard = MAX if hard_mib is None else hard_mib * MIB
        return self.call(path, soft=soft_mib * MIB, hard=hard, **words)

    def get(self, path: Path | str) -> object:
        """Return soft limit, hard limit and used memory in MiB, or NVML's error. None: no limit."""
        found = self.call(path)
        if not isinstance(found, list):
            return found
        return tuple(None if number == MAX else number // MIB for number in found)

    def start(self, cgroup: Path, *words: str, **extra: str) -> subprocess.Popen[str]:
        """Start a task in a cgroup."""
        inside = ["/bin/sh", "-c", 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"', "sh", str(cgroup), str(TASK)]
        process = subprocess.Popen(
            [*inside, *words],
            env=self.host.environ(extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.host.running.append(process)
        return process

    def hold(self, cgroup: Path, *words: str, **extra: str) -> subprocess.Popen[str]:
        """Start a task in a cgroup and wait until it holds its memory."""
        process = self.start(cgroup, "--seconds", "60", *words, **extra)
        assert process.stdout is not None
        assert "(simulated)" in process.stdout.readline(), process.communicate()
        return process

    def run(self, cgroup: Path, *words: str, **extra: str) -> str:
        """Run a task in a cgroup to its end; return what it says."""
        out, err = self.start(cgroup, "--seconds", "0.05", *words, **extra).communicate(timeout=60)
        return out + err

    def remove(self, cgroup: Path) -> None:
        assert until(lambda: not (cgroup / "cgroup.procs").read_text())
        cgroup.rmdir()


@pytest.fixture
def tree() -> Iterator[Path]:
    mounted = namespaces.v2_tree()
    if mounted is None or not os.access(mounted / "cgroup.procs", os.W_OK):
        pytest.skip("NOT TESTED: no writable tree of cgroup v2 here")
    top = mounted / f"simgpu-{os.getpid()}"
    top.mkdir()
    yield top
    for group in sorted((Path(folder) for folder, _, _ in os.walk(top)), reverse=True):
        assert until(lambda group=group: removed(group))  # type: ignore[misc]


def removed(group: Path) -> bool:
    """Remove a cgroup; False while the kernel still counts a process in it."""
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


@pytest.fixture(params=["dmem", "misc"])
def driver(request: pytest.FixtureRequest, host: Host, tree: Path) -> Driver:
    """Return a host with both back ends in turn."""
    assert host.init("2", "--driver", "615", "--memory-limits", request.param).returncode == 0
    return Driver(host, tree)


@pytest.fixture
def dmem(host: Host, tree: Path) -> Driver:
    assert host.init("1", "--driver", "615", "--memory-limits", "dmem").returncode == 0
    return Driver(host, tree)


@pytest.fixture
def misc(host: Host, tree: Path) -> Driver:
    assert host.init("1", "--driver", "615", "--memory-limits", "misc").returncode == 0
    return Driver(host, tree)


# ---- The calls ----


def test_limits_that_are_set_can_be_read_by_anyone(driver: Driver) -> None:
    task = driver.cgroup("task")
    assert driver.set(task, 8192, 2048) is None
    assert driver.get(task) == (2048, 8192, 0)
    assert driver.call(task, user=NOBODY) == [2048 * MIB, 8192 * MIB, 0]
    assert driver.call(task, gpu=1) == (
        [0, MAX, 0] if "dmem" in (driver.host.state / "driver").read_text() else "NotSupported"
    )


def test_a_cgroup_without_limit_has_none_with_dmem_and_is_not_supported_with_misc(dmem: Driver) -> None:
    task = dmem.cgroup("task")
    assert dmem.get(task) == (0, None, 0)
    dmem.set(task, 100)
    dmem.set(task)
    assert dmem.get(task) == (0, None, 0)
    assert dmem.host.init("1", "--replace", "--memory-limits", "misc").returncode == 0
    assert dmem.get(task) == "NotSupported"
    dmem.set(task, 100)
    assert dmem.get(task) == (0, 100, 0)
    dmem.set(task)
    assert dmem.get(task) == "NotSupported"


def test_only_root_may_set_a_limit(driver: Driver) -> None:
    task = driver.cgroup("task")
    assert driver.set(task, 100, user=NOBODY) == "NoPermission"
    assert driver.get(task) in ((0, None, 0), "NotSupported")


def test_a_cgroup_that_is_not_there_is_not_found(driver: Driver) -> None:
    assert driver.set(driver.tree / "gone", 100) == driver.get(driver.tree / "gone") == "NotFound"


def test_the_root_of_the_tree_has_no_limits_with_dmem(dmem: Driver) -> None:
    assert dmem.set(dmem.tree.parent, 100) == dmem.get(dmem.tree.parent) == "NotFound"


def test_a_folder_that_is_no_cgroup_of_v2_is_not_supported(driver: Driver, tmp_path: Path) -> None:
    assert driver.set(tmp_path, 100) == driver.get(tmp_path) == "NotSupported"


def test_a_guarantee_above_the_limit_is_refused(driver: Driver) -> None:
    assert driver.set(driver.cgroup("task"), 100, 200) == "InvalidArgument"


def test_under_mig_there_are_no_limits(driver: Driver) -> None:
    driver.host.say(0, "mig=1")
    assert driver.set(driver.cgroup("task"), 100) == driver.get(driver.cgroup("task")) == "NotSupported"


def test_switched_off_the_calls_are_there_and_not_supported(host: Host, tree: Path) -> None:
    host.init("1", "--driver", "615", "--memory-limits", "off")
    driver = Driver(host, tree)
    assert driver.set(driver.cgroup("task"), 100) == driver.get(driver.cgroup("task")) == "NotSupported"


@pytest.mark.parametrize("release", ["550", "610"])
def test_an_older_drivers_library_lacks_the_functions(host: Host, tree: Path, release: str) -> None:
    host.init("1", "--driver", release)
    driver = Driver(host, tree)
    assert driver.set(driver.cgroup("task"), 100) == driver.get(driver.cgroup("task")) == "FunctionNotFound"
    assert "hello" not in driver.run(driver.cgroup("task"), "--memory", "80G")


# ---- Hard limits ----


def test_a_task_above_its_cgroups_limit_is_out_of_memory_with_and_without_mps(driver: Driver, mps: StartMps) -> None:
    task = driver.cgroup("task")
    driver.set(task, 2048)
    for environ in ({}, mps(f"SIMGPU_SERVER pid={os.getpid()}")):
        assert OUT in driver.run(task, "--memory", "2049M", **environ)
        assert "memory 2048 MiB" in driver.run(task, "--memory", "2048M", **environ)
    assert "memory 2049 MiB" in driver.run(driver.cgroup("other"), "--memory", "2049M")


def test_all_processes_of_the_cgroup_count_together(driver: Driver) -> None:
    task = driver.cgroup("task")
    driver.set(task, 2048)
    held = driver.hold(task, "--memory", "1500M")
    assert driver.get(task) == (0, 2048, 1500)
    assert OUT in driver.run(task, "--memory", "600M")
    assert OUT in driver.run(task, "--processes", "2", "--memory", "300M", "--seconds", "1")
    held.kill()
    held.wait()
    assert driver.get(task) == (0, 2048, 0)
    assert "memory 600 MiB" in driver.run(task, "--memory", "600M")


def test_the_total_that_a_task_sees_is_its_own_cgroups_limit(driver: Driver) -> None:
    task = driver.cgroup("task")
    driver.set(task, 2048)
    driver.hold(task, "--memory", "500M")
    info = driver.run(task, "--memory", "300M", "--mem-info", "after")
    assert "cudaMemGetInfo: free 1248 MiB, total 2048 MiB (simulated)" in info
    assert "memory 1024 MiB" in driver.run(task, "--memory", "50%")
    assert "memory 1548 MiB" in driver.run(task, "--memory", "cap")


def test_nvml_inside_says_the_limit_in_its_second_memory_structure_only(driver: Driver) -> None:
    task = driver.cgroup("task")
    driver.set(task, 2048)
    driver.hold(task, "--memory", "500M")
    ask = (
        "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
        "for m in n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2):\n"
        "    print(m.total >> 20, m.used >> 20, m.free >> 20)"
    )
    inside = [
        "/bin/sh",
        "-c",
        'echo $$ >"$1/cgroup.procs"; shift; exec "$@"',
        "sh",
        str(task),
        sys.executable,
        "-c",
        ask,
    ]
    assert driver.host.run(*inside).stdout.splitlines() == ["81920 500 81420", "2048 500 1548"]
    assert driver.host.run(sys.executable, "-c", ask).stdout.splitlines() == ["81920 500 81420"] * 2


def test_a_limit_above_holds_with_dmem_and_the_total_stays_the_cards(dmem: Driver) -> None:
    step, first, second = (dmem.cgroup(name) for name in ("step", "step/first", "step/second"))
    dmem.set(step, 2048)
    dmem.hold(first, "--memory", "1500M")
    assert OUT in dmem.run(second, "--memory", "600M")
    assert "free 548 MiB, total 81920 MiB" in dmem.run(second, "--mem-info", "before")
    assert dmem.get(step) == (0, 2048, 1500)
    assert dmem.get(second) == (0, None, 0)


def test_a_limit_above_does_not_hold_with_misc(misc: Driver) -> None:
    step, first = misc.cgroup("step"), misc.cgroup("step/first")
    misc.set(step, 2048)
    misc.hold(first, "--memory", "3G")
    assert misc.get(step) == (0, 2048, 0)


def test_managed_and_host_memory_do_not_count(driver: Driver) -> None:
    task = driver.cgroup("task")
    driver.set(task, 2048)
    for kind in ("managed", "host"):
        assert f"memory 0 MiB, {kind} 4096 MiB" in driver.run(task, "--memory", "4G", "--kind", kind)
    for kind in ("device", "async", "vmm"):
        assert OUT in driver.run(task, "--memory", "4G", "--kind", kind)
    assert OUT in driver.run(task, "--memory", "2G", "--second-context", "1M")


def test_a_limit_is_gone_with_its_cgroup(driver: Driver) -> None:
    for _ in range(2):
        task = driver.cgroup("task")
        assert driver.get(task) in ((0, None, 0), "NotSupported")
        driver.set(task, 100)
        driver.remove(task)
    driver.set(driver.cgroup("other"), 100)
    assert len(list((driver.host.state / "memory_limits").iterdir())) == 1


# ---- The limit of MPS, for comparison ----


def test_the_limit_of_mps_has_escapes(host: Host, mps: StartMps) -> None:
    host.init("1")
    environ = mps(f"SIMGPU_SERVER pid={os.getpid()}") | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2G"}
    words = ("--memory", "1500M", "--seconds", "0.05")
    for kind, escapes in (("device", False), ("async", False), ("vmm", True), ("managed", True)):
        said = "".join(host.task("--memory", "3G", "--kind", kind, "--seconds", "0.05", **environ)[1:])
        assert (OUT not in said) == escapes, kind
    # each of several processes has the limit for itself, and all contexts of one have it together
    assert OUT not in host.task("--processes", "2", *words, **environ)[2]
    assert OUT in host.task("--second-context", "1G", *words, **environ)[2]
    # an entry for a GPU that is not seen drops all limits, and so does a pipe folder that leads nowhere
    foreign = {**environ, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,1=1G"}
    assert OUT not in host.task(*words, **foreign)[2]
    assert OUT not in host.task(*words, **{**environ, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"})[2]


def test_what_is_not_known_of_the_limit_of_mps_can_be_switched(host: Host, mps: StartMps) -> None:
    host.init("1")
    with (host.state / "driver").open("a") as file:
        file.write("mps_limit_counts=device,vmm\nmps_limit_per=context\n")
    environ = mps(f"SIMGPU_SERVER pid={os.getpid()}") | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2G"}
    for kind, escapes in (("device", False), ("async", True), ("vmm", False), ("managed", True)):
        said = "".join(host.task("--memory", "3G", "--kind", kind, "--seconds", "0.05", **environ)[1:])
        assert (OUT not in said) == escapes, kind
    assert OUT not in host.task("--memory", "2G", "--second-context", "1G", "--seconds", "0.05", **environ)[2]


# ---- Soft limits ----


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def test_who_is_above_its_guaranteed_part_ends_for_one_within_it(driver: Driver, mps: StartMps) -> None:
    environ = mps(f"SIMGPU_SERVER pid={os.getpid()}")
    greedy, modest = driver.cgroup("greedy"), driver.cgroup("modest")
    driver.set(greedy, 81920, 20480)
    driver.set(modest, 81920, 40960)
    above = driver.hold(greedy, "--memory", "60G", **environ)
    assert "memory 30720 MiB" in driver.run(modest, "--memory", "30G", **environ)
    code, err = ended(above)
    assert (code, "CUDA_ERROR_MPS_CLIENT_TERMINATED (simulated)" in err) == (1, True), err
    assert not list((driver.host.state / "ended").iterdir())


def test_who_is_within_its_guaranteed_part_never_ends_for_another(driver: Driver, mps: StartMps) -> None:
    environ = mps(f"SIMGPU_SERVER pid={os.getpid()}")
    first, second = driver.cgroup("first"), driver.cgroup("second")
    driver.set(first, 81920, 40960)
    driver.set(second, 81920, 20480)
    within = driver.hold(first, "--memory", "40G", **environ)
    above = driver.hold(second, "--memory", "30G", **environ)
    # above its own part nobody gets another's memory, also not that of one above its part
    assert OUT in driver.run(first, "--memory", "20G", **environ)
    assert OUT in driver.run(second, "--memory", "20G", **environ)
    time.sleep(0.5)
    assert (within.poll(), above.poll()) == (None, None)


def test_of_hundreds_of_tasks_none_within_its_guaranteed_part_ends(misc: Driver, mps: StartMps) -> None:
    """Eight at a time on 80 GiB, each with 9 GiB guaranteed and 30 GiB at most; half of them take more than theirs."""
    draw, environ = random.Random(7), mps(f"SIMGPU_SERVER pid={os.getpid()}")
    groups = [misc.cgroup(f"slot{number}") for number in range(8)]
    for group in groups:
        misc.set(group, 30720, 9216)
    running: dict[Path, tuple[int, subprocess.Popen[str]]] = {}
    taken_back, free_gone = 0, 0
    for number in range(320):
        group = groups[number % len(groups)]
        if group in running:
            held_mib, task = running.pop(group)
            code, err = ended(task)
            taken_back += "CUDA_ERROR_MPS_CLIENT_TERMINATED" in err
            free_gone += OUT in err
            assert code == 0 or held_mib > 9216, (held_mib, err)
        held_mib = draw.randrange(512, 9217) if draw.random() < 0.5 else draw.randrange(9217, 29000)
        words = ["--memory", f"{held_mib}M", "--seconds", f"{draw.uniform(0.3, 1.0):.2f}"]
        running[group] = held_mib, misc.start(group, *words, **environ)
    for held_mib, task in running.values():
        code, err = ended(task)
        assert code == 0 or held_mib > 9216, (held_mib, err)
    assert taken_back > 5
    assert free_gone > 5


def test_a_process_without_mps_is_not_ended(driver: Driver, mps: StartMps) -> None:
    first, second = driver.cgroup("first"), driver.cgroup("second")
    driver.set(first, 81920, 20480)
    driver.set(second, 81920, 40960)
    above = driver.hold(first, "--memory", "60G")
    assert OUT in driver.run(second, "--memory", "30G", **mps(f"SIMGPU_SERVER pid={os.getpid()}"))
    assert above.poll() is None


def test_with_dmem_a_guarantee_is_booked_above_until_it_is_set_to_zero(dmem: Driver) -> None:
    step, task = dmem.cgroup("step"), dmem.cgroup("step/task")
    dmem.set(task, 8192, 2048)
    assert dmem.get(step) == dmem.get(dmem.tree) == (2048, None, 0)
    dmem.set(task, 8192, 1024)
    assert dmem.get(step) == (1024, None, 0)
    dmem.set(task, 8192, 0)
    assert dmem.get(step) == dmem.get(dmem.tree) == (0, None, 0)
    dmem.set(task, 8192, 2048)
    dmem.remove(task)
    dmem.set(dmem.cgroup("other"), 100)
    assert dmem.get(step) == dmem.get(dmem.tree) == (2048, None, 0)


def test_with_misc_nothing_is_booked_above(misc: Driver) -> None:
    misc.set(misc.cgroup("step/task"), 8192, 2048)
    assert misc.get(misc.tree / "step") == "NotSupported"
