"""Slurm's name of this node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_share.slurm.conf import read_conf
from slurm_share.slurm.node_name import lacks_gpus, read_node_name
from slurm_share.slurm.rules.node_name import name_of_option, node_of_host

SLURM_CONF = """
NodeName=DEFAULT CPUs=8
NodeName=gpu-a01.cluster
NodeName=c[1-2] NodeHostname=gpu-b[01-02]
NodeName=d[1-2] NodeAddr=gpu-d01,gpu-d02.mgmt
NodeName=e1.north,e1.south
NodeName=f1,f1.site
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    file = tmp_path / "slurm.conf"
    file.write_text(SLURM_CONF, encoding="ascii")
    return file


@pytest.mark.parametrize(
    ("host", "node"),
    [
        ("gpu-a01", "gpu-a01.cluster"),
        ("gpu-a01.cluster", "gpu-a01.cluster"),
        ("gpu-a01.cluster.site.org", "gpu-a01.cluster"),
        ("gpu-b02", "c2"),
        ("gpu-b02.site.org", "c2"),
        ("c2", None),  # Slurm's name of another host
        ("gpu-d01", "d1"),
        ("gpu-d02.mgmt", "d2"),
        ("d1", "d1"),
        ("e1.south", "e1.south"),
        ("e1", None),  # one of two, not known which
        ("f1.site", "f1.site"),
        ("f1.site.org", "f1.site"),
        ("f1", "f1"),
        ("login", None),
    ],
)
def test_a_node_is_found_by_its_hosts_name(conf: Path, host: str, node: str | None) -> None:
    assert node_of_host(read_conf(conf), host) == node


def test_slurmd_may_have_a_name_of_its_own() -> None:
    assert name_of_option(["slurmd", "-D", "-N", "n7"]) == name_of_option(["slurmd", "-Nn7"]) == "n7"
    assert name_of_option(["slurmd", "-D"]) == name_of_option(["slurmd", "-N"]) == ""


def test_the_environment_comes_first_and_the_host_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = os.uname().nodename
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"NodeName=node7.site NodeHostname={host}\n", encoding="ascii")
    (tmp_path / "proc").mkdir()
    monkeypatch.setattr("slurm_share.slurm.node_name.slurp", lambda path: b"")
    said = {"SLURM_CONF": "/slurm.conf"}
    assert read_node_name({**said, "SLURMD_NODENAME": "n1"}, tmp_path) == "n1"
    assert read_node_name(said, tmp_path) == "node7.site"
    conf.unlink()
    assert read_node_name(said, tmp_path) == host.partition(".")[0]


@pytest.mark.parametrize(("uid", "mode", "named"), [(0, 0o755, True), (2001, 0o755, False), (0, 0o4755, False)])
def test_only_a_slurmd_of_roots_names_the_node(tmp_path: Path, uid: int, mode: int, named: bool) -> None:
    """A user can start any program with that name and option, also a set-uid one, which has root's uids."""
    folder = tmp_path / "proc/57"
    folder.mkdir(parents=True)
    (folder / "stat").write_text("57 (slurmd) S 1 57 57 0 -1\n")
    (folder / "status").write_text(f"Name:\tslurmd\nUid:\t{uid}\t0\t0\t0\n")
    (folder / "cmdline").write_text("slurmd\0-Nn7\0")
    (tmp_path / "program").touch()
    (tmp_path / "program").chmod(mode)
    (folder / "exe").symlink_to(tmp_path / "program")
    assert (read_node_name({}, tmp_path) == "n7") == named


def test_a_node_lacks_gpus_only_where_slurm_conf_says_so(tmp_path: Path) -> None:
    file = tmp_path / "slurm.conf"
    lines = ["NodeName=c[1-2]", "NodeName=m1 Gres=mps:4", "NodeName=g1 Gres=mps:4,gpu:h100:2(S:0)",
             "NodeName=DEFAULT Gres=gpu:2", "NodeName=g2", "NodeName=c3 Gres=craynetwork:1"]  # fmt: skip
    file.write_text("\n".join(lines), encoding="ascii")
    environ = {"SLURM_CONF": "/slurm.conf"}
    found = [node for node in ("c1", "c2", "c3", "m1", "g1", "g2", "other") if lacks_gpus(node, environ, tmp_path)]
    assert found == ["c1", "c2", "c3", "m1"]
    file.unlink()
    assert not lacks_gpus("c1", environ, tmp_path)
