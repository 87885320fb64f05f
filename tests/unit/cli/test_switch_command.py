"""`slurm-share off` and `on`: the file, the queue, and what nodes may send to a terminal."""

from __future__ import annotations

import argparse
import json
import os

import pytest

from slurm_share.cli import main
from slurm_share.cli import status as page
from slurm_share.cli import switch as command
from slurm_share.core import config
from slurm_share.core.errors import CommandError, SlurmSilentError
from slurm_share.share import cluster_status, mode_file, queue_verdicts
from slurm_share.share.records import SwitchableJob, VerdictUpdate
from slurm_share.slurm import jobs as slurm_jobs
from slurm_share.slurm import nodes as slurm_nodes


@pytest.mark.parametrize("word", ["off", "on"])
def test_a_line_that_is_not_found_is_to_be_changed_by_hand(tmp_path, monkeypatch, capsys, word):
    text = f'"switched_off" = {"false" if word == "off" else "true"}\nmode = "on"\n'
    file = tmp_path / "config.toml"
    file.write_text(text)
    monkeypatch.setattr(command.config, "load", lambda: config.parse(text, str(file)))
    assert main.main([word]) == 2
    assert f"write `switched_off = {'true' if word == 'off' else 'false'}` there by hand" in capsys.readouterr().err
    assert file.read_text() == text


@pytest.mark.parametrize("text", ["mode = on\n", "mood = 'on'\n"])
def test_a_file_that_is_not_understood_stays_and_the_way_out_is_said(tmp_path, monkeypatch, capsys, text):
    file = tmp_path / "config.toml"
    file.write_text(text)
    load = config.load
    monkeypatch.setattr(command.config, "load", lambda: load(file))
    assert main.main(["off"]) == 2
    said = capsys.readouterr().err
    assert "`slurm-share config print` says what is wrong) and run `slurm-share off`; or keep a copy" in said
    assert 'make `mode = "off"` its only line' in said
    assert file.read_text() == text


def job(which="7", *, extra="slurm-share=on", comment="", pending=True, shaped=True, restarts=0):
    return SwitchableJob(which, ("gpu",), pending, shaped, restarts, extra, comment)


def test_what_the_callers_shell_says_about_clusters_and_jobs_changes_nothing(tmp_path, monkeypatch):
    """The queue is asked and changed of this cluster, and a node gets what a remote command needs."""
    for name in ("squeue", "scontrol", "far"):
        (tmp_path / name).write_text(f'#!/bin/sh\nenv >{tmp_path}/env.{name}\necho \'{{"jobs": [], "mode": "on"}}\'\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in ("SLURM_CLUSTERS", "SQUEUE_STATES", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "theirs")
    monkeypatch.setenv("SLURM_CONF", "/ours")
    queue_verdicts.read()
    assert queue_verdicts.change(VerdictUpdate(("7",), "extra", "x")) is None
    assert cluster_status.read_nodes(["far", "NODE"], ["n1"])["n1"].problem is None
    seen = {name: (tmp_path / f"env.{name}").read_text() for name in ("squeue", "scontrol", "far")}
    assert all("SLURM_CONF=/ours" in text for text in seen.values())
    assert not any("SLURM_CLUSTERS" in text or "SQUEUE_STATES" in text for text in seen.values())
    assert "SLURM_JOB_ID" not in seen["far"]


@pytest.mark.parametrize(
    ("lines", "code"), [("", 0), ("job_submit = false", 1), ("job_submit = false\nmode_file = '/mode'", 0)]
)
def test_nodes_that_nothing_reaches_are_said_and_so_are_other_controllers(monkeypatch, capsys, lines, code):
    """Without verdicts and without a mode file the nodes go on sharing, and the exit code says so."""
    here = os.uname().nodename
    settings = config.parse(f"switched_off = true\n{lines}\n", "x")
    monkeypatch.setattr(queue_verdicts, "SETTLE_S", 0.0)
    monkeypatch.setattr(command.config, "load", lambda: settings)
    monkeypatch.setattr(command, "read_controllers", lambda environ: {here: True, "backup.site": True})
    monkeypatch.setattr(queue_verdicts, "read", lambda: ())
    monkeypatch.setattr(mode_file, "write", lambda path, word: None)
    assert command.run(argparse.Namespace(cluster=True, off=True)) == code
    said = capsys.readouterr()
    assert "other controllers: backup.site." in said.out
    assert ("run `slurm-share off` on each node" in said.err) == (code == 1)


def switch_off(monkeypatch, capsys, lists, change=None, controllers=None):
    """Run `off --cluster` where squeue gives these lists, the last one for ever; its code, and what it wrote."""
    settings = config.parse("switched_off = true", "x")
    monkeypatch.setattr(queue_verdicts, "SETTLE_S", 0.0)
    monkeypatch.setattr(command.config, "load", lambda: settings)
    monkeypatch.setattr(command, "read_controllers", lambda environ: controllers or {os.uname().nodename: True})
    monkeypatch.setattr(queue_verdicts, "read", lambda: lists.pop(0) if len(lists) > 1 else lists[0])
    monkeypatch.setattr(queue_verdicts, "change", change)
    code = command.run(argparse.Namespace(cluster=True, off=True))
    return code, capsys.readouterr()


@pytest.mark.parametrize("before", [(), (job("7", extra="slurm-share=off"),)])
def test_a_job_that_comes_after_an_empty_list_is_changed_too(monkeypatch, capsys, before):
    changed = []
    lists = [before, (job("8"),), ()]
    code, said = switch_off(monkeypatch, capsys, lists, lambda update: changed.append(update.jobs))
    assert (code, changed) == (0, [("8",)])
    assert "1 pending job will run unshared" in said.out


def test_a_change_that_is_not_answered_does_not_keep_the_others_from_theirs(monkeypatch, capsys):
    changed = []

    def change(update):
        changed.append(update.jobs)
        if update.jobs == ("7_[1-3]",):
            raise CommandError(("scontrol",), None, "no answer within 60 s")

    lists = [(job("7_[1-3]"), job("8", extra="hers;slurm-share=on")), (job("7_[1-3]"),)]
    code, said = switch_off(monkeypatch, capsys, lists, change)
    assert code == 1
    assert sorted(changed) == [("7_[1-3]",), ("8",)]
    assert "1 pending job will run unshared" in said.out
    assert "7_[1-3]: scontrol did not run: no answer within 60 s" in said.err
    assert "3 jobs were not changed; run `slurm-share off --cluster` again" in said.err


@pytest.mark.parametrize("silent", ["squeue", "scontrol"])
def test_without_a_controller_the_jobs_that_wait_are_said_to_keep_their_verdict(monkeypatch, capsys, silent):
    def no_answer(*_):
        raise SlurmSilentError((silent,), 10.0)

    class Lists(list):
        def __getitem__(self, index):
            return no_answer() if silent == "squeue" else super().__getitem__(index)

    code, said = switch_off(monkeypatch, capsys, Lists([(job(),)]), no_answer)
    assert code == 1
    assert "Jobs that wait still have the verdict of before" in said.err
    assert "run `slurm-share off --cluster` again when slurmctld answers" in said.err


def test_scontrol_is_not_waited_for_once_no_controller_is_up(tmp_path, monkeypatch, capsys):
    (tmp_path / "scontrol").write_text(
        '#!/bin/sh\n[ "$1" = ping ] || exec sleep 60\necho "Slurmctld(primary) at ctl is DOWN"\n'
    )
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(slurm_jobs, "CHECK_AFTER_S", 0.2)
    monkeypatch.setattr(queue_verdicts, "UPDATE_S", 20.0)
    jobs = (job("7_[1-3]"), job("8_[1-3]"))
    code, said = switch_off(monkeypatch, capsys, [jobs], queue_verdicts.change)
    assert code == 1
    assert "no word from its controller within 0.2 s" in said.err
    assert "again when slurmctld answers" in said.err


@pytest.mark.parametrize(("primary", "backup", "code"), [(True, True, 1), (False, True, 0), (False, False, 0)])
def test_a_backup_controller_that_does_not_serve_says_who_does(monkeypatch, capsys, primary, backup, code):
    """The jobs to come get their verdict there; those that wait are changed from here."""
    here = os.uname().nodename
    controllers = {"primary.site": primary, f"{here}.site": backup}
    found, said = switch_off(monkeypatch, capsys, [()], controllers=controllers)
    assert found == code
    assert ("run `slurm-share off --cluster` there" in said.err) == (code == 1)
    assert ("primary.site serves, and not" in said.err) == (code == 1)
    assert "0 pending jobs will run unshared" in said.out


# --- status --cluster ------------------------------------------------------------------------------------------------


def test_what_a_node_sends_moves_no_cursor(monkeypatch, capsys):
    evil = "\x1b[2J"
    sent = {"mode": evil, "partition_modes": {evil: "on"}, "problems": [f"{evil}\nn9 on"], "jobs": [], "gpus": []}
    monkeypatch.setattr(config, "load", lambda: config.parse("mode = 'on'", "x"))
    monkeypatch.setattr(slurm_nodes, "read_states", lambda environ: {"n1": (True, "idle")})
    monkeypatch.setattr(
        cluster_status, "read_nodes", lambda remote, nodes: {"n1": cluster_status.parse("n1", json.dumps(sent))}
    )
    for as_json in (False, True):
        assert page._print_cluster(as_json=as_json) == 1
        out = capsys.readouterr().out
        assert "\x1b" not in out
    assert json.loads(out)["nodes"][0]["mode"] == evil


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_mode_file_that_cannot_be_read_is_named(tmp_path, monkeypatch, capsys, make):
    make(tmp_path / "mode")
    monkeypatch.setattr(config, "load", lambda: config.parse(f"mode_file = '{tmp_path}/mode'", "x"))
    monkeypatch.setattr(slurm_nodes, "read_states", lambda environ: {})
    monkeypatch.setattr(cluster_status, "read_nodes", lambda remote, nodes: {})
    assert page._print_cluster(as_json=True) == 1
    said = capsys.readouterr()
    assert f"the mode file {tmp_path}/mode cannot be read here (not a regular file)" in said.err
    assert (json.loads(said.out)["mode_file"], len(json.loads(said.out)["problems"])) == (None, 1)
