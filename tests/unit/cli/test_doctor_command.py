"""`slurm-share doctor`: what a person, a program and clush get, the exit codes, and the page made of the checks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_share.cli import doctor, start
from slurm_share.cli.main import main
from slurm_share.core.errors import CommandError, StateError
from slurm_share.core.paths import Paths
from slurm_share.core.records import ProcessIdentity
from slurm_share.core.settings import Settings
from slurm_share.doctor import examination, fixes
from slurm_share.doctor.checks import every
from slurm_share.doctor.checks.fixable import Fix
from slurm_share.doctor.facts.records import Facts, HostFacts, SlurmFacts, UnknownFact
from slurm_share.mps import daemons
from slurm_share.mps.records import MpsStopped
from slurm_share.node.records import LiveJob
from slurm_share.share.backends import mps_health
from slurm_share.share.records import Ledger, LedgerJob

UUID = "GPU-5131194a-af6f-47c0-8619-4e91f42a6279"
PAGE = Path(__file__).resolve().parents[3] / "packaging/docs/doctor.md"


@pytest.fixture
def login(monkeypatch):
    """Return a login node on which most is well: the plugin's object is missing and the clock is unknown."""
    facts = Facts(
        host="login",
        roles=("login",),
        is_root=False,
        slurm=SlurmFacts(
            written={},
            live={},
            version="26.05.5",
            skew_s=UnknownFact("nobody\nsays"),
            plugstack=("optional /x/share_gpu.so",),
        ),
        host_facts=HostFacts(),
    )
    monkeypatch.setattr(examination, "read_host", lambda roles, **more: facts)
    return facts


def test_a_person_is_told_what_is_wrong_with_its_fix_and_what_was_not_seen(login, capsys):
    assert main(["doctor"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "login: login node, Slurm 26.05.5, not as root"
    assert lines[1] == "FAIL  plugin: there is no "
    assert lines[2] == "      fix: install slurm-share-spank on this host"
    assert "SKIP  clock: nobody\\nsays" in lines
    assert not [line for line in lines if line.startswith("PASS")]
    assert main(["doctor", "--verbose"]) == 2
    assert "PASS  slurm-release: 26.05.5" in capsys.readouterr().out


def test_quiet_is_one_line_for_each_thing_that_is_wrong(login, capsys):
    assert main(["doctor", "--quiet"]) == 2
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("FAIL plugin: there is no ; fix: install slurm-share-spank")
    wrong = [line.split(":")[0].split()[1] for line in out]
    assert main(["doctor", "--quiet", "--except", ",".join(wrong[:1]), "--except", ",".join(wrong[1:])]) == 0
    assert capsys.readouterr().out == ""


def test_json_has_all_of_it(login, capsys):
    assert main(["doctor", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["host"], found["roles"], found["root"]) == (1, "login", ["login"], False)
    assert found["counts"]["FAIL"] == sum(one["outcome"] == "FAIL" for one in found["findings"]) > 0
    assert found["fixed"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--except", "plugin-relase"], "there is no check 'plugin-relase'; did you mean plugin-release?"),
        (["--explain", "zzz"], "there is no check 'zzz'; `slurm-share doctor --explain` lists them"),
    ],
)
def test_a_check_that_there_is_not(login, capsys, words, said):
    assert main(["doctor", *words]) == 2
    assert said in capsys.readouterr().err


def test_fixing_is_for_root(login, capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["doctor", "--fix"]) == 2
    assert "--fix is for root" in capsys.readouterr().err


def test_what_cannot_be_written_down_is_no_warning():
    with open("/dev/full", "w") as full:
        argv = [sys.executable, "-m", "slurm_share.cli.main", "doctor", "--explain", "plugin"]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (doctor.EXIT_NOT_DONE, 1)
    assert "No space left on device" in done.stderr


def test_a_host_without_slurm_is_told_so(capsys, monkeypatch):
    from slurm_share.doctor.facts import host

    monkeypatch.setattr(host, "read_facts", lambda roles, **more: Facts(host="x", roles=()))
    assert main(["doctor"]) == 2
    assert "say what this is with --role" in capsys.readouterr().err


def test_what_was_fixed_and_what_was_not(login, capsys, monkeypatch):
    """Each once; one that fails is not tried again, and the rest is done all the same."""
    todo = [Fix("relink", "the link", path="/p", target="26.05/p"), Fix("narrow", "the log", path="/l")]
    done = []

    def relink(path, target):
        done.append((path, target))
        raise CommandError(("x",), 1, "no room")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    plans = iter([todo, todo, todo[:1]])
    monkeypatch.setattr(fixes.fixable, "plan", lambda facts: next(plans))
    monkeypatch.setattr(fixes, "relink", relink)
    monkeypatch.setattr(fixes, "narrow", done.append)
    assert main(["doctor", "--fix", "--quiet"]) == 2
    assert done == [("/p", "26.05/p"), "/l"]
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("NOT FIXED  the link: ")
    assert "no room" in out[0]
    assert out[1] == "fixed  the log"


def test_what_is_as_before_was_not_fixed(login, capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(fixes.fixable, "plan", lambda facts: [Fix("narrow", "the log", path="/l")])
    monkeypatch.setattr(fixes, "narrow", lambda path: None)
    main(["doctor", "--fix", "--quiet"])
    assert capsys.readouterr().out.startswith("NOT FIXED  the log: it is as before")


ANEW = "/m.py); install slurm-share on this host anew"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CommandError(("x",), 1, "no"), "x ended with"),
        (OSError(5, "broken disk"), "broken disk"),
        (KeyError("mine"), "KeyError: 'mine'"),
        (ImportError("no name x", path="/m.py"), ANEW),
        (SyntaxError("bad", ("/m.py", 3, 1, "")), "install slurm-share on this host anew"),
    ],
)
def test_a_doctor_that_cannot_work_does_not_end_as_with_warnings(monkeypatch, capsys, error, said):
    """Code 3, a sentence in one line with the error's name or words, or the module's file, and no traceback."""

    def read_host(roles, **more):
        raise error

    monkeypatch.setattr(examination, "read_host", read_host)
    assert main(["doctor"]) == 3 == start.EXIT_NOT_DONE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("slurm-share doctor: ")
    assert line.endswith("; nothing can be said of this host")
    assert said in line
    assert ("/m.py" in line) is isinstance(error, (ImportError, SyntaxError))


@pytest.fixture
def daemon(monkeypatch, tmp_path):
    """Return a daemon of uid 2001 to be stopped on an empty node, what is stopped, and what is there."""
    there = SimpleNamespace(ledger=Ledger("b"), live=(), users=(), stopped=[])
    paths = Paths(root=tmp_path)
    place = str(paths.mps_pipe(2001, UUID))

    def stop_many(places, deadline, unless):
        (one,) = places
        if unless(one.gpu):
            return (MpsStopped(one, "in use", (), (), 0.0),)
        there.stopped.append(one.pipe)
        return (MpsStopped(one, "quit", (), (), 0.0),)

    monkeypatch.setattr(fixes, "Paths", lambda: paths)
    monkeypatch.setattr(daemons, "stop_many", stop_many)
    monkeypatch.setattr(fixes.ledger_file, "read_ledger", lambda *_: there.ledger)
    monkeypatch.setattr(fixes.processes, "read_live_jobs", lambda: there.live)
    monkeypatch.setattr(mps_health, "read_users", lambda *_: there.users)
    there.mend = lambda: fixes._stop_daemon(Fix("daemon", "it", uid=2001, path=place, target="mps"), Settings())
    there.pipe = place
    return there


def test_a_daemon_that_nobody_has_is_stopped(daemon):
    daemon.mend()
    assert daemon.stopped == [daemon.pipe]


@pytest.mark.parametrize(
    ("who", "words"),
    [
        ({"ledger": Ledger("b", (LedgerJob(7, 2001, "2", (UUID,), 2, 0.0),))}, "job 7 has come meanwhile"),
        ({"live": (LiveJob(8, 2002),)}, "job 8 is here, the ledger does not know it"),
        ({"users": (ProcessIdentity(99, 1, 2001, "python"),)}, "process 99 (python) of uid 2001 uses it"),
    ],
    ids=["ledger", "kernel", "client"],
)
def test_a_daemon_that_somebody_has_is_left_alone_and_it_is_said_who(daemon, who, words):
    vars(daemon).update(who)
    with pytest.raises(StateError, match=re.escape(words)):
        daemon.mend()
    assert daemon.stopped == []


def test_a_job_of_another_gpu_keeps_no_daemon(daemon):
    daemon.ledger = Ledger("b", (LedgerJob(7, 2001, "2", ("GPU-ffffffff-0000-0000-0000-000000000000",), 2, 0.0),))
    daemon.live = (LiveJob(7, 2001),)
    daemon.mend()
    assert daemon.stopped == [daemon.pipe]


def test_a_slurm_conf_that_is_not_there_is_a_wrong_environment(capsys, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "/nonexistent")
    assert main(["doctor", "--role", "login"]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert "SLURM_CONF is /nonexistent, and there is no such file: set it right, or unset it" in out.err


def test_the_page_is_made_of_the_checks(capsys):
    """`slurm-share doctor --explain > packaging/docs/doctor.md` after a check was changed."""
    assert main(["doctor", "--explain"]) == 0
    assert PAGE.read_text() == capsys.readouterr().out
    assert main(["doctor", "--explain", "ledger"]) == 0
    one = capsys.readouterr().out
    assert one.startswith("### ledger\n")
    assert one in PAGE.read_text()
    assert all(f"### {check.name}\n" in PAGE.read_text() for check in every.ALL)
