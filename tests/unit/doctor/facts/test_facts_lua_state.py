"""Facts of `slurm-share doctor` about Lua, the owners of Slurm's files, of locks and of our MPS daemons."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from doctor_hosts import write_process
from plans import plain_plan

from slurm_share.core.paths import Paths
from slurm_share.core.records import ProcessIdentity
from slurm_share.doctor.facts import gpus, lua, slurm, state, system
from slurm_share.doctor.facts import scripts as fact_files
from slurm_share.doctor.facts.records import LostPath, UnknownFact
from slurm_share.node import processes as proc
from slurm_share.node.records import Gpu
from slurm_share.share import plan as plan_text
from slurm_share.share.backends import registry
from slurm_share.share.backends.base import Examination, Host
from slurm_share.share.records import Ledger, LedgerJob, Slot

UUID = "GPU-5131194a-af6f-47c0-8619-4e91f42a6279"
OURS = Path(__file__).resolve().parents[4] / "plugins/job_submit.lua"


# --- Lua -------------------------------------------------------------------------------------------------------------


def test_the_plugin_for_lua_is_looked_for_where_slurm_has_its_plugins(tmp_path):
    """Told by PluginDir, else where packages have them. Where no submit plugin is nothing can be told."""
    folder = tmp_path / "usr/lib/x86_64-linux-gnu/slurm-wlm"
    folder.mkdir(parents=True)
    assert isinstance(lua.find_object("", tmp_path), UnknownFact)
    (folder / "job_submit_pbs.so").touch()
    assert lua.find_object("", tmp_path) == ""
    (folder / "job_submit_lua.so").touch()
    found = "/usr/lib/x86_64-linux-gnu/slurm-wlm/job_submit_lua.so"
    assert lua.find_object("", tmp_path) == found
    assert lua.find_object("/gone:/usr/lib/x86_64-linux-gnu/slurm-wlm", tmp_path) == found
    assert isinstance(lua.find_object("/gone", tmp_path), UnknownFact)


needs_lua = pytest.mark.skipif(
    not lua._installed(Path("/")), reason="NOT TESTED: there is no Lua library on this machine"
)


@needs_lua
def test_lua_itself_says_whether_it_takes_a_script(tmp_path, monkeypatch):
    monkeypatch.setattr(lua, "_installed", lambda root, real=lua._installed: real(Path("/")))
    script = tmp_path / "job_submit.lua"
    script.write_text(OURS.read_text())
    assert lua.read_problem("/job_submit.lua", tmp_path) == ""
    script.write_text(f"io.open('{tmp_path}/ran', 'w'):close()\n")
    assert lua.read_problem("/job_submit.lua", tmp_path) == ""
    assert not (tmp_path / "ran").exists()
    script.write_text("function slurm_job_submit(job)\n  local = 3\nend\n")
    problem = lua.read_problem("/job_submit.lua", tmp_path)
    assert ":2: " in str(problem)
    script.unlink()
    assert isinstance(lua.read_problem("/job_submit.lua", tmp_path), UnknownFact)


def test_without_a_library_nothing_is_said_of_a_script(tmp_path):
    (tmp_path / "s.lua").write_text("x = ")
    said = lua.read_problem("/s.lua", tmp_path)
    assert said == UnknownFact("Lua was not asked: there is no Lua library on this host")
    fake = tmp_path / "usr/lib64/liblua5.1.so"
    fake.parent.mkdir(parents=True)
    fake.write_text("no ELF")
    said = lua.read_problem("/s.lua", tmp_path)
    assert isinstance(said, UnknownFact)
    assert "liblua5.1.so" in said.why


def test_the_library_that_slurmctld_has_loaded_comes_first(tmp_path):
    write_process(tmp_path, 9, "slurmctld")
    folder = tmp_path / "proc/9"
    line = "7f00-7f01 r--p 0 00:1 {}   {}\n"
    paths = ("/usr/lib/libc.so.6", "/usr/lib/liblua5.1.so.0.0.0", "/usr/lib/liblua5.1.so.0.0.0", "/x/liblua_own.so")
    (folder / "maps").write_text("7fff-7fff rw-p 0 00:0 0\n" + "".join(line.format(n, p) for n, p in enumerate(paths)))
    assert list(lua._loaded(tmp_path)) == ["/usr/lib/liblua5.1.so.0.0.0"]


# --- files, room, containers -----------------------------------------------------------------------------------------


def test_every_file_that_says_what_runs_as_root_is_looked_at(tmp_path):
    """Includes of slurm.conf and plugstack.conf, the folder of a pattern that finds nothing, and the files beside."""
    files = {
        "etc/slurm/slurm.conf": "ClusterName=x\nInclude more.conf\n",
        "etc/slurm/more.conf": "PartitionName=a\n",
        "etc/slurm/gres.conf": "",
        "etc/slurm/plugstack.conf": "include /etc/slurm/plugstack.conf.d/*.conf\ninclude own/*\n",
        "etc/slurm/plugstack.conf.d/share.conf": "optional /x.so\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "etc/slurm/own").mkdir(mode=0o777)
    (tmp_path / "etc/slurm/own").chmod(0o777)
    text = slurm.read_written("/etc/slurm/slurm.conf", tmp_path)
    found = fact_files.read_owned("/etc/slurm", "/etc/slurm/plugstack.conf", text, tmp_path)
    assert {one.path for one in found} == {f"/{name}" for name in files if "conf.d" not in name} | {
        "/etc/slurm/own", "/etc/slurm/plugstack.conf.d",
    }  # fmt: skip
    assert {one.chain[-1].path: one.chain[-1].mode for one in found}["/etc/slurm/own"] == 0o777


@pytest.mark.parametrize(("said", "uid"), [("slurm(64030)", 64030), ("root", 0), ("64030", 64030), ("nobody-here", 0)])
def test_slurms_user(said, uid):
    """The controller reports it, and slurm.conf. An unknown name is not trusted."""
    assert fact_files.uid_of(said) == uid


def test_what_containers_see(tmp_path):
    assert system._containers("/run/slurm-share", tmp_path) == ()
    (tmp_path / "etc/enroot/mounts.d").mkdir(parents=True)
    (tmp_path / "etc/apptainer").mkdir()
    (tmp_path / "etc/apptainer/apptainer.conf").write_text("# bind path = /run/slurm-share\n")
    assert system._containers("/run/slurm-share", tmp_path) == (
        ("/etc/enroot/mounts.d", False), ("/etc/apptainer/apptainer.conf", False),
    )  # fmt: skip
    (tmp_path / "etc/enroot/mounts.d/50.fstab").write_text("/run/slurm-share /run/slurm-share none rbind\n")
    (tmp_path / "etc/apptainer/apptainer.conf").write_text("bind path = /run/slurm-share\n")
    assert all(names_it for _, names_it in system._containers("/run/slurm-share", tmp_path))


@pytest.mark.parametrize(
    ("text", "version"),
    [('{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}', "12.4.1"), ("{", ""), ("[]", ""), ('{"cuda": 3}', "")],
)
def test_the_cuda_of_this_host(tmp_path, text, version):
    assert gpus.read_toolkit(tmp_path) == ""
    (tmp_path / "usr/local/cuda").mkdir(parents=True)
    (tmp_path / "usr/local/cuda/version.json").write_text(text)
    assert gpus.read_toolkit(tmp_path) == version


def test_room(tmp_path):
    percent = system.read_free_percent(tmp_path)
    assert percent is not None
    assert 0 <= percent <= 100
    assert system.read_free_percent(tmp_path / "gone") is None


# --- the ledger's lock -----------------------------------------------------------------------------------------------


@pytest.fixture
def holder(tmp_path):
    """Start a program that holds a lock on a file; return when it has printed that it does."""
    code = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX)"
    code += "; print('held', flush=True); time.sleep(60)"
    (tmp_path / "ledger.lock").touch()
    child = subprocess.Popen([sys.executable, "-c", code, tmp_path / "ledger.lock"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_who_holds_the_ledgers_lock_for_long_is_named(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(state, "LOCK_READ_S", 0.2)
    said = state.read_lock_holder(tmp_path / "ledger.lock")
    assert said.startswith(f"process {holder.pid} (python")
    assert "stopped" not in said
    os.kill(holder.pid, signal.SIGSTOP)
    end = time.monotonic() + 120
    while not proc.is_stopped(holder.pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert "stopped)" in state.read_lock_holder(tmp_path / "ledger.lock")


def test_a_lock_that_is_let_go_of_is_free(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(state, "LOCK_READ_S", 30.0)
    looks = iter(range(1000))
    real = state._holder

    def look(file, proc):
        if next(looks) == 2:
            holder.kill()
            holder.wait()
        return real(file, proc)

    monkeypatch.setattr(state, "_holder", look)
    assert state.read_lock_holder(tmp_path / "ledger.lock") == ""
    monkeypatch.setattr(state, "LOCK_READ_S", 3600.0)  # nobody waits for a lock that is free
    assert state.read_lock_holder(tmp_path / "ledger.lock") == ""
    assert state.read_lock_holder(tmp_path / "gone") == ""


# --- MPS -------------------------------------------------------------------------------------------------------------


def shared_job(tmp_path, pipe):
    """Return the state folder with a job in it whose plan names a pipe folder."""
    paths = Paths(root=tmp_path)
    gpu = Gpu(UUID, 0, 0, "H100", 81920)
    plan = plain_plan(7, os.getuid(), gpus=(gpu,), slots=(Slot(0, gpu, 0, mps_directory=str(pipe), backend="mps"),))
    paths.slots(7).mkdir(parents=True)
    paths.plan(7).write_text(plan_text.render(plan))
    return paths, Ledger("b", (LedgerJob(7, os.getuid(), "2", (UUID,), 1, 0.0),))


def lost(ledger, paths):
    """Return which files of the job and of its daemons are gone."""
    examination = Examination(UnknownFact("no driver"), lambda path: None, state.read_plans(ledger, paths), False)
    health = registry.get("mps").health(Host(paths=paths), (), examination=examination)
    found = (*state.read_lost(ledger, paths), *(LostPath(*one) for one in health.lost))
    assert {(one.job_id, one.uid) for one in found} <= {(7, os.getuid())}
    return [one.path for one in found]


def test_what_a_job_has_lost_is_found_by_its_plan(tmp_path):
    """Its slots, its pipe folder, the socket in it, the logs; without a plan, that; without a share, nothing."""
    pipe = Paths(root=tmp_path).mps_pipe(os.getuid(), UUID)
    paths, ledger = shared_job(tmp_path, pipe)
    (pipe / "logs").mkdir(parents=True)
    (pipe / "control").touch()
    assert lost(ledger, paths) == []
    (pipe / "control").unlink()
    (pipe / "logs").rmdir()
    assert lost(ledger, paths) == [f"{pipe}/control", f"{pipe}/logs"]
    paths.slots(7).rmdir()
    pipe.rmdir()
    assert lost(ledger, paths) == [str(paths.slots(7)), str(pipe), f"{pipe}/control", f"{pipe}/logs"]
    paths.plan(7).unlink()
    assert lost(ledger, paths) == [str(paths.plan(7))]
    assert lost(Ledger("b", (LedgerJob(7, os.getuid(), "", (), 0, 0.0),)), paths) == []


def test_a_folder_that_only_the_user_names_is_not_looked_at(tmp_path):
    for named in ("/net/hangs/for/ever", f"{tmp_path}/mps/1/../../../etc"):
        paths, ledger = shared_job(tmp_path / str(len(named)), named)
        assert lost(ledger, paths) == []


def test_a_job_whose_epilog_is_at_work_has_lost_nothing(tmp_path, monkeypatch):
    """Its folder goes before its line in the ledger: what is gone counts when the line is still there afterwards."""
    paths, ledger = shared_job(tmp_path, Paths(root=tmp_path).mps_pipe(os.getuid(), UUID))
    lost = (LostPath(7, os.getuid(), "/gone"),)
    later = iter([ledger, Ledger("b")])
    monkeypatch.setattr(state, "_ledger", lambda *_: (next(later), ""))
    assert state.still_lost(lost, paths, Path("/")) == lost
    assert state.still_lost(lost, paths, Path("/")) == ()


def test_the_folders_of_hooks_are_looked_at_without_what_is_above_them(tmp_path):
    paths = Paths(root=tmp_path / "run/slurm-share")
    (paths.mps / "2001/a-b").mkdir(parents=True)
    (paths.mps / "2001").chmod(0o777)
    paths.root.chmod(0o777)
    found = state._folders_of_root(paths, "/run/slurm-share", tmp_path)
    assert [[(step.path, oct(step.mode)) for step in one.chain][-1:] for one in found] == [
        [("/run/slurm-share/user", oct(paths.user.stat().st_mode & 0o7777))],
        [("/run/slurm-share/user/mps", oct(paths.mps.stat().st_mode & 0o7777))],
        [("/run/slurm-share/user/mps/2001", "0o777")],
    ]
    assert {len(one.chain) for one in found} == {1}


def test_a_lock_of_a_program_that_is_gone_is_said_to_be_its_childs():
    """The kernel names who took it, and a child may hold it still."""
    said = state._described(ProcessIdentity(4_000_000), Path("/proc"))
    assert said == "what process 4000000 started, which is gone itself (`fuser -v` names it),"
    assert state._described(ProcessIdentity(0), Path("/proc")) == "a process that the kernel does not name here"
