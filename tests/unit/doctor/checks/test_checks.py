"""Every check of `slurm-share doctor`: a host where it passes, hosts where it does not, and what cannot be seen."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path

import pytest
from doctor_hosts import HEALTHY, OLD, PIPE, UNSEEN, UUID, changed, file, job, site
from doctor_rows import ROWS, daemon
from msgspec.structs import replace

from slurm_share.core.records import ProcessIdentity
from slurm_share.doctor.checks import every, fixable, policy, state
from slurm_share.doctor.facts.records import Finding, SiteNode
from slurm_share.share import user_folder
from slurm_share.share.records import Leaving, Ledger, ModeBefore
from slurm_share.share.rules import site as rule_site

DRAINED = SiteNode("n1", "gpu:1", ("IDLE", "DRAIN"), "Prolog error", "26.05.5")
PACKAGING = Path(__file__).resolve().parents[4] / "packaging"
SHIPPED, INSTALL_PAGE = PACKAGING / "systemd", PACKAGING / "docs/install.md"


def say(facts, check):
    return [one for one in every.examine(facts) if one.check == check]


def test_a_healthy_host_passes_every_check():
    wrong = [one for one in every.examine(HEALTHY) if one.outcome != "PASS"]
    assert [(one.check, one.outcome) for one in wrong] == [
        (name, "SKIP") for name in ("admin-comment", "agent-token", "agent-tls", "agent-usage", "archive")
    ]
    assert every.exit_code(every.examine(HEALTHY)) == 0


def found_by(row):
    facts = HEALTHY
    for path, value in row.changes.items():
        facts = changed(facts, path, value)
    return say(facts, row.check)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.check}-{row.outcome}-{row.words}")
def test_a_check(row):
    found = found_by(row)
    assert {one.outcome for one in found} == {row.outcome}, found
    assert any(row.words in one.what for one in found), found
    for one in found:
        assert bool(one.fix) == (one.outcome in ("WARN", "FAIL"))
        assert "\n" not in one.what + one.fix


def test_the_sentences_of_all_checks(golden):
    found = [one for row in ROWS for one in found_by(row)]
    lines = [(f"{one.check} {one.outcome}: {one.what}", f"  {one.fix}") for one in found]
    golden("findings.txt", "".join(f"{line}\n" for both in lines for line in both if line.strip()))


def test_of_a_daemon_that_is_stopped_the_way_to_wake_it_is_said():
    for condition, woken in (("stopped", True), ("silent", False)):
        facts = changed(HEALTHY, "backends.mps.daemons", (daemon(condition, "it says nothing"),))
        (found,) = say(facts, "mps-health")
        assert (found.fix == "kill -CONT 77") == woken


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("/opt/slurm-share/lib", "chmod -R a+rX /opt/slurm-share"),
        ("/usr/lib/slurm-share", "chmod -R a+rX /usr/lib/slurm-share"),
        ("/opt", "chmod a+rX /opt"),
        ("/", "chmod a+rX /"),
    ],
)
def test_nothing_is_opened_beyond_what_is_ours(path, fix):
    (found,) = say(changed(HEALTHY, "package", file(path, 0o700, is_file=False)), "modules")
    assert found.fix == fix


NEVER_SKIPS = {
    "slurm-commands", "munge", "plugin", "hook-programs", "install-path", "config", "foreign-mps", "state-folder",
    "ledger-lock",
}  # fmt: skip
"""Facts that are known wherever they are read."""


def test_every_check_is_seen_to_fail_and_to_be_skipped():
    names = {check.name for check in every.ALL}
    assert len(names) == len(every.ALL)
    assert {row.check for row in ROWS if row.outcome in ("WARN", "FAIL")} == names
    assert {row.check for row in ROWS if row.outcome == "SKIP"} == names - NEVER_SKIPS


def test_what_is_foreseen_is_a_row_of_the_page_of_failures_and_a_check():
    page = (PACKAGING / "docs/failure-modes.md").read_text()
    rows = {int(line.split("|")[1]) for line in page.splitlines() if line.startswith("| ") and line[2].isdigit()}
    assert rows == set(range(1, 31))
    assert set(every.FORESEES) <= rows
    assert {name for names in every.FORESEES.values() for name in names} <= {check.name for check in every.ALL}


def test_checks_of_another_role_are_left_out_and_so_is_what_the_site_excepts():
    login = {one.check for one in every.examine(replace(HEALTHY, roles=("login",)))}
    assert {"plugin", "plugin-release", "clock", "controller"} <= login
    assert login.isdisjoint({"ledger", "driver", "job-submit", "hook-files"})
    assert not [one for one in every.examine(HEALTHY, ("plugin",)) if one.check == "plugin"]


@pytest.mark.parametrize(
    ("outcomes", "code"), [((), 0), (("PASS", "SKIP"), 0), (("PASS", "WARN"), 1), (("WARN", "FAIL", "PASS"), 2)]
)
def test_the_exit_code_is_that_of_the_worst(outcomes, code):
    assert every.exit_code(Finding("x", one, "") for one in outcomes) == code


def test_time_that_hooks_may_take_is_what_they_allow_themselves():
    admission, release = (importlib.import_module(f"slurm_share.share.{name}") for name in ("admission", "release"))
    assert (rule_site.PROLOG_SLACK_S, rule_site.EPILOG_SLACK_S) == (admission.SLACK_S, release.SLACK_S)


@pytest.mark.parametrize(
    ("gres", "gpus", "shards"),
    [
        ("", 0, 0),
        ("gpu:4", 4, 0),
        ("gpu", 1, 0),
        ("gpu:a100:4", 4, 0),
        ("gpu:a100:4(S:0-1),shard:a100:48(S:0-1)", 4, 48),
        ("gpu:a100:2,gpu:h100:3", 5, 0),
        ("gpu:a100", 1, 0),
        ("craynetwork:4,gpu:2", 2, 0),
        ("gpu:a100:4(IDX:0,2-3),shard:a100:48", 4, 48),
    ],
)
def test_gpus_of_a_node(gres, gpus, shards):
    assert (policy.gpus_of(gres), policy.gpus_of(gres, "shard")) == (gpus, shards)


# --- what may be mended ----------------------------------------------------------------------------------------------


def mends(**changes):
    facts = HEALTHY
    for path, value in changes.items():
        facts = changed(facts, path.replace("__", "."), value)
    return [(one.kind, one.job_id or one.path or one.target) for one in fixable.plan(facts)]


def test_nothing_is_mended_on_a_healthy_host():
    assert mends() == []


@pytest.mark.parametrize(
    "unsure",
    [
        {"slurm__jobs_here": UNSEEN},
        {"slurm__jobs_here": frozenset({4711})},
        {"state__live_jobs": frozenset({4711})},
        {"state__now": OLD + 10, "state__uptime_s": OLD + 10},
    ],
    ids=["Slurm does not answer", "Slurm has it", "it has a step", "it has just come"],
)
def test_a_job_that_may_live_is_never_touched(unsure):
    ledger = Ledger("b", (job(),), (ModeBefore(UUID, 0),))
    more = {"state__ledger": ledger, "state__folders": ((4711, OLD),), "backends__mps__daemons": (daemon("dead"),)}
    assert mends(**more, **unsure) == []


@pytest.mark.parametrize(
    "unsure",
    [{"slurm__jobs_here": UNSEEN}, {"slurm__jobs_here": frozenset({4711})}, {"state__live_jobs": frozenset({4711})}],
    ids=["Slurm does not answer", "Slurm has a job", "a job has a step"],
)
@pytest.mark.parametrize(
    "left",
    [
        {"state__ledger": Ledger("b", modes=(ModeBefore(UUID, 0),))},
        {"backends__mps__daemons": (daemon("alive"),)},
        {"state__abandoned": (job(4711),)},
    ],
    ids=["mode", "daemon", "abandoned"],
)
def test_a_ledger_that_was_lost_proves_nothing(unsure, left):
    """A job that it does not know may have the daemon and the GPU; and an abandoned job that is here again is here."""
    assert len(mends(**left)) == 1
    assert mends(**left, **unsure) == []


def test_nothing_is_taken_for_unused_where_slurm_was_asked_about_some_jobs_only():
    some = {"slurm__are_all_jobs": False}
    assert mends(state__ledger=Ledger("b", modes=(ModeBefore(UUID, 0),)), **some) == []
    assert mends(backends__mps__daemons=(daemon("alive"),), **some) == []


@pytest.mark.parametrize(
    ("name", "unit", "folder", "mode"),
    [
        ("state-folder", state.MOUNT_UNIT, "/run/slurm-share", "0755"),
        ("users-folder", state.USER_MOUNT_UNIT, "/run/slurm-share/user", "0711"),
    ],
)
def test_the_unit_of_each_file_system_is_the_one_that_is_shipped(name, unit, folder, mode):
    """The fix keeps the backslash of its name in a shell. Its options are those of install.md and of the Prolog, which
    mounts the users' folder where nobody did."""
    fix = next(check.fix for check in every.ALL if check.name == name)
    assert shlex.split(fix.partition("; ")[2])[2].rstrip(";") == unit
    text = (SHIPPED / unit).read_text()
    assert f"\nConditionDirectoryNotEmpty=!{folder}\n" in text
    options = f"mode={mode},size=64m,nr_inodes=64k"
    assert f"\nOptions={options},nosuid,nodev,noexec\n" in text
    assert f"tmpfs {folder} tmpfs {options},nosuid,nodev,noexec 0 0\n" in INSTALL_PAGE.read_text()
    assert user_folder.OPTIONS == "mode=0711,size=64m,nr_inodes=64k"
    assert {path.name for path in SHIPPED.glob("*.mount")} == {state.MOUNT_UNIT, state.USER_MOUNT_UNIT}


def test_a_folder_that_has_only_just_been_made_is_a_job_that_comes():
    assert mends(state__folders=((9, OLD + 3599),)) == []


def test_a_job_that_is_over_gets_its_epilog_first():
    more = {"state__ledger": Ledger("b", (job(),), (ModeBefore(UUID, 0),)), "state__folders": ((4711, OLD), (9, OLD))}
    assert mends(**more) == [("epilog", 4711), ("epilog", 9)]
    assert mends(state__abandoned=(job(5),)) == [("epilog", 5)]
    leaving = Ledger("b", leaving=(Leaving(job(6), ProcessIdentity(1)),))
    assert mends(state__ledger=leaving, state__folders=((6, OLD),), backends__mps__daemons=(daemon("alive"),)) == []


def test_what_nobody_has_is_put_right():
    assert mends(state__ledger=Ledger("b", modes=(ModeBefore(UUID, 0),))) == [("mode", UUID)]
    assert mends(backends__mps__daemons=(daemon("alive"),)) == [("daemon", PIPE)]
    assert mends(state__folder=file("/run/slurm-share", 0o777)) == [("narrow", "/run/slurm-share")]
    assert mends(state__folder=file("/run/slurm-share", 0o777, uid=7)) == []
    link = {"plugin__link": "24.11/share_gpu.so", "plugin__release": "24.11"}
    assert mends(plugin__releases=("24.11", "26.05"), **link) == [("relink", "/usr/lib/slurm-share/share_gpu.so")]
    assert mends(plugin__releases=("24.11",), **link) == []
    assert mends(plugin__releases=("26.05",), plugin__release="24.11") == []


def test_the_packages_own_program_chooses_the_plugin():
    """Where it is here: it builds an object where none lies there. A file that the site put there is left alone."""
    here = {"plugin__has_chooser": True, "plugin__release": "24.11"}
    chosen = [("choose", "/usr/sbin/slurm-share-plugin")]
    assert mends(**here, plugin__link="24.11/share_gpu.so") == chosen
    assert mends(**here, plugin__link="24.11/share_gpu.so", plugin__releases=("26.05",)) == chosen
    assert mends(**here, plugin__file=None) == chosen
    assert mends(**here) == []
    plugin = replace(HEALTHY.plugin, link="24.11/share_gpu.so", release="24.11", releases=("built/26.05",))
    (one,) = fixable.plan(replace(HEALTHY, plugin=plugin))
    assert one.target == "built/26.05/share_gpu.so"


def test_where_to_look_for_why_a_node_drained_is_the_sites_own_log():
    facts = changed(changed(HEALTHY, "config", site('log_file = "/srv/log/share"')), "slurm.nodes", (DRAINED,))
    (found,) = say(facts, "node-state")
    assert "look into /srv/log/share;" in found.fix
