"""Slurm's cgroup paths, and the cgroups of jobs: recorded lines, and trees in a temporary folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_share.node import cgroups, processes
from slurm_share.node.cgroups import LLLOAD_MOST_MIB, CgroupPlace, GroupUse, JobGroup, JobGroups

SLUID = "sD2NM7WG72QG00"
V1_26_05 = b"""\
9:name=systemd:/
8:pids:/
6:freezer:/slurm_n1/uid_2001/job_1/step_0
5:devices:/slurm_n1/uid_2001/job_1/step_0/task_1
4:memory:/slurm_n1/uid_2001/job_1/step_0/task_1
2:cpuacct:/slurm_n1/uid_2001/job_1/step_0/task_1
1:cpu:/
0::/
"""
"""Slurm 26.05.5 with CgroupPlugin=cgroup/v1, `cat /proc/PID/cgroup` of a task on n1, 2026-11-21."""


@pytest.mark.parametrize(
    ("text", "job", "sluid", "step", "task"),
    [
        (V1_26_05, 1, None, "0", 1),
        (b"4:memory:/slurm/uid_2001/job_4711/step_batch/task_0\n", 4711, None, "batch", 0),
        (b"4:memory:/slurm/uid_2001/job_4711\n", 4711, None, None, None),
        (b"0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_2\n", 4711, None, "0", 2),
        (b"0::/system.slice/slurmstepd.scope/job_4711/step_extern/user/task_special\n", 4711, None, "extern", None),
        (b"0::/system.slice/slurmstepd.scope/job_4711/step_batch/slurm\n", 4711, None, "batch", None),
        (f"0::/system.slice/n1_slurmstepd.scope/{SLUID}/step_0/user/task_12\n".encode(), None, SLUID, "0", 12),
        (f"0::/a.slice/slurmstepd.scope/{SLUID}/step_interactive/slurm\n".encode(), None, SLUID, "interactive", None),
        (b"0::/docker/9f3a/system.slice/slurmstepd.scope/job_7/step_3/user/task_0/libpod-1\n", 7, None, "3", 0),
        (b"0::/../../system.slice/slurmstepd.scope/job_7/step_3/user/task_0\n", 7, None, "3", 0),
    ],
)  # fmt: skip
def test_paths_of_every_form(
    text: bytes, job: int | None, sluid: str | None, step: str | None, task: int | None
) -> None:
    place = cgroups.parse(text)
    assert place is not None
    assert (place.job, place.sluid, place.step, place.task) == (job, sluid, step, task)


@pytest.mark.parametrize(
    "text",
    [
        b"0::/user.slice/user-1000.slice/session-4.scope\n",
        b"0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_4711/step_0/user/task_0\n",
        b"4:memory:/user.slice/slurm/uid_0/job_4711/step_0/task_0\n",
        b"0::/system.slice/sshd.service/job_4711/step_0\n",
        b"0::/system.slice/slurmstepd.scope/system\n",
        b"0::/system.slice/slurmstepd.scope/job_47x1/step_0\n",
        b"0::/system.slice/slurmstepd.scope/job_99999999999999999999\n",
        b"",
        b"\xff\xfe\n",
    ],
)
def test_paths_that_name_no_job(text: bytes) -> None:
    assert cgroups.parse(text) is None


def test_a_job_inside_a_jobs_cgroup_is_not_believed() -> None:
    text = b"0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/slurmstepd.scope/job_8/step_0/user/task_0\n"
    assert cgroups.parse(text) == CgroupPlace(7, None, None, "0", 0, "/system.slice/slurmstepd.scope/job_7")


def test_a_folder_that_is_not_roots_names_no_job(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "process").mkdir()
    for name, owner, seen in (("system.slice", 0, 999), ("alice", 2001, None)):
        job = tmp_path / name / "slurmstepd.scope/job_999"
        job.mkdir(parents=True)
        write(tmp_path / "process/cgroup", f"0::/{name}/slurmstepd.scope/job_999/step_0/user/task_0\n")
        place = cgroups.read_place(tmp_path / "process", tmp_path)
        assert place is not None
        if os.geteuid() == 0:
            os.chown(tmp_path / name, owner, owner)
            place = cgroups.read_place(tmp_path / "process", tmp_path)
            assert (None if place is None else place.job) == seen


def test_a_path_with_a_nul_names_no_job(tmp_path: Path) -> None:
    write(tmp_path / "cgroup", "0::/system.slice/\0/slurmstepd.scope/job_999/step_0\n")
    assert cgroups.read_place(tmp_path, tmp_path) is None


def test_of_two_trees_the_one_that_root_made_speaks(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root gives a folder away")
    forged = "slurm/uid_2001/job_999/step_0/task_0"
    (tmp_path / "systemd/alice" / forged).mkdir(parents=True)
    (tmp_path / "memory/slurm/uid_2001/job_7").mkdir(parents=True)
    os.chown(tmp_path / "systemd/alice", 2001, 2001)
    write(tmp_path / "cgroup", f"5:name=systemd:/alice/{forged}\n4:memory:/slurm/uid_2001/job_7\n")
    place = cgroups.read_place(tmp_path, tmp_path)
    assert place is not None
    assert (place.job, place.step, place.tree) == (7, None, "memory")


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def add_process(root: Path, pid: int, title: str, uid: int, cgroup: str = "0::/\n") -> None:
    write(root / str(pid) / "cmdline", title)
    write(root / str(pid) / "status", f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    write(root / str(pid) / "cgroup", cgroup)
    write(root / str(pid) / "stat", f"{pid} (x) S 1 1 1 0 -1 0 0 0 0 0 5 5 0 0 20 0 1 0 {pid * 10} 0 100 0\n")


def make_v2(root: Path, job: str, node: str = "") -> Path:
    write(root / "cgroup.controllers", "cpu memory")
    folder = root / "system.slice" / f"{node}slurmstepd.scope" / job
    write(folder / "cpu.stat", "usage_usec 2500000\nuser_usec 2000000\n")
    write(folder / "memory.stat", "anon 104857600\nfile 900000000\nshmem 10485760\nkernel 77\n")
    write(folder / "memory.swap.current", "1048576\n")
    write(folder / "memory.events", "low 0\noom 3\noom_kill 2\n")
    write(folder / "step_0/slurm/cgroup.procs", "50\n")
    write(folder / "step_0/user/task_0/cgroup.procs", "51\n")
    return folder


@pytest.mark.parametrize(("name", "node"), [("job_4711", ""), (SLUID, ""), (SLUID, "n1_")])
def test_a_v2_job_is_read(tmp_path: Path, name: str, node: str) -> None:
    make_v2(tmp_path / "cg", name, node)
    add_process(tmp_path / "proc", 50, "slurmstepd: [4711.0]\0", 0)
    add_process(tmp_path / "proc", 51, "python\0", 2001)
    reader = JobGroups("n1", tmp_path / "proc", tmp_path / "cg")
    (group,) = reader.read() or ()
    expected = JobGroup(job=4711, uid=2001, cpu_s=2.5, memory_mib=111, memory_kills=2)
    assert replace(group, use=GroupUse()) == expected
    assert group.use.start == (name if name == SLUID else "")  # without batch and extern step it comes and goes


def test_a_v2_job_waits_has_a_limit_and_cpus_and_a_start_of_its_own(tmp_path: Path) -> None:
    folder = make_v2(tmp_path / "cg", "job_4711")
    add_process(tmp_path / "proc", 51, "python\0", 2001)
    some = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    for file, text in (
        ("cpu.pressure", some.format(1_500_000)),
        ("io.pressure", some.format(250_000)),
        ("memory.max", f"{4096 << 20}\n"),
        ("cpuset.cpus", "0-3,8\n"),
        ("cpuset.cpus.effective", "0-3,8\n"),
    ):
        write(folder / file, text)
    (folder / "step_batch").mkdir()
    (group,) = JobGroups("n1", tmp_path / "proc", tmp_path / "cg").read() or ()
    assert group.use == GroupUse(
        start=str(folder.stat().st_ino), cpus=5, cpu_wait_s=1.5, io_wait_s=0.25, memory_limit_mib=4096
    )
    write(folder / "memory.max", "max\n")
    (folder / "io.pressure").unlink()
    (group,) = JobGroups("n1", tmp_path / "proc", tmp_path / "cg").read() or ()
    assert (group.use.io_wait_s, group.use.memory_limit_mib) == (None, None)
    assert "psi=1" in group.use.unknown["io_wait_s"]
    assert "ConstrainRAMSpace" in group.use.unknown["memory_limit_mib"]


def test_a_sluid_is_remembered_between_two_steps(tmp_path: Path) -> None:
    folder = make_v2(tmp_path / "cg", SLUID)
    add_process(tmp_path / "proc", 50, "slurmstepd: [4711.0]\0", 0)
    add_process(tmp_path / "proc", 51, "python\0", 2001)
    seen, unseen = (JobGroups("n1", tmp_path / "proc", tmp_path / "cg") for _ in range(2))
    seen.read()
    for file in ("slurm/cgroup.procs", "user/task_0/cgroup.procs"):
        write(folder / "step_0" / file, "")
    assert [group.job for group in seen.read() or ()] == [4711]
    assert unseen.read() == ()


def test_roots_own_processes_in_a_job_make_it_nobodys(tmp_path: Path) -> None:
    """PrologFlags=Contain: only Slurm's own sleep is there until the first step. The user is found when he comes."""
    folder = make_v2(tmp_path / "cg", "job_4711")
    write(folder / "step_0/user/task_0/cgroup.procs", "")
    write(folder / "step_extern/user/task_special/cgroup.procs", "60\n")
    add_process(tmp_path / "proc", 60, "sleep\0", 0)
    reader = JobGroups("n1", tmp_path / "proc", tmp_path / "cg")
    assert [(group.job, group.uid) for group in reader.read() or ()] == [(4711, None)]
    write(folder / "step_0/user/task_0/cgroup.procs", "51\n")
    add_process(tmp_path / "proc", 51, "python\0", 2001)
    assert [(group.job, group.uid) for group in reader.read() or ()] == [(4711, 2001)]


def test_a_task_that_is_still_roots_is_looked_at_again(tmp_path: Path) -> None:
    make_v2(tmp_path / "cg", "job_4711")
    add_process(tmp_path / "proc", 51, "python\0", 0)
    reader = JobGroups("n1", tmp_path / "proc", tmp_path / "cg")
    assert [group.uid for group in reader.read() or ()] == [0]
    add_process(tmp_path / "proc", 51, "python\0", 2001)
    assert [group.uid for group in reader.read() or ()] == [2001]


def test_a_scope_that_a_user_made_has_no_jobs(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root gives a folder away")
    make_v2(tmp_path / "cg", "job_4711")
    (tmp_path / "cg/a.slice/n1_slurmstepd.scope/job_999").mkdir(parents=True)
    reader = JobGroups("n1", tmp_path / "proc", tmp_path / "cg")
    assert [group.job for group in reader.read() or ()] == [999]
    os.chown(tmp_path / "cg/a.slice", 2001, 2001)
    assert [group.job for group in reader.read() or ()] == [4711]


def test_a_slurmstepd_that_is_not_roots_names_no_job(tmp_path: Path) -> None:
    make_v2(tmp_path / "cg", SLUID)
    add_process(tmp_path / "proc", 50, "slurmstepd: [4711.0]\0", 2002)
    assert JobGroups("n1", tmp_path / "proc", tmp_path / "cg").read() == ()


@pytest.mark.parametrize(
    ("mode", "job"), [(0o755, (4711, "0")), (0o4755, None), (0o2755, (4711, "0")), (None, (4711, "0"))]
)
def test_a_program_that_users_get_roots_uid_by_is_no_slurmstepd(
    tmp_path: Path, mode: int | None, job: tuple[int, str] | None
) -> None:
    """sudo, for example, started with another name, has the real uid 0 while it asks for a password. None: the program
    is for root to see."""
    add_process(tmp_path, 50, "slurmstepd: [4711.0]\0", 0)
    if mode is not None:
        write(tmp_path / "program", "")
        (tmp_path / "program").chmod(mode)
        (tmp_path / "50/exe").symlink_to(tmp_path / "program")
    assert cgroups.read_stepd(tmp_path / "50") == job


def test_of_several_slurmd_only_this_nodes_jobs_are_read(tmp_path: Path) -> None:
    make_v2(tmp_path / "cg", "job_1", "n1_")
    make_v2(tmp_path / "cg", "job_2", "n2_")
    add_process(tmp_path / "proc", 51, "python\0", 2001)
    assert [group.job for group in JobGroups("n2", tmp_path / "proc", tmp_path / "cg").read() or ()] == [2]


def test_a_v1_job_is_read(tmp_path: Path) -> None:
    """The user is in the path; kills are counted where they happened, in the groups of the tasks."""
    memory, cpu = (tmp_path / "cg" / name / "slurm_n1/uid_2001/job_3" for name in ("memory", "cpuacct"))
    write(memory / "memory.stat", "cache 0\nrss 0\ntotal_rss 104857600\ntotal_shmem 1048576\ntotal_swap 0\n")
    write(memory / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    write(memory / "step_0/memory.oom_control", "oom_kill 0\n")
    write(memory / "step_0/task_1/memory.oom_control", "oom_kill 2\n")
    write(cpu / "cpuacct.usage", "1500000000\n")
    expected = JobGroup(job=3, uid=2001, cpu_s=1.5, memory_mib=101, memory_kills=2)
    write(memory / "memory.limit_in_bytes", f"{2048 << 20}\n")
    (group,) = JobGroups("n1", tmp_path / "proc", tmp_path / "cg").read() or ()
    assert replace(group, use=GroupUse()) == expected
    assert group.use.memory_limit_mib == 2048
    assert "version 1" in group.use.unknown["cpu_wait_s"]


SAMPLER = "/opt/python\0-I\0-m\0slurm_share.cli.main\0sample\0--stream\0--frames\0"


def test_steps_of_llload_are_told_from_the_jobs_own_in_v2(tmp_path: Path) -> None:
    """Also after the kernel has ended a sampler, which it does first where the job's memory is full."""
    folder = make_v2(tmp_path / "cg", "job_4711")
    add_process(tmp_path / "proc", 51, "python\0", 2001)
    for step, pid in ((1, 61), (2, 62), (3, 63)):
        write(folder / f"step_{step}/user/task_1/cgroup.procs", f"{pid}\n")
        write(folder / f"step_{step}/cpu.stat", "usage_usec 500000\n")
        write(folder / f"step_{step}/memory.stat", f"anon {30 << 20}\n")
        write(folder / f"step_{step}/memory.events", "oom_kill 1\n")
        add_process(tmp_path / "proc", pid, "sleep\0" if step == 3 else SAMPLER, 2001)
    write(folder / "step_1/user/task_special/cgroup.procs", "")  # as slurmstepd 26.05 makes it in every step
    reader = JobGroups("n1", tmp_path / "proc", tmp_path / "cg")
    (group,) = reader.read() or ()
    assert {Path(step).name: cpu_s for step, cpu_s in group.llload_s.items()} == {"step_1": 0.5, "step_2": 0.5}
    assert (group.cpu_s, group.memory_mib, group.memory_kills) == (2.5, 51, 0)
    shutil.rmtree(folder / "step_1")
    (group,) = reader.read() or ()
    assert (list(map(Path, group.llload_s)), group.memory_kills) == ([folder / "step_2"], 0)


@pytest.mark.parametrize("version", [1, 2])
def test_a_program_named_like_a_sampler_hides_one_killed_process_at_most(tmp_path: Path, version: int) -> None:
    if version == 2:
        folder = make_v2(tmp_path / "cg", "job_3")
        write(folder / "memory.events", "oom_kill 7\n")
        write(folder / "step_0/memory.events", "oom_kill 7\n")
        add_process(tmp_path / "proc", 51, "python\0", 2001)
        write(folder / "step_0/user/task_0/cgroup.procs", "61\n")
    else:
        folder = tmp_path / "cg/memory/slurm_n1/uid_2001/job_3"
        write(folder / "memory.stat", "total_rss 1000\n")
        write(folder / "memory.oom_control", "oom_kill 0\n")
        write(folder / "step_0/memory.oom_control", "oom_kill 0\n")
        write(folder / "step_0/task_0/memory.oom_control", "oom_kill 7\n")
        write(folder / "step_0/task_0/cgroup.procs", "61\n")
    add_process(tmp_path / "proc", 61, SAMPLER, 2001)
    (group,) = JobGroups("n1", tmp_path / "proc", tmp_path / "cg").read() or ()
    assert group.memory_kills == 6


def test_a_step_of_which_another_task_works_is_no_step_of_llload(tmp_path: Path) -> None:
    folder = make_v2(tmp_path / "cg", "job_4711")
    for task, (pid, program) in enumerate(((61, SAMPLER), (62, "python\0"))):
        write(folder / f"step_1/user/task_{task}/cgroup.procs", f"{pid}\n")
        add_process(tmp_path / "proc", pid, program, 2001)
    write(folder / "step_1/cpu.stat", "usage_usec 500000\n")
    add_process(tmp_path / "proc", 51, "python\0", 2001)
    (group,) = JobGroups("n1", tmp_path / "proc", tmp_path / "cg").read() or ()
    assert group.llload_s == {}


def test_a_step_that_has_not_started_its_program_is_judged_later(tmp_path: Path) -> None:
    folder = make_v2(tmp_path / "cg", "job_4711")
    write(folder / "step_0/user/task_0/cgroup.procs", "51\n")
    add_process(tmp_path / "proc", 51, "slurmstepd: [4711.0]\0", 0)
    reader = JobGroups("n1", tmp_path / "proc", tmp_path / "cg")
    reader.read()
    add_process(tmp_path / "proc", 51, SAMPLER, 2001)
    (group,) = reader.read() or ()
    assert len(group.llload_s) == 1


def test_steps_of_llload_are_told_from_the_jobs_own_in_v1(tmp_path: Path) -> None:
    memory, cpu = (tmp_path / "cg" / name / "slurm_n1/uid_2001/job_3" for name in ("memory", "cpuacct"))
    for folder, mib in ((memory, 2000), (memory / "step_1", 900)):
        write(folder / "memory.stat", f"total_rss {mib << 20}\n")
        write(folder / "memory.oom_control", "oom_kill 0\n")
    write(memory / "step_1/task_0/memory.oom_control", "oom_kill 1\n")
    write(memory / "step_1/task_0/cgroup.procs", "61\n")
    write(cpu / "cpuacct.usage", "1500000000\n")
    write(cpu / "step_1/cpuacct.usage", "500000000\n")
    add_process(tmp_path / "proc", 61, SAMPLER, 2001)
    (group,) = JobGroups("n1", tmp_path / "proc", tmp_path / "cg").read() or ()
    assert (group.cpu_s, group.llload_s, group.memory_kills) == (1.5, {"step_1": 0.5}, 0)
    assert group.memory_mib == 2000 - LLLOAD_MOST_MIB  # a program that only has such words


def test_a_controller_that_is_not_there_is_unknown_and_not_0(tmp_path: Path) -> None:
    """v1 with the freezer alone (proctrack/cgroup, and no other plugin)."""
    (tmp_path / "cg/freezer/slurm/uid_2001/job_3").mkdir(parents=True)
    (group,) = JobGroups("n1", tmp_path / "proc", tmp_path / "cg").read() or ()
    assert (group.job, group.uid, group.cpu_s, group.memory_mib, group.memory_kills) == (3, 2001, None, None, None)
    assert group.unknown.keys() == {"cpu_cores", "memory_mib", "memory_kills"}


def test_no_cgroup_of_slurms_is_none(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    assert JobGroups("n1", tmp_path / "proc", tmp_path).read() is None
    (tmp_path / "memory/slurm").mkdir()
    assert JobGroups("n1", tmp_path / "proc", tmp_path).read() == ()


# ---- What Prolog and Epilog ask of a process ----


def test_a_process_in_a_numbered_cgroup_has_that_job(tmp_path: Path) -> None:
    add_process(tmp_path, 60, "python\0", 2001, "0::/system.slice/slurmstepd.scope/job_9/step_0/user/task_0\n")
    found = processes.read_process(60, tmp_path)
    assert found is not None
    assert (found.job_id, found.is_own_claim) == (9, False)


def test_a_cgroup_that_a_user_made_spares_nobody(tmp_path: Path) -> None:
    add_process(tmp_path, 60, "python\0", 2001, "0::/user.slice/user@2001.service/slurmstepd.scope/job_9/step_0\n")
    found = processes.read_process(60, tmp_path)
    assert found is not None
    assert found.job_id is None
