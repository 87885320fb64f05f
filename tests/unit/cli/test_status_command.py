"""`slurm-share status`, from a state folder and a fake driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from slurm_share.cli.main import main
from slurm_share.core.config import Configuration
from slurm_share.core.errors import CommandError
from slurm_share.core.paths import Paths
from slurm_share.core.records import ShareRequest
from slurm_share.core.settings import Settings
from slurm_share.node import processes
from slurm_share.share import ledger_file, state, status
from slurm_share.share.records import Ledger, LedgerJob, PreparedGpus
from slurm_share.share.rules import allocation, reconcile
from slurm_share.slurm.records import JobContext
from slurm_share.testing import FakeNvml, offers_of


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Return a node with two GPUs, one shared job of this user on the first."""
    paths, driver = Paths(tmp_path), FakeNvml().gpu(memory_used_mib=300, pids=(os.getpid(),)).gpu(memory_used_mib=None)
    job = JobContext(4711, os.getuid(), os.getgid(), "n2", ("0",), ShareRequest(4), user="alice")
    grant = allocation.admit(job, driver.read_driver().gpus, offers_of(job.share), Settings())
    plan = allocation.decide(grant, PreparedGpus(), Settings(), cores=((0,), (1,)))
    state.prepare(paths)
    state.make_job_folder(paths, 4711)
    state.write_ledger(paths, reconcile.enter(Ledger(ledger_file.read_boot_id()), job, grant, 60.0), Settings())
    state.write_plan(paths, plan, os.getgid())
    monkeypatch.setattr(status, "Paths", lambda: paths)
    monkeypatch.setattr(status.config, "load", lambda: Configuration(Settings(mode="on"), {}))
    monkeypatch.setattr(status, "binding", driver)
    monkeypatch.setattr(status.slurm_jobs, "read_my_job_ids", lambda node: (4711,))
    monkeypatch.setattr(status.node_name, "is_node", lambda: True)
    monkeypatch.setattr(status.node_name, "lacks_gpus", lambda node: False)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return paths


def forbid_ledger(monkeypatch):
    """Make the caller neither root nor an operator."""

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(status.ledger_file, "read_ledger", refuse)


def test_root_sees_jobs_users_gpus_and_slots(node, capsys):
    assert main(["status"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1][:5] == ["4711", "alice", "4", "time-slicing", "0"]
    assert any(line[:1] == ["0"] and line[-1] == "4711" and "300" in line for line in lines)
    assert any(line[:1] == ["1"] and line[-1] == "-" and "?" in line for line in lines)


def test_the_same_for_programs(node, capsys):
    assert main(["status", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["simulated"], answer["everything"]) == (1, False, True)
    assert [job["job_id"] for job in answer["jobs"]] == [4711]
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    assert answer["jobs"][0]["since"] == pytest.approx(booted_at + 60, abs=5)
    assert [gpu["slots"] for gpu in answer["gpus"]] == [4, 0]
    assert answer["jobs"][0]["sharing"] == ["time-slicing"]
    assert answer["gpus"][0]["processes"][0]["pid"] == os.getpid()
    assert answer["gpus"][1]["memory_used_mib"] is None


def test_a_controller_whose_config_toml_has_changed_says_so(node, tmp_path, monkeypatch, capsys):
    (tmp_path / "config.toml").write_text("mode = 'on'\n")
    (tmp_path / "job_submit_settings.lua").write_text("return {}\n")
    configuration = Configuration(Settings(mode="on"), {}, file=str(tmp_path / "config.toml"))
    monkeypatch.setattr(status.config, "load", lambda: configuration)
    assert main(["status"]) == 0
    first = " ".join(capsys.readouterr().out.split())
    assert "jobs to come are not shared: " in first
    assert "run `slurm-share config write-lua`" in first
    assert main(["status", "--json"]) == 0
    assert "config.toml is not what " in json.loads(capsys.readouterr().out)["lua_problem"]


def test_an_ordinary_user_sees_own_jobs_and_their_gpus_only(node, monkeypatch, capsys):
    forbid_ledger(monkeypatch)
    assert main(["status", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["everything"] is False
    assert [(job["job_id"], job["share"]) for job in answer["jobs"]] == [(4711, "4")]
    assert [gpu["index"] for gpu in answer["gpus"]] == [0]


def test_how_a_job_shares_is_unknown_to_who_may_not_read_its_plan(node, monkeypatch, capsys):
    monkeypatch.setattr(status.ledger_file, "read_plan", lambda *_: None)
    assert main(["status"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()][1][:4] == ["4711", "alice", "4", "?"]
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["sharing"] is None


@pytest.mark.parametrize("free", [0, 11])
@pytest.mark.parametrize("is_root", [True, False])
def test_a_user_whose_own_file_system_is_full_is_told(node, monkeypatch, capsys, is_root, free):
    uid, place = os.getuid(), node.user_of(os.getuid())
    place.mkdir(parents=True, exist_ok=True)
    seen, listed = os.stat, os.listdir

    def stat(path, **how):
        found = seen(path, **how)
        is_own = os.fspath(path) == str(place) if not isinstance(path, int) else False
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:])) if is_own else found

    def listdir(path="."):
        if path == node.mps and not is_root:
            raise PermissionError
        return listed(path)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "listdir", listdir)
    room = SimpleNamespace(f_blocks=100, f_bavail=free, f_files=100, f_favail=50)
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    if not is_root:
        forbid_ledger(monkeypatch)
    assert main(["status"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (f"{place} is 100 % full: new shares of {processes.read_user_name(uid)} here" in text) is (free == 0)
    assert main(["status", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["full"]) == (free == 0)


def test_sources_that_do_not_answer_are_said_and_the_rest_is_shown(node, monkeypatch, capsys):
    forbid_ledger(monkeypatch)
    monkeypatch.setattr(status, "binding", FakeNvml(broken="Driver Not Loaded"))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")

    def silent(node):
        raise CommandError(("squeue",), 1, "Unable to contact slurm controller")

    monkeypatch.setattr(status.slurm_jobs, "read_my_job_ids", silent)
    assert main(["status"]) == 1
    captured = capsys.readouterr()
    assert "4711" in captured.out
    assert "Driver Not Loaded" in captured.err
    assert "Unable to contact slurm controller" in captured.err


def test_a_login_host_has_no_driver_and_no_problem(node, monkeypatch, capsys):
    state.write_ledger(node, Ledger(ledger_file.read_boot_id()), Settings())
    monkeypatch.setattr(status, "binding", FakeNvml(broken="NVML Shared Library Not Found"))
    assert main(["status"]) == 1  # a node, whose driver is missing
    assert "NVML Shared Library Not Found" in capsys.readouterr().err
    monkeypatch.setattr(status.node_name, "is_node", lambda: False)
    assert main(["status"]) == 0
    captured = capsys.readouterr()
    assert "is no compute node of Slurm; run `slurm-share status` on one, or in a job" in captured.out
    assert (captured.err, "no shared job" in captured.out) == ("", False)


def test_a_node_without_gpus_has_no_driver_and_no_problem(node, monkeypatch, capsys):
    monkeypatch.setattr(status, "binding", FakeNvml(broken="NVML Shared Library Not Found"))
    monkeypatch.setattr(status.node_name, "lacks_gpus", lambda node: True)
    assert main(["status"]) == 1  # a shared job is here, so it has some
    state.write_ledger(node, Ledger(ledger_file.read_boot_id()), Settings())
    capsys.readouterr()
    assert main(["status"]) == 0
    captured = capsys.readouterr()
    assert "has no GPUs to share: slurm.conf gives it none" in captured.out
    assert captured.err == ""


def test_nothing_shared_is_a_sentence(node, capsys):
    state.write_ledger(node, Ledger(ledger_file.read_boot_id()), Settings())
    assert main(["status"]) == 0
    assert "no shared job" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["²", "9" * 300, "9" * 5000, "-1", "4711; x", ""])
def test_a_strange_job_id_in_the_environment_is_no_job(node, monkeypatch, capsys, value):
    forbid_ledger(monkeypatch)
    monkeypatch.setenv("SLURM_JOB_ID", value)
    assert main(["status", "--json"]) == 0
    assert [job["job_id"] for job in json.loads(capsys.readouterr().out)["jobs"]] == [4711]


@pytest.mark.parametrize("where", [">&-", ">/dev/full"])
def test_an_output_that_takes_nothing_is_a_sentence(where):
    command = f"exec {sys.executable} -m slurm_share.cli.main config print {where}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("slurm-share: ")
    assert done.stderr.count("\n") == 1


def test_a_part_and_an_ordinary_job_are_told_apart(node, capsys):
    """A part has a number among those of its GPU; a job without a share stands there without figures."""
    ledger = ledger_file.read_ledger(node, ledger_file.read_boot_id())
    part = replace(ledger.jobs[0], job_id=4712, slots=1, on_gpu=2)
    plain = LedgerJob(4713, 2999, "", (), 0, since=0.0)
    state.write_ledger(node, replace(ledger, jobs=(*ledger.jobs, part, plain)), Settings())
    assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[:7] == ["4712", "alice", "4", "?", "0", "no.", "2"]
    assert lines[3].split()[:7] == ["4713", "2999", "-", "-", "-", "-", "-"]
    main(["status", "--json"])
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert [(job["share"], job["slot_on_gpu"]) for job in jobs] == [("4", None), ("4", 2), (None, None)]


def test_who_looks_is_told_where_nothing_is_shared(node, monkeypatch, capsys):
    partitions = {"debug": Settings(mode="on"), "old": Settings(mode="off"), "new": Settings()}
    monkeypatch.setattr(status.config, "load", lambda: Configuration(Settings(), {}, partitions))
    main(["status"])
    out = capsys.readouterr().out
    assert (
        "slurm-share observes only and shares nothing, except in partition debug, where sharing is on (mode in" in out
    )
    assert "sharing is switched off in partition old (mode in the configuration)" in out
    assert "new" not in out
