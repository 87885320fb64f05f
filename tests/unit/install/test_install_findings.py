"""Checks of `slurm-share doctor` that `slurm-share install` runs, on files of a site that nothing has read yet."""

from __future__ import annotations

import json

import pytest

from slurm_share.cli.main import main
from slurm_share.core import config
from slurm_share.doctor.checks import every
from slurm_share.doctor.facts import host, lua
from slurm_share.doctor.facts import slurm as fact_slurm
from slurm_share.install import apply

SITE = """\
ClusterName=site
SlurmctldHost=ctl
GresTypes=gpu
PrologFlags=Alloc
NodeName=n[1-2] Gres=gpu:a100:4
PartitionName=gpu Nodes=ALL
"""


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """Return a site's slurm.conf before our lines, with sharing on, where no check finds anything."""
    for name in ("PROLOG", "EPILOG", "LUA"):
        (tmp_path / name).touch()
        monkeypatch.setattr(apply, name, str(tmp_path / name))
    monkeypatch.setattr(fact_slurm, "LUA", str(tmp_path / "LUA"))
    monkeypatch.setattr(lua, "find_object", lambda told, root: "/usr/lib/slurm/job_submit_lua.so")
    monkeypatch.setattr(host, "read_configuration", lambda root: config.parse('mode = "on"', "config.toml"))
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "cgroup.conf").write_text("ConstrainDevices=yes\n")
    (folder / "slurm.conf").write_text(SITE + "TaskPlugin=task/cgroup,task/affinity\n")
    return folder / "slurm.conf"


def check(conf, capsys, *words):
    """Return the exit code of `install --check`, and what it finds."""
    code = main(["install", "--check", "--json", "--conf", str(conf), *words])
    return code, {one["check"]: one["outcome"] for one in json.loads(capsys.readouterr().out)["findings"]}


def test_what_the_missing_lines_bring_is_not_found_missing(conf, capsys):
    assert check(conf, capsys) == (1, {})
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    capsys.readouterr()
    assert check(conf, capsys) == (0, {})


@pytest.mark.parametrize(
    ("line", "code", "found"),
    [
        ("PartitionName=packed Nodes=n1 OverSubscribe=FORCE:2", 2, {"exclusive": "FAIL"}),
        ("PartitionName=packed Nodes=n1 Shared=FORCE", 2, {"exclusive": "FAIL"}),
        ("PrologEpilogTimeout=5", 2, {"hook-time": "FAIL"}),
        ("JobContainerType=job_container/tmpfs", 2, {"private-shm": "FAIL"}),
        ("NodeName=n3 Gres=gpu:h100:2", 1, {"unlike-nodes": "WARN"}),
        ("PreemptMode=SUSPEND,GANG", 1, {"gang": "WARN"}),
        ("ProctrackType=proctrack/pgid", 1, {"process-tracking": "WARN"}),
        ("SchedulerParameters=extra_constraints", 2, {"verdict-field": "FAIL"}),
        ("SelectType=select/linear", 2, {"select-type": "FAIL"}),
    ],
)
@pytest.mark.parametrize("is_installed", [False, True])
def test_what_doctor_finds_in_the_configuration_is_said_before_it_is_in_force(
    conf, capsys, line, code, found, is_installed
):
    if is_installed:
        main(["install", "--apply", "--conf", str(conf)])
        capsys.readouterr()
    conf.write_text(f"{conf.read_text()}{line}\n")
    assert check(conf, capsys) == (code, found)
    (name,) = found
    assert check(conf, capsys, "--except", name) == (0 if is_installed else 1, {})
    assert main(["install", "--check", "--conf", str(conf)]) == code
    assert f"{found[name]}  {name}: " in capsys.readouterr().out


def test_a_slurm_conf_that_slurm_cannot_read_is_a_failure(conf, capsys, tmp_path):
    said = "scontrol: error: _parse_next_key: Parsing error at unrecognized key: NoSuchKey"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    (tmp_path / "scontrol").chmod(0o755)
    assert check(conf, capsys) == (2, {"slurm-conf": "FAIL"})


def test_partitions_of_node_sets_and_nodes_that_register_themselves(conf, capsys):
    sets = "NodeName=c1\nNodeSet=big Nodes=n[1-2]\nPartitionName=set Nodes=big OverSubscribe=FORCE\n"
    conf.write_text(conf.read_text() + sets)
    assert check(conf, capsys) == (2, {"exclusive": "FAIL"})
    conf.write_text(SITE.replace("NodeName=n[1-2] Gres=gpu:a100:4", "MaxNodeCount=9"))
    assert "gres" not in check(conf, capsys)[1]


def test_a_check_that_needs_the_host_is_doctors_alone():
    names = {check.name for check in every.ALL if check.needs == "configuration"}
    assert {"exclusive", "private-shm", "hook-time", "slurm-conf", "config", "task-prolog"} <= names
    assert names.isdisjoint({"controller", "daemons", "plugin", "driver", "ledger", "mps-program", "clock"})
