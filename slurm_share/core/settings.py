"""Every setting of a site, its default, and the reason for it. `config.py` reads the file over these."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from . import names
from .errors import OptionError
from .patterns import pattern
from .records import SmChoice
from .typed import Literal

_PERCENT = pattern(r"(?a)([1-9][0-9]*)%?")


class Messages(Struct, frozen=True):
    """The table `[messages]`: of runs whose ranks send messages to each other (`llsub --spmd`)."""

    between_nodes: Literal["on", "off"] = "on"
    """`off`: no rank listens on a TCP port, and a run of several nodes is refused. A rank takes connections only from
    who has the run's key; what is sent afterwards is neither encrypted nor signed, as with MPI and NCCL."""

    interface: str = ""
    """The network interface (`ib0`) whose address ranks use between nodes. Empty: the address that the node's own name
    has."""

    ports: str = ""
    """The TCP ports (`60000-60999`) on which ranks and the rendezvous processes of nodes listen, where a firewall
    between nodes lets only some through: one for each rank of a node, and one more. Empty: those that Slurm has
    reserved for the step (MpiParams=ports=...), else any."""


class Settings(Struct, frozen=True):
    """What /etc/slurm-share/config.toml may say. Keys are the field names; those of PER_PARTITION may stand in a table
    `[partition.NAME]` as well, and count for the jobs of that partition."""

    mode: Literal["off", "observe", "on"] = "observe"
    """`observe`: hooks and job_submit.lua log what they would decide, and change nothing. `off`: they do not even look.
    Observing is the default, so that to install the package changes nothing for anybody. What a job was given while
    the mode was `on` is taken back at its end, whatever the mode is then."""

    switched_off: bool = False
    """True: `off`, whatever `mode` says here or for a partition. `slurm-share off` writes it, and `slurm-share on`
    takes it out, so that every `mode` is again what it was."""

    mode_file: str = ""
    """A file on a path that the controller and the nodes see, with one word: `off`, `observe` or `on`. Hooks read it
    for each job that asks to share and do no more than it says; `slurm-share off --cluster` writes it. Missing, or not
    to be read within a second: the other settings count alone. Empty: none; the controller's verdict, which travels
    with each job, is enough."""

    job_submit: bool = True
    """Whether the site's jobs come through slurm-share's job_submit.lua, which gives each job that asks to share the
    controller's verdict. True: a job without a verdict does not share. False: verdicts are not looked at, and the
    node's own mode alone counts."""

    verdict_field: Literal["extra", "comment"] = "extra"
    """The field of a job in which the verdict travels, behind the user's own text. `comment` where SchedulerParameters
    has extra_constraints, which reads `extra`. Hooks look in both. Read by job_submit.lua on the controller."""

    remote_command: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "NODE")
    """What `slurm-share status --cluster` puts before the command that it runs on each node; the word NODE stands for
    the node's name."""

    exclusive_user_partitions: tuple[str, ...] = ()
    """Partitions in which every job holds its nodes for its user alone. Empty: only shared jobs do, so that installing
    the package changes nothing for anybody else. Read by job_submit.lua on the controller."""

    exclusive_user_nodes: tuple[str, ...] = ()
    """Nodes, as Slurm writes them (`gpu[01-16]`), on which Prolog and Epilog hold ordinary jobs, too, to one user at a
    time: the second line behind exclusive_user_partitions, for a job that came past job_submit.lua."""

    shards_per_gpu: int = 0
    """How many gres/shard a GPU has in gres.conf, so that `--share-gpu=N --gres=gpu:1 -n1` can be a part of a GPU. 0:
    no shards, and such a job is answered with the lines that are missing. 720720 divides by 1 to 16. Read by
    job_submit.lua on the controller."""

    node_feature: str = ""
    """A feature of slurm.conf that exactly the nodes with slurm-share have, where not all have it: job_submit.lua adds
    it to the constraint of every shared job. Empty: all nodes have slurm-share. Read on the controller."""

    max_share: int = names.SHARE_MAX
    """The largest N of --share-gpu=N here. The default is what MPS carries; lower it where GPUs are small."""

    memory_reserve_percent: float = 2.0
    """GPU memory kept back from the shares for the driver, in percent of the whole; a share then is (total - reserve -
    mps_server_memory_mib) / N."""

    mps_server_memory_mib: int = 512
    """GPU memory kept back for the context of the MPS server. A CUDA context takes some hundred MiB, more on larger
    GPUs; nvidia-smi shows what an idle server takes."""

    mps_daemon_memory_mib: int = 4096
    """Host memory that all processes of one MPS daemon may take together: control daemon, server, and the programs that
    speak with them. They take about 50 MiB; less than that and none starts."""

    mps_daemon_processes: int = 256
    """Processes and threads that one MPS daemon may have: a server has some for each of up to 60 clients."""

    mps_control: str = "/usr/bin/nvidia-cuda-mps-control"
    """NVIDIA's MPS control program. Empty, or not there: shares without MPS."""

    mps_required: bool = False
    """True: a share that is to have MPS is refused on a node without that program, where it would go on without MPS
    otherwise. The third such refusal in ten minutes drains the node."""

    sm: str = "free"
    """The share of a GPU's multiprocessors that a task may use where its user said nothing: `free` (no cap), `even`
    (100/N percent) or a percentage. Free, because a cap of 100/N wastes what a waiting neighbour does not use."""

    compute_mode: Literal["default", "exclusive_process"] = "default"
    """`exclusive_process`: a GPU under MPS takes nobody but its MPS server, so that a program which goes round MPS
    fails instead of running unseen; the mode found is put back when the last shared job leaves the GPU."""

    hook_deadline_s: float = 8.0
    """The longest that a Prolog waits for MPS before the share goes on without it. Below Slurm's BatchStartTimeout and
    MessageTimeout (both 10 s by default)."""

    hook_helper: bool = True
    """True: a process of root's stays on a node for 15 minutes after the last shared job there, with the hooks' code
    loaded, and Prolog and Epilog cost a third. False: each starts Python anew."""

    release_deadline_s: float = 20.0
    """The longest that an Epilog takes to end MPS and leftover processes; what it does not get done in that time is
    done by the next hook. Below Slurm's UnkillableStepTimeout, 60 s."""

    tolerated_processes: tuple[str, ...] = (
        "Xorg", "Xwayland", "gnome-shell", "nv-hostengine", "dcgm-exporter", "nvidia-persiste",
    )  # fmt: skip
    """Names (as in /proc/PID/comm) of a system user's programs that may sit on a GPU between jobs. They are never
    ended. Other programs of system users on a GPU are not ended either, and the log names them."""

    clean_up: tuple[Literal["gpu_processes", "processes", "shm", "tmp"], ...] = ("gpu_processes", "shm")
    """What is cleared away when the last job of a user has left a node that was the user's alone: the user's processes
    in no job, on GPUs (`gpu_processes`) or anywhere (`processes`: ends logins, too), and the user's files in /dev/shm
    and /tmp. Memory in /dev/shm is lost to the next job as long as the file is there."""

    operators_group: str = ""
    """Unix group whose members see every job in `slurm-share status`. Empty: root alone."""

    log_file: str = "/var/log/slurm-share.log"
    """Where Prolog and Epilog write what they decided, one line each. slurmd keeps a hook's own output only when it
    fails. Empty: no log."""

    simulated_gpus: bool = False
    """True: simulated GPUs may be shared. They compute nothing; only test and demonstration clusters want this."""

    load_source: Literal["srun", "local", "agents", "prometheus"] = "srun"
    """Where `llload` asks where nobody says `--source`. srun: a step in the caller's own jobs, with nothing installed
    but this package."""

    agent_interval_s: float = 5.0
    """Between two samples of `slurm-share agent`."""

    agent_socket: str = "/run/slurm-share-agent/socket"
    """Where the agent answers this node's users, each with what is theirs."""

    agent_http: str = ""
    """ADDRESS:PORT on which the agent serves operators and Prometheus, who show a token. Empty: it does not. Within the
    cluster's own network: the token goes over it in clear. A port below 1024: any user may take another one while the
    agent is down, and be shown the token."""

    agent_token_file: str = "/etc/slurm-share/agent.token"
    """The token, one line. Readable for the agent and the operators, for nobody else."""

    agents_port: int = 594
    """Port of the agents, for `llload --source agents`; the host is the node's name. Ports from 600 to 1023 are not
    safe: NFS and RPC take some of them for themselves."""

    prometheus_url: str = ""
    """Where `llload --source prometheus` asks, such as http://metrics:9090."""

    prometheus_token_file: str = ""
    """A token for that server; empty: it wants none."""

    archive_folder: str = "/var/lib/slurm-share/archive"
    """Where `slurm-share archive` keeps its TSV files, one a day, and `slurm-share report` reads them."""

    estimate_history: str = ""
    """A folder that users can read, with files `*.jsonl` of what the tasks of all users need: a line for each script
    and GPU model, as `slurm-share pack history --publish` prints them, without any command. `llsub --pack` looks there
    for a script of which its user has no three runs yet. Empty: none."""

    documentation_url: str = ""
    """The site's page on sharing GPUs, for the messages that `slurm-share report` drafts; empty: no link."""

    messages: Messages = Messages()
    """The table `[messages]`, for `llsub --spmd`. `between_nodes` is also read where llsub is called."""


PER_PARTITION = ("mode", "max_share", "memory_reserve_percent", "mps_server_memory_mib", "sm", "clean_up")
"""What may differ from partition to partition. All else belongs to a node, on which jobs of several may be."""


DEFAULT = "default"
"""Where a value came from that nobody wrote."""


class Configuration(Struct, frozen=True):
    """Settings, and where each value came from."""

    settings: Settings
    sources: Mapping[str, str]
    """Per key: the file's path, or DEFAULT."""
    partitions: Mapping[str, Settings] = {}
    """Per partition that the file names: the settings of its jobs, whole."""
    file: str = ""
    """Where it was read, or would have been."""

    def of(self, partition: str | None) -> Settings:
        """Return the settings for a job of that partition; None: not known, as in an Epilog after a restart of
        slurmd."""
        return self.partitions.get(partition or "", self.settings)

    def modes(self) -> dict[str, str]:
        """Return the mode of every partition that the file names, and of all others under the empty name."""
        return {"": self.settings.mode, **{name: settings.mode for name, settings in self.partitions.items()}}


def parse_sm(value: str, text: str | None = None) -> SmChoice:
    """Return the part of the multiprocessors that `value` asks for, as the option and the setting `sm` write it.

    text: the whole option, for the error. Raises OptionError.
    """
    if value == names.SM_EVEN:
        return "even"
    if value == names.SM_FREE:
        return "free"
    match = _PERCENT.fullmatch(value)
    if not match or len(match[1]) > 3 or int(match[1]) > 100:
        raise OptionError(
            f"...,{names.OPTION_SM}={value}" if text is None else text,
            "sm= is a percentage from 1 to 100, even or free",
        )
    return int(match[1])
