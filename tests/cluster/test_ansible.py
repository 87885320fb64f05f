"""The Ansible role does what its page says, run by the real ansible-core on a controller."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from clusters import name_for

from localcluster import Cluster, paths

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.xdist_group("ansible")]

INVENTORY = """\
[slurm_controllers]
ctl ansible_connection=local
[slurm_controllers:vars]
slurm_share_packages=[]
ansible_python_interpreter=/usr/bin/python3
"""
APPLY = """\
- hosts: slurm_controllers
  roles:
    - role: slurm_share
      slurm_share_slurm_files: apply
      slurm_share_install_options: [--with, alloc]
"""


@pytest.fixture(scope="module")
def site(can_make_clusters: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster whose controller has ansible-core in /root/lib, and our role and playbook in /root/play."""
    with Cluster.up(name_for("ansible"), nodes=1) as made:
        home = made.root("ctl") / "root"
        version = made.exec(
            "ctl", ["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        ).stdout.strip()
        library = tmp_path_factory.mktemp("ansible") / "lib"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(library), "--only-binary=:all:"]
        subprocess.run([*pip, "--python-version", version, "ansible-core"], check=True, capture_output=True)
        shutil.copytree(library, home / "lib")
        shutil.copytree(paths.CHECKOUT / "packaging/share/ansible", home / "play")
        (home / "play/inventory").write_text(INVENTORY)
        (home / "play/apply.yml").write_text(APPLY)
        (home / "play/files/slurm-share").mkdir(parents=True)
        yield made


def play(site: Cluster, *words: str) -> tuple[str, dict[str, int]]:
    """Run a playbook on the controller; return its output and the counts of the recap."""
    script = (
        "cd /root/play && LC_ALL=C.UTF-8 HOME=/root PYTHONPATH=/root/lib exec python3 /root/lib/bin/ansible-playbook"
    )
    said = site.exec("ctl", ["sh", "-c", f'{script} -i inventory "$@"', "sh", *words]).stdout
    recap = re.findall(r"(\w+)=(\d+)", said.partition("PLAY RECAP")[2])
    return said, {name: int(count) for name, count in recap}


def test_a_second_run_changes_nothing(site: Cluster) -> None:
    settings = site.site / "config.toml"
    new = "max_share = 30\n" + settings.read_text()
    (site.root("ctl") / "root/play/files/slurm-share/config.toml").write_text(new)
    before = settings.read_text()
    said, counts = play(site, "slurm-share.yml", "--check")
    assert (counts["changed"], counts["failed"]) == (1, 0), said
    assert settings.read_text() == before
    said, counts = play(site, "slurm-share.yml")
    assert (counts["changed"], counts["failed"]) == (1, 0), said
    assert settings.read_text() == new
    job = site.sbatch("alice", "srun true", "--share-gpu=2", "--gres=gpu:1")  # job_submit.lua has them, too
    assert site.wait(job) == "COMPLETED"
    said, counts = play(site, "slurm-share.yml")
    assert (counts["changed"], counts["failed"]) == (0, 0), said


def test_it_writes_the_lines_that_lack(site: Cluster) -> None:
    said, counts = play(site, "apply.yml", "--check")
    assert (counts["changed"], counts["failed"]) == (1, 0), said
    assert "PrologFlags=Alloc" not in (site.conf / "slurm.conf").read_text()
    said, counts = play(site, "apply.yml")
    assert counts["failed"] == 0, said
    assert "PrologFlags=Alloc" in (site.conf / "slurm.conf").read_text()
    assert (
        "Alloc" in site.exec("ctl", ["scontrol", "show", "config"]).stdout.partition("PrologFlags")[2].splitlines()[0]
    )
    said, counts = play(site, "apply.yml")
    assert (counts["changed"], counts["failed"]) == (0, 0), said


def test_a_wrong_file_fails_and_changes_nothing(site: Cluster) -> None:
    (site.root("ctl") / "root/play/files/slurm-share/config.toml").write_text("max_shares = 3\n")
    before = (site.site / "config.toml").read_text()
    said, counts = play(site, "slurm-share.yml")
    assert counts["failed"] == 1
    assert "did you mean max_share" in said
    assert (site.site / "config.toml").read_text() == before
