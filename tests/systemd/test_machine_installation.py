"""The packages on a real machine, installed as the pages say: doctor, units, journal."""

from __future__ import annotations

import json

import machine_jobs
import pages
import pytest
from whole_machine import WholeMachine

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed")]

AGENT, ARCHIVE = "slurm-share-agent.service", "slurm-share-archive.service"
EXPOSED = {AGENT: 1.8, ARCHIVE: 1.7}
"""The exposure that systemd 262 finds: 0 is confined in every way, 10 in none; slurmd has 9.6."""
UNITS = "/usr/lib/systemd/system/slurm-share-* '/usr/lib/systemd/system/run-slurm\\x2dshare'*"
WITH_WORK_TO_DO = {r"slurm-share install --check": 1}
"""Lines are missing, and the command prints them."""
ONCE_INSTALLED = {
    r"slurm-share install --check --with partial": 2,
    r"slurm-share install --check( --shards)?": 1,
}
"""The first: no node lacks the package, which it says. Without `--with alloc` doctor warns of prolog-flags."""


def test_every_line_of_quickstart_works(machine: WholeMachine, installed: dict[str, pages.Followed]) -> None:
    lines = [one for one in installed.values() if one.line.text != "slurm-share doctor"]
    assert not pages.unexpected(lines, WITH_WORK_TO_DO)
    assert "Submitted batch job" in installed["sbatch --share-gpu=4 job.sh"].text
    assert machine.run("cat slurm-*.out", user="alice").text.count("mps server") == 8
    machine_jobs.nothing_left(machine)


def test_every_line_of_install_works_on_the_same_machine(machine: WholeMachine) -> None:
    """The steps up to the check, and the last one: parts of a GPU are another site's choice."""
    ran = pages.follow(machine, "install.md", above="## 4. Parts of a GPU (optional)")
    ran |= pages.follow(machine, "install.md", below="## 5. Switch it on")
    lines = [one for one in ran.values() if one.line.text != "slurm-share doctor --quiet"]
    assert not pages.unexpected(lines, ONCE_INSTALLED)
    assert len(lines) >= 8
    machine_jobs.finished(machine)


def test_doctor_finds_the_machine_well(machine: WholeMachine) -> None:
    """Without `install --with alloc`, which makes all users wait for the Prolog and is the site's choice."""
    findings = json.loads(machine.ask("slurm-share doctor --json --except prolog-flags"))["findings"]
    bad = [f"{one['outcome']} {one['check']}: {one['what']}" for one in findings if one["outcome"] in ("FAIL", "WARN")]
    assert bad == []
    assert len([one for one in findings if one["outcome"] == "PASS"]) >= 70
    said = machine.run("slurm-share doctor --except prolog-flags")
    assert "Traceback" not in said.text
    assert said.code == 0


def test_systemd_is_content_with_the_units(machine: WholeMachine) -> None:
    """Nothing has failed, their files are right, and the two services stay as confined as they were."""
    assert machine.run("systemctl --failed --no-legend").text == ""
    said = machine.run(f"systemd-analyze verify --man=no {UNITS}")
    assert said.text == ""
    for unit, most in EXPOSED.items():
        said = machine.run(f"systemd-analyze security --no-pager {unit} | tail -n 1")
        assert float(said.text.split(":")[1].split()[0]) <= most, said.text
    for mount in ("/run/slurm-share", "/run/slurm-share/user"):
        assert "nosuid,nodev,noexec" in machine.run(f"findmnt -n -o FSTYPE,OPTIONS {mount}").text


def test_the_services_work_and_write_to_the_journal(machine: WholeMachine) -> None:
    """As agent.md and history.md say, with the load of this node as the archive's source."""
    machine.run("systemctl enable --now slurm-share-agent")
    machine.until(f"[[ $(systemctl is-active {AGENT}) == active && -S /run/slurm-share-agent/socket ]]")
    machine.run(f"sed -i '1i load_source = \"local\"' {pages.CONFIG}; slurm-share config write-lua")
    with machine_jobs.sharing(machine):
        machine.run(f"systemctl start {ARCHIVE}")
        machine.run("cut -f 1-12 /var/lib/slurm-share/archive/*.tsv | tail -n 3")
    assert "alice" in machine.ask("cat /var/lib/slurm-share/archive/*.tsv")
    machine.run("systemctl enable --now slurm-share-archive.timer")
    assert machine.run("systemctl is-active slurm-share-agent slurm-share-archive.timer").text.split() == ["active"] * 2
    assert "1 of 1 nodes answered" in machine.run(f"journalctl --no-pager -o short-iso -u {ARCHIVE} | tail -n 5").text
    assert "slurm-share" in machine.run(f"journalctl --no-pager -o short-iso -u {AGENT} | tail -n 5").text
    machine.run(f"sed -i '1i log = \"journal\"' {pages.CONFIG}; slurm-share config write-lua")
    try:
        with machine_jobs.sharing(machine):
            hooks = "journalctl --no-pager -t slurm-share _UID=0 SLURM_SHARE_PROGRAM=prolog"
            machine.until(f"{hooks} -o verbose | grep -q '^ *SLURM_JOB_ID='", why=f"{hooks} -n 5")
    finally:
        machine.run(f"sed -i '/^log = /d' {pages.CONFIG}; slurm-share config write-lua")
    assert machine.run("systemctl --failed --no-legend").text == ""
