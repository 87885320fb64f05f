"""The place of Slurm's files: from the environment, from a file, or a usual folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from slurm_share.core import slurm_home
from slurm_share.slurm.conf import slurm_conf_path

CONFS = Path(__file__).resolve().parents[3] / "packaging/share/libexec/slurm-confs"


@pytest.mark.parametrize(
    ("file", "environ", "homes"),
    [
        (None, {}, slurm_home.USUAL),
        ("", {}, slurm_home.USUAL),
        ("SLURM_SHARE_SLURM=/sw/slurm\n", {}, ("/sw/slurm",)),
        ("SLURM_SHARE_SLURM=/sw/slurm\n", {"SLURM_SHARE_SLURM": "/env"}, ("/env",)),
        ("SLURM_SHARE_SLURM=/sw/slurm\n", {"SLURM_SHARE_SLURM": " "}, ("/sw/slurm",)),
        (None, {"SLURM_SHARE_SLURM": "/a /b"}, ("/a", "/b")),
        ("# SLURM_SHARE_SLURM=/no\n  export SLURM_SHARE_SLURM='/sw/slurm'\n", {}, ("/sw/slurm",)),
        ('SLURM_SHARE_SLURM="/a /b" # both\n', {}, ("/a", "/b")),
        ("SLURM_SHARE_SLURM=/a\nSLURM_SHARE_SLURM=/b\nOTHER=/c\n", {}, ("/b",)),
        ("SLURM_SHARE_SLURM=\n", {}, slurm_home.USUAL),
        ("SLURM_SHARE_SLURM=# none\n", {}, slurm_home.USUAL),
        ("SLURM_SHARE_SLURM=sw/slurm $(id) /a\n", {}, ("/a",)),
    ],
)
def test_every_program_reads_the_same(tmp_path, file, environ, homes):
    if file is not None:
        (tmp_path / "etc/default").mkdir(parents=True)
        (tmp_path / "etc/default/slurm-share").write_text(file)
    assert slurm_home.slurm_homes(environ, tmp_path) == homes
    shell = {"PATH": os.environ["PATH"], "SLURM_SHARE_ROOT": str(tmp_path), **environ}
    done = subprocess.run(["/bin/sh", CONFS, "--homes"], env=shell, capture_output=True, text=True, check=True)
    assert tuple(done.stdout.split()) == homes


def test_commands_are_found_behind_what_path_has(tmp_path):
    """A Slurm in PATH is the one that is used; without one it is that of the first folder that has one."""
    for place in ("sw/bin/scontrol", "opt/slurm/bin/srun"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).touch(mode=0o755)
    environ = {"PATH": "/usr/bin:/bin"}
    slurm_home.add_to_path(environ, tmp_path)
    assert environ["PATH"] == "/usr/bin:/bin:/opt/slurm/bin:/opt/slurm/sbin"
    environ = {"PATH": "/bin", "SLURM_SHARE_SLURM": "/sw"}
    slurm_home.add_to_path(environ, tmp_path)
    assert environ["PATH"] == "/bin:/sw/bin:/sw/sbin"
    environ = {"PATH": "/opt/slurm/bin", "SLURM_SHARE_SLURM": "/sw"}
    slurm_home.add_to_path(environ, tmp_path)
    assert environ["PATH"] == "/opt/slurm/bin"
    environ = {"PATH": "/bin", "SLURM_SHARE_SLURM": "/gone"}
    slurm_home.add_to_path(environ, tmp_path)
    assert environ["PATH"] == "/bin"


def test_slurm_conf_is_looked_for_there_first(tmp_path):
    for place in ("cm/shared/apps/slurm/var/etc/slurm", "sw/etc"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "slurm.conf").touch()
    assert slurm_conf_path(None, {}, tmp_path) == Path("/cm/shared/apps/slurm/var/etc/slurm/slurm.conf")
    assert slurm_conf_path(None, {"SLURM_SHARE_SLURM": "/sw"}, tmp_path) == Path("/sw/etc/slurm.conf")
