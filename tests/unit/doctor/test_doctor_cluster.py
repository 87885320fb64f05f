"""`slurm-share doctor --cluster`: every host's findings by kind, one summary, one exit code."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_share.cli import doctor as command
from slurm_share.cli.main import main
from slurm_share.doctor import cluster
from slurm_share.doctor.cluster import HostAnswer, exit_code, kinds, merged, parse, read_hosts
from slurm_share.doctor.facts.records import Finding, Outcome


def answer(host: str, *findings: tuple[Outcome, str, str], problem: str = "") -> HostAnswer:
    return HostAnswer(
        host, tuple(Finding(check, outcome, what, "mend it") for outcome, check, what in findings), problem
    )


def lines(*answers: HostAnswer, quiet: bool = False) -> list[str]:
    return command.cluster_as_lines(answers, (), quiet=quiet, verbose=False)


def test_the_same_finding_of_many_hosts_is_one_line() -> None:
    found = [
        answer(f"n{number}", ("FAIL", "plugin-load", f"on n{number} it needs GLIBC_2.99")) for number in range(1, 41)
    ]
    found += [answer(f"n{number}", ("PASS", "plugin-load", "loads")) for number in range(41, 50)]
    assert lines(*found) == [
        "FAIL n[1-40] plugin-load: on NODE it needs GLIBC_2.99; fix: mend it",
        "49 hosts: 40 with failures, 9 as they should be",
    ]
    assert lines(answer("n7", ("FAIL", "gpus", "n7 has n70's")))[0] == "FAIL n7 gpus: n7 has n70's; fix: mend it"


def test_failures_come_first_and_then_what_most_hosts_have() -> None:
    one, two = ("WARN", "clock", "late"), ("WARN", "ptrace", "0")
    found = kinds([answer("n1", one, two), answer("n2", two), answer("n3", ("FAIL", "gpus", "none"))])
    assert [(each.check, each.hosts) for each in found] == [
        ("gpus", ("n3",)), ("ptrace", ("n1", "n2")), ("clock", ("n1",))
    ]  # fmt: skip


def test_many_texts_of_a_check_are_two_lines() -> None:
    found = kinds([answer(f"n{number}", ("WARN", "clock", f"{number} s late")) for number in range(1, 6)])
    assert [(one.hosts, others) for one, others in merged(found)] == [(("n1",), 0), (("n2", "n3", "n4", "n5"), 3)]
    said = lines(*[answer(f"n{number}", ("WARN", "clock", f"{number} s late")) for number in range(1, 6)])
    assert said[1] == "WARN n[2-5] clock: 2 s late (and 3 other texts: --json); fix: mend it"


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([answer("n1", ("PASS", "gpus", ""))], 0),
        ([answer("n1", ("WARN", "gpus", ""))], 1),
        ([answer("n1", ("WARN", "gpus", "")), answer("n2", ("FAIL", "gpus", ""))], 2),
        ([answer("n1", ("WARN", "gpus", "")), answer("n2", problem="no answer")], 3),
        ([answer("n1", ("FAIL", "gpus", "")), answer("n2", problem="no answer")], 2),
    ],
)
def test_the_exit_code_is_of_the_worst_host(answers: list[HostAnswer], code: int) -> None:
    assert exit_code(answers, command.EXIT_NOT_DONE) == code


def test_hosts_that_do_not_answer_are_a_line_for_each_reason() -> None:
    found = [answer(f"n{number}", problem="no answer within 90 s") for number in (1, 2)]
    assert lines(*found, answer("n3", problem="code 255: no route")) == [
        "NOT EXAMINED n[1-2]: no answer within 90 s",
        "NOT EXAMINED n3: code 255: no route",
        "3 hosts: 3 not examined",
    ]


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"findings": 3}', "{" * 10_000, '{"findings": [{"check": 1}]}'])
def test_an_answer_that_is_not_doctors_is_a_problem_of_that_host(text: str) -> None:
    problem = parse("n1", text).problem
    assert problem.startswith("the answer is not that of `slurm-share doctor --json`")
    assert f"it begins with {text[:60]!r}" in problem


def test_a_login_shells_greeting_before_the_answer_does_not_count() -> None:
    text = json.dumps({"findings": [{"check": "gpus", "outcome": "WARN", "what": "x", "fix": ""}]}, indent=2)
    found = parse("n1", f"Welcome to {{n1}}!\nhave fun\n{text}\n")
    assert (found.problem, [one.outcome for one in found.findings]) == ("", ["WARN"])


def test_each_host_is_asked_and_this_one_without_the_remote_command(tmp_path: Path) -> None:
    remote, local = tmp_path / "remote", tmp_path / "local"
    text = json.dumps({"findings": [{"check": "gpus", "outcome": "WARN", "what": "x", "fix": ""}], "schema": 1})
    remote.write_text(f"#!/bin/sh\n[ $1 != n2 ] || exit 255\necho '{text}'\n")
    local.write_text(f"#!/bin/sh\necho '{text.replace('WARN', 'PASS')}'\n")
    for file in (remote, local):
        file.chmod(0o755)
    here = os.uname().nodename
    found = read_hosts((str(remote), "NODE"), ["n1", "n2", here], [str(local)])
    assert [(one.host, [each.outcome for each in one.findings]) for one in found] == [
        ("n1", ["WARN"]), ("n2", []), (here, ["PASS"])
    ]  # fmt: skip
    assert found[1].problem == "code 255: it said nothing"
    assert cluster.read_hosts((str(tmp_path / "none"), "NODE"), ["n1"], ["x"])[0].problem == (
        f"{tmp_path}/none is not on this host: install it, or set remote_command in config.toml"
    )


@pytest.mark.parametrize("words", [["--fix"], ["--role", "compute"]])
def test_what_does_not_go_with_a_cluster(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--cluster", *words]) == 2
    assert "leave out --fix and --role" in capsys.readouterr().err


def test_further_hosts_belong_to_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--also", "login1"]) == 2
    assert "--also belongs to --cluster" in capsys.readouterr().err
