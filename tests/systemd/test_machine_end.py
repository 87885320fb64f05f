"""The end of the machine, in two ways, below a running share; and the removal of the packages."""

from __future__ import annotations

import machine_jobs
import pages
import pytest
from whole_machine import WholeMachine

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed")]

MOUNTED = "findmnt -n -o TARGET,FSTYPE /run/slurm-share; findmnt -n -o TARGET,FSTYPE /run/slurm-share/user"
IDLE = "[[ $(sinfo -h -o %T) == idle ]]"
OF_OURS = """\
find /sys/fs/cgroup -name slurm-share -o -name 'uid_*'
findmnt -n -o TARGET | grep slurm-share
ls -d /run/slurm-share* /opt/slurm-share* /usr/bin/llload /usr/lib/slurm-share 2>/dev/null
pgrep -af slurm-share
systemctl list-units --all --no-legend '*slurm*share*'
true
"""


def comes_back_clean(machine: WholeMachine, job: str) -> None:
    """Check the machine after a start: no trace of the job that ran, the mounts, and room for the next job."""
    machine.until("[[ $(systemctl is-active slurmd) == active ]]", why="systemctl status --no-pager slurmd")
    assert machine.run(MOUNTED).text.split() == ["/run/slurm-share", "tmpfs", "/run/slurm-share/user", "tmpfs"]
    # Slurm learns that the job is over when the node registers, and starts it again: that is not this test's
    machine.until(f"scancel {job}; [[ -z $(squeue -h) && $(sinfo -h -o %T) == idle ]]", why="squeue; sinfo -R")
    machine_jobs.nothing_left(machine)
    machine_jobs.next_user_is_served(machine)
    assert machine.run("systemctl --failed --no-legend").text == ""


def test_a_reboot_with_a_share_leaves_nothing(machine: WholeMachine) -> None:
    job = machine_jobs.start_sharing(machine)
    machine.reboot()
    comes_back_clean(machine, job)


def test_a_power_cut_with_a_share_leaves_nothing(machine: WholeMachine) -> None:
    job = machine_jobs.start_sharing(machine)
    machine.run("sync", quiet=True)
    machine.note("    (the power is cut)")
    machine.cut()
    machine.start()
    comes_back_clean(machine, job)


def test_a_removal_is_refused_while_slurm_names_the_hooks(machine: WholeMachine) -> None:
    said = machine.run("apt remove slurm-share slurm-share-spank", answer="y", check=False)
    assert said.code != 0
    assert "slurm.conf" in said.text
    assert "slurm-share install --undo" in said.text
    machine_jobs.next_user_is_served(machine)


def test_the_removal_of_the_page_leaves_nothing(machine: WholeMachine) -> None:
    ran = pages.follow(machine, "admins.md", below="## Removal")
    assert not pages.unexpected(ran.values(), {})
    machine.until(IDLE, why="sinfo -R")
    said = machine_jobs.completed(machine, "--gres=gpu:1", "srun echo an ordinary job")
    assert "an ordinary job" in said
    assert machine.run(OF_OURS).text == ""
    assert machine.run("systemctl --failed --no-legend").text == ""
    machine.reboot()
    machine.until(IDLE, why="sinfo -R; systemctl status --no-pager slurmd")
    assert machine.run(OF_OURS).text == ""
