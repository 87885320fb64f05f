"""Folders that a job has of its own, by job_container.conf and namespace.yaml."""

from __future__ import annotations

import pytest

from slurm_share.share.backends import mps
from slurm_share.slurm import job_folders


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("job_container/tmpfs", "job_container.conf"),
        ("namespace/tmpfs", "job_container.conf"),
        ("namespace/Linux", "namespace.yaml"),
        ("job_container/none", ""),
        ("namespace/none", ""),
        ("", ""),
    ],
)
def test_each_plugin_reads_its_own_file(kind, file):
    assert job_folders.file_of(kind) == file


@pytest.mark.parametrize(
    ("text", "folders"),
    [
        ("", ("/tmp", "/dev/shm")),
        ("AutoBasePath=true\nBasePath=/local\n", ("/tmp", "/dev/shm")),
        ("BasePath=/x Dirs=/tmp,/var/tmp # /dev/shm\n", ("/tmp", "/var/tmp")),
        ("#Dirs=/tmp\n", ("/tmp", "/dev/shm")),
        ("BasePath=none\n", ()),
        ("NodeName=n1 Dirs=/tmp\nNodeName=n[2-3] Dirs=/dev/shm\n", ("/tmp",)),
        ('defaults:\n  dirs: "/tmp"\nnode_confs:\n  - nodes: [n2]\n    dirs: "/dev/shm"\n', ("/tmp",)),
    ],
)  # fmt: skip
def test_the_folders_of_a_node(text, folders):
    assert job_folders.private_folders(text, "n1") == folders


@pytest.mark.parametrize(
    ("folders", "path", "hidden"),
    [
        (("/tmp", "/dev/shm"), "/dev/shm", "/dev/shm"),
        (("/dev",), "/dev/shm", "/dev"),
        (("/run",), "/run/slurm-share", "/run"),
        (("/run/slurm-share/",), "/run/slurm-share", "/run/slurm-share/"),
        (("/runner", "/tmp"), "/run/slurm-share", ""),
    ],
)
def test_what_a_private_folder_hides(folders, path, hidden):
    assert job_folders.hides(folders, path) == hidden


@pytest.mark.parametrize(
    ("line", "text", "says"),
    [
        ("NamespaceType=namespace/tmpfs", "BasePath=/x\n", "its own /dev/shm here"),
        ("JobContainerType=job_container/tmpfs", "BasePath=/x Dirs=/dev,/tmp\n", "its own /dev here"),
        ("Include more.conf", "BasePath=/x\n", "out of the folders in job_container.conf"),
        ("NamespaceType=namespace/tmpfs", "BasePath=/x Dirs=/tmp\n", ""),
        ("#NamespaceType=namespace/tmpfs", "BasePath=/x\n", ""),
        ("NamespaceType=namespace/none", "BasePath=/x\n", ""),
    ],
)
def test_a_prolog_starts_no_daemon_that_no_client_of_the_job_can_reach(tmp_path, monkeypatch, line, text, says):
    (tmp_path / "slurm.conf").write_text(f"ClusterName=x\n{line}\n")
    (tmp_path / "more.conf").write_text("NamespaceType=namespace/tmpfs\n")
    (tmp_path / "job_container.conf").write_text(text)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    said = mps._why_unreachable()
    assert bool(said) == bool(says)
    assert says in said


def test_files_that_cannot_be_read_hide_nothing(tmp_path):
    assert job_folders.read_private(tmp_path / "slurm.conf", "n1") == ("", ())
    (tmp_path / "slurm.conf").write_text("NamespaceType=namespace/linux\n")
    (tmp_path / "namespace.yaml").mkdir()
    assert job_folders.read_private(tmp_path / "slurm.conf", "n1") == ("", ())
