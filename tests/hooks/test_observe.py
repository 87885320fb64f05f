"""Mode "observe": the log says what would be done, and nothing else is written."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hooked_nodes import ALICE, BOB, HookedNode, as_root
from msgspec.structs import replace
from slurm_share_hooks import epilog, prolog

from slurm_share.core import names
from slurm_share.core.settings import Settings
from slurm_share.node import processes
from slurm_share.node.records import LiveJob
from slurm_share.share import observe
from slurm_share.testing import FakeNvml


class Site(HookedNode):
    def run(self, which, job_id=4711, share="4", **words):
        """Run one hook of a job, which must exit with 0."""
        assert super().run(which, job_id, share=share, **words) == names.EXIT_OK

    def changed_by(self, which, *args, **words):
        """Return the lines that one hook logs; fail if it changes anything else."""
        before, known = self.everything(), len(self.log)
        self.run(which, *args, **words)
        assert self.everything() == before
        return self.log[known:]

    def everything(self):
        """Return owner, mode, time of the last change and contents of every file and folder."""
        found = {}
        for place in sorted(self.root.rglob("*")):
            seen = place.lstat()
            content = place.read_bytes() if place.is_file() and not place.is_symlink() else None
            found[str(place)] = (seen.st_mode, seen.st_uid, seen.st_ino, seen.st_ctime_ns, content)
        return found


@pytest.fixture
def node(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="observe-") as folder:
        yield Site(Path(folder), monkeypatch)


@pytest.fixture
def was_on(site):
    site.configure('mode = "on"\nexclusive_user_nodes = ["n2"]')
    site.run(prolog, 1)
    site.run(prolog, 2, share=None)
    site.run(prolog, 3, CUDA_VISIBLE_DEVICES="")
    site.configure('exclusive_user_nodes = ["n2"]')
    return site


LISTED = 'exclusive_user_nodes = ["n[1-3]"]'
PART = {"SLURM_JOB_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_OVERSUBSCRIBE": "USER"}


# --- who comes -----------------------------------------------------------------------------------------------------


def test_a_share_is_told_with_its_slots_and_its_mps(site):
    (line,) = site.changed_by(prolog)
    assert line.startswith(f"observe: would be shared: job 4711 of uid {ALICE}: 4 slots, 0 under MPS, on GPU-00000000-")
    assert "shared without MPS: this site has switched MPS off" in line


def test_a_share_whose_variables_the_task_prolog_replaces_would_be_refused(site):
    (site.root / "slurm.conf").write_text("TaskProlog=tp\n")
    (site.root / "tp").write_text("#!/bin/sh\necho export CUDA_VISIBLE_DEVICES=0\n")
    (line,) = site.changed_by(prolog, SLURM_CONF=str(site.root / "slurm.conf"))
    assert line.startswith("observe: would be refused: job 4711 cannot have --share-gpu=4 on ")
    assert f"TaskProlog in slurm.conf is {site.root}/tp, which sets CUDA_VISIBLE_DEVICES" in line


def test_a_share_that_would_have_mps_is_told_so(site):
    text = (site.root / "config.toml").read_text().replace('mps_control = ""', 'mps_control = "/bin/false"')
    (site.root / "config.toml").write_text(text)
    (line,) = site.changed_by(prolog)
    assert line.endswith("; with MPS")


def test_a_part_of_a_gpu_is_told_by_its_one_slot(site):
    for job_id in range(1, 7):
        (line,) = site.changed_by(prolog, job_id, **PART)
        assert f"would be shared: job {job_id} of uid {ALICE}: 1 slots" in line


@pytest.mark.parametrize(
    ("words", "settings", "why"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, "", "job 4711 cannot have --share-gpu=4 on n2: Slurm granted the job no GPU"),
        ({"CUDA_VISIBLE_DEVICES": "7"}, "", "Slurm granted GPU 7, but the driver lists only 0, 1"),
        ({"share": "9"}, "max_share = 8", "at most 8 tasks (max_share)"),
        ({"share": "4,mps=on"}, "", "it asked for sharing=mps, and this site has switched MPS off"),
    ],
)
def test_a_share_that_cannot_be_is_told_with_its_sentence(site, words, settings, why):
    site.configure(settings)
    for _ in range(4):
        (line,) = site.changed_by(prolog, **words)
        assert line.startswith("observe: would be refused: ")
        assert why in line


def test_a_dead_driver_is_told_and_drains_nothing(site):
    site.gpus(FakeNvml(broken="Driver Not Loaded"))
    for job_id in range(1, 6):
        (line,) = site.changed_by(prolog, job_id)
        assert "would be refused" in line
        assert "Driver Not Loaded" in line


def test_the_second_user_is_told_on_a_listed_node_and_in_a_share(site):
    site.live.append(LiveJob(9, BOB))
    assert site.changed_by(prolog, share=None) == []
    (line,) = site.changed_by(prolog)
    assert "would be refused: job 4711 cannot run on n2: slurm-share keeps this node to one user at a time" in line
    site.configure(LISTED)
    (line,) = site.changed_by(prolog, share=None)
    assert "would be refused: job 4711 cannot run on n2" in line
    assert site.changed_by(prolog, uid=BOB, share=None) == [f"observe: job 4711 of uid {BOB}: would be let in"]


@pytest.mark.parametrize(("private", "told"), [("usage", True), ("jobs", False)])
def test_names_are_told_as_they_would_be(site, private, told):
    (site.root / "slurm.conf").write_text(f"PrivateData={private}\n")
    site.live.append(LiveJob(9, BOB))
    (line,) = site.changed_by(prolog, SLURM_CONF=str(site.root / "slurm.conf"))
    assert (f"job 9 of {processes.read_user_name(BOB)}" in line) is told


def test_an_ordinary_job_on_a_node_that_is_not_listed_is_told_of_nowhere(site):
    for settings in ("", 'exclusive_user_nodes = ["m[1-3]"]'):
        site.configure(settings)
        site.live[:] = [LiveJob(9, BOB)]
        assert site.changed_by(prolog, share=None) == []
        assert site.changed_by(epilog, share=None) == []
    assert site.log == []


@pytest.mark.parametrize("share", ["4;id", "0", "x" * 4096, ""])
def test_a_share_that_cannot_be_read_is_told_on_a_listed_node(site, share):
    site.configure(LISTED)
    (line,) = site.changed_by(prolog, share=share)
    assert "would be let in, unshared: SPANK_SHARE_GPU: --share-gpu=" in line
    assert len(line) < 400


def test_an_environment_that_is_not_slurmds_is_told(site):
    (line,) = site.changed_by(prolog, CUDA_VISIBLE_DEVICES="0;id")
    assert line.startswith("prolog: CUDA_VISIBLE_DEVICES=")
    (line,) = site.changed_by(epilog, CUDA_VISIBLE_DEVICES="0;id")
    assert line.startswith("epilog: CUDA_VISIBLE_DEVICES=")


# --- beside what was shared before ---------------------------------------------------------------------------------


def test_what_is_there_from_before_is_left_as_it_is(was_on):
    was_on.live += [LiveJob(1, ALICE), LiveJob(2, ALICE)]
    (line,) = was_on.changed_by(prolog, 5, CUDA_VISIBLE_DEVICES="1")
    assert "would be shared" in line
    (line,) = was_on.changed_by(prolog, 5)
    assert "would be refused" in line
    assert "all parts of which your other jobs have" in line
    (line,) = was_on.changed_by(prolog, 6, share=None)
    assert "would be let in" in line
    (line,) = was_on.changed_by(prolog, 7, uid=BOB, share=None)
    assert "would be refused" in line
    for job_id in (5, 6):
        assert was_on.changed_by(epilog, job_id, share="4" if job_id == 5 else None) == []


def test_a_job_whose_epilog_never_came_would_be_cleared(was_on):
    lines = was_on.changed_by(prolog, 5, uid=BOB, SLURM_JOB_EXCLUSIVE="USER")
    assert lines[:2] == [
        f"observe: would clear up after job {job_id} of uid {ALICE}, which is over" for job_id in (1, 2)
    ]
    assert "would be shared: job 5" in lines[2]


def test_a_ledger_that_cannot_be_read_is_left_as_it_is(was_on):
    was_on.paths.ledger.write_bytes(b"{torn")
    was_on.live.append(LiveJob(2, ALICE))
    (line,) = was_on.changed_by(prolog, 5)
    assert "would be shared" in line
    assert was_on.changed_by(epilog, 5) == []


def test_only_a_plan_of_the_jobs_own_earlier_run_goes(was_on):
    others = was_on.paths.plan(3).read_bytes()
    assert was_on.paths.plan(1).exists()
    was_on.run(prolog, 1, SLURM_JOB_RESTART_COUNT="1")
    assert not was_on.paths.plan(1).exists()
    assert was_on.paths.plan(3).read_bytes() == others


# --- who goes ------------------------------------------------------------------------------------------------------


@as_root
def test_a_users_last_job_is_told_with_what_would_go(site, start):
    site.configure('clean_up = ["gpu_processes", "processes", "shm", "tmp"]')
    on_gpu, elsewhere, his = start(ALICE), start(ALICE), start(BOB)
    site.gpus(FakeNvml().gpu(pids=(on_gpu.pid, his.pid)).gpu())
    site.put(site.paths.shm, ALICE, "a", "b")
    site.put(site.paths.shm, BOB, "his")
    site.put(site.paths.tmp, ALICE, "c")
    (line,) = site.changed_by(epilog, SLURM_JOB_EXCLUSIVE="NODE")
    assert line.startswith(f"observe: job 4711 was the last of uid {ALICE} here: would clear away ")
    assert f"process {on_gpu.pid} (sleep) on a GPU" in line
    assert f"process {elsewhere.pid} (sleep)" in line
    assert str(his.pid) not in line
    assert f"2 in {site.paths.shm}, 1 in {site.paths.tmp}" in line
    assert [child.poll() for child in (on_gpu, elsewhere, his)] == [None, None, None]


@as_root
def test_a_process_is_told_once(site, start):
    site.configure('clean_up = ["gpu_processes", "processes"]')
    hers = start(ALICE)
    site.gpus(FakeNvml().gpu(pids=(hers.pid,)).gpu())
    (line,) = site.changed_by(epilog)
    assert line.count(f"process {hers.pid} ") == 1


@as_root
@pytest.mark.parametrize(
    ("clean_up", "what"),
    [("[]", "nothing"), ('["tmp"]', "1 in {tmp}"), ('["shm"]', "2 in {shm}"), ('["gpu_processes"]', "nothing")],
)
def test_only_what_the_site_wants_cleared_is_told(site, clean_up, what):
    site.configure(f"clean_up = {clean_up}")
    site.put(site.paths.shm, ALICE, "a", "b")
    site.put(site.paths.tmp, ALICE, "c")
    (line,) = site.changed_by(epilog, SLURM_JOB_EXCLUSIVE="NODE")
    assert line.endswith("would clear away " + what.format(shm=site.paths.shm, tmp=site.paths.tmp))


@as_root
def test_an_ordinary_job_goes_from_a_listed_node_as_a_share_does(site):
    site.put(site.paths.shm, ALICE, "a")
    assert site.changed_by(epilog, share=None) == []
    site.configure(LISTED)
    (line,) = site.changed_by(epilog, share=None)
    assert f"would clear away 1 in {site.paths.shm}" in line


@pytest.mark.parametrize(
    "live", [[LiveJob(9, ALICE)], [LiveJob(9, None)], [LiveJob(4711, ALICE), LiveJob(9, ALICE), LiveJob(10, BOB)]]
)
def test_a_job_that_is_not_the_last_goes_without_a_word(site, live):
    site.live[:] = live
    assert site.changed_by(epilog) == []


@as_root
def test_its_own_last_step_does_not_keep_a_job_here(site, start):
    site.configure('clean_up = ["processes"]')
    hers = start(ALICE, 4711)
    site.live[:] = [LiveJob(4711, ALICE), LiveJob(10, BOB)]
    (line,) = site.changed_by(epilog)
    assert line.endswith(f"was the last of uid {ALICE} here: would clear away process {hers.pid} (sleep)")


def test_a_driver_that_is_gone_is_told(site):
    site.gpus(FakeNvml(broken="GPU is lost"))
    (line,) = site.changed_by(epilog)
    assert "no process on a GPU, since" in line
    assert "GPU is lost" in line


def test_a_system_users_job_goes_without_a_word(site):
    assert site.changed_by(epilog, uid=0) == []
    assert site.changed_by(epilog, uid=999) == []


def test_arrival_and_departure_themselves_write_nothing(site):
    settings = replace(Settings(), log_file="", mps_control="")
    environ = {"SLURM_JOB_ID": "1", "SLURM_JOB_UID": f"{ALICE}", "SLURM_JOB_GID": f"{ALICE}", "SLURMD_NODENAME": "n2"}
    before = site.everything()
    for share in ({}, {names.HOOK_VARIABLE: "4"}):
        observe.arrival({**environ, **share, "CUDA_VISIBLE_DEVICES": "0"}, site.paths, settings, 1000.0)
        observe.departure({**environ, **share}, site.paths, settings)
    assert site.everything() == before
