"""The state of MPS on a node."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from pathlib import Path

import pytest

from slurm_share.core.paths import Paths
from slurm_share.core.process import Deadline
from slurm_share.core.records import Owner, ProcessIdentity
from slurm_share.core.settings import Settings
from slurm_share.core.verdicts import FileFact, UnknownFact
from slurm_share.mps.records import MpsHealth, MpsPlace
from slurm_share.node import processes as proc
from slurm_share.share.backends import mps_health
from slurm_share.share.backends.base import Daemon, Examination, Host
from slurm_share.share.backends.mps import Mps


def test_a_daemon_is_spoken_to_with_its_owners_own_group():
    """The group of the user's number may be anybody's. One without a name has no other."""
    me = pwd.getpwuid(os.getuid())
    assert mps_health.owner_of(me.pw_uid).gid == me.pw_gid
    assert mps_health.owner_of(3_999_999_999).gid == 3_999_999_999


def test_a_program_with_the_pipe_folder_in_its_environment_uses_the_daemon(tmp_path):
    pipe = str(tmp_path / "pipe")
    place = MpsPlace("/nonexistent", pipe, "", Owner(os.getuid(), os.getgid()))
    for folder, uses in ((pipe, True), (f"{pipe}2", False)):
        environ = {"CUDA_MPS_PIPE_DIRECTORY": folder}
        child = subprocess.Popen(["/bin/sleep", "60"], env=environ)
        try:
            found = mps_health.read_users(place, Deadline.after(0.2))
            assert (child.pid in [one.pid for one in found]) is uses
        finally:
            child.kill()
            child.wait()


def test_a_daemon_that_is_stopped_is_not_spoken_to(monkeypatch):
    asked = []
    daemons = {"/a": ProcessIdentity(1), "/b": ProcessIdentity(2)}
    monkeypatch.setattr(mps_health.processes, "read_daemon", lambda place, proc: daemons[place.pipe])
    monkeypatch.setattr(
        mps_health.front_ends, "examine", lambda place, *_: asked.append(place.pipe) or MpsHealth("fine", None)
    )
    monkeypatch.setattr(proc, "is_stopped", lambda pid, proc: pid == 2)
    seen = [Daemon(5, "/a", "alive"), Daemon(5, "/b", "alive"), Daemon(5, "/c", "dead"), Daemon(0, "/d", "alive")]
    found = mps_health._asked(seen, Host(), "/proc")
    assert [one.condition for one in found] == ["fine", "stopped", "dead", "alive"]
    assert found[1].why == "its daemon, process 2, is stopped (SIGSTOP)"
    assert asked == ["/a"]


def test_no_daemon_is_asked_where_the_site_wants_no_mps(tmp_path, monkeypatch):
    monkeypatch.setattr(mps_health, "_ask", lambda *_: 1 / 0)
    monkeypatch.setattr(mps_health, "read_daemon", lambda uid, folder, proc: Daemon(uid, folder, "alive", 7))
    monkeypatch.setattr(mps_health.processes, "read_processes", lambda *_, **__: ())
    paths = Paths(tmp_path)
    of = [(2001, "GPU-5131194a-af6f-47c0-8619-4e91f42a6279")]
    examination = Examination(UnknownFact("none"), lambda path: None)
    without = Host(paths=paths, settings=Settings(mps_control=""))
    assert [one.pid for one in Mps().health(without, of, examination=examination).daemons] == [7]
    assert [one.pid for one in Mps().health(Host(paths=paths), of).daemons] == [7]


def test_the_programs_of_mps_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(mps_health.processes, "read_processes", lambda *_, **__: ())
    file = FileFact("/usr/bin/x", ())
    examination = Examination(UnknownFact("none"), lambda path: file, asks_daemons=False)
    found = Mps().health(Host(paths=Paths(tmp_path)), (), examination=examination)
    assert (found.control, found.server, found.foreign) == (file, file, ())
    without = Host(paths=Paths(tmp_path), settings=Settings(mps_control=""))
    assert Mps().health(without, (), examination=examination).control is None


@pytest.fixture
def control():
    """Return a control program that root runs as nobody."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        program = Path(folder) / "nvidia-cuda-mps-control"

        def write(script):
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
            return str(program)

        yield write


def test_the_control_program_tells_its_release_to_nobody(control):
    nobody = 65534 if os.geteuid() == 0 else os.getuid()
    given = f'"$*:$(id -u):$CUDA_MPS_PIPE_DIRECTORY" = "-v:{nobody}:/nonexistent/slurm-share"'
    program = control(f"[ {given} ] && echo CUDA MPS version 13010")
    assert mps_health.read_control_cuda(program, "590.44.01") == (13, 1)


@pytest.mark.parametrize(
    ("script", "driver"),
    [
        ("echo 13010", "575.57.08"),  # it would try to be a front end
        ("echo 13010", UnknownFact("no driver")),
        ("echo Cannot find MPS control daemon process 4711 >&2; exit 1", "590.44.01"),
        ("echo 590.44.01", "590.44.01"),
    ],
)
def test_a_control_program_that_is_not_asked_or_says_nothing_has_no_release(control, script, driver):
    assert mps_health.read_control_cuda(control(script), driver) is None
    assert mps_health.read_control_cuda("", driver) is None
