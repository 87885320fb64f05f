"""Checks of the operating system and of Slurm's confinement of jobs: causes for MPS and shares to fail silently."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.names import STATE_ROOT
from ...core.settings import Configuration
from ...slurm import job_folders
from ..facts.records import CheckVerdict, Facts, Mount, UnknownFact
from .base import (
    COMPUTE,
    CONTROLLER,
    check,
    fail,
    host_facts,
    listed_values,
    named,
    ok,
    seen,
    seen_or,
    skip,
    values,
    warn,
)

OPEN_FILES = 16384
"""Open files that an MPS daemon needs (docs.nvidia.com/deploy/mps: otherwise its shared-memory segments fail)."""
SELINUX_TYPES = ("var_run_t", "slurm", "container_file_t")
"""SELinux types (or their beginnings) that suit a state folder below /run."""


@check(
    "private-shm",
    (*CONTROLLER, *COMPUTE),
    needs="configuration",
    asks="jobs see the node's own /dev/shm and /run/slurm-share",
    why="an MPS daemon reaches its clients through /dev/shm: with a private one shared jobs run without MPS; with a"
    " private /run they are refused",
    fix='job_container.conf: Dirs=/tmp (namespace.yaml: dirs: "/tmp"), then restart slurmd; or mps_control = ""',
)
def private_shm(facts: Facts) -> Sequence[CheckVerdict]:
    kinds = [seen_or(values(facts, key), None) for key in ("JobContainerType", "NamespaceType")]
    if None in kinds:
        return skip("slurm.conf is not to be seen")
    kind = next((one for found in kinds for one in found or ()), "")
    if not kind or kind.endswith("/none"):
        return ok("jobs have no folders of their own")
    folders = job_folders.private_folders(seen(facts.slurm.containers))
    found: list[CheckVerdict] = []
    if hidden := job_folders.hides(folders, STATE_ROOT):
        found += fail(
            f"{kind} gives every job its own {hidden}: shared jobs are refused, since they cannot see their plans",
            f"take {hidden} out of the folders in {job_folders.file_of(kind)}, then restart slurmd",
        )
    if hidden := job_folders.hides(folders, "/dev/shm"):
        found += fail(f"{kind} gives every job its own {hidden}")
    return found or ok(f"{kind}: {','.join(folders)}")


@check(
    "process-tracking",
    CONTROLLER,
    needs="configuration",
    asks="ProctrackType is proctrack/cgroup",
    why="with another plugin a process that left its session outlives the job, with its GPU memory, until our Epilog"
    " ends it",
    fix="slurm.conf: ProctrackType=proctrack/cgroup; restart slurmd everywhere, with no job running",
)
def process_tracking(facts: Facts) -> Sequence[CheckVerdict]:
    said = (seen(values(facts, "ProctrackType")) or ("proctrack/cgroup",))[-1]  # the default
    return ok(said) if said.lower() == "proctrack/cgroup" else warn(f"ProctrackType={said}")


@check(
    "confined-devices",
    CONTROLLER,
    needs="configuration",
    asks="a job can open only its own GPUs (ConstrainDevices=yes, TaskPlugin=task/cgroup)",
    why="every job on the node, also one without a GPU, can use any GPU without caps",
    fix="cgroup.conf: ConstrainDevices=yes; slurm.conf: TaskPlugin=task/cgroup,task/affinity; restart slurmd",
)
def confined_devices(facts: Facts) -> Sequence[CheckVerdict]:
    plugins, cgroup = seen(listed_values(facts, "TaskPlugin")), seen_or(facts.slurm.cgroup, {})
    said = cgroup.get("constraindevices", ()) or seen_or(values(facts, "ConstrainDevices"), ())
    if not said or said[-1].lower() not in ("yes", "true", "1"):
        return warn("ConstrainDevices is not set in cgroup.conf")
    if not any(one.endswith("cgroup") for one in plugins):
        return warn(f"ConstrainDevices is set, and TaskPlugin is {','.join(plugins) or 'not set'}: nothing reads it")
    return ok(f"ConstrainDevices=yes, TaskPlugin={','.join(plugins)}")


@check(
    "pam-adopt",
    COMPUTE,
    asks="if pam_slurm_adopt is used, PrologFlags has Contain",
    why="without the extern step no job adopts a login: it sees every GPU, and no Epilog ends it",
    fix="slurm.conf: add Contain to PrologFlags, then `scontrol reconfigure`",
)
def pam_adopt(facts: Facts) -> Sequence[CheckVerdict]:
    files = host_facts(facts).adopt_files
    if not files:
        return ok("pam_slurm_adopt is not used")
    flags = seen(listed_values(facts, "PrologFlags"))
    return ok("Contain is set") if "contain" in flags else warn(f"{named(files)} uses it, and Contain is not set")


@check(
    "open-files",
    COMPUTE,
    asks=f"slurmd, and the MPS daemons that its Prolog starts, may open {OPEN_FILES} files",
    why="with a lower limit an MPS daemon cannot make its shared memory, and its clients run without MPS",
    fix="systemctl edit slurmd: LimitNOFILE=131072 (Slurm's own unit has it); restart slurmd",
)
def open_files(facts: Facts) -> Sequence[CheckVerdict]:
    limit = seen(facts.host_facts.open_files)
    return ok(f"slurmd may open {limit}") if limit >= OPEN_FILES else fail(f"slurmd may open {limit}")


@check(
    "remove-ipc",
    COMPUTE,
    asks="systemd-logind does not remove a user's shared memory at logout (RemoveIPC=no)",
    why="a user's logout removes the /dev/shm files of the user's running jobs and MPS servers",
    fix="RemoveIPC=no below [Login] in /etc/systemd/logind.conf.d/slurm-share.conf; systemctl restart systemd-logind"
    " (install.md, step 3)",
)
def remove_ipc(facts: Facts) -> Sequence[CheckVerdict]:
    return warn("RemoveIPC is yes") if seen(facts.host_facts.removes_ipc) else ok("RemoveIPC is no")


@check(
    "ptrace",
    COMPUTE,
    asks="a task cannot trace its user's other processes (kernel.yama.ptrace_scope is 1 or more)",
    why="a task can read and stop other tasks of its user, but not the MPS daemons or other users' processes",
    fix="kernel.yama.ptrace_scope=1 in /etc/sysctl.d/60-slurm-share.conf; sysctl -p /etc/sysctl.d/60-slurm-share.conf"
    " (install.md, step 3, says what it costs); a site that keeps 0: slurm-share doctor --except ptrace",
)
def ptrace(facts: Facts) -> Sequence[CheckVerdict]:
    scope = seen(facts.host_facts.ptrace_scope)
    return ok(f"ptrace_scope is {scope}") if scope else warn("kernel.yama.ptrace_scope is 0")


@check(
    "daemon-limits",
    COMPUTE,
    asks="a user's MPS daemons are in limited cgroups, can open only their own GPU, and cannot be traced by the user",
    why="a user who gets control of such a daemon can use host memory, processes or other users' GPUs beyond the job's"
    " limits",
    fix="mount cgroup v2 (or v1 with memory, pids, devices and freezer) on /sys/fs/cgroup, for writing; let slurmd's"
    " unit have CAP_WAKE_ALARM, CAP_BPF and CAP_SYS_ADMIN (CapabilityBoundingSet=)",
)
def daemon_limits(facts: Facts) -> Sequence[CheckVerdict]:
    unheld, scope = seen(facts.host_facts.unheld), facts.host_facts.ptrace_scope
    if isinstance(facts.config, Configuration) and not facts.config.settings.mps_control:
        return skip("no MPS is configured")
    yama = scope.why if isinstance(scope, UnknownFact) else f"kernel.yama.ptrace_scope is {scope}"
    return warn(f"{'; '.join(unheld)}; {yama}") if unheld else ok(f"all hold; {yama}")


@check(
    "hidepid",
    COMPUTE,
    asks="/proc shows processes to the agent's user",
    why="with hidepid the agent, which is not root, sees no users' processes: load has no owners",
    fix="mount /proc with gid=GROUP and put the user slurm-share into that group",
)
def hidepid(facts: Facts) -> Sequence[CheckVerdict]:
    if (proc := _mount(facts, "/proc")) is None:
        return skip("/proc is not among the mounts")
    said = next((one for one in proc.options if one.startswith("hidepid=")), "hidepid=0")
    if said in ("hidepid=0", "hidepid=off") or any(one.startswith("gid=") and one != "gid=0" for one in proc.options):
        return ok(said)
    return warn(f"/proc is mounted with {said}")


def _mount(facts: Facts, point: str) -> Mount | None:
    """Return the file system that is seen at a mount point: the last one mounted there."""
    return next((one for one in reversed(host_facts(facts).mounts) if one.point == point), None)


@check(
    "shared-memory",
    COMPUTE,
    asks="/dev/shm is a tmpfs with free space that everybody can write to",
    why="MPS and the data loaders of frameworks store their shared memory there",
    fix="mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm",
)
def shared_memory(facts: Facts) -> Sequence[CheckVerdict]:
    if (mount := _mount(facts, "/dev/shm")) is None:
        return fail("/dev/shm is no mount of its own")
    if mount.kind not in ("tmpfs", "ramfs"):
        return warn(f"/dev/shm is on {mount.kind}")
    if "ro" in mount.options:
        return fail("/dev/shm is mounted read-only")
    mode, free = facts.host_facts.shm_mode, facts.host_facts.shm_free_percent
    if mode is not None and mode & 0o777 != 0o777:
        return fail(f"/dev/shm has mode {mode:04o}: not every user can make files there", "chmod 1777 /dev/shm")
    if mode is not None and not mode & 0o1000:
        return warn(f"/dev/shm has mode {mode:04o}: a user can remove another user's files", "chmod 1777 /dev/shm")
    if free is not None and free < SHM_WARN_PERCENT:
        return (fail if free < SHM_FAIL_PERCENT else warn)(f"/dev/shm has {free} % left", SHM_FIX)
    return ok(mount.kind)


SHM_WARN_PERCENT, SHM_FAIL_PERCENT = 10, 2
"""Percent of free space in /dev/shm, which has half of the host's memory by default: two percent are several times what
an MPS server takes.
"""
SHM_FIX = (
    "ls -lS /dev/shm: remove files of users who have no job here (clean_up in config.toml does that at a job's end), or"
    " mount -o remount,size=LARGER /dev/shm"
)


@check(
    "containers",
    COMPUTE,
    asks="containers of enroot, pyxis and Apptainer, if these are installed, see the state folder",
    why="a task in a container finds neither its slot nor its GPU's MPS daemon, and is refused",
    fix="enroot: 50-slurm-share.fstab of the packages into /etc/enroot/mounts.d; Apptainer: apptainer config global"
    ' --set "bind path" /run/slurm-share',
)
def containers(facts: Facts) -> Sequence[CheckVerdict]:
    files = host_facts(facts).container_files
    without = [path for path, names_it in files if not names_it]
    if without:
        return warn(f"{named(without)} does not name {facts.state.root}")
    return ok(named(path for path, _ in files) or "none is set up here")


@check(
    "selinux",
    COMPUTE,
    asks="if SELinux is enforcing, the state folder has the label of a run-time folder",
    why="confined programs (containers, a confined slurmd) cannot access the pipe folder, and run without MPS",
    fix="mount the tmpfs with rootcontext=system_u:object_r:var_run_t:s0, then restorecon -R /run/slurm-share",
)
def selinux(facts: Facts) -> Sequence[CheckVerdict]:
    label = host_facts(facts).selinux
    if label is None:
        return ok("SELinux does not enforce here")
    kind = label.split(":")[2] if label.count(":") >= 2 else label
    if kind.startswith(SELINUX_TYPES):
        return ok(label)
    return warn(f"{facts.state.root} is labelled {label or 'nothing'}")


CHECKS = (
    private_shm, process_tracking, confined_devices, pam_adopt, open_files, remove_ipc, ptrace, daemon_limits, hidepid,
    shared_memory, containers, selinux,
)  # fmt: skip
