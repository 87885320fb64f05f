"""Every command line of install.md, and of the removal in admins.md, in a clean root of each Debian.

The root has Slurm's own packages and a slurmctld but no slurmd, so that a job waits. test_documents.py and
test_packages_in_use.py show what the lines do to a whole cluster.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from clean_roots import SUITES, CleanRoot
from documents import DOCUMENTS, Line, lines_of

from localcluster import packaged

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.xdist_group("install-page")]

SITE = """\
port=$1
shift
cd /root
install -d -o munge -g munge /run/munge
runuser -u munge -- /usr/sbin/munged
cat >/etc/slurm/slurm.conf <<END
ClusterName=page
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
SlurmctldPidFile=/run/slurmctld.pid
StateSaveLocation=/tmp/state
SlurmUser=root
ProctrackType=proctrack/linuxproc
GresTypes=gpu
NodeName=n1 NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 Gres=gpu:4
PartitionName=gpu Nodes=n1 Default=YES
END
echo 'NodeName=n1 Name=gpu File=/dev/nvidia[0-3]' >/etc/slurm/gres.conf
install -d /tmp/state
install -d -o alice /home/alice
printf '#!/bin/bash\\nsrun true\\n' >/home/alice/job.sh
slurmctld -D >/tmp/slurmctld.log 2>&1 &
for _ in $(seq 100); do ! scontrol ping | grep -q UP || break; sleep 0.1; done
for line in "$@"; do
    code=0
    case $line in
    '$ '*) runuser -u alice -- bash -c "cd; ${line#??}" >/tmp/said 2>&1 </dev/null || code=$? ;;
    *) (cd /mnt && bash -c "${line#??}") >/tmp/said 2>&1 <<<y || code=$? ;;
    esac
    echo "== $code $line"
    cat /tmp/said
done
kill %1
! pidof munged >/dev/null || kill $(pidof munged)
"""
"""Sets up the site, then runs the lines: `# ` as root in the folder of the packages, with y where a command asks; `$ `
as a user at home.
"""
CODES = {
    r"slurm-share install --check --with partial": 2,  # no node here has a feature, and it says so
    r"slurm-share install --check.*": 1,  # lines are missing
    r"slurm-share doctor --quiet": None,  # a controller without a slurmd has remarks of its own
    r"systemctl .*": None,  # no systemd runs here: test_packages_under_systemd.py
}
OLD = {
    r"slurm-share install --(check|apply).*": 2,  # Slurm 22.05
    r"slurm-share-plugin --build": 1,
    r"sbatch --share-gpu=.*": 255,  # without the plugin no such option
    r"slurm-share config print": 0,
    r"slurm-share doctor --quiet": None,
    r"systemctl .*": None,
}
"""Debian releases whose own Slurm is too old: the packages can be installed and removed, and report it."""


def console(name: str, heading: str = "") -> list[Line]:
    """Return the lines in the console blocks of a document, below a heading. Without sysctl, which would set the kernel
    of the machine."""
    file = next(file for file in DOCUMENTS if file.name == name)
    begin = file.read_text().splitlines().index(heading) if heading else 0
    lines = [line for line in lines_of(file) if line.in_order and line.number > begin]
    return [line for line in lines if not line.text.startswith("sysctl ")]


@pytest.mark.parametrize("suite", list(SUITES))
def test_every_line_works_as_written(suite: str, can_make_clusters: None, tmp_path: Path) -> None:
    packages = packaged.built()
    lines = [line for line in console("install.md") if line.text != "packaging/build.sh"]  # test_packages.py runs that
    lines += console("admins.md", "## Removal")
    clean = CleanRoot(suite, tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [f"{'#' if line.root else '$'} {line.text}" for line in lines]
    said = clean.shell(SITE, packages, words=(str(port), *words))
    found = re.findall(r"^== (\d+) . (.*)\n((?:(?!== ).*\n)*)", said, re.MULTILINE)
    assert [text for _, text, _ in found] == [line.text for line in lines]
    assert sum(text.startswith("apt ") for _, text, _ in found) == 2
    allowed = OLD if clean.root.release == "22.05" else CODES
    for code, text, told in found:
        wanted = next((value for pattern, value in allowed.items() if re.fullmatch(pattern, text)), 0)
        assert wanted is None or int(code) == wanted, f"{text}: {code}\n{told}"
        assert "Traceback" not in told, told
    assert clean.shell("ls -d /opt/slurm-share /usr/bin/llload || true") == ""
