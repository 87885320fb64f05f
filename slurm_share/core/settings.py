"""All settings of a site with their defaults and reasons. `config.py` reads the configuration file."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from . import names
from .patterns import pattern
from .records import SmChoice
from .typed import Literal

_PERCENT = pattern(r"(?a)([1-9][0-9]*)%?")
SOURCES_OF_ALL = ("agents", "prometheus", "local")
"""Values of load_source that show the load of all users."""


class Messages(Struct, frozen=True):
    """The table `[messages]`, for runs whose ranks send messages to each other (`llsub --spmd`)."""

    between_nodes: Literal["on", "off"] = "on"
    """`off`: no rank listens on a TCP port, and a run of several nodes is refused. A rank accepts only connections that
    prove knowledge of the run's key; messages are neither encrypted nor signed, as with MPI and NCCL."""

    interface: str = ""
    """The network interface (`ib0`) whose address ranks use between nodes. Empty: the address of the node's host
    name."""

    ports: str = ""
    """The TCP ports (`60000-60999`) on which ranks and the rendezvous processes of nodes listen, for firewalls between
    nodes: one for each rank of a node, and one more. Empty: those that Slurm reserved for the step
    (MpiParams=ports=...), else any."""


class Slurm(Struct, frozen=True):
    """The table `[slurm]`: how commands ask Slurm."""

    backend: Literal["auto", "cli", "pyslurm"] = "auto"
    """`cli`: by squeue, sinfo and scontrol. `pyslurm`: by pyslurm for all that it tells; a command ends with a sentence
    where pyslurm cannot be used. `auto`: as `pyslurm` where one is installed that is of the release of Slurm on the
    host, else as `cli`."""


class Settings(Struct, frozen=True):
    """Settings of /etc/slurm-share/config.toml. Keys are the field names; those of PER_PARTITION may also be in a table
    `[partition.NAME]`, for the jobs of that partition."""

    mode: Literal["off", "observe", "on"] = "observe"
    """`observe`: hooks and job_submit.lua log what they would decide, and change nothing. `off`: they do nothing.
    `observe` is the default, so that installing the package changes nothing for users. A job that started in mode `on`
    is cleaned up at its end, whatever the mode is then."""

    switched_off: bool = False
    """True: all modes are `off`, whatever `mode` says here or for a partition. `slurm-share off` writes it, and
    `slurm-share on` removes it, which restores every `mode`."""

    mode_file: str = ""
    """A file on a file system that the controller and the nodes share, with one word: `off`, `observe` or `on`. Hooks
    read it for each job that asks to share and do at most what it allows; `slurm-share off --cluster` writes it. If it
    is missing or cannot be read within a second, only the other settings apply. Empty: no such file; the controller's
    verdict, which travels with each job, is enough."""

    job_submit: bool = True
    """Whether the site uses slurm-share's job_submit.lua, which gives each job that asks to share the controller's
    verdict. True: a job without a verdict does not share. False: verdicts are ignored, and only the node's mode
    applies."""

    verdict_field: Literal["extra", "comment"] = "extra"
    """The field of a job in which the verdict travels, behind the user's own text. `comment` where SchedulerParameters
    has extra_constraints, which reads `extra`. Hooks look in both. Read by job_submit.lua on the controller."""

    remote_command: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "NODE")
    """Command with which `slurm-share status --cluster` runs a command on another node; NODE stands for the node's
    name."""

    exclusive_user_partitions: tuple[str, ...] = ()
    """Partitions in which every job gets its nodes for its user only. Empty: only shared jobs do, so that installing
    the package changes nothing for others. Read by job_submit.lua on the controller."""

    exclusive_user_nodes: tuple[str, ...] = ()
    """Nodes, as Slurm writes them (`gpu[01-16]`), on which Prolog and Epilog also keep ordinary jobs to one user at a
    time. A second check after exclusive_user_partitions, for jobs that job_submit.lua did not see."""

    shards_per_gpu: int = 0
    """Number of gres/shard of a GPU in gres.conf, so that `--share-gpu=N --gres=gpu:1 -n1` can get a part of a GPU. 0:
    no shards; such a job is refused with the lines that are missing. 720720 is divisible by 1 to 16. Read by
    job_submit.lua on the controller."""

    node_feature: str = ""
    """The feature in slurm.conf of the nodes that have slurm-share, if not all have it: job_submit.lua adds it to the
    constraint of every shared job. Empty: all nodes have slurm-share. Read on the controller."""

    max_share: int = names.SHARE_MAX
    """The largest N of --share-gpu=N. The default is the limit of MPS; use less for small GPUs."""

    memory_reserve_percent: float = 2.0
    """GPU memory reserved for the driver, in percent of the whole. A share is (total - reserve -
    mps_server_memory_mib) / N."""

    mps_server_memory_mib: int = 512
    """GPU memory reserved for the context of the MPS server. A CUDA context takes some hundred MiB, more on larger
    GPUs; nvidia-smi shows how much an idle server takes."""

    mps_daemon_memory_mib: int = 4096
    """Limit of host memory of all processes of one MPS daemon together: control daemon, server, and the programs that
    talk to them. They need about 50 MiB to start."""

    mps_daemon_processes: int = 256
    """Limit of processes and threads of one MPS daemon. A server has several for each of up to 60 clients."""

    mps_control: str = "/usr/bin/nvidia-cuda-mps-control"
    """NVIDIA's MPS control program. If empty or missing, tasks share without MPS."""

    mps_required: bool = False
    """True: refuse a share with MPS on a node without that program. False: run it without MPS. The third such refusal
    in ten minutes drains the node."""

    mps_protocol: Literal[2, 3] = 2
    """Protocol of the MPS daemons of Prolog and Epilog. 3 needs driver 615 or newer: each task then has a namespace of
    its own, with caps that its environment cannot raise. Nodes with older drivers, and shares with `sm=static`, use
    2."""

    sm: str = "free"
    """Part of a GPU's multiprocessors that a task may use if its user gives none: `free` (no cap), `even` (100/N
    percent), a percentage, or `static` (a partition of its own, where driver and GPU have them; `even` elsewhere). The
    default is `free`, because a cap of 100/N wastes what an idle neighbour does not use."""

    sharing: Literal["auto", "mps", "time-slicing"] = "auto"
    """How the tasks of a GPU share it if their user gives no `sharing=`: `auto` and `mps` (through MPS where the node
    can, else in turns), or `time-slicing` (in turns, without MPS). A user's `sharing=` applies instead, and a user's
    `mem=` or `sm=`, which MPS enforces, makes `auto` of `time-slicing`. To exclude MPS for all, empty mps_control; to
    refuse shares without it, set mps_required."""

    memory_limits: Literal["auto", "off"] = "auto"
    """`auto`: where the driver (615) limits the device memory of a cgroup's processes, it enforces the tasks' memory
    caps, with or without MPS, and programs see their cap as the GPU's size. `off`: MPS alone enforces them."""

    gpu_ids: Literal["uuid", "index"] = "uuid"
    """The value of CUDA_VISIBLE_DEVICES for a task under MPS: the GPU's UUID, or with `index` the number 0, for
    programs that need a number. Each MPS daemon has one GPU, which is number 0 for its clients.
    Without MPS it is the UUID."""

    compute_mode: Literal["default", "exclusive_process"] = "default"
    """`exclusive_process`: only the MPS server can use a GPU under MPS, so that a program which bypasses MPS fails
    instead of running unnoticed. The earlier mode is restored when the last shared job leaves the GPU."""

    hook_deadline_s: float = 8.0
    """How long a Prolog waits for MPS at most before the share starts without it. Less than Slurm's BatchStartTimeout
    and MessageTimeout (both 10 s by default)."""

    hook_helper: bool = True
    """True: a process of root with the hooks' code loaded stays on a node for 15 minutes after its last shared job, so
    that Prolog and Epilog take a third of the time. False: each hook starts Python."""

    release_deadline_s: float = 20.0
    """How long an Epilog takes at most to end MPS and leftover processes; the next hook does the rest. Less than
    Slurm's UnkillableStepTimeout, 60 s."""

    tolerated_processes: tuple[str, ...] = (
        "Xorg", "Xwayland", "gnome-shell", "nv-hostengine", "dcgm-exporter", "nvidia-persiste",
    )  # fmt: skip
    """Names (as in /proc/PID/comm) of programs of system users that may use a GPU between jobs. They are never ended.
    Other programs of system users on a GPU are not ended either, but logged."""

    clean_up: tuple[Literal["gpu_processes", "processes", "shm", "tmp"], ...] = ("gpu_processes", "shm")
    """The things that are removed when the last job of a user has left a node that only this user had: the user's
    processes outside of jobs, on GPUs (`gpu_processes`) or anywhere (`processes`: ends logins, too), and the user's
    files in /dev/shm and /tmp. Files in /dev/shm take memory from the next job."""

    usage_record: Literal["off", "share", "gpu"] = "share"
    """The jobs whose use of their GPUs Prolog and Epilog record: `share`: those that share. `gpu`: all jobs with GPUs;
    their Prolog and Epilog then ask the driver. The record is in /var/lib/slurm-share/usage of the node, readable by
    root and the job's user, and in short in the job's SystemComment in slurmdbd. `slurm-share report` reads both."""

    usage_days: int = 30
    """Days for which records of ended jobs stay on the node: those of Prolog and Epilog, and the agent's."""

    usage_mib: int = 512
    """The most that these records may take on the node, each of the two kinds; the oldest go first."""

    gpu_accounting: bool = False
    """True: the Prolog turns on the driver's accounting mode, which keeps time and largest memory of each process on a
    GPU after its end. It stays on: to turn it off would delete the figures of other jobs."""

    job_mapping_folder: str = ""
    """The folder of dcgm-exporter's --hpc-job-mapping-dir, such as /run/dcgm-job-map. Prolog and Epilog keep a file in
    it for each GPU or MIG instance that a job has, with the number of each job in a line; the folder is root's. Empty:
    none."""

    gpustat_folder: str = ""
    """The same for the exporter of jobstats, which reads /run/gpustat: a line is `JOB UID`. Empty: none."""

    energy_tres: bool = False
    """True: the energy of a job's GPUs is written into its AllocTRES (`energy=J`) after its end, unless Slurm's own
    acct_gather_energy plugin has written one. Needs Slurm 25.11."""

    report: Literal["off", "share", "all"] = "off"
    """The jobs at the end of whose output a short report is printed: `share`: those that share. `all`: also those whose
    use is recorded because of usage_record = "gpu". Only a job with a script has such a file."""

    operators_group: str = ""
    """Unix group whose members see all jobs in `slurm-share status`. Empty: only root does."""

    log: Literal["file", "journal"] = "file"
    """`journal`: hooks, their helper and the agent log to systemd's journal, with SYSLOG_IDENTIFIER=slurm-share and the
    job's number as SLURM_JOB_ID; the hooks write to log_file where no journal takes the line."""

    log_file: str = "/var/log/slurm-share.log"
    """Log of the decisions of Prolog and Epilog, one line each; slurmd keeps the output of a hook only if it fails.
    Empty: no log."""

    simulated_gpus: bool = False
    """True: simulated GPUs may be shared. They compute nothing; for test and demonstration clusters only."""

    load_source: Literal["srun", "local", "agents", "prometheus"] = "srun"
    """Default of `llload --source`. srun: a step in the caller's own jobs, which needs only this package."""

    agent_interval_s: float = 5.0
    """Seconds between two samples of `slurm-share agent`."""

    agent_socket: str = "/run/slurm-share-agent/socket"
    """Socket on which the agent answers this node's users, each with their own data."""

    agent_http: str = ""
    """ADDRESS:PORT on which the agent serves operators and Prometheus, which send a token. Empty: no HTTP. Without
    agent_tls_certificate use a network of the cluster's own, because token and load are sent unencrypted, and a port
    below 1024: any user can listen on a higher one while the agent is down, and receive the token."""

    agent_tls_certificate: str = ""
    """PEM file with the agent's certificate (its subjectAltName has the node's name) and those between it and its CA,
    in this order: agent_http then takes TLS only. It is read again when it was renewed. Empty: clear text."""

    agent_tls_key: str = ""
    """PEM file with the private key of agent_tls_certificate, without a passphrase, readable only by the agent. Empty:
    it is in that file."""

    agent_tls_client_ca: str = ""
    """PEM file with CA certificates: the agent answers only callers that have a certificate of one of these CAs, and
    the token. Empty: the token is enough."""

    agent_token_file: str = "/etc/slurm-share/agent.token"
    """File with the token, one line, readable only by the agent and the operators."""

    agents_ca: str = ""
    """PEM file with the CA certificates by which `llload --source agents` knows the agents: it then calls them by TLS
    only. Empty: in clear text."""

    agents_certificate: str = ""
    """PEM file with the operators' certificate, where agent_tls_client_ca is set on the nodes. Empty: none."""

    agents_key: str = ""
    """PEM file with the private key of agents_certificate, readable only by the operators. Empty: it is in that
    file."""

    agent_textfile: str = ""
    """File for the textfile collector of Prometheus's node_exporter, such as
    /var/lib/slurm-share-metrics/slurm_share.prom, in a folder that the agent may write: it replaces the file every 15
    seconds and removes it at its end. node_exporter shows it to everyone who reaches its port. Empty: none."""

    usage_folder: str = "/var/lib/slurm-share-agent"
    """Folder in which the agent keeps what each job of its node has used, for `slurm-share report`; the agent's own.
    Empty: only in memory, until a while after the job's end."""

    agents_port: int = 594
    """Port of the agents, for `llload --source agents`; the host is the node's name. Avoid ports 600 to 1023: NFS and
    RPC use some of them."""

    prometheus_url: str = ""
    """Prometheus server of `llload --source prometheus`, such as http://metrics:9090."""

    prometheus_ca: str = ""
    """PEM file with the CA certificates by which callers know the server at an https:// address. Empty: the usual
    public ones."""

    prometheus_token_file: str = ""
    """File with a token for that server; empty: none is needed."""

    archive_folder: str = "/var/lib/slurm-share/archive"
    """Folder of the TSV files, one a day, that `slurm-share archive` writes and `slurm-share report --all` reads."""

    estimate_history: str = ""
    """A folder that users can read, with files `*.jsonl` of the memory that tasks of all users need: a line for each
    script and GPU model, without commands, as `slurm-share pack history --publish` prints them. `llsub --pack` reads it
    for scripts that its user has run less than three times. Empty: none."""

    documentation_url: str = ""
    """URL of the site's page on sharing GPUs, for the messages of `slurm-share report --drafts`; empty: no link."""

    messages: Messages = Messages()
    """The table `[messages]`, for `llsub --spmd`. llsub also reads `between_nodes`, on the host where it is called."""

    slurm: Slurm = Slurm()
    """The table `[slurm]`, read where a command of slurm-share is called."""


PER_PARTITION = (
    *("mode", "max_share", "memory_reserve_percent", "mps_server_memory_mib", "sm", "sharing", "memory_limits"),
    "clean_up",
)
"""Settings that may differ between partitions. The others apply to a node, which may be in several partitions."""


DEFAULT = "default"
"""Source of a value that no file sets."""


class Configuration(Struct, frozen=True):
    """Settings with the source of each value."""

    settings: Settings
    sources: Mapping[str, str]
    """By key: the path of the file, or DEFAULT."""
    partitions: Mapping[str, Settings] = {}
    """By partition that the file names: all settings of its jobs."""
    file: str = ""
    """Path of the file, whether it exists or not."""

    def of(self, partition: str | None) -> Settings:
        """Return the settings for jobs of a partition; None: unknown, as in an Epilog after a restart of slurmd."""
        return self.partitions.get(partition or "", self.settings)

    def modes(self) -> dict[str, str]:
        """Return the mode of each partition that the file names; key "": of all others."""
        return {"": self.settings.mode, **{name: settings.mode for name, settings in self.partitions.items()}}


def parse_sm(value: str) -> SmChoice:
    """Parse the value of `sm`, of an option or of a setting. Raises ValueError, with a sentence without subject."""
    if value == names.SM_EVEN:
        return "even"
    if value == names.SM_FREE:
        return "free"
    if value == names.SM_STATIC:
        return "static"
    match = _PERCENT.fullmatch(value)
    if not match or len(match[1]) > 3 or int(match[1]) > 100:
        raise ValueError("must be a percentage from 1 to 100, even, free or static")
    return int(match[1])
