"""The units of the packages under a running systemd."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from booted import Booted, booted
from clean_roots import CleanRoot
from documents import DOCUMENTS, lines_of

from localcluster import packaged, process

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.xdist_group("packages-under-systemd")]

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


def archive_findings(host: Booted) -> list[str]:
    """Return what doctor finds about the archive: outcomes, with what and remedy of those that are not well."""
    found = json.loads(host.run("slurm-share", "doctor", "--json", "--role", "login").stdout)["findings"]
    return [f"{one['outcome']} {one['what']} {one['fix'] or ''}" for one in found if one["check"] == "archive"]


def test_the_timer_calls_the_archive(host: Booted) -> None:
    """Every quarter of an hour. Without a source that shows everybody a run says which line to write, and doctor knows
    it before the first run. The folder is the user's."""
    [said] = archive_findings(host)
    assert "is not enabled here" in said
    assert host.run("systemctl", "enable", "--now", "slurm-share-archive.timer").returncode == 0
    assert host.state("slurm-share-archive.timer") == "active"
    assert "*:00/15:00" in host.state("slurm-share-archive.timer", "TimersCalendar")
    [said] = archive_findings(host)
    assert said.startswith("WARN slurm-share-archive has load_source srun")
    assert 'write load_source = "agents" into /etc/slurm-share/config.toml' in said
    host.run("systemctl", "start", ARCHIVE)
    said = host.run("journalctl", "--no-pager", "-o", "cat", "-u", ARCHIVE).stdout
    assert "/etc/slurm-share/config.toml: load_source: is not set, and its default srun does not show" in said
    assert 'write load_source = "agents" there' in said
    assert "--source" not in said
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
    assert archive_findings(host) == [f"PASS its source is {source} "]
    host.run("bash", "-c", "mv /var/lib/slurm-share/archive /root; touch /var/lib/slurm-share/archive")
    host.run("systemctl", "start", ARCHIVE)
    [said] = archive_findings(host)
    host.run("bash", "-c", "rm /var/lib/slurm-share/archive; mv /root/archive /var/lib/slurm-share")
    assert said.startswith("WARN the last run of slurm-share-archive.service failed ("), said


def test_the_lines_of_the_page_are_read_by_systemd(host: Booted) -> None:
    """What install.md writes for compute nodes is in force for logind and at the next boot. No logind runs here, and
    sysctl would set the kernel of the machine."""
    page = next(file for file in DOCUMENTS if file.name == "install.md")
    lines = [
        line.text for line in lines_of(page) if line.host == "n1" and not re.match("sysctl |systemctl ", line.text)
    ]
    assert len(lines) == 3
    done = host.run("bash", "-ec", "\n".join(lines))
    assert done.returncode == 0, done.stderr
    read = {"systemd/logind.conf": "RemoveIPC=no", "sysctl.d": "kernel.yama.ptrace_scope=1"}
    for name, setting in read.items():
        said = host.run("systemd-analyze", "cat-config", name).stdout.splitlines()
        assert [line for line in said if line.startswith(setting.partition("=")[0])][-1:] == [setting]


STATE = """\
systemctl start 'run-slurm\\x2dshare.mount' 'run-slurm\\x2dshare-user.mount'
mountpoint -q /run/slurm-share/user
mkdir -p /run/slurm-share/jobs /run/slurm-share-agent /run/slurm-share/user/mps/2001
mountpoint -q /run/slurm-share/user/mps/2001 || mount -t tmpfs slurm-share /run/slurm-share/user/mps/2001
touch /run/slurm-share.refusals
mkdir -p /sys/fs/cgroup/slurm-share/hooks /sys/fs/cgroup/slurm-share/uid_7/gpu
"""
USED = """\
cd /run/slurm-share/user
sleep 600 >/dev/null 2>&1 &
echo $! >/sys/fs/cgroup/slurm-share/uid_7/gpu/cgroup.procs
echo $!
"""
LEFT = """\
for one in /sys/fs/cgroup/slurm-share/*/ /sys/fs/cgroup/slurm-share/ /run/slurm-share/user /run/slurm-share* ; do
    [ ! -e "$one" ] || echo "$one"
done
"""


def test_a_removal_leaves_what_is_in_use_and_takes_the_rest(host: Booted) -> None:
    """Cgroup, mounts and the agent's folder: not while a process of ours runs in them, or a shared job is there."""
    host.run("systemctl", "stop", AGENT)
    assert host.run("bash", "-ec", STATE).returncode == 0
    pid = host.run("bash", "-ec", USED).stdout.strip()
    remove = ("/opt/slurm-share/libexec/configure", "remove")
    said = host.run(*remove).stderr
    assert "/sys/fs/cgroup/./slurm-share has processes in it and stays until the next boot" in said
    assert "/run/slurm-share/user is in use (fuser -vm /run/slurm-share/user)" in said
    group = ["/sys/fs/cgroup/slurm-share/uid_7/", "/sys/fs/cgroup/slurm-share/"]
    state = ["/run/slurm-share/user", "/run/slurm-share"]
    assert host.run("bash", "-c", LEFT).stdout.split() == [*group, *state]
    assert host.run("kill", pid).returncode == 0
    host.run("mkdir", "-p", "/run/slurm-share/jobs/7")
    process.wait_until(lambda: host.run("ps", pid).returncode != 0, "the end of the process", 30)
    said = host.run(*remove).stderr
    assert "/run/slurm-share has shared jobs in it and stays" in said
    assert host.run("bash", "-c", LEFT).stdout.split() == state
    host.run("rmdir", "/run/slurm-share/jobs/7")
    assert host.run("bash", "-ec", STATE).returncode == 0
    assert host.run(*remove).stderr == ""
    assert host.run("bash", "-c", f"{LEFT}; grep slurm-share /proc/self/mounts").stdout == ""
    host.run("/opt/slurm-share/libexec/configure", "install")
    assert host.run("bash", "-ec", STATE).returncode == 0


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
    assert host.run("bash", "-c", f"{LEFT}; grep slurm-share /proc/self/mounts").stdout == ""
