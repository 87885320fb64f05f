"""Prolog and Epilog note the GPUs of a job, and start the process that makes the record of its use."""

from __future__ import annotations

import errno
import os

import pytest
from hooked_nodes import ALICE, HookedNode, as_root
from slurm_share_hooks import epilog, prolog

from slurm_share.node.gpus.counters import GpuCounter
from slurm_share.share import hook, job_note
from slurm_share.testing import FakeNvml
from slurm_share.usage import note


@pytest.fixture
def node(tmp_path, monkeypatch):
    made = HookedNode(tmp_path, monkeypatch)
    made.started = []
    driver = FakeNvml().gpu().gpu()
    made.gpus(driver)
    monkeypatch.setattr(job_note, "nvml", driver)
    monkeypatch.setattr(hook, "start_after", lambda _who, job: made.started.append(job))
    monkeypatch.setattr(
        note, "read_in_time", lambda uuids, accounting: {uuid: GpuCounter(uuid, 1000) for uuid in uuids}
    )
    return made


def noted(node):
    folder = note.folder_of(node.paths.root)
    return {int(one.name): note.read(folder / one.name) for one in folder.glob("[0-9]*")} if folder.exists() else {}


@as_root
def test_the_gpus_of_a_share_are_noted_until_its_record_is_written(site):
    (site.root / "config.toml").write_text('mps_control = ""\nlog_file = ""\nmode = "on"\n')
    assert site.run(prolog, share="2", uid=ALICE) == 0
    (found,) = noted(site).values()
    assert (found.job, found.uid, found.share, found.slots, len(found.gpus)) == (4711, ALICE, 2, 2, 1)
    assert (found.gpus[0].begin_mj, found.ended) == (1000, None)
    assert site.run(epilog, uid=ALICE) == 0
    assert noted(site)[4711].ended is not None
    assert site.started == [4711]
    assert site.jobs() == []


@pytest.mark.parametrize(
    ("settings", "environ", "count"),
    [
        ('usage_record = "gpu"', {"SLURM_JOB_GPUS": "0"}, 1),
        ('usage_record = "gpu"', {}, 0),
        ("", {"SLURM_JOB_GPUS": "0"}, 0),
        ('usage_record = "share"', {"SLURM_JOB_GPUS": "0"}, 0),
        ('usage_record = "gpu"\nmode = "off"', {"SLURM_JOB_GPUS": "0"}, 0),
    ],
    ids=["wanted", "no GPU", "not mentioned", "shares only", "switched off"],
)
def test_an_ordinary_job_with_gpus_is_noted_where_the_site_wants_it(site, settings, environ, count):
    (site.root / "config.toml").write_text(f'log_file = ""\n{settings}\n')
    assert site.run(prolog, **environ) == 0
    assert len(noted(site)) == count
    assert site.run(epilog, **environ) == 0
    assert len(site.started) == count
    assert site.log == []


def test_a_driver_that_is_gone_keeps_no_ordinary_job_from_its_start(site, monkeypatch):
    (site.root / "config.toml").write_text('log_file = ""\nusage_record = "gpu"\n')
    monkeypatch.setattr(job_note, "nvml", FakeNvml("gone"))
    assert site.run(prolog, SLURM_JOB_GPUS="0") == 0
    assert noted(site) == {}


def test_what_cannot_be_spawned_is_a_line_in_the_log(monkeypatch):
    said = []

    def fail(*_args, **_words):
        raise OSError(errno.EAGAIN, "no process")

    monkeypatch.setattr(hook, "_is_program", True)
    monkeypatch.setattr(hook, "report", lambda _who, text: said.append(text))
    monkeypatch.setattr(os, "posix_spawn", fail)
    hook.start_after("epilog", 7)
    assert "job 7" in said[0]
    assert "no process: the record of what it used is not written" in said[0]


@as_root
def test_a_share_is_not_noted_where_the_site_wants_no_records(node):
    node.admit(node.environ(1, share="2"))
    assert noted(node) == {}
