"""What `slurm-share off` and `on` make of a file and of a queue, and what nodes may send to a terminal."""

from __future__ import annotations

import argparse
import json
import os

import pytest

from slurm_share.cli import cluster_status as page
from slurm_share.cli import main
from slurm_share.cli import switch as command
from slurm_share.core import config
from slurm_share.core.errors import CommandError, SlurmSilentError
from slurm_share.share import cluster_status, mode_file, queue_verdicts
from slurm_share.share.records import Switchable, VerdictUpdate
from slurm_share.share.rules import switch
from slurm_share.slurm import jobs as slurm_jobs
from slurm_share.slurm import nodes as slurm_nodes

TEXTS = [
    "",
    "# ours\nmode = 'on'\n",
    "mode = 'on'\n\n[partition.gpu]\nmode = 'on'\n",
    "switched_off = false # by hand\nmode = 'on'\n",
    "mode = 'on'\r\n",
    'log_file = """\n/var/log/x"""\n[partition.gpu]\n',
    "mode = 'on'",
]


@pytest.mark.parametrize("text", TEXTS)
def test_off_and_on_again_is_the_same_file(text):
    """Every byte, and in between everything is off."""
    off = switch.switched_off(text)
    assert config.parse(off, "x").settings.switched_off
    assert set(config.parse(off, "x").modes().values()) == {"off"}
    assert switch.switched_off(off) == off
    assert switch.switched_on(off) == text


def test_a_line_of_the_sites_own_is_not_taken_away():
    """It says false."""
    assert switch.switched_on("switched_off = true\nmode = 'on'\n") == "switched_off = false\nmode = 'on'\n"


@pytest.mark.parametrize("word", ["off", "on"])
def test_a_line_that_is_not_found_is_to_be_changed_by_hand(tmp_path, monkeypatch, capsys, word):
    """TOML has other ways to write a key: the file stays as it is."""
    text = f'"switched_off" = {"false" if word == "off" else "true"}\nmode = "on"\n'
    file = tmp_path / "config.toml"
    file.write_text(text)
    monkeypatch.setattr(command.config, "load", lambda: config.parse(text, str(file)))
    assert main.main([word]) == 2
    assert f"write `switched_off = {'true' if word == 'off' else 'false'}` there by hand" in capsys.readouterr().err
    assert file.read_text() == text


@pytest.mark.parametrize("text", ["mode = on\n", "mood = 'on'\n"])
def test_a_file_that_is_not_understood_stays_and_the_way_out_is_said(tmp_path, monkeypatch, capsys, text):
    """No line is written into it: where it belongs is not known."""
    file = tmp_path / "config.toml"
    file.write_text(text)
    load = config.load
    monkeypatch.setattr(command.config, "load", lambda: load(file))
    assert main.main(["off"]) == 2
    said = capsys.readouterr().err
    assert "`slurm-share config print` says what is wrong) and run `slurm-share off`; or keep a copy" in said
    assert 'make `mode = "off"` its only line' in said
    assert file.read_text() == text


@pytest.mark.parametrize("before", ["on\n", None])
def test_the_mode_file_behind_a_link_is_written(tmp_path, before):
    """Each node may have a link of its own to it: another file in the link's place would reach no other node."""
    (tmp_path / "shared").mkdir()
    file, link = tmp_path / "shared" / "mode", tmp_path / "mode"
    if before is not None:
        file.write_text(before)
    link.symlink_to("shared/mode")
    assert mode_file.write(str(link), "off") is None
    assert file.read_text() == "off\n"
    assert link.is_symlink()
    assert [each.name for each in file.parent.iterdir()] == ["mode"]


def job(which="7", *, extra="slurm-share=on", comment="", pending=True, shaped=True, restarts=0):
    """One of the queue."""
    return Switchable(which, ("gpu",), pending, shaped, restarts, extra, comment)


@pytest.mark.parametrize(
    ("one", "off", "text"),
    [
        (job(), True, "slurm-share=off"),
        (job(extra="hers;slurm-share=on"), True, "hers;slurm-share=off"),
        (job(extra="slurm-share=observe,whole"), True, "slurm-share=off"),
        (job(extra="slurm-share=off"), True, None),
        (job(extra="hers"), True, None),
        (job(pending=False), True, "slurm-share=on,runs=1"),
        (job(pending=False, restarts=2), True, "slurm-share=on,runs=3"),
        (job(pending=False, extra="slurm-share=on,runs=1"), True, None),
        (job(pending=False, extra="slurm-share=off"), True, None),
        (job(extra="slurm-share=on,runs=1", restarts=1), True, "slurm-share=off"),
        (job(extra="hers;slurm-share=off"), False, "hers;slurm-share=on"),
        (job(extra="slurm-share=off", shaped=False), False, None),
        (job(extra="slurm-share=off", pending=False), False, None),
        (job(extra="slurm-share=on,runs=1", pending=False), False, "slurm-share=on"),
        (job(extra="slurm-share=on,runs=1", restarts=1), False, "slurm-share=on"),
        (job(), False, None),
        (job(extra="slurm-share=observe"), False, None),
        (job(extra="hers"), False, "hers;slurm-share=on"),
        (job(extra="hers", shaped=False), False, None),
        (job(extra="hers", pending=False), False, None),
    ],
)
def test_a_job_gets_the_word_that_its_state_allows(one, off, text):
    """Pending ones the new one; running ones keep what they have, for this run."""
    found = switch.updates([one], lambda partitions: "on", off=off)
    assert found == (() if text is None else (VerdictUpdate(("7",), "extra", text),))


def test_a_job_gets_back_no_more_than_its_partition_has():
    """It was shaped while the partition was on."""
    one = job(extra="slurm-share=off")
    assert switch.updates([one], lambda partitions: "off", off=False) == ()
    (update,) = switch.updates([one], lambda partitions: "observe", off=False)
    assert update.text == "slurm-share=observe"


def test_a_job_of_an_earlier_release_gets_its_verdict_in_the_sites_field():
    """It has none in either; nor does it get one where its partition is off."""
    one = job(extra="a condition", comment="hers")
    (update,) = switch.updates([one], lambda partitions: "on", off=False, field="comment")
    assert (update.field, update.text) == ("comment", "hers;slurm-share=on")
    assert switch.updates([one], lambda partitions: "off", off=False, field="comment") == ()


def test_jobs_with_the_same_text_go_together_and_lists_of_elements_alone():
    """scontrol takes a list of jobs; a list with brackets has commas of its own."""
    jobs = [job(str(number)) for number in range(1, 251)] + [
        job("300_[1,3-9]"),
        job("300_2"),
        job("301", comment="slurm-share=on", extra=""),
    ]
    found = switch.updates(jobs, lambda partitions: "on", off=True)
    assert [(len(one.jobs), one.field) for one in found] == [
        (100, "extra"), (100, "extra"), (51, "extra"), (1, "extra"), (1, "comment")
    ]  # fmt: skip
    assert queue_verdicts.update_argv(found[3]) == ["scontrol", "update", "jobid=300_[1,3-9]", "extra=slurm-share=off"]


def test_a_queue_is_read_as_scontrol_names_its_jobs():
    """Elements that wait are one line of it. One that runs has its element's name: the number of the last one is that
    of the whole array, and scontrol would change all of it."""
    none = {"set": False, "infinite": False, "number": 0}
    common = {
        "partition": "gpu,debug",
        "admin_comment": "ours;share-gpu=4",
        "extra": "",
        "comment": "",
        "restart_cnt": 1,
    }

    def one(job_id, state, array=0, element=none, elements=""):
        many = {"set": True, "infinite": False, "number": array}
        return {"job_id": job_id, "array_job_id": many, "array_task_id": element, "array_task_string": elements,
                "job_state": state, **common}  # fmt: skip

    element = {"set": True, "infinite": False, "number": 3}
    jobs = [
        one(7, ["PENDING"]),
        one(9, ["PENDING"], 9, none, "4-8%2"),
        one(10, ["RUNNING"], 9, element),
        one(9, ["RUNNING"], 9, {**element, "number": 9}),
        one(11, ["COMPLETED"]),
        one(12, ["PENDING", "REQUEUED"]),
    ]
    found = queue_verdicts.parse(json.dumps({"jobs": jobs}))
    assert [(each.which, each.is_pending) for each in found] == [
        ("7", True), ("9_[4-8]", True), ("9_3", False), ("9_9", False), ("12", True)
    ]  # fmt: skip
    assert found[0].partitions == ("gpu", "debug")
    assert all(each.was_shaped and each.restarts == 1 for each in found)


def test_what_a_user_wrote_in_no_utf8_stays_as_it_is(tmp_path, monkeypatch):
    """Slurm takes any bytes: each of them goes back as it came, and takes no more room."""
    bytes_of_hers = b"caf\xe9 \xff " + "é→".encode()
    common = {
        "job_id": 7, "array_job_id": {}, "array_task_id": {}, "array_task_string": "", "job_state": ["PENDING"],
        "partition": "gpu", "admin_comment": "share-gpu=4", "extra": "HERS\n;slurm-share=on", "comment": "",
        "restart_cnt": 0,
    }  # fmt: skip
    answer = json.dumps({"jobs": [common]}).encode().replace(b"HERS", bytes_of_hers)
    (tmp_path / "answer").write_bytes(answer)
    (tmp_path / "squeue").write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\nprintf %s "$3" >{tmp_path}/said\n')
    for name in ("squeue", "scontrol"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (update,) = switch.updates(queue_verdicts.read(), lambda partitions: "on", off=True)
    assert queue_verdicts.change(update) is None
    assert (tmp_path / "said").read_bytes() == b"extra=" + bytes_of_hers + b"\n;slurm-share=off"


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


@pytest.mark.parametrize(("which", "count"), [("7", 1), ("7_[3]", 1), ("7_[1-5:2,9]", 4), ("7_[1-3,20-29]", 13)])
def test_elements_of_an_array_are_counted(which, count):
    """What the person is told."""
    assert switch.count(which) == count


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
    assert command.run_off(argparse.Namespace(cluster=True)) == code
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
    code = command.run_off(argparse.Namespace(cluster=True))
    return code, capsys.readouterr()


@pytest.mark.parametrize("before", [(), (job("7", extra="slurm-share=off"),)])
def test_a_job_that_comes_after_an_empty_list_is_changed_too(monkeypatch, capsys, before):
    """Its submission was under way when config.toml was written."""
    changed = []
    lists = [before, (job("8"),), ()]
    code, said = switch_off(monkeypatch, capsys, lists, lambda update: changed.append(update.jobs))
    assert (code, changed) == (0, [("8",)])
    assert "1 pending job will run unshared" in said.out


def test_a_change_that_is_not_answered_does_not_keep_the_others_from_theirs(monkeypatch, capsys):
    """It is not tried twenty times, for it takes a minute; how many are left is said."""
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
    """config.toml is written, and it is said what is to be done later."""

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
    """It would try for a minute, for each change."""
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


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"mode": 1}', '{"jobs": []}', '{"mode": "on", "jobs": [{}]}'])
def test_a_node_that_answers_something_else_has_a_problem(text):
    """And no mode."""
    found = cluster_status.parse("n1", text)
    assert found.mode is None
    assert "slurm-share status --json" in (found.problem or "")


def test_what_a_node_sends_moves_no_cursor(monkeypatch, capsys):
    """An escape in any of its texts is written as text."""
    evil = "\x1b[2J"
    sent = {"mode": evil, "partition_modes": {evil: "on"}, "problems": [f"{evil}\nn9 on"], "jobs": [], "gpus": []}
    monkeypatch.setattr(config, "load", lambda: config.parse("mode = 'on'", "x"))
    monkeypatch.setattr(slurm_nodes, "read_states", lambda environ: {"n1": (True, "idle")})
    monkeypatch.setattr(
        cluster_status, "read_nodes", lambda remote, nodes: {"n1": cluster_status.parse("n1", json.dumps(sent))}
    )
    for as_json in (False, True):
        assert page.print_status(as_json=as_json) == 1
        out = capsys.readouterr().out
        assert "\x1b" not in out
    assert json.loads(out)["nodes"][0]["mode"] == evil


def test_a_command_that_fails_or_hangs_is_a_problem_of_its_node_alone(monkeypatch):
    """The others are shown."""
    monkeypatch.setattr(cluster_status, "NODE_S", 0.5)
    script = 'case $0 in n1) echo \'{"mode": "on"}\';; n2) sleep 9;; n3) echo why >&2; exit 255;; esac'
    found = cluster_status.read_nodes(["sh", "-c", script, "NODE"], ["n1", "n2", "n3"])
    assert (found["n1"].mode, found["n1"].problem) == ("on", None)
    assert found["n2"].problem == "no answer within 0.5 s"
    assert found["n3"].problem == "code 255: why"


def test_a_remote_command_that_is_not_there_is_said_with_the_way_out():
    """The site may have another than ssh."""
    assert cluster_status.read_nodes(["no-such-ssh", "NODE"], ["n4"])["n4"].problem == (
        "no-such-ssh is not on this host: install it, or set remote_command in config.toml"
    )


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_mode_file_that_cannot_be_read_is_named(tmp_path, monkeypatch, capsys, make):
    """It may be what the nodes cannot read either."""
    make(tmp_path / "mode")
    monkeypatch.setattr(config, "load", lambda: config.parse(f"mode_file = '{tmp_path}/mode'", "x"))
    monkeypatch.setattr(slurm_nodes, "read_states", lambda environ: {})
    monkeypatch.setattr(cluster_status, "read_nodes", lambda remote, nodes: {})
    assert page.print_status(as_json=True) == 1
    said = capsys.readouterr()
    assert f"the mode file {tmp_path}/mode cannot be read here (not a regular file)" in said.err
    assert (json.loads(said.out)["mode_file"], len(json.loads(said.out)["problems"])) == (None, 1)
