"""The kernel's side of a node: trees of files like those of /proc, /sys and /sys/fs/cgroup."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_share.load import collectors
from slurm_share.load.collectors import NodeReader, parse_cap

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
NOBODYS = 2**22 + 1
"""Above any pid of the machine that runs the tests."""


class Node:
    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups, self.sys = folder / "proc", folder / "cg", folder / "sys"
        for path in (self.proc / "sys/kernel/random", self.cgroups, self.sys / "devices/system/cpu"):
            path.mkdir(parents=True)
        (self.proc / "sys/kernel/random/boot_id").write_text("boot-1\n")
        (self.proc / "stat").write_text(f"cpu  {100 * TICKS} 0 {20 * TICKS} 999 5 {TICKS} {TICKS} 77 50 0\ncpu0 1\n")
        (self.proc / "meminfo").write_text("MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable: 524288 kB\n")
        (self.proc / "loadavg").write_text("1.50 2.50 3.50 1/2 3\n")
        (self.sys / "devices/system/cpu/online").write_text("0-3\n")
        for cpu in range(4):
            topology = self.sys / f"devices/system/cpu/cpu{cpu}/topology"
            topology.mkdir(parents=True)
            (topology / "physical_package_id").write_text("0")
            (topology / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}")

    def add(
        self,
        pid: int,
        *,
        parent: int = 1,
        name: str = "python",
        uid: int = 2001,
        ticks: tuple[int, int, int, int] = (0, 0, 0, 0),
        pages: tuple[int, int] = (0, 0),
        environ: dict[str, str] | None = None,
        cgroup: str = "0::/\n",
        title: str | None = None,
        start: int | None = None,
        session: int = 1,
    ) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        times = " ".join(map(str, ticks))
        start = pid * 10 if start is None else start
        (folder / "stat").write_text(
            f"{pid} ({name}) S {parent} {pid} {session} 0 -1 0 0 0 0 0 {times} 20 0 1 0 {start} 0 100 0\n"
        )
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "statm").write_text(f"9999 {pages[0]} {pages[1]} 0 0 0 0\n")
        (folder / "cgroup").write_text(cgroup)
        (folder / "maps").write_text("")
        (folder / "cmdline").write_text(title or f"{name}\0")
        (folder / "environ").write_text("".join(f"{key}={value}\0" for key, value in (environ or {}).items()))

    def reader(self) -> NodeReader:
        return NodeReader("n1", self.proc, self.cgroups, self.sys, clock=lambda: 50.0, wall_clock=lambda: 1e9)


def closed(real: Callable[..., int]) -> Callable[..., int]:
    """os.open as it is for somebody who may not read other users' environments."""

    def open_(path: str | Path, *args: int, **more: int) -> int:
        if str(path).endswith("/environ"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **more)

    return open_


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_machine_is_read(node: Node) -> None:
    seen = node.reader().read(())
    assert (seen.boot_id, seen.at, seen.taken) == ("boot-1", 50.0, 1e9)
    assert (seen.cpus, seen.cores, seen.load) == (4, 2, (1.5, 2.5, 3.5))
    assert seen.busy_s == 122.0
    assert (seen.memory_total_mib, seen.memory_used_mib) == (1024, 512)
    assert seen.unknown == {}


def test_what_the_kernel_does_not_say_is_unknown(node: Node) -> None:
    for file in ("stat", "meminfo", "loadavg"):
        (node.proc / file).unlink()
    seen = node.reader().read(())
    assert (seen.busy_s, seen.memory_used_mib, seen.load) == (None, None, None)
    assert seen.unknown.keys() == {"cpu_cores", "memory_used_mib", "load"}


def test_a_process_in_a_cgroup(node: Node) -> None:
    node.add(
        70,
        name="a) (b",
        ticks=(3 * TICKS, TICKS, 900, 900),
        pages=(int(300 / PAGE_MIB), int(100 / PAGE_MIB)),
        environ={
            "SLURM_SHARE_SLOT": "3",
            "SLURM_SHARE_SLOTS": "8",
            "SLURM_SHARE_PER_GPU": "4",
            "SLURM_SHARE_SHARING": "time-slicing",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=9000M",
            "CUDA_DEVICE_MAX_CONNECTIONS": "8",
        },
        cgroup="0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_2\n",
    )
    (process,) = node.reader().read((70, NOBODYS)).processes
    assert (process.pid, process.name, process.uid, process.start_ticks) == (70, "a) (b", 2001, 700)
    assert (process.cpu_s, process.memory_mib, process.own_mib) == (4.0, 300, 200)
    assert (process.job, process.step, process.task, process.is_own_claim) == (5, "0", 2, False)
    assert (process.slot, process.slots, process.share, process.cap_mib, process.connections) == (3, 8, 4, 9000, 8)
    assert process.sharing == "time-slicing"


@pytest.mark.parametrize("written", ["", "MPS", "mps\x1b[31m", "auto"])
def test_a_way_of_sharing_that_no_slot_has_is_not_taken_from_an_environment(node: Node, written: str) -> None:
    node.add(
        70,
        environ={"SLURM_SHARE_SHARING": written},
        cgroup="0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_2\n",
    )
    (process,) = node.reader().read((70,)).processes
    assert process.sharing is None


def test_without_cgroups_the_slurmstepd_above_names_the_job(node: Node) -> None:
    node.add(100, name="slurmstepd", uid=0, title="slurmstepd: [7.0]\0", ticks=(500, 500, TICKS, 0))
    node.add(101, parent=100, name="bash", ticks=(TICKS, 0, TICKS, 0), pages=(int(64 / PAGE_MIB), 0))
    node.add(
        102,
        parent=101,
        ticks=(TICKS, 0, 0, 0),
        pages=(int(200 / PAGE_MIB), int(100 / PAGE_MIB)),
        environ={"SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_JOB_ID": "999"},
    )
    node.add(110, name="slurmstepd", uid=0, title="slurmstepd: [7.batch]\0")
    node.add(111, parent=110, name="sh")
    seen = node.reader().read((102,))
    (process,) = seen.processes
    assert (process.job, process.step, process.task, process.is_own_claim) == (7, "0", 5, False)
    (job,) = seen.jobs
    assert (job.job, job.uid, job.memory_mib) == (7, 2001, 164)
    assert job.cpu_s == {"0.100.1000": 4.0, "batch.110.1100": 0.0}
    assert job.unknown["memory_kills"]


def test_without_cgroups_the_steps_of_llload_are_not_the_jobs(node: Node) -> None:
    for stepd, words in ((100, "python\0"), (110, "python\0-m\0slurm_share.cli.main\0sample\0--stream\0--frames\0")):
        node.add(stepd, name="slurmstepd", uid=0, title=f"slurmstepd: [7.{stepd}]\0")
        node.add(stepd + 1, parent=stepd, title=words, ticks=(TICKS, 0, 0, 0), pages=(int(64 / PAGE_MIB), 0))
    (job,) = node.reader().read(()).jobs
    assert (job.cpu_s, job.llload_s) == ({"100.100.1000": 1.0, "110.110.1100": 1.0}, {"110.110.1100": 1.0})
    assert job.memory_mib == 64


def test_tasks_of_one_cgroup_are_told_apart_by_who_started_them(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Slurm's task/cgroup all are in task_special, with one session, and a number that only they know."""
    (node.cgroups / "cgroup.controllers").write_text("")
    cgroup = "0::/system.slice/n1_slurmstepd.scope/job_5/step_0/user/task_special\n"
    node.add(100, name="slurmstepd", uid=0, title="slurmstepd: [5.0]\0")
    for pid, parent in ((101, 100), (102, 100), (103, 102)):
        node.add(pid, parent=parent, cgroup=cgroup)
    monkeypatch.setattr(os, "open", closed(os.open))
    first, second, child = node.reader().read((101, 102, 103)).processes
    assert [one.job for one in (first, second, child)] == [5, 5, 5]
    assert first.task_key != second.task_key == child.task_key


def test_a_processs_own_word_is_marked(node: Node) -> None:
    node.add(90, name="slurmstepd", title="slurmstepd: [8.0]\0")
    node.add(91, parent=90, environ={"SLURM_JOB_ID": "8", "SLURM_STEP_ID": "4294967291"})
    (process,) = node.reader().read((91,)).processes
    assert (process.job, process.step, process.is_own_claim) == (8, "batch", True)


def test_what_a_process_says_of_its_step_is_a_number_or_nothing(node: Node) -> None:
    node.add(91, environ={"SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0\x1b[2J"})
    (process,) = node.reader().read((91,)).processes
    assert (process.job, process.step, process.task) == (8, None, None)


def test_a_process_that_hidepid_hides_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors, "read_stat", lambda folder: (b"", []))

    def refuse(pid: int, number: int) -> None:
        raise ProcessLookupError if pid == NOBODYS else PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    seen = NodeReader("here").read((1, NOBODYS))
    assert (seen.processes, seen.hidden) == ((), (1,))


def test_tasks_of_triples_mode_are_told_apart(node: Node) -> None:
    """All are in the launcher's cgroup; each has a number of its own, and its children have the same."""
    cgroup = "0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0\n"
    for pid, task in ((70, "0"), (71, "1"), (72, "1")):
        node.add(pid, cgroup=cgroup, environ={"LLSUB_TASK": task, "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"})
    first, second, child = node.reader().read((70, 71, 72)).processes
    assert [one.task for one in (first, second, child)] == [0, 1, 1]
    assert first.task_key != second.task_key == child.task_key


def test_a_job_that_a_task_submitted_has_no_task_of_its_run(node: Node) -> None:
    """It inherits the variables of the task, with the record of the job that they are for."""
    node.add(100, name="slurmstepd", uid=0, title="slurmstepd: [6.0]\0")
    inherited = {"LLSUB_TASK": "7", "_SLURM_SHARE_GIVEN": "5 LLSUB_TASK SLURM_NTASKS=1" + " X=1" * 99}
    own = {"SLURM_JOB_ID": "6", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2"}
    node.add(101, parent=100, environ={**inherited, **own})
    (process,) = node.reader().read((101,)).processes
    assert process.task == 2


def test_an_environment_that_is_closed_is_said(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    cgroup = "0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0\n"
    for pid, session in ((70, 1), (71, 2)):
        node.add(pid, cgroup=cgroup, session=session)
    monkeypatch.setattr(os, "open", closed(os.open))
    first, second = node.reader().read((70, 71)).processes
    assert first.unknown.keys() == {"slot", "cap_mib", "connections", "in_advance"}
    assert first.task_key != second.task_key
    assert (first.task, second.task) == (0, 0)


def test_the_task_of_a_run_is_unknown_where_only_slurms_can_be_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In cgroups all tasks of a launcher are in its own, which is Slurm's task 0."""
    cgroup = "0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0\n"
    node.add(60, title="python\0-m\0slurm_share.cli.main\0launch\0--run\0aa\0", cgroup=cgroup)
    node.add(61, parent=60, cgroup=cgroup)
    node.add(62, parent=61, cgroup=cgroup, session=62)
    monkeypatch.setattr(os, "open", closed(os.open))
    (process,) = node.reader().read((62,)).processes
    assert (process.task, "task" in process.unknown, process.task_key) == (None, True, "0/0/s62")


def test_facts_are_read_once_and_counters_each_time(node: Node) -> None:
    node.add(70, environ={"SLURM_SHARE_SLOT": "3"}, ticks=(TICKS, 0, 0, 0))
    reader = node.reader()
    reader.read((70,))
    node.add(70, environ={"SLURM_SHARE_SLOT": "4"}, ticks=(2 * TICKS, 0, 0, 0), uid=2002)
    (process,) = reader.read((70,)).processes
    assert (process.slot, process.uid, process.cpu_s) == (3, 2001, 2.0)
    node.add(70, environ={"SLURM_SHARE_SLOT": "4"}, uid=2002, start=12345)
    (process,) = reader.read((70,)).processes
    assert (process.slot, process.uid, process.start_ticks) == (4, 2002, 12345)
    node.add(70, name="another", environ={"SLURM_SHARE_SLOT": "5"}, start=12345)  # it executes another program
    (process,) = reader.read((70,)).processes
    assert (process.name, process.slot) == ("another", 5)


def test_a_zombie_and_a_process_that_has_gone_are_none(node: Node) -> None:
    node.add(70)
    stat = node.proc / "70/stat"
    stat.write_text(stat.read_text().replace(") S", ") Z"))
    seen = node.reader().read((70, NOBODYS))
    assert (seen.processes, seen.hidden) == ((), ())


def test_jobs_of_cgroups_and_what_they_do_not_count(node: Node) -> None:
    """A v2 cgroup without the memory controller: its memory is that of the tree below its slurmstepd."""
    (node.cgroups / "cgroup.controllers").write_text("cpu")
    folder = node.cgroups / "system.slice/slurmstepd.scope/job_5"
    for path, text in (("cpu.stat", "usage_usec 9000000\n"), ("step_0/user/task_0/cgroup.procs", "101\n")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    node.add(100, name="slurmstepd", uid=0, title="slurmstepd: [5.0]\0")
    node.add(101, parent=100, pages=(int(50 / PAGE_MIB), 0))
    (job,) = node.reader().read(()).jobs
    assert (job.job, job.uid, job.cpu_s, job.memory_mib) == (5, 2001, {"cgroup": 9.0}, 50)
    assert job.unknown.keys() == {"memory_kills"}


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        *(("0=8192M", 8192), ("0=2G", 2048), ("0=512MB,1=2G", 512), ("0=8589934592", 8192), ("0=1024K", 1)),
        *(("", None), ("8G", None), ("0=x", None), ("0=1T", None), ("0=9999999999999999", None)),
    ],
)  # fmt: skip
def test_caps(text: str, mib: int | None) -> None:
    assert parse_cap(text) == mib


def test_a_cap_that_is_not_understood_is_unknown_and_not_none(node: Node) -> None:
    """No cap has no reason; one of another form has. A long list of many GPUs is read all the same."""
    limit = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    node.add(70)
    node.add(71, environ={limit: "0=1T"})
    node.add(72, environ={limit: ",".join(f"{number}=8589934592" for number in range(16))})
    none, odd, long = node.reader().read((70, 71, 72)).processes
    assert (none.cap_mib, "cap_mib" in none.unknown) == (None, False)
    assert (odd.cap_mib, limit in odd.unknown["cap_mib"]) == (None, True)
    assert (long.cap_mib, long.unknown) == (8192, {})


def test_this_machine_is_read() -> None:
    """The real /proc: our own process, with figures that psutil would give, and a child that has gone is not there."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    reader = NodeReader("here")
    seen = reader.read((os.getpid(), child.pid))
    child.communicate()
    assert [process.pid for process in seen.processes] == [os.getpid(), child.pid]
    mine = seen.processes[0]
    assert (mine.uid, mine.user) == (os.getuid(), __import__("pwd").getpwuid(os.getuid()).pw_name)
    assert mine.memory_mib is not None
    assert 0 < mine.cpu_s < 1000
    assert seen.cpus == len(os.sched_getaffinity(0)) or seen.cpus == os.cpu_count()
    assert reader.read((child.pid,)).processes == ()


@pytest.mark.parametrize(
    ("mapped", "environ", "found"),
    [
        ("/venv/lib/python3.12/site-packages/jaxlib/libjax_common.so", {}, ("JAX",)),
        ("/venv/jax_plugins/xla_cuda12/xla_cuda_plugin.so", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, ()),
        ("/venv/jaxlib/libjax_common.so", {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, ()),
        ("/venv/jaxlib/libjax_common.so", {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}, ("JAX",)),
        ("/venv/tensorflow/libtensorflow_cc.so.2", {}, ("TensorFlow",)),
        ("/venv/tensorflow/libtensorflow_cc.so.2", {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, ()),
        ("/venv/torch/lib/libtorch_cuda.so", {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, ()),  # as a share sets it
        (None, {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, ("JAX",)),
        (None, {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".1"}, None),  # a share sets it for any program
    ],
)
def test_libraries_that_take_memory_at_their_start_are_found(
    node: Node, mapped: str | None, environ: dict[str, str], found: tuple[str, ...] | None
) -> None:
    node.add(70, environ=environ)
    if mapped is None:
        (node.proc / "70" / "maps").unlink()
    else:
        (node.proc / "70" / "maps").write_text(f"7f0000000000-7f0000001000 r-xp 00000000 08:01 12 {mapped}\n")
    (process,) = node.reader().read((70,)).processes
    assert process.in_advance == found
