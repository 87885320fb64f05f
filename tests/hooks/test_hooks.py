"""Prolog and Epilog on a state folder of their own: what appears, what is left, what a stop half-way does."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from slurm_share_hooks import admission, hook, prolog, release

from slurm_share import names
from slurm_share.errors import HookEnvError
from slurm_share.paths import Paths
from slurm_share.readers import ledger_file
from slurm_share.records import ShareRequest
from slurm_share.settings import Settings
from slurm_share.testing import FakeNvml

ENVIRON = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_UID": str(os.getuid()),
    "SLURM_JOB_GID": str(os.getgid()),
    "SLURMD_NODENAME": "n2",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "SPANK_SHARE_GPU": "4",
}


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node with two GPUs and an empty state folder; what the hooks log goes to its `log` list."""
    monkeypatch.setattr(admission, "nvml", FakeNvml().gpu().gpu())

    class Node:
        paths = Paths(tmp_path / "state")
        log: list[str] = []  # noqa: RUF012
        settings = Settings(log_file="")

        def prolog(self, **changes):
            environ = {key: value for key, value in {**ENVIRON, **changes}.items() if value is not None}
            admission.admit_job(environ, self.paths, self.settings, 1000.0)

        def epilog(self, **changes):
            release.release_job({**ENVIRON, **changes}, self.paths, self.settings)

        def plan(self, job_id=4711):
            return ledger_file.read_plan(self.paths, job_id)

        def ledger(self):
            return ledger_file.read_ledger(self.paths, ledger_file.read_boot_id())

        def files(self):
            return sorted(str(p.relative_to(self.paths.root)) for p in self.paths.root.rglob("*"))

    node = Node()
    node.log = []
    monkeypatch.setattr(hook, "report", lambda who, text: node.log.append(f"{who}: {text}"))
    return node


def test_a_shared_job_leaves_a_plan_and_a_ledger_line(node):
    """Eight slots on two GPUs; the plan for its user alone, in folders that nobody lists."""
    node.prolog()
    plan = node.plan()
    assert (plan.gpus, len(plan.slots), plan.share) == (2, 8, ShareRequest(4))
    assert node.ledger().jobs[0].job_id == 4711
    assert stat.S_IMODE(node.paths.plan(4711).stat().st_mode) == 0o400
    assert stat.S_IMODE(node.paths.job(4711).stat().st_mode) == 0o711
    assert stat.S_IMODE(node.paths.jobs.stat().st_mode) == 0o711
    assert stat.S_IMODE(node.paths.ledger.stat().st_mode) == 0o600


def test_the_epilog_leaves_nothing_of_the_job(node):
    """Only the empty ledger and its lock stay."""
    node.prolog()
    node.epilog()
    assert node.files() == ["jobs", "ledger", "ledger.lock"]
    assert node.ledger().jobs == ()


def test_both_may_run_twice(node):
    """One ledger line after two Prologs; a second Epilog finds nothing to do."""
    node.prolog()
    node.prolog()
    assert len(node.ledger().jobs) == 1
    node.epilog()
    node.epilog()
    assert node.files() == ["jobs", "ledger", "ledger.lock"]


def test_the_epilog_works_without_a_prolog(node):
    """salloc and exit, or a Prolog that another script kept from running: nothing to do, nothing made."""
    node.paths.job(4711).mkdir(parents=True)
    node.epilog()
    assert node.files() == ["jobs", "ledger.lock"]


def test_one_jobs_epilog_leaves_the_other_job_alone(node):
    """Two jobs of one user on a node."""
    node.prolog()
    node.prolog(SLURM_JOB_ID="4712", CUDA_VISIBLE_DEVICES="1")
    node.epilog()
    assert [job.job_id for job in node.ledger().jobs] == [4712]
    assert node.plan(4712) is not None


def test_hooks_of_many_jobs_at_once_lose_no_line(node):
    """Twenty Prologs at once, then twenty Epilogs: the ledger is read, decided and written by one at a time."""
    ids = [str(job_id) for job_id in range(1, 21)]
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda job_id: node.prolog(SLURM_JOB_ID=job_id), ids))
        assert sorted(job.job_id for job in node.ledger().jobs) == list(range(1, 21))
        list(pool.map(lambda job_id: node.epilog(SLURM_JOB_ID=job_id), ids))
    assert node.files() == ["jobs", "ledger", "ledger.lock"]


@pytest.mark.parametrize("value", ["4;touch /tmp/x", "4\nSLURM_JOB_ID=1", "x" * 10_240, "$(id)", "0", ""])
def test_a_hostile_value_makes_nothing_and_is_logged_in_one_line(node, value):
    """No folder, no plan; the log says which job and what it sent."""
    node.prolog(SPANK_SHARE_GPU=value)
    assert not node.paths.root.exists()
    assert len(node.log) == 1
    assert "job 4711" in node.log[0]
    assert node.log[0].isprintable()
    assert len(node.log[0]) < 400


@pytest.mark.parametrize("job_id", ["../../etc", "4711/../4712", "", "-1", "99999999999"])
def test_a_job_id_that_is_none_is_refused_before_any_path_is_made(node, job_id):
    """The folder's name comes from it."""
    with pytest.raises(HookEnvError):
        node.prolog(SLURM_JOB_ID=job_id)
    with pytest.raises(HookEnvError):
        node.epilog(SLURM_JOB_ID=job_id)
    assert not node.paths.root.exists()


def test_a_share_that_cannot_be_is_a_sentence_for_the_job(node):
    """No GPU granted: the plan refuses, the ledger does not count the job, the Epilog cleans up."""
    node.prolog(CUDA_VISIBLE_DEVICES="")
    assert "granted the job no GPU" in node.plan().refused
    assert node.ledger().jobs == ()
    node.epilog()
    assert node.files() == ["jobs", "ledger.lock"]


def test_a_driver_that_does_not_answer_is_a_sentence_for_the_job(node, monkeypatch):
    """The node is not drained for it."""
    monkeypatch.setattr(admission, "nvml", FakeNvml(broken="Driver Not Loaded"))
    node.prolog()
    assert "the NVIDIA driver does not answer (nvmlInit: Driver Not Loaded)" in node.plan().refused


def test_state_of_an_earlier_boot_is_void(node):
    """The machine restarted under its jobs: their lines are gone with them."""
    node.prolog()
    written = json.loads(node.paths.ledger.read_bytes())
    written["ledger"]["boot_id"] = "another"
    node.paths.ledger.write_text(json.dumps(written))
    node.prolog(SLURM_JOB_ID="4712")
    assert [job.job_id for job in node.ledger().jobs] == [4712]


def test_a_ledger_that_cannot_be_understood_keeps_no_job_waiting(node):
    """Torn by a full disk or written by another release: begun anew, and said in the log."""
    node.prolog()
    node.paths.ledger.write_bytes(b"{torn")
    node.prolog(SLURM_JOB_ID="4712")
    assert [job.job_id for job in node.ledger().jobs] == [4712]
    assert any("starting an empty ledger" in line for line in node.log)


def test_a_write_that_fails_leaves_the_old_file_whole(node, monkeypatch):
    """A full state folder: the ledger of before is still there, and no half file beside it."""
    node.prolog()
    monkeypatch.setattr(os, "fchmod", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        node.prolog(SLURM_JOB_ID="4712")
    assert [job.job_id for job in node.ledger().jobs] == [4711]
    assert not [file for file in node.files() if file.startswith(".")]


def test_whatever_goes_wrong_the_exit_code_does_not_drain_the_node(node, monkeypatch):
    """One outermost handler: the log has the traceback in one line, slurmd has exit code 0."""
    monkeypatch.setattr(prolog, "work", lambda: 1 / 0)
    monkeypatch.setenv(names.HOOK_VARIABLE, "4")
    monkeypatch.setenv("PATH", "")
    assert prolog.main() == 0
    assert os.environ["PATH"] == hook.SEARCH_PATH
    assert "ZeroDivisionError" in node.log[0]
    assert "\n" not in node.log[0]
