"""The options of llload-tui: their meanings, invalid ones, and the arguments of llload without a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_share_tui import main, options
from slurm_share_tui.options import checked, llload_arguments, parser

from slurm_share.cli import llload
from slurm_share.core.errors import UsageError
from slurm_share.node import processes

ME = processes.read_user_name(os.geteuid())


def wanted(*said):
    """Return the parsed options."""
    return checked(parser().parse_args(said))


def test_without_a_word_it_is_ones_own_nodes():
    found = wanted()
    assert (found.origin.user, found.origin.everybody, found.origin.source) == (ME, False, "")
    assert (found.origin.interval_s, found.view, found.theme, found.config) == (None, None, "", None)
    assert not found.readonly


def test_every_word_is_understood():
    found = wanted("--all", "-n", "n[1-2]", "-j", "077_3,4711", "--source", "agents", "--interval", "2.5")
    origin = found.origin
    assert (origin.everybody, origin.nodes, origin.jobs) == (True, ("n1", "n2"), ("77_3", "4711"))
    assert (origin.source, origin.interval_s) == ("agents", 2.5)
    found = wanted("--view", "advice", "--theme", "mono", "--readonly", "--config", "/x.toml", "--no-color")
    assert (found.view, found.theme, found.readonly, found.no_color) == ("advice", "mono", True, True)
    assert found.config == Path("/x.toml")
    assert wanted("-u", str(os.geteuid())).origin.user == ME
    origin = wanted("--demo", "-u", "bob", "--demo-nodes", "300").origin
    assert (origin.demo, origin.user, origin.demo_nodes) == (True, "bob", 300)
    origin = wanted("--replay", "day.jsonl", "--at", "14:30").origin
    assert (origin.replay, origin.at) == ("day.jsonl", "14:30")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["--at", "14:30"], "name one with --replay"),
        (["--replay", "f", "--at", "noon"], "write 2026-01-31T14:30"),
        (["--replay", "f", "--all"], "choose what is recorded"),
        (["--replay", "f", "-u", "root"], "choose what is recorded"),
        (["--replay", "f", "-j", "7"], "choose what is recorded"),
        (["--replay", "f", "--interval", "3"], "does not apply to a recording"),
        (["--replay", "f", "-u", ""], "choose what is recorded"),
        (["--theme", ""], "there is no theme ''"),
        (["--source", "local", "-u", ""], "there is no user ''"),
        (["-n", ""], "'' is no list of nodes"),
        (["--demo-nodes", "5"], "write --demo as well"),
        (["--demo", "--demo-nodes", "0"], "1 or more"),
        (["--interval", "fast"], "write seconds, 0.5 to 86400"),
        (["--interval", "0.1"], "write seconds"),
        (["-j", "x"], "is no number of a job"),
        (["-u", "nobody-of-that-name"], "there is no user nobody-of-that-name"),
        (["-n", "n[1-"], "n"),
    ],
)
def test_what_cannot_be_is_refused(said, why):
    with pytest.raises(UsageError, match=why.replace("[", r"\[")):
        wanted(*said)


@pytest.mark.parametrize(
    "said",
    [["--theme"], ["--view", "node"], ["--source", "wind"], ["--demo", "--replay", "f"], ["-u", "a", "--all"], ["n1"]],
)
def test_what_argparse_refuses(said, capsys):
    with pytest.raises(SystemExit) as left:
        parser().parse_args(said)
    assert left.value.code == 2
    assert "llload-tui" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([], ["-g"]),
        (["--all", "--source", "agents"], ["-g", "--source=agents", "--all"]),
        (["-u", "bob", "-j", "7", "-n", "n1", "--demo"], ["-g", "--user=bob", "--job=7", "--nodes=n1", "--demo"]),
        (["--view", "advice", "--no-color"], ["--advise", "--no-color"]),
        (["--view", "jobs", "--replay", "-f", "--at", "14:30"], None),
        (["--view", "gpus", "--interval", "9", "--theme", "mono", "--readonly"], ["--detail"]),
        (["--demo", "--demo-nodes", "3"], ["-g", "--demo-nodes=3", "--demo"]),
    ],
)
def test_llload_is_given_the_same_words(said, expected):
    said = [word if word != "-f" else "./-f" for word in said]
    arguments = parser().parse_args(said)
    found = llload_arguments(arguments)
    if expected is not None:
        assert found == expected
    theirs = llload.checked(llload.parser().parse_args(found)).origin
    ours = checked(arguments).origin
    for field in ("user", "everybody", "nodes", "jobs", "source", "demo", "demo_nodes", "replay", "at"):
        assert getattr(theirs, field) == getattr(ours, field)


def test_a_user_without_a_name_is_no_user_of_the_demonstration() -> None:
    assert wanted("--demo", "-u", "").origin.user == ""
    assert "--demo-nodes N" in parser().format_help()


def test_every_view_has_its_like_in_llload():
    for view in options.VIEWS:
        llload.checked(llload.parser().parse_args(llload_arguments(parser().parse_args(["--view", view]))))


# --- Without a terminal -----------------------------------------------------------------------------------------------


def run(*said, env=None, **streams):
    """Run the command in a process of its own."""
    environ = {**os.environ, "TERM": "xterm-256color", **(env or {})}
    command = [sys.executable, "-I", "-m", "slurm_share.cli.llload_tui", *said]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run(command, env=environ, check=False, **streams)


def test_in_a_pipe_llload_is_run_once_and_it_says_why():
    done = run("--demo", "--view", "nodes")
    assert done.returncode == 0
    assert done.stderr.decode() == "llload-tui: standard output is not a terminal; this is llload -g --demo\n"
    assert done.stdout.decode().startswith("SIMULATED CLUSTER")


def test_words_that_cannot_be_are_said_in_a_pipe_too():
    done = run("--at", "14:30")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"llload-tui: --at is the time of a recording")
    assert run("--config", "/nowhere/tui.toml").returncode == 2


@pytest.fixture
def terminal(monkeypatch):
    """Let the standard streams be a terminal."""
    ours, theirs = pty.openpty()
    with open(theirs, "rb+", buffering=0) as file:
        monkeypatch.setattr(sys, "__stdin__", file)
        monkeypatch.setattr(sys, "__stdout__", file)
        yield
    os.close(ours)


@pytest.mark.parametrize(
    ("environ", "why"),
    [({"TERM": "dumb"}, "TERM is dumb"), ({"TERM": ""}, "TERM is not set"), ({}, "TERM is not set")],
)
def test_a_terminal_that_cannot_be_drawn_on_is_none(terminal, environ, why):
    assert main.no_screen(environ) == why
    assert main.no_screen({"TERM": "xterm"}) == ""


def test_where_nobody_can_press_a_key_there_is_no_dashboard(terminal, monkeypatch):
    with open(os.devnull) as nothing:
        for none in (nothing, None):
            monkeypatch.setattr(sys, "__stdin__", none)
            assert main.no_screen({"TERM": "xterm"}) == "standard input is not a terminal"


def test_without_the_extra_there_is_no_dashboard_and_the_way_to_it_is_said(terminal, monkeypatch):
    monkeypatch.setattr(main, "NEEDED", ("textual", "textual_plotext", "surely_not_there"))
    assert main.no_screen({"TERM": "xterm"}) == (
        "surely_not_there is not installed here (pip install 'slurm-share[hosts,tui]')"
    )
