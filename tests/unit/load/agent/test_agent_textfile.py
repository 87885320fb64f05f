"""The file for node_exporter: whole, for its group, and gone when it would be old."""

from __future__ import annotations

import os
import stat

import pytest
from agents import FakeSampler, running, until
from prometheus_client.parser import text_string_to_metric_families

from slurm_share.load.agent import service
from slurm_share.load.agent.service import Textfile


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_agent_writes_the_metrics_and_removes_them_at_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("slurm_share.load.agent.service._CHECK_S", 0.02)
    file = tmp_path / "slurm_share.prom"
    before = os.umask(0o077)
    try:
        with running(tmp_path, http=False, agent_textfile=str(file)) as agent:
            until(file.exists)
            assert stat.S_IMODE(file.stat().st_mode) == 0o640
            names = {family.name for family in text_string_to_metric_families(file.read_text())}
            assert {"slurm_share_node_cpus", "slurm_share_job_on_gpu", "slurm_share_agent_rounds"} <= names
            assert agent.http_server is None
            assert sorted(one.name for one in tmp_path.iterdir()) == ["run", "slurm_share.prom", "token"]
    finally:
        os.umask(before)
    assert not file.exists()


def test_the_file_is_replaced_as_often_as_it_is_scraped_and_never_half(tmp_path):
    file, clock = tmp_path / "x.prom", Clock()
    target = Textfile(str(file), clock)
    target.update(1.0, lambda: None)  # before the first sample
    assert not file.exists()
    target.update(1.0, lambda: b"one\n")
    first = file.stat().st_ino
    target.update(1.0, lambda: b"two\n")
    assert file.read_bytes() == b"one\n"
    clock.now += service.WRITE_S
    with file.open("rb") as reader:
        target.update(1.0, lambda: b"two\n")
        assert reader.read() == b"one\n"  # whoever reads the old one reads all of it
    assert (file.read_bytes(), file.stat().st_ino != first) == (b"two\n", True)


def test_old_figures_are_taken_away_and_come_back_with_a_new_sample(tmp_path):
    file, clock = tmp_path / "x.prom", Clock()
    target = Textfile(str(file), clock)
    target.update(1.0, lambda: b"one\n")
    target.update(service.STALE_S + 1, lambda: b"one\n")
    assert not file.exists()
    target.update(1.0, lambda: b"two\n")
    assert file.read_bytes() == b"two\n"


def test_what_a_killed_agent_left_is_replaced(tmp_path):
    file = tmp_path / "x.prom"
    file.write_bytes(b"old\n")
    (tmp_path / ".x.prom.new").write_bytes(b"half")
    Textfile(str(file)).update(1.0, lambda: b"new\n")
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {"x.prom": b"new\n"}


@pytest.mark.parametrize(("place", "why"), [("missing/x.prom", "No such file"), ("file/x.prom", "Not a directory")])
def test_a_folder_that_cannot_be_written_is_one_sentence_and_no_end(tmp_path, capfd, place, why):
    (tmp_path / "file").touch()
    clock = Clock()
    target = Textfile(str(tmp_path / place), clock)
    for _ in range(3):
        target.update(1.0, lambda: b"one\n")
        clock.now += service.WRITE_S
    target.remove()
    said = capfd.readouterr().err
    assert said.count(f"cannot write {tmp_path / place}: {why}") == 1
    assert "name it in ReadWritePaths= of the agent's unit" in said


def test_a_name_that_node_exporter_does_not_read_is_said(tmp_path, capfd):
    Textfile(str(tmp_path / "metrics.txt"))
    assert "node_exporter reads only files that end in .prom" in capfd.readouterr().err


def test_a_sampler_that_hangs_leaves_no_old_file(tmp_path, monkeypatch):
    monkeypatch.setattr("slurm_share.load.agent.service._CHECK_S", 0.02)
    monkeypatch.setattr(service, "STALE_S", 0.0)
    file, sampler = tmp_path / "x.prom", FakeSampler()
    file.write_bytes(b"of an earlier agent\n")
    with running(tmp_path, http=False, sampler=sampler, agent_textfile=str(file)):
        until(lambda: not file.exists())
