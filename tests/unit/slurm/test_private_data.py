"""Whether Slurm keeps one user from seeing another's jobs, as its configuration files say."""

from __future__ import annotations

import os

import pytest

from slurm_share.slurm import hook_conf


@pytest.mark.parametrize(
    ("text", "hides"),
    [
        ("", False),
        ("ClusterName=demo\nSlurmctldHost=n0\n", False),
        ("PrivateData=job\n", True),
        ("privatedata=usage,JOBS\n", True),
        ("PrivateData=all\n", True),
        ("PrivateData=usage,users\n", False),
        ("PrivateData=none\n", False),
        ("PrivateData=jobs\nPrivateData=usage\n", True),
        ("PrivateData=usage # not jobs\n", False),
        ("MyPrivateData=jobs\nPrivateDataX=jobs\n", False),
        ("Include missing.conf\n", True),
        ("Include nodes-%c.conf\n", True),
        ("Include .\n", True),
        ("Include a**b\n", True),
        ("Include \0\n", True),
        ("Include slurm.conf\n", True),
        ("#Include missing.conf\nIncludes=missing.conf\n", False),
    ],
)
def test_jobs_and_all_hide_who_else_is_here(tmp_path, text, hides):
    """Slurm looks for the words anywhere in the value. A file that cannot be included may name them."""
    (tmp_path / "slurm.conf").write_text(text)
    assert hook_conf.read_hides_jobs(tmp_path / "slurm.conf") is hides


def test_a_file_that_cannot_be_read_hides(tmp_path):
    file = tmp_path / "slurm.conf"
    assert hook_conf.read_hides_jobs(file)
    assert hook_conf.read_hides_jobs(tmp_path)
    file.write_text("PrivateData=usage\n")
    file.chmod(0)
    if os.getuid() != 0:
        assert hook_conf.read_hides_jobs(file)
