"""Prolog and Epilog on a state folder of their own: what they make, what they leave, and what an interruption does."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hooked_nodes import NOTHING, HookedNode, as_root
from slurm_share_hooks import epilog, prolog

from slurm_share.core import names, process
from slurm_share.core.errors import HookEnvError, StateError
from slurm_share.core.process import Deadline
from slurm_share.core.records import Owner, ProcessIdentity, ShareRequest
from slurm_share.core.settings import Settings
from slurm_share.mps import daemons
from slurm_share.mps import processes as mps_reader
from slurm_share.mps.records import MpsFailed, MpsPlace, MpsProcess
from slurm_share.node import fuse, processes
from slurm_share.node.records import LiveJob
from slurm_share.share import admission, hook, release, state
from slurm_share.share.backends import mps as backend
from slurm_share.share.rules import owners
from slurm_share.testing import FakeNvml

ME = os.getuid()
ENVIRON = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_UID": str(ME),
    "SLURM_JOB_GID": str(os.getgid()),
    "SLURMD_NODENAME": "n2",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "SPANK_SHARE_GPU": "4",
}


@pytest.fixture
def short_path():
    """Return a folder whose path leaves space for a pipe directory of at most 87 bytes."""
    with tempfile.TemporaryDirectory(prefix="hooks-") as folder:
        yield Path(folder)


class Node(HookedNode):
    def environ(self, job_id, uid=ME, share="4", gpus="0,1", **others):
        return super().environ(job_id, uid, share, gpus, **others)

    def prolog(self, **changes):
        self.admit({key: value for key, value in {**ENVIRON, **changes}.items() if value is not None})

    def epilog(self, **changes):
        return self.release({**ENVIRON, **changes})


@pytest.fixture
def node(short_path, monkeypatch):
    return Node(short_path, monkeypatch)


def test_a_shared_job_leaves_a_plan_and_a_ledger_line(node):
    node.prolog()
    plan = node.plan()
    assert (len(plan.gpus), len(plan.slots), plan.share) == (2, 8, ShareRequest(4))
    assert node.ledger().jobs[0].job_id == 4711
    assert stat.S_IMODE(node.paths.plan(4711).stat().st_mode) == 0o400
    assert stat.S_IMODE(node.paths.job(4711).stat().st_mode) == 0o711
    assert stat.S_IMODE(node.paths.jobs.stat().st_mode) == 0o711
    assert stat.S_IMODE(node.paths.ledger.stat().st_mode) == 0o600
    assert {stat.S_IMODE(file.stat().st_mode) for file in node.paths.slots(4711).iterdir()} == {0o600}


def test_a_job_that_is_refused_after_its_backend_failed_has_no_slots(node):
    node.settings = Settings(mode="on", log_file="", mps_control="/bin/false")
    node.prolog(SPANK_SHARE_GPU="4,mps=on")
    assert "it asked for sharing=mps, and MPS did not start on GPU-" in node.refused()
    assert not [file.name for file in node.paths.slots(4711).iterdir() if file.name.isdecimal()]


def test_a_prolog_lists_the_live_jobs_while_the_ledger_is_free(node, monkeypatch):
    """A user may have left so many processes that it takes long, and all hooks of the node wait for the ledger."""
    was_free = []

    def look():
        with open(node.paths.ledger_lock, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                was_free.append(True)
            except BlockingIOError:
                was_free.append(False)
        return ()

    monkeypatch.setattr(processes, "read_live_jobs", look)
    node.prolog()
    node.prolog(SLURM_JOB_ID="4712", SPANK_SHARE_GPU=None)
    assert len(was_free) >= 2
    assert all(was_free)


@as_root
def test_a_job_in_the_way_on_an_old_list_is_looked_for_again(node, monkeypatch):
    here = (LiveJob(4700, 2002),)
    live = [here, here, ()]  # for the first one its user's name is looked up
    monkeypatch.setattr(processes, "read_live_jobs", lambda: live.pop(0))
    monkeypatch.setattr(admission, "OLD_S", -1.0)
    monkeypatch.setattr(admission, "PATIENCE_S", 0.0)
    node.prolog(SLURM_JOB_UID="2001")
    assert node.refused() is None
    assert live == []


def test_the_epilog_leaves_nothing_of_the_job(node):
    node.prolog()
    node.epilog()
    assert node.files() == NOTHING
    assert node.ledger().jobs == ()


def test_both_may_run_twice(node):
    node.prolog()
    node.prolog()
    assert len(node.ledger().jobs) == 1
    node.epilog()
    node.epilog()
    assert node.files() == NOTHING


def test_the_epilog_works_without_a_prolog(node):
    node.paths.job(4711).mkdir(parents=True)
    node.epilog()
    assert node.files() == ["jobs", "ledger.lock"]


def test_one_jobs_epilog_leaves_the_other_job_alone(node):
    node.prolog()
    node.prolog(SLURM_JOB_ID="4712", CUDA_VISIBLE_DEVICES="1")
    node.epilog()
    assert node.jobs() == [4712]
    assert node.plan(4712) is not None


def test_hooks_of_many_jobs_at_once_lose_no_line(node):
    driver = FakeNvml()
    for _ in range(20):
        driver.gpu()
    node.gpus(driver)
    ids = range(1, 21)
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda job: node.prolog(SLURM_JOB_ID=str(job), CUDA_VISIBLE_DEVICES=str(job - 1)), ids))
        assert sorted(job.job_id for job in node.ledger().jobs) == list(ids)
        list(pool.map(lambda job: node.epilog(SLURM_JOB_ID=str(job)), ids))
    assert node.files() == NOTHING


@pytest.mark.parametrize("value", ["4;touch /tmp/x", "4\nSLURM_JOB_ID=1", "x" * 10_240, "$(id)", "0", ""])
def test_a_hostile_value_makes_nothing_and_is_logged_in_one_line(node, value):
    node.prolog(SPANK_SHARE_GPU=value)
    assert not node.paths.root.exists()
    assert len(node.log) == 1
    assert "job 4711" in node.log[0]
    assert node.log[0].isprintable()
    assert len(node.log[0]) < 400


@pytest.mark.parametrize("job_id", ["../../etc", "4711/../4712", "", "-1", "99999999999"])
def test_a_job_id_that_is_none_is_refused_before_any_path_is_made(node, job_id):
    with pytest.raises(HookEnvError):
        node.prolog(SLURM_JOB_ID=job_id)
    with pytest.raises(HookEnvError):
        node.epilog(SLURM_JOB_ID=job_id)
    assert not node.paths.root.exists()


def test_a_share_that_cannot_be_is_a_sentence_for_the_job(node):
    node.prolog(CUDA_VISIBLE_DEVICES="")
    assert "granted the job no GPU" in node.refused()
    assert node.ledger().jobs == ()
    node.epilog()
    assert node.files() == ["jobs", "ledger.lock"]


def test_a_driver_that_does_not_answer_is_a_sentence_for_the_job(node, monkeypatch):
    monkeypatch.setattr(admission, "nvml", FakeNvml(broken="Driver Not Loaded"))
    node.prolog()
    assert "the NVIDIA driver does not answer (nvmlInit: Driver Not Loaded)" in node.refused()


def test_state_of_an_earlier_boot_is_void(node):
    node.prolog()
    written = json.loads(node.paths.ledger.read_bytes())
    written["ledger"]["boot_id"] = "another"
    node.paths.ledger.write_text(json.dumps(written))
    node.prolog(SLURM_JOB_ID="4712")
    assert node.jobs() == [4712]


def test_a_ledger_that_cannot_be_understood_keeps_no_job_waiting(node):
    node.prolog(CUDA_VISIBLE_DEVICES="1")
    before = node.ledger().jobs[0]
    node.paths.ledger.write_bytes(b"{torn")
    node.prolog(SLURM_JOB_ID="4712", CUDA_VISIBLE_DEVICES="0")
    assert node.jobs() == [4711, 4712]
    assert node.ledger().jobs[0].gpus == before.gpus
    assert node.said("rebuilt from the plans of the jobs on the node (4711)")


def test_a_write_that_fails_leaves_the_old_file_whole(node, monkeypatch):
    """With a full state folder the old ledger stays, and no temporary file."""
    node.prolog()
    monkeypatch.setattr(os, "fchmod", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        node.prolog(SLURM_JOB_ID="4712")
    assert node.jobs() == [4711]
    assert not [file for file in node.files() if file.startswith(".")]


def test_whatever_goes_wrong_the_exit_code_does_not_drain_the_node(node, monkeypatch):
    monkeypatch.setattr(prolog, "work", lambda: bool(1 / 0))
    monkeypatch.setenv(names.HOOK_VARIABLE, "4")
    monkeypatch.setenv("PATH", "")
    assert prolog.main() == 0
    assert os.environ["PATH"] == hook.SEARCH_PATH
    assert "ZeroDivisionError" in node.log[0]
    assert "\n" not in node.log[0]


def test_a_late_epilog_of_an_earlier_run_takes_nothing_from_the_next(node):
    node.prolog(SLURM_JOB_RESTART_COUNT="1")
    assert node.epilog(SLURM_JOB_RESTART_COUNT="0")
    assert node.plan() is not None
    assert node.epilog(SLURM_JOB_RESTART_COUNT="1")
    assert node.files() == NOTHING


def test_a_job_whose_epilog_never_came_is_cleared_when_its_gpu_is_given_away(node):
    node.prolog(CUDA_VISIBLE_DEVICES="0", SLURM_JOB_UID="2998")
    node.prolog(SLURM_JOB_ID="4712", CUDA_VISIBLE_DEVICES="0", SLURM_JOB_UID="2999")
    assert node.jobs() == [4712]
    assert node.plan(4711) is None
    assert node.said("job 4711", "without an Epilog")


def test_a_system_users_process_on_the_gpu_is_named_and_not_touched(node, monkeypatch):
    monkeypatch.setattr(release.leftovers, "FIRST_ORDINARY_UID", max(1000, ME + 1))
    monkeypatch.setattr(release, "nvml", FakeNvml().gpu(pids=(os.getpid(),)).gpu())
    node.prolog(SLURM_JOB_UID="2999")
    assert node.epilog(SLURM_JOB_UID="2999")
    assert node.said(f"process {os.getpid()}", "not ended")


@as_root
def test_a_leftover_of_another_user_on_the_gpu_is_ended_and_the_node_stays(node, start):
    leftover = start(2996)
    node.gpus(FakeNvml().gpu(pids=(leftover.pid,)).gpu())
    node.prolog(SLURM_JOB_UID="2999")
    assert node.epilog(SLURM_JOB_UID="2999")
    assert leftover.wait(300) < 0
    assert node.said(f"leftover process {leftover.pid}", "no job has: ended")


def test_a_driver_that_is_gone_makes_the_node_unwell_and_keeps_no_epilog_from_its_work(node, monkeypatch):
    node.prolog()
    monkeypatch.setattr(release, "nvml", FakeNvml(broken="GPU is lost"))
    assert node.epilog() is False
    assert node.files() == NOTHING


# --- ended half-way, held up, in the way ---------------------------------------------------------------------------


def test_a_second_epilog_leaves_to_the_first_what_that_one_is_at(node, monkeypatch):
    node.prolog()
    seen = []

    def second(*_):
        seen.append(node.epilog())
        return True

    monkeypatch.setattr(release.CleanUp, "end_daemons", second)
    assert node.epilog()
    assert seen == [True]
    assert node.said("another Epilog is cleaning up after it")
    assert node.files() == NOTHING


def test_an_ordinary_job_on_the_gpu_of_a_job_without_epilog_has_it_cleared(node):
    node.prolog(SPANK_SHARE_GPU=None, SLURM_JOB_ID="4712")
    assert not node.paths.root.exists()
    node.prolog(CUDA_VISIBLE_DEVICES="0", SLURM_JOB_UID="2998")
    node.prolog(SPANK_SHARE_GPU=None, SLURM_JOB_ID="4712", SLURM_JOB_UID="2999", CUDA_VISIBLE_DEVICES="1")
    assert node.jobs() == [4711]
    node.prolog(SPANK_SHARE_GPU=None, SLURM_JOB_ID="4713", SLURM_JOB_UID="2999", CUDA_VISIBLE_DEVICES="0")
    assert node.files() == NOTHING


OUTLIVING = ProcessIdentity(4242, 1, 2999, "nvidia-cuda-mps")


@pytest.mark.parametrize(("waited_s", "well"), [(0.0, False), (3600.0, True)])
def test_a_process_is_said_to_outlive_sigkill_only_after_some_time(node, monkeypatch, waited_s, well):
    monkeypatch.setattr(release.CleanUp, "end_daemons", lambda self, *_: self.killed([OUTLIVING]))
    monkeypatch.setattr(release.process, "wait_gone", lambda some, _: tuple(some))
    monkeypatch.setattr(release, "OUTLIVES_S", waited_s)
    assert admission.admit_job(ENVIRON, node.paths, node.settings, 1000.0) is well
    assert node.said("process 4242")


def test_a_process_that_waits_for_its_users_file_system_drains_nothing(node, monkeypatch):
    living = [OUTLIVING]

    def end_waited_for(uids):
        if OUTLIVING.uid in uids:
            living.clear()
        return ["a file system was ended"]

    monkeypatch.setattr(fuse, "end_waited_for", end_waited_for)
    monkeypatch.setattr(release.CleanUp, "end_daemons", lambda self, *_: self.killed([OUTLIVING]))
    monkeypatch.setattr(release.process, "wait_gone", lambda *_: tuple(living))
    monkeypatch.setattr(release, "OUTLIVES_S", 0.0)
    assert admission.admit_job(ENVIRON, node.paths, node.settings, 1000.0)
    assert node.said("a file system was ended")
    assert not node.said("process 4242")


@pytest.mark.parametrize("left", [False, True])
def test_a_folder_that_cannot_be_removed_is_no_reason_to_drain(node, monkeypatch, left):
    place = MpsPlace("/x", str(node.paths.mps / "2999/00000000-000000"), "GPU-0", Owner(2999, 2999))
    daemon = MpsProcess(OUTLIVING, "daemon", place.pipe)
    node.prolog(SLURM_JOB_UID="2999")
    with monkeypatch.context() as full:
        (node.paths.mps / "2999/00000000-000000").mkdir(parents=True)
        failed = (MpsFailed(place, "MpsFolderError", "too much"),)
        full.setattr(daemons, "stop_many", lambda *_, **__: failed)
        full.setattr(mps_reader, "read_processes", lambda **_: (daemon,) if left else ())
        full.setattr(release.termination, "end_processes", lambda some, _: tuple(some))
        full.setattr(release.process, "wait_gone", lambda some, _: tuple(some))
        full.setattr(release, "OUTLIVES_S", 0.0)
        assert node.epilog(SLURM_JOB_UID="2999") is not left
    assert [one.job.job_id for one in node.ledger().leaving] == [4711]
    assert (node.paths.jobs / "4711").exists()
    monkeypatch.setattr(process, "is_same", lambda *_: False)  # that hook has ended
    node.prolog(SLURM_JOB_ID="4712", CUDA_VISIBLE_DEVICES="1")
    assert node.ledger().leaving == ()
    assert not (node.paths.jobs / "4711").exists()


def test_a_full_state_folder_keeps_no_epilog_from_its_work(node, monkeypatch):
    node.prolog()
    write = state.write_ledger
    full = [True]

    def write_or_not(*args):
        if full:
            full.pop()
            raise OSError(28, "No space left on device")
        write(*args)

    monkeypatch.setattr(state, "write_ledger", write_or_not)
    assert node.epilog()
    assert node.ledger().jobs == ()
    assert node.files() == NOTHING


def test_a_ledger_that_is_held_for_ever_is_given_up_in_time(node):
    state.prepare(node.paths)
    with (
        state.exclusive(node.paths, Deadline.after(300)),
        pytest.raises(StateError, match="another hook"),
        state.exclusive(node.paths, Deadline.after(0.01)),
    ):
        pass


@pytest.mark.parametrize("in_driver", [False, True])
def test_a_hook_that_hangs_is_given_up_by_what_it_waits_for(monkeypatch, node, in_driver):
    ended = threading.Event()
    codes = []
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), ended.set()))

    def hang():
        hook.watch("epilog", 0.01, lambda driver: 7 if driver else 0)  # in the call: a busy machine may be late
        return ended.wait(300)

    assert hook.ask_driver(hang) if in_driver else hang()
    assert codes == [7 if in_driver else 0]
    assert any("the driver does not answer" in line for line in node.log) is in_driver


@pytest.mark.parametrize(("which", "drained"), [(prolog, [0, 0, 1]), (epilog, [1, 1, 1])])
def test_a_driver_that_hangs_drains_at_once_after_a_job_and_by_the_third_before(node, monkeypatch, which, drained):
    given = []
    monkeypatch.setattr(hook, "watch", lambda who, seconds, code: given.append(code) or (lambda: None))
    monkeypatch.setattr(hook, "load_settings", lambda **_: node.settings)
    monkeypatch.setattr(admission, "admit_job", lambda *_: True)
    monkeypatch.setattr(release, "release_job", lambda *_: True)
    monkeypatch.setattr("slurm_share.core.paths.Paths", lambda: node.paths)
    codes = []
    for job in ("7", "8", "9"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        which.work()
        assert given[-1](False) == 0
        codes.append(given[-1](True))
    assert codes == drained, node.log


def test_a_daemon_that_no_job_has_is_stopped_unless_a_job_comes_meanwhile(node, monkeypatch):
    node.prolog()
    gpus = node.ledger().jobs[0].gpus
    for gpu in gpus:
        node.paths.mps_pipe(ME, gpu).mkdir(parents=True)
    stopped, kept = [], []

    def stop_many(places, deadline, unless):
        stopped.extend(place.gpu for place in places)
        kept.append([place.gpu for place in places if unless(place.gpu)])
        node.prolog(SLURM_JOB_ID="4712", CUDA_VISIBLE_DEVICES="1")
        kept.append([place.gpu for place in places if unless(place.gpu)])
        return ()

    monkeypatch.setattr(daemons, "stop_many", stop_many)
    node.epilog()
    assert sorted(stopped) == sorted(gpus)
    assert kept == [[], [gpus[1]]]


def test_what_outlives_a_daemon_is_ended_only_where_it_is_its_users(monkeypatch):
    place = MpsPlace("/x", "/run/x", "GPU-1", Owner(2998, 2998))
    found = tuple(
        MpsProcess(ProcessIdentity(pid, 1, uid, "nvidia-cuda-mps"), "server", place.pipe)
        for pid, uid in ((5, 2998), (6, 2999))
    )
    ended = []
    monkeypatch.setattr(mps_reader, "read_processes", lambda *_, **__: found)
    monkeypatch.setattr(release.termination, "end_processes", lambda those, _: ended.extend(those) or ())
    backend.end_rest([place], found, Deadline.after(300))
    assert [one.identity.pid for one in ended] == [5]


def test_a_job_number_that_lives_here_gives_nothing_to_another_user(node, monkeypatch):
    node.prolog()
    plan = node.paths.plan(4711).read_bytes()
    monkeypatch.setattr(release, "running_jobs", lambda *_: (LiveJob(4711, ME),))
    node.prolog(SLURM_JOB_UID="2999")
    assert node.paths.plan(4711).read_bytes() == plan
    assert [job.uid for job in node.ledger().jobs] == [ME]
    assert node.said("is alive here under another user than uid 2999")


def test_what_is_left_of_a_daemon_is_found_by_any_of_its_names(node):
    user = node.paths.mps / "2999"
    (user / "00000000-000000").mkdir(parents=True)
    (user / "11111111-111111.lock").touch()
    (user / "22222222-222222.ui").touch()
    (user / ".33333333-333333.12345").mkdir()
    for name in ("notes", "1", "3000"):
        (node.paths.mps / name).touch()
    (node.paths.mps / "2").symlink_to("nothing")  # listed, and removed before it is read
    leaves = [pipe.rpartition("/")[2] for uid, pipe in backend.read_traces(node.paths) if uid == 2999]
    assert leaves == ["00000000-000000", "11111111-111111", "22222222-222222", "33333333-333333"]


def test_a_prolog_that_fails_leaves_no_plan_of_an_earlier_run(site):
    """Requeued onto other GPUs, with the configuration broken meanwhile: no task may follow the old plan."""
    site.prolog()
    site.configure("mode = ")
    assert site.run(prolog) == 0
    assert site.plan() is None
    first, second = site.log
    assert first.startswith(f"prolog: job 4711 of uid {ME}: 8 slots, 0 under MPS, on ")
    assert second.startswith(f"prolog: {site.root}/config.toml: is not TOML")


def test_a_job_that_comes_back_without_a_share_finds_no_plan_of_its_earlier_run(node):
    node.prolog()
    node.prolog(SPANK_SHARE_GPU=None)
    assert node.plan() is None


def test_a_broken_configuration_keeps_no_epilog_from_its_work(site):
    site.prolog()
    site.configure("mode = ")
    assert site.run(epilog) == 0
    assert site.files() == NOTHING
    assert site.said("the defaults are used")


def test_a_strict_umask_of_slurmd_keeps_no_user_from_his_plan(node):
    before = os.umask(0o077)
    try:
        hook.set_up()
        node.prolog()
    finally:
        os.umask(before)
    assert stat.S_IMODE(node.paths.root.stat().st_mode) == 0o755
    assert stat.S_IMODE(node.paths.jobs.stat().st_mode) == 0o711
    assert stat.S_IMODE(node.paths.job(4711).stat().st_mode) == 0o711


def test_what_speaks_when_something_else_fails_does_not_fail(monkeypatch):
    monkeypatch.setattr("slurm_share.core.config.load", lambda: 1 / 0)
    monkeypatch.setattr("slurm_share.core.log.line", lambda file, who, text: lines.append((file, text)))
    lines: list[tuple[str, str]] = []
    hook.report("prolog", "text")
    assert lines == [(Settings().log_file, "text")]


@as_root
def test_a_leftover_that_is_started_anew_is_ended_with_what_starts_it(node, monkeypatch):
    uid = 2999
    loop = subprocess.Popen(["/bin/sh", "-c", "while :; do sleep 600; done"], user=uid, start_new_session=True)

    children = Path(f"/proc/{loop.pid}/task/{loop.pid}/children")

    class Driver(FakeNvml):
        def read_gpu_readings(self):
            pids = ()
            while not pids and loop.poll() is None:
                # one that was ended a moment ago is still the shell's child, and on no GPU
                pids = tuple(pid for pid in map(int, children.read_text().split()) if process.identify(pid))
            return FakeNvml().gpu(pids=pids).gpu().readings

    monkeypatch.setattr(release, "nvml", Driver())
    node.prolog(SLURM_JOB_UID=str(uid))
    assert node.epilog(SLURM_JOB_UID=str(uid))
    assert loop.wait(300) < 0
    assert node.said("that started one: ended")


def test_a_process_that_calls_itself_slurmstepd_is_no_job(tmp_path):
    for pid, uid in (("100", "0"), ("101", "2001")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(b"slurmstepd: [%s.0]" % pid.encode())
        (tmp_path / pid / "status").write_text(f"Name:\tx\nUid:\t{uid}\t0\t0\t0\n")
        (tmp_path / pid / "stat").write_text(f"{pid} (slurmstepd: [1]) S 1 0")
    for pid, uid in (("200", "2001"), ("201", "0")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "status").write_text(f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (tmp_path / pid / "stat").write_text(f"{pid} (a) b) (slurmstepd) S 100 0")
    assert processes.read_live_jobs(tmp_path) == (LiveJob(100, 2001),)


def test_a_slurmstepd_without_a_task_says_how_old_it_is(tmp_path):
    (tmp_path / "uptime").write_text("1000.50 3000.0\n")
    tick = os.sysconf("SC_CLK_TCK")
    for pid, title, parent, start_s in (
        (100, "7.batch", 1, 900), (101, "7.0", 1, 960), (102, "8.batch", 1, 100), (103, "", 102, 101),
        (104, "9.0", 1, 1000),
    ):  # fmt: skip
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_text(f"slurmstepd: [{title}]" if title else "bash")
        (folder / "status").write_text("Name:\tx\nUid:\t0\t0\t0\t0\n" if title else "Uid:\t2001\t2001\t2001\t2001\n")
        name = f"slurmstepd: [{title}" if title else "bash"
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} {'0 ' * 17}{start_s * tick} 0")
    found = processes.read_live_jobs(tmp_path)
    assert found == (LiveJob(7, None, 40.5), LiveJob(8, 2001), LiveJob(9, None, 0.5))
    assert [one.job_id for one in owners.running(found)] == [8, 9]


# --- users' files and root's state on two file systems --------------------------------------------------------------


def fill(monkeypatch, error=28):
    def no_room(*_):
        raise OSError(error, os.strerror(error), "/run/x/user")

    monkeypatch.setattr(state, "make_slots", no_room)


def test_a_job_for_whose_slots_there_is_no_room_is_refused_and_forgotten(node, monkeypatch):
    fill(monkeypatch)
    node.prolog()
    assert "/user is full on this node" in node.refused()
    assert node.ledger().jobs == ()
    assert node.epilog()
    assert node.files() == NOTHING


def test_a_prolog_that_cannot_enter_a_share_refuses_it(site, monkeypatch):
    def held(*_):
        raise StateError("/run/x/ledger.lock", "another hook held it until the deadline")

    site.configure('mode = "on"')
    monkeypatch.setattr(state, "exclusive", held)
    assert site.run(prolog) == 0
    assert "could not enter it: /run/x/ledger.lock: another hook held it" in site.refused()
    monkeypatch.setattr(state, "exclusive", lambda *_: 1 / 0)
    assert site.run(prolog) == 0
    assert "could not enter it: ZeroDivisionError in the hook" in site.refused()
    fill(monkeypatch)
    monkeypatch.setattr(state, "write_plan", lambda *_: 1 / 0)
    assert site.run(prolog) == 0
    assert site.plan() is None  # the plugin then ends the job's tasks


def test_a_note_for_which_there_is_no_room_keeps_no_prolog_from_its_work(site, monkeypatch):
    def no_room(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/run/x/unshared")

    site.configure('mode = "on"')
    monkeypatch.setattr(state, "write_unshared", no_room)
    assert site.run(prolog, **{names.VERDICT_EXTRA: "slurm-share=observe"}) == 0
    first, second = site.log
    assert "/run/x/unshared cannot be written" in first
    assert "job 4711, which runs unshared, are refused" in first
    assert second.startswith("observe: would be shared: job 4711")


@as_root
def test_a_plan_is_roots_and_only_its_user_can_read_it(node):
    node.prolog(SLURM_JOB_UID="2999", SLURM_JOB_GID="2999")
    file = node.paths.plan(4711)
    assert file.stat().st_uid == 0
    for folder in file.parents[:4]:
        folder.chmod(folder.stat().st_mode | 0o011)
    for uid, expected in ((2999, "can read"), (2998, "cannot")):
        words = ["setpriv", f"--reuid={uid}", "--regid=2999", "--clear-groups", "sh", "-c"]
        script = f"cat {file} >/dev/null 2>&1 && echo can read || echo cannot; chmod u+w {file} 2>&1; echo >>{file}"
        said = subprocess.run([*words, script], capture_output=True, text=True, check=False).stdout
        assert said.startswith(expected)
        assert "Operation not permitted" in said
    assert node.plan() is not None
    node.epilog(SLURM_JOB_UID="2999", SLURM_JOB_GID="2999")


def test_what_killed_hooks_left_goes_with_the_next(node):
    node.prolog()
    (node.paths.root / ".ledger.4242").touch()
    (node.paths.mps / str(ME)).mkdir(parents=True, exist_ok=True)
    (node.paths.mps / "2998").mkdir()
    node.prolog(SLURM_JOB_ID="4712", CUDA_VISIBLE_DEVICES="1")
    left = {one.name for one in node.paths.mps.iterdir()}
    assert str(ME) in left
    assert "2998" not in left
    assert not (node.paths.root / ".ledger.4242").exists()


@pytest.mark.parametrize(
    ("nodes", "listed", "is_sure"),
    [
        (None, "n[1-2]", True),
        ("1", "n2", True),
        ("2", None, True),
        ("2", "n[1-2]", True),
        ("2", "n1,m2", True),
        ("2", "n2", False),
        ("12", "n[1-3,5-12]", False),
        ("2", "n[2", False),
    ],
)
def test_gpus_are_sure_where_slurmd_names_all_nodes_of_the_job(nodes, listed, is_sure):
    given = {"SLURM_JOB_NUM_NODES": nodes, "SLURM_JOB_NODELIST": listed}
    more = {key: value for key, value in given.items() if value is not None}
    assert admission.read_job({**ENVIRON, **more}).has_sure_gpus is is_sure


def test_gpus_that_may_be_another_nodes_end_no_other_job_of_the_user(node):
    shared = {**ENVIRON, "SPANK_SHARE_GPU": "4", "SLURM_JOB_NUM_NODES": "2"}
    admission.admit_job(ENVIRON, node.paths, node.settings, 1000.0)
    second = {**shared, "SLURM_JOB_ID": "4712", "SLURM_JOB_NODELIST": "n2"}
    admission.admit_job(second, node.paths, node.settings, 1000.0 + 3600)
    assert node.jobs() == [4711]
    assert "begin with a step on all nodes" in node.log[-1]
    whole = {**second, "SLURM_JOB_ID": "4713", "SLURM_JOB_NODELIST": "n[1-2]"}
    admission.admit_job(whole, node.paths, node.settings, 1000.0 + 7200)
    assert node.jobs() == [4713]


def test_the_folder_of_a_users_launchers_is_there_while_the_user_has_a_share(node):
    """With everything in it: the last of two jobs takes it away, and a hook that was killed before that, too."""
    folder = node.paths.launchers_of(ME)
    node.prolog(CUDA_VISIBLE_DEVICES="0")
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o7777) == (ME, 0o700)
    (folder / "bookings/a/b").mkdir(parents=True)
    (folder / "bookings/link").symlink_to("/")
    node.prolog(SLURM_JOB_ID="4712", CUDA_VISIBLE_DEVICES="1")
    node.epilog()
    assert (folder / "bookings/link").is_symlink()
    node.epilog(SLURM_JOB_ID="4712")
    assert list(node.paths.mps.iterdir()) == []
    (node.paths.launchers_of(2999) / "rates").mkdir(parents=True)
    node.prolog()
    node.prolog(SLURM_JOB_ID="4713", CUDA_VISIBLE_DEVICES="1")
    assert list(node.paths.mps.iterdir()) == [folder.parent]
    node.epilog(SLURM_JOB_ID="4713")
    node.epilog()
