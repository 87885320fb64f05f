"""`install` and `doctor` use the same rules: what one calls complete, the other does not call wrong."""

from __future__ import annotations

import pytest
from doctor_hosts import HEALTHY, changed
from msgspec.structs import replace
from test_install_lines import PLAIN, after, present

from slurm_share.core.installed import LUA
from slurm_share.core.settings import Settings
from slurm_share.doctor.checks import every
from slurm_share.install.rules.lines import site_lines
from slurm_share.share.rules import site

ABOUT = {"run-in-job", "prolog", "epilog", "plugstack", "job-submit", "gres"}
"""Checks of doctor that are about lines of install."""
CALLS = (
    f'dofile("{LUA}")',
    f"dofile('{LUA}')",
    f'local f = "{LUA}" local share = dofile(f)',
    f'-- ours\nlocal share = dofile( "{LUA}" ) -- so',
    'M.VARIABLE = "SHARE_GPU" M.VERDICT = "slurm-share" -- an older copy',
)
LINES = (
    "",
    "PrologFlags=X11",
    "PrologFlags=NoHold,Serial",
    "PrologFlags=DeferBatch",
    "JobSubmitPlugins=job_submit/lua",
    "JobSubmitPlugins=require_timelimit",
    "Launchparameters=test_exec",
    "Prolog=/site/p.sh\nEpilog=/site/e.sh",
)


def facts_of(texts, lua):
    conf = present(texts["/e/slurm.conf"]).slurm
    keys = ("PrologFlags", "JobSubmitPlugins", "LaunchParameters", "GresTypes", "Prolog", "Epilog")
    facts = replace(HEALTHY, roles=("controller",))
    for key in keys:
        found = conf.values(key)
        known = (found if key in ("Prolog", "Epilog") else found[-1:]) or None
        facts = changed(facts, f"slurm.live.{key.lower()}", known)
    for path, value in (("prologs", ()), ("epilogs", ()), ("lua", lua), ("lua_of_package", "ours")):
        facts = changed(facts, f"slurm.{path}", value)
    return changed(facts, "slurm.plugstack", tuple(texts["/e/plugstack.conf"].splitlines()))


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("lua", CALLS)
def test_a_site_that_lacks_nothing_has_no_fail_about_its_lines(line, lua):
    text = f"{line}\n{PLAIN}"
    texts = {"/e/slurm.conf": text, "/e/plugstack.conf": "", **after(present(text, lua=lua))}
    assert site_lines(present(texts["/e/slurm.conf"], texts["/e/plugstack.conf"], lua=lua)).edits == ()
    wrong = [one for one in every.examine(facts_of(texts, lua)) if one.outcome == "FAIL" and one.check in ABOUT]
    assert wrong == []


@pytest.mark.parametrize(
    "lua",
    [
        "function slurm_job_submit() end",
        f'-- dofile("{LUA}")',
        f'--[==[\ndofile("{LUA}")\n]==]',
    ],
)
def test_a_script_that_does_not_call_ours_is_wrong_for_both(lua):
    assert site_lines(present(lua=lua)).refusals
    facts = changed(changed(HEALTHY, "slurm.lua", lua), "slurm.lua_of_package", "ours")
    assert [one.outcome for one in every.examine(facts) if one.check == "job-submit"] == ["FAIL"]


@pytest.mark.parametrize("seconds", [5, 12, 13, 39, 40, 65534])
def test_a_time_limit_is_short_where_the_hooks_may_take_longer(seconds):
    facts = changed(HEALTHY, "slurm.live.prologepilogtimeout", (f"{seconds} sec",))
    failed = any(one.check == "hook-time" and one.outcome == "FAIL" for one in every.examine(facts))
    assert failed == (seconds < max(site.hook_needs_s(Settings())))


@pytest.mark.parametrize(
    ("gres", "found"),
    [
        ("gpu", [("gpu", "", 1)]),
        ("gpu:h200", [("gpu", "h200", 1)]),
        ("gpu:a:2(S:0,1),shard:8", [("gpu", "a", 2), ("shard", "", 8)]),
        ("gpu:a:b:2", [("gpu", "a", None)]),
        ("gpu::2", [("gpu", "", None)]),
        ("", []),
    ],
)
def test_the_words_of_a_gres(gres, found):
    assert [(one.name, one.kind, one.count) for one in site.parse_gres(gres)] == found
