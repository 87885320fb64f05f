"""A site's policy in Prolog and Epilog: a node for one user, parts of a GPU, a clean node after a user, modes."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from hooked_nodes import ALICE, BOB, NOTHING, HookedNode, as_root
from msgspec.structs import replace
from slurm_share_hooks import epilog, prolog

from slurm_share.core import names, process
from slurm_share.core.errors import ConfigError
from slurm_share.core.process import Deadline
from slurm_share.core.records import Owner
from slurm_share.core.settings import Settings
from slurm_share.mps import daemons
from slurm_share.mps import processes as mps_processes
from slurm_share.mps.records import MpsFailed, MpsPlace, MpsProcess, MpsStopped
from slurm_share.node import processes, scratch
from slurm_share.node.records import LiveJob
from slurm_share.share import admission, hook, release, state
from slurm_share.share.backends import mps, registry
from slurm_share.share.records import PreparedGpus
from slurm_share.share.rules import reconcile
from slurm_share.testing import FakeNvml, offers_of


class Node(HookedNode):
    def __init__(self, root, monkeypatch):
        super().__init__(root, monkeypatch)
        monkeypatch.setattr(admission, "PATIENCE_S", 0.0)

    def set(self, **changes):
        self.settings = replace(self.settings, **changes)

    def prolog(self, job_id, now=1000.0, **words):
        return self.admit(self.environ(job_id, **words), now)

    def epilog(self, job_id, **words):
        return self.release(self.environ(job_id, **words))

    def part(self, job_id, share="4", **words):
        words = {"SLURM_JOB_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_OVERSUBSCRIBE": "USER", **words}
        return self.prolog(job_id, share=share, **words)

    def common(self):
        return sorted(str(p.relative_to(self.root)) for f in (self.paths.shm, self.paths.tmp) for p in f.rglob("*"))


@pytest.fixture
def node(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="policy-") as folder:
        yield Node(Path(folder), monkeypatch)


# --- one user at a time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slurm_conf", "told"),
    [
        ("ClusterName=demo\nPrivateData=usage\n", True),
        ("PrivateData=jobs\n", False),
        ("Include nowhere.conf\n", False),
        (None, False),
    ],
)
def test_the_second_user_of_a_listed_node_is_refused(node, slurm_conf, told):
    node.set(exclusive_user_nodes=("n2",))
    node.prolog(4711)
    node.live.append(LiveJob(4711, ALICE))
    where = {}
    if slurm_conf is not None:
        (node.root / "slurm.conf").write_text(slurm_conf)
        where = {"SLURM_CONF": str(node.root / "slurm.conf")}
    assert node.prolog(4712, uid=BOB, now=2000.0, **where)
    refused = node.refused(4712)
    assert refused.startswith("job 4712 cannot run on n2: ")
    assert (f"job 4711 of {processes.read_user_name(ALICE)} is still on it" in refused) is told
    assert ("4711" in refused or str(ALICE) in refused) is told
    assert node.said("prolog: refused: job 4712 cannot run on n2") == 1
    assert node.jobs() == [4711]


@pytest.mark.parametrize("where", ["relative/slurm.conf", "", "/nowhere/slurm.conf"])
def test_a_configuration_of_slurm_that_is_not_found_hides(node, where):
    node.live.append(LiveJob(4711, ALICE))
    node.prolog(4712, uid=BOB, share="4", SLURM_CONF=where)
    assert "a job of another user is still on it" in node.refused(4712)


def test_a_slurmstepd_whose_task_is_over_keeps_nobody_away(node):
    """It stays while slurmctld does not answer. The next job gets the GPU, and the log says so. A young slurmstepd
    still starts its task."""
    node.prolog(4711, share="4")
    node.live.append(LiveJob(4711, None, 31.0))
    assert node.prolog(4712, uid=BOB, share="4", now=2000.0)
    assert node.refused(4712) is None
    assert node.jobs() == [4712]
    assert node.said("job 4711 has a slurmstepd here, 31 s old, that has no task any more") == 1
    node.live[:] = [LiveJob(4712, None, 29.0)]
    assert node.prolog(4713, uid=ALICE, share="4", now=3000.0)
    assert "is still on it" in node.refused(4713)


def test_a_refused_job_leaves_nothing_and_takes_nothing(node):
    node.set(exclusive_user_nodes=("n2",))
    node.prolog(4711, share="4")
    node.live.append(LiveJob(4711, ALICE))
    before = node.files()
    node.prolog(4712, uid=BOB, now=2000.0)
    assert node.epilog(4712, uid=BOB)
    assert node.files() == before
    assert node.jobs() == [4711]


def test_refusals_that_a_user_can_bring_about_drain_no_node(node):
    node.set(exclusive_user_nodes=("n2",), max_share=8)
    node.live.append(LiveJob(4711, ALICE))
    assert all(node.prolog(4720 + i, uid=BOB, now=1000.0 + i) for i in range(9))
    assert all(node.prolog(4730 + i, share="9") for i in range(5))
    assert all(node.refused(job_id) for job_id in (*range(4720, 4729), *range(4730, 4735)))
    assert not node.paths.refusals.exists()


def test_three_refusals_for_a_cause_of_the_nodes_own_drain_it(node):
    """Each refusal is of another job. After the drain the count starts again."""
    node.gpus(FakeNvml(broken="Driver Not Loaded"))
    assert all(node.prolog(1, share="4") for _ in range(5))
    assert [node.prolog(4720 + i, share="4") for i in range(2)] == [True, False]
    assert node.said("NODE UNWELL: 3 jobs refused in 10 minutes", "no-driver") == 1
    assert all(node.refused(job) for job in (1, 4720, 4721))
    assert [node.prolog(4730 + i, share="4") for i in range(3)] == [True, True, False]
    assert stat.S_IMODE(node.paths.refusals.stat().st_mode) == 0o600


@pytest.mark.parametrize(("later_s", "well"), [(599.0, False), (601.0, True)])
def test_refusals_are_counted_on_a_clock_that_nobody_sets(node, monkeypatch, later_s, well):
    """Ten minutes of CLOCK_BOOTTIME; the wall clock is set back by years meanwhile."""
    node.gpus(FakeNvml(broken="Driver Not Loaded"))
    clock = {time.CLOCK_BOOTTIME: 5000.0}
    monkeypatch.setattr(time, "clock_gettime", clock.__getitem__)
    assert all(node.prolog(job, share="4", now=1000.0) for job in (1, 2))
    clock[time.CLOCK_BOOTTIME] += later_s
    assert node.prolog(3, share="4", now=-1e9) is well


@pytest.mark.parametrize("what", ["a folder", "a link", "full"])
def test_a_record_that_cannot_be_kept_costs_no_job(node, monkeypatch, what):
    node.gpus(FakeNvml(broken="Driver Not Loaded"))
    if what == "a folder":
        node.paths.refusals.mkdir()
    elif what == "a link":
        node.paths.refusals.symlink_to(node.root / "elsewhere")
    else:
        monkeypatch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert all(node.prolog(job, share="4") for job in range(1, 5))
    assert node.said("is not counted") == 4
    assert not (node.root / "elsewhere").exists()


@pytest.mark.parametrize("elsewhere", [False, True], ids=["with users' files", "of root's alone"])
def test_state_that_cannot_be_written_counts_where_no_user_can_fill_it(site, monkeypatch, elsewhere):
    site.configure('mode = "on"')
    monkeypatch.setattr(prolog, "_has_users_files", lambda _: not elsewhere)
    monkeypatch.setattr(state, "write_ledger", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    codes = [site.run(prolog, job_id, share="4") for job_id in (1, 2, 3)]
    assert codes == [0, 0, names.EXIT_NODE_UNWELL if elsewhere else 0]
    assert "cannot be written" in site.refused(3)


@pytest.mark.parametrize("known", [False, True])
def test_an_ordinary_job_on_a_node_that_is_not_listed_leaves_no_line(node, known):
    if known:
        node.prolog(4711, share="4", gpus="1")
    before = node.files()
    node.live.append(LiveJob(4711, ALICE))
    assert node.prolog(4712, uid=BOB)
    assert node.plan(4712) is None
    assert node.files() == before
    assert node.paths.root.exists() is known


@pytest.mark.parametrize(
    ("listed", "line"),
    [
        (("n2",), True),
        (("n[1-3]",), True),
        (("m1", "n[1,2]"), True),
        (("m[1-9],n2",), True),
        (("n1,n2",), True),
        (("n[3-9]",), False),
        (("n20", "n", "gpu-n2", "N2"), False),
        (("n[20-29]",), False),
        ((), False),
    ],
)
def test_nodes_are_listed_as_slurm_writes_them(node, listed, line):
    node.set(exclusive_user_nodes=listed)
    node.prolog(4711)
    assert node.paths.ledger.exists() is line
    assert not line or node.jobs() == [4711]


def test_a_list_that_cannot_be_read_is_named(node):
    node.set(exclusive_user_nodes=("n[1-",))
    with pytest.raises(ConfigError, match="exclusive_user_nodes"):
        node.prolog(4711)


def test_ordinary_jobs_of_one_user_are_side_by_side_on_a_listed_node(node):
    node.set(exclusive_user_nodes=("n[1-3]",))
    for job_id in range(4711, 4721):
        assert node.prolog(job_id, share="4" if job_id == 4715 else None)
        node.live.append(LiveJob(job_id, ALICE))
    assert node.jobs() == list(range(4711, 4721))
    assert [entry.gpus for entry in node.ledger().jobs if entry.job_id != 4715] == [()] * 9
    assert node.plan(4711) is None
    for job_id in range(4711, 4721):
        node.live.pop(0)
        assert node.epilog(job_id)
    assert node.files() == NOTHING
    assert node.ledger().jobs == node.ledger().leaving == ()


def test_a_share_keeps_its_node_to_its_user_wherever_it_is(node):
    """No node is listed: bob's ordinary job is none of our business, and his share is refused for alice's ordinary job,
    which no hook was ever told of."""
    node.live.append(LiveJob(4711, ALICE))
    assert node.prolog(4712, uid=BOB)
    assert not node.paths.root.exists()
    node.prolog(4713, uid=BOB, share="4")
    assert "cannot run on n2" in node.refused(4713)


@pytest.mark.parametrize(("later", "refused"), [(0.5, True), (29.0, True), (31.0, False), (-60.0, False)])
def test_a_job_without_a_step_yet_is_alive_for_a_moment(node, monkeypatch, later, refused):
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=lambda: 0.0))  # no second of a busy machine counts
    node.set(exclusive_user_nodes=("n2",))
    node.prolog(4711, gpus="0")
    node.prolog(4712, uid=BOB, gpus="1", now=1000.0 + later)
    assert (node.plan(4712) is not None) is refused


def test_a_system_users_job_is_let_in_and_keeps_nobody_out(node):
    node.set(exclusive_user_nodes=("n2",))
    node.live += [LiveJob(4711, ALICE), LiveJob(4700, 0)]
    node.prolog(4712, uid=0)
    assert node.plan(4712) is None
    node.prolog(4713, uid=ALICE)
    assert node.jobs() == [4712, 4713]


def test_a_user_whose_jobs_are_over_keeps_nobody_out(node):
    node.set(exclusive_user_nodes=("n2",))
    node.prolog(4711, share="4")
    assert node.prolog(4712, uid=BOB, now=1001.0, SLURM_JOB_EXCLUSIVE="USER")
    assert node.jobs() == [4712]
    assert node.plan(4711) is None
    assert node.said("job 4711", "without an Epilog") == 1


# --- parts of a GPU ------------------------------------------------------------------------------------------------


def variables(plan):
    return {one.name: one.value for one in registry.slot_environment(plan, plan.slots[0])}


def numbers(node):
    """Return each job's number on its GPU in the ledger; check that the plans have the same."""
    found = {entry.job_id: entry.on_gpu for entry in node.ledger().jobs}
    for job_id, number in found.items():
        words = variables(node.plan(job_id))
        assert number is None or words[names.ENV_SLOT] == str(number)
    return found


def test_n_jobs_on_a_gpu_have_the_numbers_up_to_n(node):
    for job_id in range(1, 5):
        assert node.part(job_id)
    assert numbers(node) == {1: 0, 2: 1, 3: 2, 4: 3}
    plan = node.plan(3)
    words = variables(plan)
    assert (len(plan.slots), len(plan.gpus), words[names.ENV_SLOTS], words[names.ENV_PER_GPU]) == (1, 1, "4", "4")
    assert words[names.ENV_JAX_FRACTION] == "0.243"
    assert [entry.slots for entry in node.ledger().jobs] == [1, 1, 1, 1]


def test_one_part_too_many_is_refused_and_drains_no_node(node):
    for job_id in range(1, 5):
        node.part(job_id)
        node.live.append(LiveJob(job_id, ALICE))
    assert node.part(5)
    assert "Slurm gave it GPU 0, all parts of which your other jobs have" in node.refused(5)
    assert node.jobs() == [1, 2, 3, 4]
    assert [node.part(job_id) for job_id in (6, 7, 8)] == [True, True, True]
    assert numbers(node) == {1: 0, 2: 1, 3: 2, 4: 3}


def test_a_job_waits_for_one_that_slurm_has_given_up(node, monkeypatch):
    """A controller that lost sight of the node gives it to bob before what alice's job had here has ended: his Prolog
    looks again, and is not turned away."""
    monkeypatch.setattr(admission, "PATIENCE_S", 60.0)
    monkeypatch.setattr(admission.time, "sleep", lambda seconds: node.live.clear())
    node.prolog(1, share="1")
    node.live.append(LiveJob(1, ALICE))
    assert node.prolog(2, uid=BOB, share="1", now=2000.0)
    assert (node.jobs(), node.refused(2)) == ([2], None)
    assert node.said("job 1 ", "without an Epilog") == 1


def test_an_ordinary_job_on_a_listed_node_waits_as_well(node, monkeypatch):
    node.set(exclusive_user_nodes=("n2",))
    monkeypatch.setattr(admission, "PATIENCE_S", 60.0)
    monkeypatch.setattr(admission.time, "sleep", lambda seconds: node.live.clear())
    node.live.append(LiveJob(1, ALICE))
    assert node.prolog(2, uid=BOB, now=2000.0)
    assert (node.jobs(), node.plan(2)) == ([2], None)


def test_who_waits_sees_the_time_pass(node, monkeypatch):
    node.set(exclusive_user_nodes=("n2",))
    node.prolog(1, now=1000.0)
    passed = [0.0]
    began = time.monotonic()
    monkeypatch.setattr(admission, "PATIENCE_S", 4.0)
    monkeypatch.setattr(time, "monotonic", lambda: began + passed[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: passed.append(passed.pop() + 0.5))
    assert node.prolog(2, uid=BOB, now=1029.0)
    assert 2 in node.jobs()


@pytest.mark.parametrize("share", [None, "1"])
def test_names_are_looked_up_once_and_not_under_the_ledgers_lock(node, monkeypatch, share):
    node.set(exclusive_user_nodes=("n2",))
    (node.root / "slurm.conf").write_text("ClusterName=demo\n")
    asked = []

    def slowly(uid):
        with state.exclusive(node.paths, Deadline.after(0.0)):
            asked.append(uid)
        return "alice"

    monkeypatch.setattr(admission, "PATIENCE_S", 0.2)
    monkeypatch.setattr(processes, "read_user_name", slowly)
    node.live.append(LiveJob(4711, ALICE))
    node.prolog(2, uid=BOB, share=share, SLURM_CONF=str(node.root / "slurm.conf"))
    assert asked == [ALICE]
    assert "job 4711 of alice is still on it" in node.refused(2)


def test_a_torn_ledger_is_said_once(node):
    node.prolog(1, share="4", gpus="1")
    node.paths.ledger.write_text("{")
    node.log.clear()
    node.prolog(2, gpus="0", share="4")
    assert node.jobs() == [1, 2]
    first = [line for line in node.log if str(node.paths.ledger) in line]
    assert len(first) == 1


def test_an_epilog_of_a_job_that_slurmctld_has_forgotten_says_root(node):
    node.prolog(1, share="1", now=time.time())
    assert node.epilog(1, uid=0)
    assert node.jobs() == [1]
    node.prolog(1, share="1", now=1000.0)
    node.live.append(LiveJob(1, ALICE))
    assert node.epilog(1, uid=0)
    assert node.jobs() == [1]
    node.live.clear()
    assert node.epilog(1, uid=BOB)
    assert node.jobs() == [1]
    assert node.epilog(1, uid=0)
    assert node.jobs() == []
    assert node.said(f"job 1 of uid {ALICE}: its share is removed") == 1
    assert node.said("of uid 0: its share") == 0


def test_a_part_takes_the_number_of_one_that_is_over(node):
    for job_id in range(1, 5):
        node.part(job_id, now=1000.0 + job_id)
    node.live += [LiveJob(1, ALICE), LiveJob(3, ALICE)]
    assert node.part(5, now=2000.0)
    assert numbers(node) == {1: 0, 3: 2, 4: 3, 5: 1}
    assert node.plan(2) is None
    assert node.said("job 2 ", "without an Epilog") == 1
    assert node.said("without an Epilog") == 1


def test_a_number_that_was_given_back_is_given_again(node):
    for job_id in range(1, 5):
        node.part(job_id)
    node.epilog(3, share="4")
    node.epilog(2, share="4")
    node.part(5)
    node.part(6)
    assert numbers(node) == {1: 0, 4: 3, 5: 1, 6: 2}


def test_numbers_are_counted_on_each_gpu(node):
    for job_id in range(1, 5):
        node.part(job_id, gpus=str(job_id % 2))
    assert numbers(node) == {1: 0, 2: 0, 3: 1, 4: 1}


def test_parts_of_different_size_share_a_gpu_as_long_as_it_lasts(node):
    node.part(1, share="2")
    node.part(2)
    node.part(3)
    node.live += [LiveJob(job_id, ALICE) for job_id in (1, 2, 3)]
    node.part(4)
    assert numbers(node) == {1: 0, 2: 2, 3: 3}
    assert "all parts of which your other jobs have" in node.refused(4)


def test_parts_that_come_at_once_get_different_numbers(node):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda job_id: node.part(job_id, share="8"), range(1, 9)))
    assert sorted(numbers(node).values()) == list(range(8))


def test_a_whole_gpu_and_parts_do_not_meet(node):
    node.part(1)
    node.live.append(LiveJob(1, ALICE))
    node.prolog(2, share="4", SLURM_JOB_OVERSUBSCRIBE="USER")
    assert "all parts of which your other jobs have" in node.refused(2)
    node.prolog(3, share="4", gpus="1", SLURM_JOB_OVERSUBSCRIBE="USER")
    node.live.append(LiveJob(3, ALICE))
    assert numbers(node) == {1: 0, 3: None}
    node.part(4, gpus="1")
    assert "all parts of which your other jobs have" in node.refused(4)
    node.live.clear()
    node.epilog(1, share="4")
    node.epilog(2, share="4")
    assert node.prolog(5, share="4", SLURM_JOB_OVERSUBSCRIBE="USER")
    assert numbers(node) == {3: None, 5: None}
    assert len(node.plan(5).slots) == 4


def test_a_whole_gpu_for_the_same_user_proves_its_parts_over(node):
    node.part(1)
    node.part(2)
    node.part(3, gpus="1")
    node.prolog(4, share="4", SLURM_JOB_OVERSUBSCRIBE="USER")
    assert numbers(node) == {3: 0, 4: None}
    assert node.said("without an Epilog") == 2


def test_a_part_that_comes_back_keeps_one_line_and_a_number(node):
    node.part(1)
    node.part(2)
    node.part(1)
    node.part(1, SLURM_JOB_RESTART_COUNT="1")
    assert numbers(node) == {2: 1, 1: 0}


def test_numbers_outlive_a_ledger_that_cannot_be_read(node):
    node.part(1)
    node.part(2)
    node.epilog(1, share="4")
    node.paths.ledger.write_bytes(b"{torn")
    node.part(3)
    assert numbers(node) == {2: 1, 3: 0}


# --- after a user's last job ---------------------------------------------------------------------------------------


def here_alone(node, *job_ids):
    """Enter alice's ordinary jobs on a listed node."""
    node.set(exclusive_user_nodes=("n2",))
    for job_id in job_ids:
        node.prolog(job_id)


@as_root
@pytest.mark.parametrize("share", [None, "4"])
def test_a_users_files_go_with_the_last_job_and_not_before(node, share):
    node.set(exclusive_user_nodes=("n2",))
    node.prolog(1, share=share, gpus="0")
    node.prolog(2, share=share, gpus="1")
    node.put(node.paths.shm, ALICE, "psm_1", "torch_1/a", "sem.x")
    node.put(node.paths.shm, BOB, "his", "of-bob/a")
    node.put(node.paths.shm, 0, "roots")
    before = node.common()
    assert node.epilog(1, share=share)
    assert node.common() == before
    assert node.epilog(2, share=share)
    assert node.common() == ["shm/his", "shm/of-bob", "shm/of-bob/a", "shm/roots"]
    assert node.said(f"epilog: removed 3 files of uid {ALICE} in", "shm: the user has no job here any more") == 1


@as_root
@pytest.mark.parametrize(
    ("clean_up", "left"),
    [
        ((), ["shm/hers", "tmp/hers"]),
        (("shm",), ["tmp/hers"]),
        (("tmp",), ["shm/hers"]),
        (("shm", "tmp"), []),
        (("gpu_processes", "processes"), ["shm/hers", "tmp/hers"]),
        (Settings().clean_up, ["tmp/hers"]),
    ],
)
def test_only_what_the_site_wants_is_cleared(node, clean_up, left):
    node.set(clean_up=clean_up)
    here_alone(node, 1)
    node.put(node.paths.shm, ALICE, "hers")
    node.put(node.paths.tmp, ALICE, "hers")
    assert node.epilog(1)
    assert node.common() == left
    assert node.files() == NOTHING
    assert node.ledger().leaving == ()


@as_root
@pytest.mark.parametrize(
    ("clean_up", "on_gpu", "ended"),
    [
        ((), True, False),
        (("shm", "tmp"), True, False),
        (Settings().clean_up, True, True),
        (Settings().clean_up, False, False),
        (("processes",), False, True),
        (("processes",), True, True),
        (("gpu_processes", "processes"), True, True),
    ],
)
def test_a_users_processes_end_as_the_site_wants_it(node, start, clean_up, on_gpu, ended):
    hers, his = start(ALICE), start(BOB)
    node.gpus(FakeNvml().gpu(pids=(hers.pid, his.pid) if on_gpu else ()).gpu())
    node.set(clean_up=clean_up)
    here_alone(node, 1)
    assert node.epilog(1)
    assert (hers.poll() is not None) is ended
    assert his.poll() is None
    assert node.said(f"leftover process {hers.pid} (sleep) of uid {ALICE}", "ended") == (1 if ended else 0)


@as_root
def test_no_process_is_spared_for_what_it_says_of_itself(node, start):
    node.set(clean_up=("processes",))
    node.live.append(LiveJob(9, 0))
    mine, free, hers = start(BOB, 9), start(BOB), start(ALICE)
    node.prolog(1, uid=BOB, share="4")
    assert node.epilog(1, uid=BOB)
    assert [child.poll() is None for child in (mine, free, hers)] == [False, False, True]


@as_root
def test_a_user_with_a_job_that_no_hook_knows_has_not_left(node):
    node.put(node.paths.shm, ALICE, "hers")
    for live in (LiveJob(9, ALICE), LiveJob(9, None)):
        node.live[:] = [live]
        node.prolog(1, share="4")
        node.epilog(1, share="4")
        assert node.common() == ["shm/hers"]
    node.live[:] = [LiveJob(9, BOB)]
    node.prolog(1, uid=ALICE, share="4", SLURM_JOB_EXCLUSIVE="USER")
    assert node.refused(1)
    node.epilog(1, share="4")
    assert node.common() == ["shm/hers"]


@as_root
def test_root_never_leaves(node):
    node.put(node.paths.shm, 0, "roots")
    node.put(node.paths.shm, 998, "daemons")
    for uid in (0, 998):
        node.prolog(1, uid=uid, share="4")
        node.epilog(1, uid=uid)
    assert node.common() == ["shm/daemons", "shm/roots"]


@as_root
@pytest.mark.parametrize("share", [None, "4"])
def test_of_two_last_jobs_that_end_at_once_one_clears_up(node, share):
    node.set(exclusive_user_nodes=("n2",))
    for turn in range(20):
        for job_id, gpu in ((1, "0"), (2, "1")):
            node.prolog(job_id, share=share, gpus=gpu)
        node.put(node.paths.shm, ALICE, "a", "b/c")
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(lambda job_id: node.epilog(job_id, share=share), (1, 2))) == [True, True]
        assert node.common() == []
        assert node.said(f"2 files of uid {ALICE} in") == turn + 1
        assert node.files() == NOTHING
        assert node.ledger().leaving == ()


# --- who comes meanwhile -------------------------------------------------------------------------------------------


def meanwhile(monkeypatch, room, name, come):
    """Do something once, just before a step of the Epilog."""
    step, coming = getattr(room, name), [come]

    def after(*args, **words):
        while coming:
            coming.pop()()
        return step(*args, **words)

    monkeypatch.setattr(room, name, after)


STEPS = [
    (release.CleanUp, "end_leftovers"),
    (release.CleanUp, "clean_up_after"),
    (processes, "read_processes_of"),
    (scratch, "remove"),
]
"""Each of them with more of the user's things away."""


@as_root
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(("room", "step"), STEPS)
def test_nothing_of_a_job_that_a_prolog_lets_in_meanwhile_is_touched(node, monkeypatch, start, room, step, listed):
    """Alice's next job comes at any step of the Epilog of her last one: its folder, ledger entry, files and process
    stay, whether it is a share or an ordinary job on a node that is not listed."""
    node.set(clean_up=("gpu_processes", "processes", "shm", "tmp"), exclusive_user_nodes=("n2",) if listed else ())
    node.prolog(1, share=None if listed else "4")
    children = []

    def come():
        node.prolog(2, share="4" if listed else None)
        node.live.append(LiveJob(2, ALICE))
        node.put(node.paths.shm, ALICE, "next")
        node.put(node.paths.tmp, ALICE, "next/a")
        children.append(start(ALICE, 2))

    meanwhile(monkeypatch, room, step, come)
    assert node.epilog(1, share=None if listed else "4")
    assert children[0].poll() is None
    assert node.common() == ["shm/next", "tmp/next", "tmp/next/a"]
    assert node.jobs() == ([2] if listed else [])
    assert not listed or node.refused(2) is None
    assert node.ledger().leaving == ()


@as_root
def test_a_job_that_is_requeued_meanwhile_keeps_what_its_second_run_has(node, monkeypatch):
    node.prolog(1, share="4")
    meanwhile(
        monkeypatch, release.CleanUp, "end_leftovers", lambda: node.prolog(1, share="2", SLURM_JOB_RESTART_COUNT="1")
    )
    node.put(node.paths.shm, ALICE, "hers")
    assert node.epilog(1, share="4")
    assert len(node.plan(1).slots) == 2
    assert [entry.restart_count for entry in node.ledger().jobs] == [1]
    assert node.common() == ["shm/hers"]


# --- ended half-way, in the way ------------------------------------------------------------------------------------


@as_root
@pytest.mark.parametrize(
    ("room", "step"),
    [
        (release.CleanUp, "end_daemons"),
        (release.CleanUp, "end_leftovers"),
        (release.CleanUp, "clean_up_after"),
        (scratch, "set_aside"),
        (release.termination, "end_processes"),
        (scratch, "remove"),
    ],
)
def test_an_epilog_that_was_killed_is_taken_up_by_the_next_hook(node, monkeypatch, room, step):
    here_alone(node, 1)
    node.put(node.paths.shm, ALICE, "a", "b/c")
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(room, step, lambda *_: os.kill(os.getpid(), 9))
        node.epilog(1)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 9
    assert [one.job.job_id for one in node.ledger().leaving] == [1]
    assert node.common() != []
    assert node.prolog(2, uid=BOB, now=2000.0)
    assert node.common() == []
    assert node.ledger().leaving == ()
    assert node.jobs() == [2]
    assert node.said(f"job 1 of uid {ALICE}: its clean-up is not finished: continuing it") == 1


@as_root
def test_a_hook_that_goes_on_for_another_clears_up_after_both_users(node):
    node.set(clean_up=("shm", "tmp"))
    node.prolog(1, uid=ALICE, share="4", SLURM_JOB_EXCLUSIVE="NODE")
    with state.exclusive(node.paths, Deadline.after(300)):
        ledger = node.ledger()
        killed = reconcile.begin_leaving(ledger, ledger.jobs, replace(hook.myself(), start_ticks=1))
        hers = killed.leaving
    node.prolog(2, uid=BOB, share="4", gpus="1", now=2000.0, SLURM_JOB_EXCLUSIVE="NODE")
    with state.exclusive(node.paths, Deadline.after(300)):
        state.write_ledger(node.paths, replace(node.ledger(), leaving=hers), node.settings)
    for folder in (node.paths.shm, node.paths.tmp):
        node.put(folder, ALICE, "hers/a", "file")
        node.put(folder, BOB, "his/a", "of-bob/a")
    assert node.epilog(2, uid=BOB, share="4")
    assert node.common() == []
    assert node.ledger().leaving == ()


def another_hook(monkeypatch):
    """Let hooks that were running before count as ended."""
    monkeypatch.setattr(process, "is_same", lambda *_: False)


@as_root
@pytest.mark.parametrize("slow", ["remove", "list", "set aside"])
def test_a_clean_up_that_times_out_is_said_and_the_next_hook_goes_on(node, monkeypatch, slow):
    here_alone(node, 1)
    node.put(node.paths.shm, ALICE, "hers/a")
    with monkeypatch.context() as late:
        if slow == "remove":
            late.setattr(release, "REMOVE_S", 0.1)
            sleep = ["/bin/sleep", "600"]
            late.setattr(scratch, "run", lambda argv, timeout_s: process.run(sleep, timeout_s=timeout_s))
        else:
            late.setattr(release, "LIST_S" if slow == "list" else "ASIDE_S", 0.0)
        assert node.epilog(1)
    (leaving,) = node.ledger().leaving
    assert node.said("but not all that it left: the next hook") == 1
    assert node.said(f"job 1 of uid {ALICE}", "not all is removed: ") == 1
    assert leaving.why
    waiting = [name for name in node.common() if name.startswith(f"shm/{scratch.ASIDE}")]
    assert [f"{node.root}/{name}" for name in waiting[:1]] == (list(leaving.asides) if slow == "remove" else [])
    another_hook(monkeypatch)
    assert node.prolog(2, uid=BOB, share="4", now=2000.0)
    assert node.refused(2) is None
    assert node.common() == []
    assert node.ledger().leaving == ()
    assert node.said("job 1 of uid", "what it left is removed now") == 1
    assert node.said("continuing it") == 0


@as_root
@pytest.mark.parametrize("stuck", ["folder", "daemon", "files"])
def test_what_remains_of_one_user_keeps_nothing_of_another(node, monkeypatch, stuck):
    """Bob's files, folder and entry go with his job; the log says once what remains of alice, whoever comes."""
    here_alone(node, 1)
    node.put(node.paths.shm, ALICE, "hers")
    busy = OSError(errno.EBUSY, "fuse (hers) is mounted there and cannot be detached")
    place = MpsPlace("/x", str(node.paths.mps / f"{ALICE}/00000000-000000"), "GPU-0", Owner(ALICE, ALICE))
    remove_job, remove = state.remove_job, scratch.remove

    def is_alices(path):
        return any(one.lstat().st_uid == ALICE for one in Path(path).iterdir())

    def remove_but_hers(paths, job_id):
        if job_id == 1:
            raise busy
        return remove_job(paths, job_id)

    with monkeypatch.context() as there:
        if stuck == "folder":
            there.setattr(state, "remove_job", remove_but_hers)
        elif stuck == "daemon":
            (node.paths.mps / f"{ALICE}/00000000-000000").mkdir(parents=True)
            there.setattr(daemons, "stop_many", lambda *_, **__: (MpsFailed(place, "MpsFolderError", str(busy)),))
        else:
            there.setattr(
                scratch,
                "remove",
                lambda found, until: str(busy) if any(map(is_alices, found)) else remove(found, until),
            )
        assert node.epilog(1)
        another_hook(monkeypatch)
        for job in (2, 3):
            node.prolog(job, uid=BOB, share="4", now=2000.0, SLURM_JOB_EXCLUSIVE="NODE")
            node.put(node.paths.shm, BOB, "secret")
            assert node.epilog(job, uid=BOB)
            assert not (node.paths.shm / "secret").exists()
            assert [one.job.job_id for one in node.ledger().leaving] == [1]
            assert node.said(f"job {job} of uid {BOB}: its share is removed", "not all") == 0
    assert node.said("not all is removed") == 1
    assert node.said(f"job 1 of uid {ALICE}", "is mounted there and cannot be detached") == 1
    assert node.epilog(4, uid=BOB) is True
    node.prolog(5, uid=BOB, share="4", now=2000.0, SLURM_JOB_EXCLUSIVE="NODE")
    assert node.epilog(5, uid=BOB)
    assert node.ledger().leaving == ()
    assert node.common() == []
    assert node.said(f"job 1 of uid {ALICE}: what it left is removed now") == 1


@as_root
def test_what_is_known_to_remain_of_a_user_gets_little_time_in_others_hooks(node, monkeypatch):
    """A process that alice left makes new files in her folder for ever. Her own Epilog has all its time."""
    here_alone(node, 1)
    (node.paths.mps / f"{ALICE}/00000000-000000").mkdir(parents=True)
    left = []

    def never_whole(places, deadline, **_):
        left.extend(deadline.left() for place in places if place.owner.uid == ALICE)
        return tuple(MpsFailed(place, "MpsFolderError", "it has too many entries") for place in places)

    with monkeypatch.context() as there:
        there.setattr(daemons, "stop_many", never_whole)
        assert node.epilog(1)
        (in_hers,) = left
        another_hook(monkeypatch)
        node.prolog(2, uid=BOB, share="4", now=2000.0, SLURM_JOB_EXCLUSIVE="NODE")
        assert node.epilog(2, uid=BOB)
    assert in_hers > mps.RETRY_S
    assert len(left) == 3
    assert max(left[1:]) <= mps.RETRY_S
    assert [one.job.job_id for one in node.ledger().leaving] == [1]


@as_root
def test_what_was_set_aside_goes_though_its_user_is_here_again(node, monkeypatch):
    here_alone(node, 1)
    node.put(node.paths.shm, ALICE, "hers/a")
    with monkeypatch.context() as late:
        late.setattr(scratch, "remove", lambda *_: "no answer within 5 s")
        assert node.epilog(1)
    here_alone(node, 2)
    node.live.append(LiveJob(2, ALICE))
    node.put(node.paths.shm, ALICE, "new")
    another_hook(monkeypatch)
    node.prolog(3, share="4", gpus="1", now=2000.0)
    assert node.common() == ["shm/new"]
    assert node.ledger().leaving == ()


@as_root
def test_leftovers_that_come_back_are_ended_with_all_of_their_user(node, monkeypatch, start):
    monkeypatch.setattr(release.termination, "GRACE_S", 0.2)
    others = start(BOB)
    hers: list[subprocess.Popen[bytes]] = []

    class Comes:
        def __getattr__(self, name):
            return getattr(FakeNvml().gpu().gpu(), name)

        def read_gpu_readings(self):
            if ended or (hers and len(hers) > 30):
                return FakeNvml().gpu().gpu().read_gpu_readings()
            hers.append(start(ALICE))
            return FakeNvml().gpu(pids=(hers[-1].pid,)).gpu().read_gpu_readings()

    ended: list[int] = []
    end_all_of = release.termination.end_all_of
    monkeypatch.setattr(
        release.termination, "end_all_of", lambda uid, gid: (start(ALICE), end_all_of(uid, gid), ended.append(uid))
    )
    node.prolog(1, share="1")
    node.gpus(Comes())
    assert node.epilog(1)
    assert ended == [ALICE]
    assert others.poll() is None
    assert node.said("started again", f"uid {ALICE}") == 1
    assert node.ledger().leaving == ()


@as_root
def test_a_process_that_nothing_ends_makes_the_node_unwell_only_on_a_gpu(node, monkeypatch, start):
    for clean_up, well in ((("gpu_processes",), False), (("processes",), True)):
        hers = start(ALICE)
        node.gpus(FakeNvml().gpu(pids=(hers.pid,)).gpu())
        node.set(clean_up=clean_up)
        here_alone(node, 1)
        with monkeypatch.context() as stuck:
            stuck.setattr(release.termination, "end_processes", lambda some, _: tuple(some))
            stuck.setattr(release, "OUTLIVES_S", 0.0)
            stuck.setattr(release.process, "wait_gone", lambda some, _: tuple(some))
            assert node.epilog(1) is well
        assert node.said(f"process {hers.pid} (sleep)", "not ended yet") == 1
        assert node.said(f"process {hers.pid} (sleep)", "outlives SIGKILL") == (not well)
        assert node.ledger().leaving == ()
        hers.kill()
        hers.wait()
        node.log.clear()


# --- modes, as slurmd starts the hooks -----------------------------------------------------------------------------


DAY_S = 86400.0


@pytest.mark.parametrize("days", [-1, 1], ids=["set back", "set forward"])
def test_a_job_that_has_just_come_keeps_its_node_when_the_clock_is_set(site, monkeypatch, days):
    site.configure('mode = "on"')
    site.run(prolog, 1, share="4")
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began + days * DAY_S)
    site.run(prolog, 2, uid=BOB, gpus="1", share="4")
    assert site.jobs() == [1]
    assert site.refused(2)


def test_three_refusals_are_three_whatever_the_clock_says(site, monkeypatch):
    site.configure('mode = "on"')
    site.gpus(FakeNvml(broken="Driver Not Loaded"))
    began, codes = time.time(), []
    for number, days in enumerate((0, 1, -1)):
        monkeypatch.setattr(time, "time", lambda days=days: began + days * DAY_S)
        codes.append(site.run(prolog, 1 + number, share="4"))
    assert codes == [0, 0, names.EXIT_NODE_UNWELL]
    assert [site.run(epilog, job_id) for job_id in (1, 2, 3)] == [0, 0, 0]


@pytest.mark.parametrize("mode", ['mode = "off"', 'mode = "observe"', ""])
def test_a_site_that_is_not_on_makes_nothing(site, mode):
    site.configure(f'{mode}\nexclusive_user_nodes = ["n2"]')
    for job_id, share in ((1, "4"), (2, None)):
        assert site.run(prolog, job_id, share=share) == 0
        assert site.run(epilog, job_id, share=share) == 0
    assert not site.paths.root.exists()


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_a_plan_of_an_earlier_run_is_gone_when_nothing_is_shared_any_more(site, mode):
    site.configure('mode = "on"')
    site.run(prolog, 1, share="4")
    site.run(prolog, 2, share="4", gpus="1")
    site.configure(f'mode = "{mode}"')
    assert site.run(prolog, 1, share="4", SLURM_JOB_RESTART_COUNT="1") == 0
    assert site.plan(1) is None
    assert site.plan(2) is not None


@as_root
@pytest.mark.parametrize("mode", ["off", "observe"])
def test_what_was_given_is_taken_back_whatever_the_mode_is_by_then(site, mode):
    """A share and an ordinary job on a listed node came while the mode was on; both Epilogs clear up as the site
    wanted it then, the user's things included. A job that comes after the switch is given nothing."""
    site.configure('mode = "on"\nexclusive_user_nodes = ["n2"]')
    site.run(prolog, 1, share="4")
    site.run(prolog, 2)
    site.put(site.paths.shm, ALICE, "a", "b/c")
    site.configure(f'mode = "{mode}"\nexclusive_user_nodes = ["n2"]')
    before = site.files()
    site.run(prolog, 3, share="4", gpus="1")
    site.run(epilog, 3, share="4", gpus="1")
    assert site.files() == before
    assert site.run(epilog, 1, share="4") == 0
    assert site.common() == ["shm/a", "shm/b", "shm/b/c"]
    assert site.run(epilog, 2) == 0
    assert site.files() == NOTHING
    assert site.jobs() == []
    assert site.common() == []


def test_a_partition_has_a_mode_of_its_own(site):
    site.configure('mode = "observe"\n[partition.gpu]\nmode = "on"')
    site.run(prolog, 1, share="4", SLURM_JOB_PARTITION="gpu")
    site.run(prolog, 2, share="4", gpus="1", SLURM_JOB_PARTITION="debug")
    assert site.jobs() == [1]
    assert len(site.plan(1).slots) == 4
    assert site.run(epilog, 1, share="4") == 0
    assert site.files() == NOTHING


@as_root
def test_a_broken_configuration_costs_no_user_a_file(site):
    site.configure('mode = "on"\nclean_up = []')
    site.run(prolog, 1, share="4")
    site.put(site.paths.shm, ALICE, "hers")
    site.configure("mode = ")
    assert site.run(epilog, 1, share="4") == 0
    assert site.files() == NOTHING
    assert site.common() == ["shm/hers"]


@pytest.mark.parametrize("which", [prolog, epilog])
def test_a_configuration_that_cannot_be_understood_drains_no_node(site, which):
    site.configure('mode = "on"\nexclusive_user_nodes = ["n2"]\nmax_shar = 3')
    assert site.run(which, 1) == 0
    assert not site.paths.root.exists()
    assert (site.said("prolog:", "config.toml: max_shar: unknown key") == 1) is (which is prolog)


# --- what an ordinary job pays -------------------------------------------------------------------------------------

CODE = """
import sys
from slurm_share.core import names
names.STATE_ROOT, names.CONFIG_FILE = sys.argv[1:3]
from slurm_share_hooks import epilog, prolog
codes = prolog.main(), epilog.main()
print(*codes, *sorted({"msgspec", "tomllib", "pynvml", "slurm_share.core.config", "ClusterShell"} & set(sys.modules)))
"""


def loaded(folder, text, **environ):
    """Run both hooks for an ordinary job in a clean interpreter; return exit codes and the heavy modules they load."""
    (folder / "config.toml").write_text(text)
    argv = [sys.executable, "-I", "-c", CODE, str(folder / "state"), str(folder / "config.toml")]
    run = subprocess.run(argv, env={"SLURM_JOB_ID": "1", **environ}, capture_output=True, text=True, check=True)
    return run.stdout.split()


@pytest.mark.parametrize("text", ["", 'mode = "on"\nmax_share = 8\n', 'mode = "off"\n', "this is no TOML ["])
def test_an_ordinary_job_pays_for_no_configuration_that_lists_no_node(tmp_path, text):
    assert loaded(tmp_path, text) == ["0", "0"]
    assert [place.name for place in tmp_path.iterdir()] == ["config.toml"]
    (tmp_path / "state/jobs").mkdir(parents=True)
    assert loaded(tmp_path, text) == ["0", "0"]


def test_an_ordinary_job_pays_where_nodes_are_listed(tmp_path):
    found = loaded(tmp_path, f'mode = "off"\nexclusive_user_nodes = ["n[1-3]"]\nlog_file = "{tmp_path}/log"\n')
    assert found[:2] == ["0", "0"]
    assert {"msgspec", "tomllib", "slurm_share.core.config"} <= set(found)
    assert not (tmp_path / "state").exists()


@as_root
@pytest.mark.parametrize(("words", "listed", "gone"), [
    ({"SLURM_JOB_EXCLUSIVE": "NODE"}, False, True),
    ({"SLURM_JOB_EXCLUSIVE": "USER"}, False, False),
    ({"SLURM_JOB_EXCLUSIVE": "USER"}, True, True),
])  # fmt: skip
def test_files_go_only_where_every_job_of_their_user_is_known(node, words, listed, gone):
    """An ordinary job of hers may be here between two steps, which shows in nothing where such jobs are not entered."""
    node.set(exclusive_user_nodes=("n2",) if listed else ())
    node.prolog(1, share="4", **words)
    node.put(node.paths.shm, ALICE, "hers/a")
    assert node.epilog(1, share="4")
    assert (node.common() == []) is gone


@as_root
def test_what_is_cleared_was_settled_when_the_job_came(node):
    node.set(clean_up=())
    node.prolog(1, share="4", SLURM_JOB_EXCLUSIVE="NODE")
    node.put(node.paths.shm, ALICE, "hers/a")
    node.set(clean_up=("shm", "tmp"))
    assert node.prolog(2, uid=BOB, share="4", SLURM_JOB_EXCLUSIVE="NODE", now=2000.0)
    assert node.jobs() == [2]
    assert node.common() != []


def test_a_prolog_that_comes_too_late_leaves_nothing(node, monkeypatch):
    def slowly(*_, **__):
        node.epilog(1)
        return PreparedGpus()

    monkeypatch.setattr(admission, "prepare", slowly)
    monkeypatch.setattr(admission, "read_offers", lambda job, *_: offers_of(job.share))
    assert node.prolog(1, share="4")
    assert node.plan(1) is None
    assert node.jobs() == []
    assert not node.paths.job(1).exists()
    assert node.said("job 1: its Epilog has run already") == 1


# --- one deadline for a whole hook ---------------------------------------------------------------------------------


class Slow:
    """A clock that only work moves; each piece of work takes all the time that it is given."""

    def __init__(self, monkeypatch):
        self.began = self.now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds):
        self.now += seconds

    def whole(self, answer):
        """Return a function with this result that uses up its time."""

        def work(*args, **_):
            (deadline,) = [one for one in args if isinstance(one, Deadline)]
            self.now = max(self.now, deadline.at)
            return answer(*args)

        return work

    def slow_down(self, node, monkeypatch, start):
        """Make every step of a release slow, on a node with something for each stage."""
        (node.paths.mps / f"{ALICE}/00000000-000000").mkdir(parents=True)
        hers = start(ALICE)
        daemon = MpsProcess(process.identify(hers.pid), "daemon", str(node.paths.mps / f"{ALICE}/00000000-000000"))
        stopped = lambda places, *_: tuple(MpsStopped(one, "quit", (), (), 1.0) for one in places)  # noqa: E731
        monkeypatch.setattr(daemons, "stop_many", self.whole(stopped))
        monkeypatch.setattr(mps_processes, "read_processes", lambda **_: (daemon,))
        node.gpus(FakeNvml().gpu(pids=(hers.pid,)).gpu())
        monkeypatch.setattr(release.termination, "end_processes", self.whole(lambda some, _: tuple(some)))
        monkeypatch.setattr(release.process, "wait_gone", self.whole(lambda *_: ()))
        owned = scratch.UserEntries(("a",), is_whole=True)
        monkeypatch.setattr(scratch, "read_owned", self.whole(lambda *_: owned))
        monkeypatch.setattr(scratch, "set_aside", self.whole(lambda *_: scratch.MovedEntries()))
        monkeypatch.setattr(scratch, "remove", self.whole(lambda *_: None))

    @property
    def took(self):
        return self.now - self.began


@as_root
@pytest.mark.parametrize("clean_up", [("gpu_processes", "processes", "shm", "tmp"), ()], ids=["all", "nothing"])
def test_the_stages_of_an_epilog_add_up_to_its_time(node, monkeypatch, start, clean_up):
    node.set(clean_up=clean_up)
    here_alone(node, 1)
    slow = Slow(monkeypatch)
    slow.slow_down(node, monkeypatch, start)
    assert node.epilog(1)
    assert 10.0 < slow.took <= node.settings.release_deadline_s
    assert node.ledger().leaving == ()


@as_root
def test_the_stages_of_a_prolog_add_up_to_its_time(node, monkeypatch, start):
    node.set(clean_up=("gpu_processes", "processes", "shm", "tmp"))
    here_alone(node, 1)
    with monkeypatch.context() as killed:
        killed.setattr(release.CleanUp, "clear", lambda *_: frozenset())
        node.epilog(1)
    another_hook(monkeypatch)
    slow = Slow(monkeypatch)
    slow.slow_down(node, monkeypatch, start)
    assert node.prolog(2, uid=BOB, share="4", now=2000.0)
    assert node.refused(2) is None
    assert 2.0 < slow.took <= node.settings.hook_deadline_s
    assert node.ledger().leaving == ()
