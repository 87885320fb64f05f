"""Kinds of local cluster: their configuration, and options that exclude each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from localcluster import cluster as clusters
from localcluster import conf, upgrade
from localcluster.errors import Misuse
from localcluster.records import Root, make_hosts

HOSTS = make_hosts(2)


def slurm_conf(**kind: str) -> list[str]:
    return conf.slurm_conf(HOSTS, cgroup="", parts=(), shards_per_gpu=4, **kind).splitlines()


def test_slurms_own_key_takes_the_place_of_munges() -> None:
    usual, own = slurm_conf(), slurm_conf(auth="slurm")
    assert set(own) - set(usual) == {"AuthType=auth/slurm", "CredType=auth/slurm"}
    assert set(usual) - set(own) == {"AuthType=auth/munge", "CredType=cred/munge"}


def test_with_uuids_slurmd_asks_the_driver() -> None:
    usual, uuids = (conf.gres_conf(HOSTS, 4, uuids=wanted).splitlines() for wanted in (False, True))
    assert uuids == ["AutoDetect=nvidia", *usual]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("none", False, False, "", "26.05", ()), "--auth"),
        (("slurm", True, False, "", "26.05", ()), "--accounting"),
        (("munge", False, True, "", "26.05", ("simgpu",)), "--without simgpu"),
        (("munge", False, False, "25.05", "24.11", ()), "--upgrade-to"),
        (("munge", False, False, "24.11", "26.05", ()), "not newer"),
        (("munge", False, False, "26.05", "26.05", ()), "not newer"),
        (("slurm", False, False, "26.05", "24.11", ()), "munge"),
    ],
)
def test_what_cannot_be_together_is_refused_with_the_way_out(words: tuple[object, ...], why: str) -> None:
    with pytest.raises(Misuse, match=why):
        clusters._check_kinds(*words)  # type: ignore[arg-type]


def test_both_plugin_objects_are_there_and_the_link_fits_the_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(upgrade.paths, "RUN_ROOT", tmp_path / "run")
    stacks = []
    for release in ("24.11", "26.05"):
        site = tmp_path / release / "site"
        (site / "usr/lib/slurm-share").mkdir(parents=True)
        (site / "usr/lib/slurm-share/share_gpu.so").write_text(release)
        stacks.append((Root(release, f"{release}.1", "3.13", str(tmp_path / release / "root")), str(site)))
    ahead = upgrade.prepare("one", *stacks)
    assert upgrade.Ahead.of_state({**vars(ahead), "done": ["n1"]}) == ahead.with_done("n1")
    for layers, release in ((ahead.now, "24.11"), (ahead.layers, "26.05")):
        folder = Path(layers.split(":")[0]) / "usr/lib/slurm-share"
        assert (folder / "share_gpu.so").read_text() == release
        assert {name: (folder / name / "share_gpu.so").read_text() for name in ("24.11", "26.05")} == {
            "24.11": "24.11",
            "26.05": "26.05",
        }


@pytest.mark.parametrize(
    ("kind", "plugin", "tracked"),
    [("", "disabled", "linuxproc"), ("v1", "cgroup/v1", "cgroup"), ("v2", "cgroup/v2", "cgroup")],
)
def test_jobs_are_in_the_cgroups_that_were_asked_for(kind: str, plugin: str, tracked: str) -> None:
    assert f"CgroupPlugin={plugin}" in conf.cgroup_conf(kind).splitlines()
    lines = conf.slurm_conf(HOSTS, cgroup=kind, parts=(), shards_per_gpu=4).splitlines()
    assert [line for line in lines if line.startswith("ProctrackType=")] == [f"ProctrackType=proctrack/{tracked}"]


def test_every_node_has_the_driver_of_the_cluster() -> None:
    with_driver = make_hosts(2, driver=615, memory_limits="misc")
    assert {(host.driver, host.memory_limits) for host in with_driver} == {(615, "misc")}
    assert {(host.driver, host.memory_limits) for host in HOSTS} == {(0, "")}


@pytest.mark.parametrize(("words", "why"), [((600, ""), "--driver"), ((615, "swap"), "--memory-limits")])
def test_a_driver_that_cannot_be_simulated_is_refused_with_the_way_out(words: tuple[int, str], why: str) -> None:
    with pytest.raises(Misuse, match=why):
        clusters._check_driver(*words)
