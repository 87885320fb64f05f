"""`slurm-share doctor`: what a person, a program and clush get, the exit codes, and the page made of the checks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_share.checkup import Facts, HostFacts, SlurmFacts, Unseen
from slurm_share.cli import doctor, doctor_mend
from slurm_share.cli.main import main
from slurm_share.decide.checkup import every
from slurm_share.decide.checkup.mending import Mend
from slurm_share.errors import CommandError

PAGE = Path(__file__).resolve().parents[3] / "packaging/docs/doctor.md"


@pytest.fixture
def login(monkeypatch):
    """A login node: most is well, the plugin's object is not there, and the clock is not to be seen."""
    facts = Facts(
        host="login",
        roles=("login",),
        is_root=False,
        slurm=SlurmFacts(
            written={},
            live={},
            version="26.05.5",
            skew_s=Unseen("nobody\nsays"),
            plugstack=("optional /x/share_gpu.so",),
        ),
        host_facts=HostFacts(),
    )
    monkeypatch.setattr(doctor, "look", lambda roles: facts)
    return facts


def test_a_person_is_told_what_is_wrong_with_its_fix_and_what_was_not_seen(login, capsys):
    """FAIL first; a stranger's line break is no line break; exit 2."""
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
    """And nothing at all where nothing is, or where the site has excepted it."""
    assert main(["doctor", "--quiet"]) == 2
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("FAIL plugin: there is no ; install slurm-share-spank")
    wrong = [line.split(":")[0].split()[1] for line in out]
    assert main(["doctor", "--quiet", "--except", ",".join(wrong[:1]), "--except", ",".join(wrong[1:])]) == 0
    assert capsys.readouterr().out == ""


def test_json_has_all_of_it(login, capsys):
    """Findings, counts, and what was fixed."""
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
    """Exit 2 and a sentence."""
    assert main(["doctor", *words]) == 2
    assert said in capsys.readouterr().err


def test_fixing_is_for_root(login, capsys, monkeypatch):
    """Nothing is looked at, nothing done."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["doctor", "--fix"]) == 2
    assert "--fix is for root" in capsys.readouterr().err


def test_a_host_without_slurm_is_told_so(capsys, monkeypatch):
    """One sentence with the way out."""
    from slurm_share.readers import site

    monkeypatch.setattr(site, "read_facts", lambda roles, **more: Facts(host="x", roles=()))
    assert main(["doctor"]) == 2
    assert "say what this is with --role" in capsys.readouterr().err


def test_what_was_fixed_and_what_was_not(login, capsys, monkeypatch):
    """Each once; one that fails is not tried again, and the rest is done all the same."""
    todo = [Mend("relink", "the link", path="/p", target="26.05/p"), Mend("narrow", "the log", path="/l")]
    done = []

    def relink(path, target):
        done.append((path, target))
        raise CommandError(("x",), 1, "no room")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    plans = iter([todo, todo, todo[:1]])
    monkeypatch.setattr(doctor_mend.mending, "plan", lambda facts: next(plans))
    monkeypatch.setattr(doctor_mend.mend, "relink", relink)
    monkeypatch.setattr(doctor_mend.mend, "narrow", done.append)
    assert main(["doctor", "--fix", "--quiet"]) == 2
    assert done == [("/p", "26.05/p"), "/l"]
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("NOT FIXED  the link: ")
    assert "no room" in out[0]
    assert out[1] == "fixed  the log"


def test_what_is_as_before_was_not_fixed(login, capsys, monkeypatch):
    """An Epilog that ends with 0 may have found that the job is here again."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(doctor_mend.mending, "plan", lambda facts: [Mend("narrow", "the log", path="/l")])
    monkeypatch.setattr(doctor_mend.mend, "narrow", lambda path: None)
    main(["doctor", "--fix", "--quiet"])
    assert capsys.readouterr().out.startswith("NOT FIXED  the log: it is as before")


@pytest.mark.parametrize("error", [CommandError(("x",), 1, "no"), OSError(5, "broken disk"), KeyError("mine")])
def test_a_doctor_that_cannot_work_does_not_end_as_with_warnings(monkeypatch, capsys, error):
    """Code 3, a sentence in one line with the error's name or words, and no traceback."""

    def look(roles):
        raise error

    monkeypatch.setattr(doctor, "look", look)
    assert main(["doctor"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("slurm-share doctor: ")
    assert line.endswith("nothing can be said of this host")
    assert any(word in line for word in ("'x'", "x ended", "broken disk", "KeyError: 'mine'")), line


def test_the_page_is_made_of_the_checks(capsys):
    """`slurm-share doctor --explain > packaging/docs/doctor.md` after a check was changed."""
    assert main(["doctor", "--explain"]) == 0
    assert PAGE.read_text() == capsys.readouterr().out
    assert main(["doctor", "--explain", "ledger"]) == 0
    one = capsys.readouterr().out
    assert one.startswith("### ledger\n")
    assert one in PAGE.read_text()
    assert all(f"### {check.name}\n" in PAGE.read_text() for check in every.ALL)
