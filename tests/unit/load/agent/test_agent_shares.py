"""The ledger's figures of a share are in the agent's snapshot where the tasks themselves did not give them."""

from __future__ import annotations

from agents import NODE
from msgspec.structs import replace

from slurm_share.core.paths import Paths
from slurm_share.load.agent import held
from slurm_share.share import ledger_file
from slurm_share.share.records import Ledger, LedgerJob

ALICES = LedgerJob(job_id=7, uid=2001, share="4,mem=2048M", gpus=("GPU-0",), slots=4, since=1.0)


def only(job, **changes):
    snapshot = replace(NODE, jobs=(replace(NODE.jobs[0], **changes),))
    return held.with_shares(snapshot, {job.job_id: job}).jobs[0]


def test_share_and_slots_of_a_job_that_its_tasks_do_not_tell_come_from_the_ledger():
    found = only(ALICES, unknown={"share": "not to read", "slots": "not to read", "cpu": "one sample"})
    assert (found.share, found.slots, found.unknown) == (4, 4, {"cpu": "one sample"})
    told = only(ALICES, share=2, slots=2)
    assert (told.share, told.slots) == (2, 2)


def test_another_users_job_of_that_number_and_one_without_a_share_do_not_count():
    for other in (
        LedgerJob(job_id=7, uid=2002, share="4", gpus=(), slots=4, since=1.0),
        LedgerJob(job_id=7, uid=2001, share="", gpus=(), slots=0, since=1.0),
        LedgerJob(job_id=7, uid=2001, share="nonsense", gpus=(), slots=4, since=1.0),
        LedgerJob(job_id=9, uid=2001, share="4", gpus=(), slots=4, since=1.0),
    ):
        assert only(other) == NODE.jobs[0]


def test_a_ledger_that_is_torn_or_not_ours_to_read_is_none(tmp_path):
    paths = Paths(root=tmp_path)
    assert held.read_ledger_jobs(paths) == {}
    paths.ledger.write_text("torn")
    assert held.read_ledger_jobs(paths) == {}
    paths.ledger.write_bytes(ledger_file.render_ledger(Ledger(ledger_file.read_boot_id(), jobs=(ALICES,))))
    assert held.read_ledger_jobs(paths) == {7: ALICES}
