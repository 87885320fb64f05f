"""Restarts and changes of slurmd's unit below a running share, and the kill of each program of ours."""

from __future__ import annotations

import machine_jobs
import pytest
from whole_machine import WholeMachine

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed")]

DROP_IN = "/etc/systemd/system/slurmd.service.d/test.conf"
HOOKS = "/sys/fs/cgroup/slurm-share/hooks/cgroup.procs"
IN_A_HOOK = f"[[ $(wc -l <{HOOKS}) -ge 2 ]]"
"""The helper, and a hook that it runs."""
ALIVE = "pgrep -f nvidia-cuda-mps; pgrep -f '^slurmstepd: \\['"


def test_systemd_leaves_a_running_share_alone(machine: WholeMachine) -> None:
    """Whatever an administrator does beside it: MPS, tasks, limits and device programs stay."""
    with machine_jobs.sharing(machine):
        before = machine.ask(ALIVE)
        for command in (
            "systemctl restart slurmd",
            "systemctl daemon-reload",
            "systemctl daemon-reexec",
            "systemctl set-property --runtime slurmctld.service TasksMax=5000",
            "systemctl restart slurmctld",
        ):
            machine.run(command)
            assert machine.ask(ALIVE) == before, command
            assert machine_jobs.limits(machine) == machine_jobs.CONFINED, command
    assert machine.run("systemctl --failed --no-legend").text == ""


@pytest.mark.parametrize(
    "lines",
    ["CapabilityBoundingSet=~CAP_WAKE_ALARM", "CapabilityBoundingSet=~CAP_BPF CAP_WAKE_ALARM", "PrivateTmp=yes",
     "ProtectSystem=full"],
)  # fmt: skip
def test_a_slurmd_with_less_still_confines_its_shares(machine: WholeMachine, lines: str) -> None:
    """The first job may find the helper of the slurmd before it, the second finds that of its own."""
    machine.run(f"install -D -m 644 /dev/stdin {DROP_IN} <<<$'[Service]\\n{lines}'")
    machine.run("systemctl daemon-reload; systemctl restart slurmd")
    machine.until("[[ $(sinfo -h -o %T) == idle ]]", why="systemctl status --no-pager slurmd")
    begin = int(machine.ask("wc -l </var/log/slurm-share.log"))
    try:
        for _ in range(2):
            with machine_jobs.sharing(machine):
                assert machine_jobs.limits(machine) == machine_jobs.CONFINED
        doctor = machine.run("slurm-share doctor --quiet", check=False).text
        log = machine.run(f"tail -n +{begin + 1} /var/log/slurm-share.log | grep started", check=False)
        assert ("daemon-limits" in doctor) == ("CAP_WAKE_ALARM" in lines), doctor
        assert ("CAP_WAKE_ALARM" in log.text) == ("CAP_WAKE_ALARM" in lines), log.text
    finally:
        machine.run(f"rm {DROP_IN}; systemctl daemon-reload; systemctl restart slurmd")
        machine.until("[[ $(sinfo -h -o %T) == idle ]]")


def test_a_slurmd_killed_below_a_share_cleans_up_once_it_is_back(machine: WholeMachine) -> None:
    """The job ends while slurmd is away; what it had is removed by the next slurmd's Epilog."""
    job = machine_jobs.start_sharing(machine)
    daemons = machine.ask(ALIVE)
    machine.run("kill -9 $(pgrep -x slurmd)")
    machine.until("[[ $(systemctl is-active slurmd) == failed ]]")
    assert machine.ask(ALIVE) == daemons
    machine.run("touch go", user="alice", quiet=True)
    machine.until("! pgrep -u alice -f simgpu-task", "the end of the tasks")
    machine.run("systemctl reset-failed slurmd; systemctl start slurmd")
    machine_jobs.let_end(machine, job)
    machine_jobs.next_user_is_served(machine)


@pytest.mark.parametrize("victims", [f"$(head -n 1 {HOOKS})", f"$(cat {HOOKS})"], ids=["the helper", "helper and hook"])
def test_a_hook_killed_in_the_prolog_costs_nobody_a_job(machine: WholeMachine, victims: str) -> None:
    machine_jobs.completed(machine, "--share-gpu=2", "srun true")  # a helper is there
    job = machine_jobs.submit_work(machine)
    machine.run(f"until {IN_A_HOOK}; do :; done; kill -9 {victims}", before="set +m")
    machine_jobs.until_it_works(machine, job)
    machine.run("tail -n 4 /var/log/slurm-share.log")
    machine_jobs.let_end(machine, job)
    machine_jobs.next_user_is_served(machine)


def test_without_its_mps_processes_a_job_fails_and_the_next_runs(machine: WholeMachine) -> None:
    job = machine_jobs.start_sharing(machine)
    machine.run("pkill -KILL -f nvidia-cuda-mps")
    machine_jobs.finished(machine)
    said = machine_jobs.output(machine, job)
    assert machine_jobs.state(machine, job) == "FAILED", said
    assert "CUDA_ERROR" in said
    machine_jobs.nothing_left(machine)
    machine_jobs.next_user_is_served(machine)
