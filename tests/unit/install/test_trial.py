"""Reading of the messages with which Slurm's programs refuse a file (the programs: tests/cluster/test_install.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_share.core.errors import CommandError
from slurm_share.install import trial
from slurm_share.slurm.conf_text import ConfText, parse

SLURM = "ClusterName=site\nSlurmdLogFile=/var/log/slurmd.log\nPlugStackConfig=/etc/stack.conf\nNodeName=n1 Gres=gpu:2\n"
GRES = "Name=gpu File=/dev/nvidia[0-1]\n"
# As slurmd -G and srun --help of Slurm 26.05.5 say it.
SLURMD = """\
echo "[2026-11-22T08:00:46.063] Node configuration differs from hardware: CPUs=16:2(hw)" >&2
for file in $(dirname $SLURM_CONF)/files/dev/*; do
    echo "[2026-11-22T08:00:46.066] error: $file is not a valid character or block device, fix your gres.conf" >&2
done
if grep -q Nonsense $(dirname $SLURM_CONF)/gres.conf; then
    echo "[2026-11-22T08:00:46.226] error: Parsing error at unrecognized key: Nonsense" >&2
    echo "[2026-11-22T08:00:46.227] fatal: error opening/reading $(dirname $SLURM_CONF)/gres.conf" >&2
    exit 1
fi
grep -q gpuu $(dirname $SLURM_CONF)/gres.conf &&
    echo "[2026-11-22T08:00:46.125] error: Ignoring gres.conf record, invalid name: gpuu" >&2
exit 0
"""
SRUN = """\
grep -q SlurmdLogFile=/var/log $SLURM_CONF || exit 9
stack=$(sed -n s/^PlugStackConfig=//p $SLURM_CONF)
[ $(dirname $stack) = $(dirname $SLURM_CONF) ] || exit 9
grep -q theirs $stack && echo "srun: error: spank: $stack:1: Invalid line. Ignoring." >&2
grep -q old.so $stack &&
    echo "srun: plugin_load_from_file: Incompatible Slurm plugin old.so version (27.00.0)" >&2
exit 0
"""


def conf(text, name="slurm.conf"):
    return ConfText(Path(name), parse(text, Path(name)))


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Install Slurm's programs, and only what their scripts need beside them."""

    def make(**scripts):
        for name, text in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return make


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Name=shard Count=2", None),
        ("Name=gpuu Count=1", "Ignoring gres.conf record, invalid name: gpuu"),
        ("Nonsense=1", "Parsing error at unrecognized key: Nonsense; error opening/reading /gres.conf"),
    ],
)
def test_what_slurmd_says_of_the_new_gres_conf(programs, line, said):
    programs(slurmd=SLURMD)
    pair = conf(SLURM), conf(GRES)
    assert trial.read_gres_objection(pair, (pair[0], conf(f"{GRES}{line}\n")), "n1") == said


def test_what_was_wrong_before_says_nothing_of_the_new(programs):
    programs(slurmd=SLURMD)
    pair = conf(SLURM), conf(f"{GRES}Nonsense=1\n")
    assert trial.read_gres_objection(pair, pair, "n1") is None


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("", "optional new.so\n", None),
        ("theirs\n", "theirs\noptional new.so\n", None),
        ("", "optional old.so\n", "Incompatible Slurm plugin old.so version (27.00.0)"),
    ],
)
def test_what_srun_says_of_the_new_plugstack(programs, before, after, said):
    """Complaints about the site's own lines are not repeated; the site's own plugstack.conf is not read."""
    programs(srun=SRUN)
    assert trial.read_plugstack_objection(conf(SLURM), conf(before), conf(after)) == said


def test_a_slurm_conf_that_is_refused(programs):
    """In Slurm's words, without the program's name; includes are in place, and what was escaped is again."""
    said = "scontrol: error: Parsing error at unrecognized key: No\\nscontrol: fatal: Unable to process"
    programs(scontrol=f'grep -q "a\\\\\\\\#b" $SLURM_CONF || exit 0\nprintf "{said}\\n" >&2\nexit 1\n')
    assert trial.read_objection(conf("X=a\\#b\n")) == "Parsing error at unrecognized key: No; Unable to process"
    assert trial.read_objection(conf("X=1\n")) is None


def test_a_program_that_is_not_here_is_no_answer(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for ask in (
        lambda: trial.read_objection(conf(SLURM)),
        lambda: trial.read_plugstack_objection(conf(SLURM), conf(""), conf("optional x.so\n")),
        lambda: trial.read_gres_objection((conf(SLURM), conf(GRES)), (conf(SLURM), conf(GRES)), "n1"),
    ):
        with pytest.raises(CommandError):
            ask()


@pytest.mark.parametrize(
    ("line", "can"),
    [("", True), ("AutoDetect=off", True), ("autodetect=nvml", False), ("NodeName=a AutoDetect=nvidia", False)],
)
def test_gpus_that_slurmd_finds_by_itself_are_not_here(line, can):
    assert trial.can_try_gres(conf(f"{GRES}{line}\n")) == can


def test_devices_that_are_no_paths_are_not_made(programs, tmp_path):
    """A list that cannot be read is for slurmd to refuse; a name with .. in it would leave the folder."""
    programs(slurmd=SLURMD)
    for name in ("/dev/nvidia[0-", "/../../escape", "relative"):
        pair = conf(SLURM), conf(f"Name=gpu File={name}\n")
        assert trial.read_gres_objection(pair, pair, "n1") is None
    assert not list(tmp_path.parent.rglob("escape"))
