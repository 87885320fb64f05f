"""Configuration files of a cluster: functions from values to text."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .records import Host

SHARDS_PER_GPU = 720720
"""Divisible by every number of tasks from 1 to 16, so that N array tasks fit on a GPU exactly."""
GPU_TYPE = "simulated"
"""The gres type, which shows on Slurm's own screens that the GPUs are not real."""
ACCOUNT = "lab"
"""The account of all users, on a cluster with accounting."""
PLUGIN = "/usr/lib/slurm-share/share_gpu.so"
HOOKS = "/opt/slurm-share/bin"

_WITHOUT_CGROUPS = """\
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
"""
_WITH_CGROUPS = """\
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
JobAcctGatherType=jobacct_gather/cgroup
"""
_WITH_CGROUP_V2 = """\
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/cgroup
"""
_BASE = """\
ClusterName=demo
SlurmctldHost=ctl
SlurmUser=slurm
AuthType=auth/munge
CredType=cred/munge
MpiDefault=none
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmctldDebug=info
SlurmdDebug=verbose
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherFrequency=5
LaunchParameters=use_interactive_step
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,default_queue_depth=10000,bf_interval=2
SlurmdTimeout=30
InactiveLimit=0
MinJobAge=300
KillWait=2
"""
_CGROUPS = {"": _WITHOUT_CGROUPS, "v1": _WITH_CGROUPS, "v2": _WITH_CGROUP_V2}
_OWN_AUTH = ("AuthType=auth/slurm", "CredType=auth/slurm")
"""Slurm's own key, slurm.key, instead of munge's."""
_ACCOUNTING = ("AccountingStorageType=accounting_storage/slurmdbd", "AccountingStorageHost=ctl")
"""Accounting only records: no limit is enforced and no priority changes, so jobs run as without it."""
SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=ctl
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurm/slurmdbd.pid
DebugLevel=info
"""
"""slurmdbd.conf. No password: MariaDB identifies the client of its socket through the kernel."""
MARIADB_CNF = """\
[mariadbd]
user = slurm
datadir = /var/lib/slurm/mysql
skip-networking
# ON is MariaDB's default since 11.6; slurmdbd 26.05 then says it may end when two transactions write the same
innodb-snapshot-isolation = OFF
innodb-lock-wait-timeout = 900
# small: every cluster copies these files into its memory
innodb-buffer-pool-size = 32M
innodb-log-file-size = 8M
innodb-undo-tablespaces = 0
innodb-autoextend-increment = 4
innodb-temp-data-file-path = ibtmp1:4M:autoextend
"""
"""Settings of a MariaDB that exists as long as its cluster."""
_REPEATABLE = ("nodename", "partitionname", "nodeset", "downnodes")
"""Keywords that may occur in slurm.conf once per name."""


SITE_CONFIG = """\
# slurm-share on the local cluster
mode = "on"
shards_per_gpu = {shards_per_gpu}
simulated_gpus = true                  # this cluster has no others
mps_control = "/usr/local/bin/nvidia-cuda-mps-control"     # the simulated one
exclusive_user_partitions = ["gpu"]    # partition `plain` is left as Slurm has it
"""
"""/etc/slurm-share/config.toml of every host of the cluster."""


OPERATORS, OPERATORS_GID = "gpu-operators", 991
"""Group that may see every user's load, on a cluster with agents."""
AGENT_UID = 990
"""Uid of slurm-share, the user of the agents."""
AGENT_TOKEN = "token-of-the-local-cluster"
SITE_AGENTS = """\
operators_group = "gpu-operators"
agent_http = ":594"
agent_interval_s = 1.0
prometheus_url = "http://ctl:9090"
prometheus_token_file = "/etc/slurm-share/prometheus.token"
"""
"""Additional lines of config.toml on a cluster with agents."""
PROMETHEUS = """\
global:
  scrape_interval: 2s
  scrape_timeout: 2s
scrape_configs:
  - job_name: slurm-share
    authorization:
      credentials_file: /etc/slurm-share/agent.token
    static_configs:
      - targets: [{targets}]
"""
"""prometheus.yml: every agent, with the agents' token."""
PROMETHEUS_LOGIN = "operator:local-cluster"
PROMETHEUS_WEB = """\
basic_auth_users:
  operator: $2b$04$slurmsharedemoclusterunIToeAEBu.uCBbxbw1SisyPvyjAXIy2
"""
"""web.yml: only operators may query the server; the hash (bcrypt, lowest cost) is of PROMETHEUS_LOGIN."""


EXAMPLE_JOB = """\
#!/bin/bash
# cluster as alice -- sbatch --share-gpu=4 job.sh
srun bash -c 'echo "task $SLURM_SHARE_RANK of $SLURM_SHARE_SIZE on $SLURMD_NODENAME: \
slot $SLURM_SHARE_SLOT, GPU $CUDA_VISIBLE_DEVICES"'
srun simgpu-task --memory 2000M --load 20 --seconds 10
"""
"""job.sh in every user's home, an example to submit."""


def slurm_conf(
    hosts: Sequence[Host],
    *,
    cgroup: str,
    parts: Collection[str],
    shards_per_gpu: int,
    accounting: bool = False,
    auth: str = "munge",
    extra: str = "",
) -> str:
    """Return slurm.conf. A line of `extra` replaces ours with the same keyword (for nodes: and the same name)."""
    nodes = [host for host in hosts if host.is_compute]
    names = ",".join(host.name for host in nodes)
    lines = [*_BASE.splitlines(), *_CGROUPS[cgroup].splitlines()]
    lines.append("GresTypes=gpu,shard" if shards_per_gpu else "GresTypes=gpu")
    if accounting:
        tracked = ["gres/gpu", f"gres/gpu:{GPU_TYPE}", *(["gres/shard"] if shards_per_gpu else [])]
        lines += [*_ACCOUNTING, f"AccountingStorageTRES={','.join(tracked)}"]
    if auth == "slurm":
        lines = override(lines, _OWN_AUTH)
    if "plugin" in parts:
        lines += ["JobSubmitPlugins=lua", "PlugStackConfig=/etc/slurm/plugstack.conf"]
    if "python" in parts:
        lines += [f"Prolog={HOOKS}/slurm-share-prolog", f"Epilog={HOOKS}/slurm-share-epilog"]
    lines += [_node_line(host, shards_per_gpu) for host in nodes]
    lines += [
        f"PartitionName=gpu Nodes={names} Default=YES DefMemPerCPU=500 MaxTime=1-0 State=UP",
        f"PartitionName=plain Nodes={names} DefMemPerCPU=500 MaxTime=1-0 State=UP",
    ]
    return "\n".join(override(lines, extra.splitlines())) + "\n"


def gres_conf(hosts: Sequence[Host], shards_per_gpu: int, *, uuids: bool = False) -> str:
    """Return gres.conf: the device files and shards of every node. `uuids`: slurmd asks the driver for the GPUs."""
    lines = ["AutoDetect=nvidia"] if uuids else []
    for host in hosts:
        if not host.gpus:
            continue
        files = f"/dev/nvidia[0-{host.gpus - 1}]" if host.gpus > 1 else "/dev/nvidia0"
        lines.append(f"NodeName={host.name} Name=gpu Type={GPU_TYPE} File={files}")
        if shards_per_gpu:
            lines.append(f"NodeName={host.name} Name=shard Type={GPU_TYPE} Count={host.gpus * shards_per_gpu}")
    return "\n".join(lines) + "\n"


def cgroup_conf(cgroup: str) -> str:
    """Return cgroup.conf: memory and devices confined, or no cgroups. Cores are never confined, since the CPU counts
    are not the machine's."""
    if not cgroup:
        return "CgroupPlugin=disabled\n"
    constrain = "ConstrainRAMSpace=yes\nConstrainDevices=yes\nConstrainCores=no\n"
    if cgroup == "v2":
        return "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\nEnableControllers=yes\n" + constrain
    return "CgroupPlugin=cgroup/v1\n" + constrain


def plugstack_conf(parts: Collection[str]) -> str:
    """Return plugstack.conf; the plugin is `optional`, as on a real site: it must never drain a node."""
    return f"optional {PLUGIN}\n" if "plugin" in parts else ""


def hosts_file(hosts: Sequence[Host]) -> str:
    """Return /etc/hosts, the only source of names on the hosts."""
    return "127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in hosts)


def _node_line(host: Host, shards_per_gpu: int) -> str:
    gres = f"gpu:{GPU_TYPE}:{host.gpus}"
    if shards_per_gpu:
        gres += f",shard:{GPU_TYPE}:{host.gpus * shards_per_gpu}"
    return (
        f"NodeName={host.name} CPUs={host.cpus} Boards=1 SocketsPerBoard=2 CoresPerSocket={host.cpus // 2} "
        f"ThreadsPerCore=1 RealMemory={host.memory_mb} Gres={gres} State=UNKNOWN"
    )


def override(lines: Sequence[str], extra: Sequence[str]) -> list[str]:
    """Return the lines with those of `extra`; each replaces ours with the same keyword (and name)."""
    replaced = {key for line in extra if (key := _key(line))}
    return [line for line in lines if _key(line) not in replaced] + list(extra)


def _key(line: str) -> tuple[str, str] | None:
    word, equals, value = line.strip().split(" ", 1)[0].partition("=")
    if not equals or word.startswith("#"):
        return None
    keyword = word.lower()
    return keyword, value if keyword in _REPEATABLE else ""
