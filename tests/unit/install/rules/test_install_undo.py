"""Files after an --undo: they keep the site's own words, and slurmctld starts with them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from slurm_share.core.installed import LUA
from slurm_share.install.rules import lua as rule_lua
from slurm_share.install.rules.undo import undone
from slurm_share.share.rules.site import OWN_LUA
from slurm_share.slurm.conf_text import Edit

SLURM, GRES, SCRIPT = "/e/slurm.conf", "/e/gres.conf", "/e/job_submit.lua"
PLUGINS = Edit(SLURM, "JobSubmitPlugins=lua", "JobSubmitPlugins", "lua")
OURS = Edit(SCRIPT, OWN_LUA, word=LUA)
TYPES = Edit(SLURM, "GresTypes=gpu,shard", "GresTypes", "shard", ("GresTypes=gpu",), 1)
NODES = Edit(SLURM, "NodeName=n1 Gres=gpu:2,shard:8", "Gres", "shard:8", ("NodeName=n1 Gres=gpu:2",), 2)
ALONE = "function slurm_job_submit(j, p, u) return 0 end\nfunction slurm_job_modify(j, o, p, u) return 0 end\n"
SAFE = f"""{rule_lua.LOAD}
function slurm_job_submit(job, partitions, uid)
  {rule_lua.IN_SUBMIT[0]}
  {rule_lua.IN_SUBMIT[1]}
  return slurm.SUCCESS
end
function slurm_job_modify(job, old, partitions, uid)
  {rule_lua.IN_MODIFY[0]}
  {rule_lua.IN_MODIFY[1]}
  return slurm.SUCCESS
end
"""
FRAIL = SAFE.replace(rule_lua.LOAD, f'local share = dofile("{LUA}")').replace("found and ", "")


def after_undo(slurm, lua=None, force=False):
    """Return both files after the undo, of our usual part."""
    texts = {SLURM: slurm} if lua is None else {SLURM: slurm, SCRIPT: lua}
    done = (
        {SLURM: (PLUGINS,), SCRIPT: (OURS,)}
        if lua is None or OWN_LUA in lua or "dofile" in lua
        else {SLURM: (PLUGINS,)}
    )
    return undone(done, texts, [SLURM], SCRIPT, force=force)


def test_both_go_where_both_are_ours():
    found = after_undo("A=1\nJobSubmitPlugins=lua\n", f"{OWN_LUA}\n")
    assert dict(found.texts) == {SLURM: "A=1\n", SCRIPT: ""}
    assert (found.by_hand, found.notes) == ((), ())


def test_a_script_of_the_sites_own_keeps_running():
    """`lua` was ours and is theirs by now; our line goes, for theirs has both functions."""
    found = after_undo("JobSubmitPlugins=lua\n", f"{OWN_LUA}\n{ALONE}")
    assert dict(found.texts) == {SLURM: "JobSubmitPlugins=lua\n", SCRIPT: ALONE}
    assert "JobSubmitPlugins keeps lua" in found.notes[0]
    assert dict(after_undo("JobSubmitPlugins=lua\n", f"{OWN_LUA}\n{ALONE}", force=True).texts)[SLURM] == ""


@pytest.mark.parametrize(
    "more", ["function slurm_job_submit(j, p, u) return 0 end\n", f"{ALONE}local of_before = slurm_job_submit\n"]
)
def test_a_script_that_needs_ours_is_left_and_said(more):
    """Without a function slurmctld does not start; one that is called and is not there refuses every job."""
    for force in (False, True):
        found = after_undo("JobSubmitPlugins=lua\n", f"{OWN_LUA}\n{more}", force)
        assert SCRIPT not in found.texts
        assert "may stay" in found.notes[-1]


def test_a_line_of_ours_that_became_the_sites_is_named_with_its_number():
    found = after_undo("JobSubmitPlugins=lua\n", FRAIL)
    assert SCRIPT not in found.texts
    assert dict(found.texts)[SLURM] == "JobSubmitPlugins=lua\n"
    said = found.notes[-1]
    for number, line in (
        (1, 'local share = dofile("'),
        (3, "local code = share.submit"),
        (4, "if code ~= "),
        (8, "local"),
    ):
        assert f"    {number}: {line}" in said
    assert rule_lua.LOAD in said
    assert "\n    5:" not in said


def test_lua_goes_with_the_script_from_a_line_that_somebody_copied():
    found = after_undo("JobSubmitPlugins=lua\nJobSubmitPlugins=lua,all_partitions\n", f"{OWN_LUA}\n")
    assert dict(found.texts) == {SLURM: "JobSubmitPlugins=all_partitions\n", SCRIPT: ""}
    assert "was entirely ours" in found.notes[0]


@pytest.mark.parametrize(
    ("slurm", "gres", "left"),
    [
        ("GresTypes=gpu,shard\nNodeName=n1 Gres=gpu:2,shard:8\n", "", "GresTypes=gpu\nNodeName=n1 Gres=gpu:2\n"),
        (
            "GresTypes=gpu,shard,x\nNodeName=n1 Gres=gpu:2,shard:8,x:1\n",
            "",
            "GresTypes=gpu,x\nNodeName=n1 Gres=gpu:2,x:1\n",
        ),
        ("GresTypes=gpu,shard\nNodeName=n1 Gres=gpu:2,shard:9\n", "", None),
        ("GresTypes=gpu,shard\nNodeName=n2 Gres=gpu:2,shard:9\n", "", None),
        ("GresTypes=gpu,shard\nNodeName=n1 Gres=gpu:2\n", "Name=shard Count=4\n", None),
    ],
)
def test_the_kind_stays_as_long_as_there_are_shards(slurm, gres, left):
    """slurmctld would not start with a node that has shards and no such kind. None: the text stays."""
    found = undone({SLURM: (TYPES, NODES)}, {SLURM: slurm, GRES: gres}, [SLURM], SCRIPT)
    assert found.texts[SLURM] == (slurm if left is None else left)
    assert bool(found.notes) == (left is None)


def test_the_shards_of_gres_conf_stay_with_those_of_their_nodes():
    lines = [
        Edit(GRES, f"NodeName={node} Name=shard Count=8", word=f"NodeName={node} Name=shard") for node in ("n1", "n2")
    ]
    slurm = "GresTypes=gpu,shard\nNodeName=n1 Gres=gpu:2,shard:9\nNodeName=n2 Gres=gpu:2\n"
    gres = "NodeName=n1 Name=shard Count=9\nNodeName=n2 Name=shard Count=8\n"
    found = undone({SLURM: (TYPES, NODES), GRES: lines}, {SLURM: slurm, GRES: gres}, [SLURM], SCRIPT)
    assert dict(found.texts) == {SLURM: slurm, GRES: "NodeName=n1 Name=shard Count=9\n"}
    assert "gres.conf the lines of the same nodes" in found.notes[0]
    unclear = slurm.replace("NodeName=n1 ", "NodeName=n[1 ")
    found = undone({SLURM: (TYPES, NODES), GRES: lines}, {SLURM: unclear, GRES: gres}, [SLURM], SCRIPT)
    assert found.texts[GRES] == gres


@pytest.mark.parametrize(
    ("lua", "survives", "calls"),
    [
        (OWN_LUA, True, 1),
        (SAFE, True, 5),
        (FRAIL, False, 5),
        (f'dofile("{LUA}")', False, 1),
        (f'-- dofile("{LUA}")\n{ALONE}', True, 0),
        (f"--[[\n{rule_lua.LOAD}\n]]\n{ALONE}", True, 0),
        (SAFE.replace("found and share.submit", "share.submit"), False, 5),
        (ALONE, True, 0),
    ],
)
def test_which_scripts_survive_our_package(lua, survives, calls):
    assert rule_lua.survives(lua) == survives
    assert len(rule_lua.calls(lua)) == calls


@pytest.mark.skipif(shutil.which("lua5.1") is None, reason="NOT TESTED: lua5.1 is not installed")
@pytest.mark.parametrize("lua", [OWN_LUA, SAFE], ids=["all of it", "in the site's"])
@pytest.mark.parametrize("package", [True, False])
def test_the_lines_that_are_offered_work_with_and_without_our_package(tmp_path, lua, package):
    ours = tmp_path / "ours.lua"
    if package:
        ours.write_text(
            "slurm_job_submit = function() return 7 end slurm_job_modify = slurm_job_submit "
            "return { submit = slurm_job_submit, modify = slurm_job_submit }\n"
        )
    script = tmp_path / "script.lua"
    script.write_text(lua.replace(LUA, str(ours)))
    run = (
        f"slurm = {{ SUCCESS = 0, log_error = function() end }} dofile({str(script)!r}) "
        "print(slurm_job_submit({}, {}, 1), slurm_job_modify({}, {}, {}, 1))"
    )
    done = subprocess.run(["lua5.1", "-e", run], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == (["7", "7"] if package else ["0", "0"]), done.stderr
