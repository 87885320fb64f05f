"""Whether Slurm keeps one user from seeing another's jobs, as its configuration files say."""

from __future__ import annotations

import os

import pytest

from slurm_share.slurm import private_data


@pytest.fixture
def conf(tmp_path):
    """Writes slurm.conf, and files beside it, and answers with what is read there."""

    def write(text, **others):
        for name, content in others.items():
            (tmp_path / name).write_text(content)
        (tmp_path / "slurm.conf").write_text(text)
        return private_data.read_hides_jobs(tmp_path / "slurm.conf")

    return write


@pytest.mark.parametrize(
    ("text", "hides"),
    [
        ("", False),
        ("ClusterName=demo\nSlurmctldHost=n0\n", False),
        ("PrivateData=jobs\n", True),
        ("PrivateData=jobs", True),
        ("PrivateData=all\n", True),
        ("PrivateData=job\n", True),
        ("PrivateData=usage,users\n", False),
        ("PrivateData=usage,jobs,users\n", True),
        ("PrivateData=none\n", False),
        ("privatedata=JOBS\n", True),
        ("PRIVATEDATA = Usage,Jobs\n", True),
        ("\t PrivateData\t=\tjobs\n", True),
        ("ClusterName=demo\r\nPrivateData=jobs\r\n", True),
        ("#PrivateData=jobs\n", False),
        ("  # PrivateData=jobs\nPrivateData=usage\n", False),
        ("PrivateData=usage # not jobs\n", False),
        ("JobCompType=jobcomp/none\nMyPrivateData=jobs\n", False),
        ("PrivateDataX=jobs\n", False),
        ("PrivateData=usage\nPartitionName=all Nodes=ALL\n", False),
        ('PrivateData="jobs"\n', True),
        ('PrivateData="usage, jobs"\n', True),
        ("PrivateData=usage,\\\njobs\n", True),
        ("PrivateData=\\\n  jobs\n", True),
        ("ClusterName=x PrivateData=jobs\n", True),
        ("SlurmctldHost=n0 PrivateData = usage,jobs ReturnToService=2\n", True),
        ("ClusterName=x PrivateData=usage SlurmUser=all\n", False),
        ('ClusterName=x JobCompLoc="a PrivateData=jobs"\n', False),
        ("PrivateData=jobs\nPrivateData=usage\n", True),
    ],
)
def test_jobs_and_all_hide_who_else_is_here(conf, text, hides):
    """In any case, alone or among other words, in quotes, over two lines or with other keys on one line, as Slurm reads
    them (parse_config.c); nothing in a comment and no other key does."""
    assert conf(text) is hides


@pytest.mark.parametrize("include", ["Include more.conf", "include\tmore.conf", "INCLUDE  more.conf  # ours"])
def test_an_included_file_counts_as_if_it_stood_there(conf, include):
    """Its name is relative to the file that includes it."""
    assert conf(f"ClusterName=x\n{include}\n", **{"more.conf": "PrivateData=jobs\n"})
    assert not conf(f"ClusterName=x\n{include}\n", **{"more.conf": "PrivateData=usage\n"})


def test_files_are_included_from_other_folders_and_by_included_files(tmp_path):
    """A relative name, in a folder below, of a file that includes one beside itself; and an absolute name."""
    (tmp_path / "d").mkdir()
    (tmp_path / "slurm.conf").write_text("Include d/a.conf\n")
    (tmp_path / "d/a.conf").write_text("Include b.conf\n")
    (tmp_path / "d/b.conf").write_text("PrivateData=all\n")
    (tmp_path / "other.conf").write_text(f"Include {tmp_path}/d/b.conf\n")
    assert private_data.read_hides_jobs(tmp_path / "slurm.conf")
    assert private_data.read_hides_jobs(tmp_path / "other.conf")
    (tmp_path / "d/b.conf").write_text("")
    assert not private_data.read_hides_jobs(tmp_path / "slurm.conf")
    assert not private_data.read_hides_jobs(tmp_path / "other.conf")


def test_a_comment_includes_nothing(conf):
    """A file that is not there is looked for by nobody."""
    assert not conf("#Include missing.conf\nIncludes=missing.conf\n")


@pytest.mark.parametrize(
    "text", ["Include missing.conf\n", "Include nodes-%c.conf\n", "Include .\n", "Include a**b\n", "Include \0\n"]
)
def test_an_included_file_that_cannot_be_read_hides(conf, text):
    """It may say PrivateData; so may one whose name no file can have."""
    assert conf(text)


def test_an_included_name_may_hold_the_clusters(conf):
    """%c, as Slurm puts it in: in small letters."""
    assert conf("ClusterName=Demo\nInclude %c.conf\n", **{"demo.conf": "PrivateData=jobs\n"})
    assert not conf("ClusterName=Demo\nInclude %c.conf\n", **{"demo.conf": "PrivateData=usage\n"})


@pytest.mark.parametrize(
    "files",
    [
        {"slurm.conf": "Include slurm.conf\n"},
        {"slurm.conf": "Include a\n", "a": "Include b\n", "b": "Include a\n"},
        {"slurm.conf": "Include a\nInclude a\n", "a": "Include slurm.conf\nInclude slurm.conf\n"},
    ],
)
def test_files_that_include_one_another_end_and_hide(tmp_path, files):
    """Slurm itself would not start with them."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert private_data.read_hides_jobs(tmp_path / "slurm.conf")


def test_a_file_that_cannot_be_read_hides(tmp_path):
    """None there, a folder in its place."""
    assert private_data.read_hides_jobs(tmp_path / "slurm.conf")
    assert private_data.read_hides_jobs(tmp_path)


def test_bytes_that_are_no_utf_8_are_bytes_to_slurm_and_to_us(tmp_path):
    """A comment in the letters of another time hides nobody."""
    file = tmp_path / "slurm.conf"
    for value, hides in ((b"usage", False), (b"jobs", True)):
        file.write_bytes(b"# M\xfcller\nPrivateData=" + value + b"\n")
        assert private_data.read_hides_jobs(file) is hides


def test_a_file_for_root_alone_hides_from_others(tmp_path):
    """Its mode decides."""
    if os.getuid() == 0:
        pytest.skip("NOT TESTED: root may read any file")
    file = tmp_path / "slurm.conf"
    file.write_text("PrivateData=usage\n")
    file.chmod(0)
    assert private_data.read_hides_jobs(file)
