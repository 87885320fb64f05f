"""The units of the packages under a running systemd."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from booted import Booted, booted
from clean_roots import CleanRoot

from localcluster import packaged, process

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("packages-under-systemd")]

INSTALL = """\
dpkg -i /mnt/slurm-share_*.deb /mnt/slurm-share-spank_*.deb
cp /mnt/slurm-share_*.deb /root
systemctl disable slurmd slurmctld
"""
"""Installs the packages and disables Slurm's daemons: without a configuration they would look for one for minutes."""
UNITS = ("slurm-share-agent.service", "slurm-share-archive.service", "slurm-share-archive.timer")
MOUNT = "run-slurm\\x2dshare.mount"
USERS_MOUNT = "run-slurm\\x2dshare-user.mount"
AGENT = "slurm-share-agent.service"
ARCHIVE = "slurm-share-archive.service"
SITE = """\
groupadd --system gpu-operators
usermod -aG gpu-operators slurm-share
cd /etc/slurm-share
printf '%s\\n' 'operators_group = "gpu-operators"' 'agent_http = ":594"' "load_source = \\"$1\\"" >config.toml
install -m 0640 -g gpu-operators /dev/null agent.token
echo 0123456789abcdef0123456789abcdef >agent.token
for unit in agent archive; do
    mkdir -p /etc/systemd/system/slurm-share-$unit.service.d
    printf '[Service]\\nSupplementaryGroups=gpu-operators\\n' >/etc/systemd/system/slurm-share-$unit.service.d/site.conf
done
systemctl daemon-reload
systemctl restart slurm-share-agent
"""
"""As agent.md and history.md describe it."""
SLURM = """\
# Slurm asks for addresses of a kind that the host has, and 127.0.0.1 does not count.
ip address add 192.0.2.1/32 dev lo
echo 192.0.2.1 booted >>/etc/hosts
printf '%s\\n' ClusterName=booted SlurmctldHost=booted SlurmUser=slurm ProctrackType=proctrack/linuxproc \\
    TaskPlugin=task/none StateSaveLocation=/var/lib/slurm/slurmctld SlurmdSpoolDir=/var/lib/slurm/slurmd \\
    SlurmctldPidFile=/run/slurmctld.pid SlurmdPidFile=/run/slurmd.pid ReturnToService=2 \\
    'NodeName=booted State=UNKNOWN' 'PartitionName=all Nodes=ALL Default=YES' >/etc/slurm/slurm.conf
echo CgroupPlugin=disabled >/etc/slurm/cgroup.conf
install -d -o slurm /var/lib/slurm/slurmctld /var/lib/slurm/slurmd
systemctl start munge
slurmctld
slurmd
until [ "$(sinfo -h -o %t)" = idle ]; do sleep 0.1; done
sbatch --output=/dev/null --wrap 'sleep 600'
until [ "$(squeue -h -o %t)" = R ]; do sleep 0.1; done
"""
"""Makes a cluster of this host, with a job of root's."""
ASK = """\
import socket
with socket.socket(socket.AF_UNIX) as one, one.makefile("rwb") as line:
    one.connect("/run/slurm-share-agent/socket")
    line.write(b'{"everybody": true}\\n')
    line.flush()
    print(line.read().decode())
"""
"""As agent.md describes the protocol."""


@pytest.fixture(scope="module")
def installed(can_make_clusters: None, tmp_path_factory: pytest.TempPathFactory) -> CleanRoot:
    clean = CleanRoot("trixie", tmp_path_factory.mktemp("booted"))
    clean.shell(INSTALL, packaged.built())
    return clean


@pytest.fixture(scope="module")
def host(installed: CleanRoot) -> Iterator[Booted]:
    with booted(installed) as made:
        yield made


def test_systemd_finds_no_fault_in_the_units(installed: CleanRoot) -> None:
    """Their syntax and what they start and require is right; users and folders are made."""
    said = installed.shell(
        'cd /usr/lib/systemd/system; systemd-analyze verify --man=no "$@" 2>&1', words=[*UNITS, MOUNT, USERS_MOUNT]
    )
    assert said == ""
    script = "systemd-tmpfiles --create slurm-share.conf; stat -c '%a %U' /run/slurm-share"
    assert installed.shell(script) == "755 root\n"
    script = "userdel slurm-share; systemd-sysusers slurm-share.conf 2>/dev/null; getent passwd slurm-share"
    assert ":/nonexistent:/usr/sbin/nologin\n" in installed.shell(script)


def test_slurmd_brings_the_file_system_of_shared_jobs(host: Booted) -> None:
    # slurmd itself finds no controller here and comes to nothing; what it wants is there all the same
    host.run("systemctl", "start", "--no-block", "slurmd.service")
    host.until(MOUNT, "active")
    words = host.run("findmnt", "-n", "-o", "FSTYPE,OPTIONS", "/run/slurm-share").stdout
    assert words.startswith("tmpfs ")
    for option in ("size=65536k", "nosuid", "nodev", "noexec"):
        assert option in words
    host.until(USERS_MOUNT, "active")
    words = host.run("findmnt", "-n", "-o", "FSTYPE,OPTIONS", "/run/slurm-share/user").stdout
    assert words.startswith("tmpfs ")
    for option in ("mode=711", "size=65536k", "nosuid", "nodev", "noexec"):
        assert option in words
    for when in ("Wants", "After"):
        units = host.state("slurmd.service", when).replace('"', "").replace("\\\\", "\\").split()
        assert {MOUNT, USERS_MOUNT} <= set(units)


def test_the_agent_runs_and_answers(host: Booted) -> None:
    """It runs as its own user, reports that it is ready, has a socket for everybody, and starts again after a kill."""
    assert host.state(AGENT, "UnitFileState") == "disabled"
    done = host.run("systemctl", "enable", "--now", AGENT)
    assert done.returncode == 0, host.run("journalctl", "--no-pager", "-u", AGENT).stdout
    host.until(AGENT, "active")
    before = host.state(AGENT, "MainPID")
    assert host.run("ps", "-o", "user=", "-p", before).stdout.strip() == "slurm-share"
    answer = host.run("/opt/slurm-share/bin/python", "-I", "-c", ASK)
    assert json.loads(answer.stdout)["snapshot"]["node"] == "booted", answer.stderr
    host.run("kill", "-9", before)
    host.until(AGENT, "active")
    assert host.state(AGENT, "MainPID") != before


def test_the_timer_calls_the_archive(host: Booted) -> None:
    """Every quarter of an hour; one look by hand says what this host lacks, and makes the folder as its user's."""
    assert host.run("systemctl", "enable", "--now", "slurm-share-archive.timer").returncode == 0
    assert host.state("slurm-share-archive.timer") == "active"
    assert "*:00/15:00" in host.state("slurm-share-archive.timer", "TimersCalendar")
    host.run("systemctl", "start", "slurm-share-archive.service")
    said = host.run("journalctl", "--no-pager", "-o", "cat", "-u", "slurm-share-archive.service").stdout
    assert "the source srun does not show everybody's load; write --source " in said
    assert host.run("stat", "-c", "%a %U", "/var/lib/slurm-share/archive").stdout == "750 slurm-share\n"


def exposure(host: Booted, unit: str) -> float:
    """Return systemd's exposure of a unit: 0 is confined in every way, 10 in none."""
    said = host.run("systemd-analyze", "security", "--no-pager", "--json=short", unit).stdout
    return sum(float(one["exposure"] or 0) for one in json.loads(said))


def test_the_archive_is_confined_as_the_agent_is(host: Booted) -> None:
    assert exposure(host, ARCHIVE) <= exposure(host, AGENT)


@pytest.mark.parametrize("source", ["agents", "local"])
def test_the_archive_does_its_work_confined(host: Booted, source: str) -> None:
    if not host.run("pgrep", "-x", "slurmctld").stdout:
        done = host.run("bash", "-ec", SLURM)
        assert done.returncode == 0, done.stderr
    done = host.run("bash", "-c", SITE, "bash", source)
    host.until(AGENT, "active")
    host.run("bash", "-c", "rm -rf /var/lib/slurm-share/archive/*; journalctl --rotate --vacuum-time=1s")
    ask = ("/opt/slurm-share/bin/python", "-I", "-c", ASK)
    process.wait_until(lambda: '"interval_s":5' in host.run(*ask).stdout, "the agent's second sample", 60, every_s=0.5)
    done = host.run("systemctl", "start", ARCHIVE)
    said = host.run("journalctl", "--no-pager", "-o", "cat", "-u", ARCHIVE).stdout
    assert done.returncode == 0, said
    assert "1 of 1 nodes answered" in said
    lines = host.run("bash", "-c", "cat /var/lib/slurm-share/archive/*.tsv").stdout.splitlines()
    assert any("\tbooted\troot\t1\t" in line for line in lines), lines
    files = host.run("bash", "-c", "stat -c '%a %U %G' /var/lib/slurm-share/archive/*.tsv").stdout
    assert files == "640 slurm-share gpu-operators\n"


def test_an_upgrade_starts_the_agent_anew_and_a_removal_ends_it(host: Booted) -> None:
    host.run("systemctl", "start", AGENT)
    before = host.state(AGENT, "MainPID")
    done = host.run("bash", "-c", "dpkg -i /root/slurm-share_*.deb")
    assert done.returncode == 0, done.stderr
    host.until(AGENT, "active")
    assert host.state(AGENT, "MainPID") not in (before, "0")
    done = host.run("dpkg", "-r", "slurm-share-spank", "slurm-share")
    assert done.returncode == 0, done.stderr
    assert {host.state(unit, "LoadState") for unit in UNITS} == {"not-found"}
    assert host.run("pgrep", "-f", "slurm-share agent").stdout == ""
    assert host.run("ls", "/opt").stdout == ""
