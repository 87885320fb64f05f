"""Names and folders of daemons' cgroups in trees of v1 and v2, here plain folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_share.core import cgroup_paths
from slurm_share.core.records import DaemonGroup


@pytest.fixture(params=["v1", "v2"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "v2":
        (tmp_path / "cgroup.controllers").write_text("memory pids\n")
    else:
        for controller in ("cpu", *cgroup_paths.CONTROLLERS):
            (tmp_path / controller).mkdir()
    return tmp_path


def made(root: Path, uid: int, name: str, *pids: int) -> DaemonGroup:
    group = DaemonGroup(str(root), uid, name)
    for _, folder in cgroup_paths.folders(group):
        Path(folder).mkdir(parents=True)
        (Path(folder) / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return group


def test_groups_are_listed_and_their_processes_read(root: Path) -> None:
    first, second = made(root, 2001, "5131194a-9e2f6f", 11, 0), made(root, 2002, "97aa1234-000000", 12, 13)
    assert cgroup_paths.read_groups(str(root)) == (first, second)
    assert cgroup_paths.exists(first)
    assert cgroup_paths.read_pids(first) == (11,)
    assert cgroup_paths.read_pids(second) == (12, 13)


def test_a_node_without_cgroups_has_no_groups(tmp_path: Path) -> None:
    group = DaemonGroup(str(tmp_path), 2001, "5131194a-9e2f6f")
    assert cgroup_paths.folders(group) == ()
    assert cgroup_paths.read_groups(str(tmp_path)) == ()
    assert not cgroup_paths.exists(group)


def test_names_that_are_not_ours_are_no_groups(root: Path) -> None:
    _, ours = cgroup_paths.trees(str(root))[0]
    for name in ("uid_x/a", "user/a", "uid_2001"):
        (Path(ours) / name).mkdir(parents=True)
    assert cgroup_paths.read_groups(str(root)) == ()
