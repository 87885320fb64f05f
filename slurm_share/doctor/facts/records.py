"""Records of `slurm-share doctor`: the facts about one host, and the findings.

An unknown fact is an UnknownFact with the reason, never a guess. Checks that need it return SKIP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from ...core.settings import Configuration
from ...core.verdicts import CheckVerdict as CheckVerdict
from ...core.verdicts import FileFact as FileFact
from ...core.verdicts import Outcome as Outcome
from ...core.verdicts import PathOwner as PathOwner
from ...core.verdicts import UnknownFact as UnknownFact
from ...node.records import Gpu, NodeProcess
from ...share import Health, Ledger, LedgerJob
from ...slurm.account_limits import GpuLimit
from ...slurm.rules import shell

Role = Literal["controller", "login", "compute"]
Needs = Literal["configuration", "host"]
"""The facts that a check reads. configuration: Slurm's files, config.toml and the scripts that they name;
`slurm-share install --check` runs these checks, too. host: what is installed or runs on this host, or what only the
controller knows."""
Shown = tuple[str, ...]
ROLES: tuple[Role, ...] = ("controller", "login", "compute")


# --- Findings --------------------------------------------------------------------------------------------------------


class Check(Struct, frozen=True):
    """A property of a healthy host."""

    name: str
    roles: tuple[Role, ...]
    """Roles of the hosts on which it is checked."""
    asks: str
    """What is checked, as a statement that is true on a healthy host."""
    why: str
    """The consequences if it is not true."""
    fix: str
    run: Callable[[Facts], Sequence[CheckVerdict]]
    needs: Needs = "host"


class Finding(Struct, frozen=True):
    """A verdict with the name of its check."""

    check: str
    outcome: Outcome
    what: str
    fix: str = ""


AS_USER = "as an ordinary user"


# --- Facts: files ----------------------------------------------------------------------------------------------------


class ConfiguredHook(Struct, frozen=True):
    """A Prolog or Epilog line, with the files that this host finds for it."""

    written: str
    files: tuple[FileFact, ...]
    """In the order in which slurmd runs them: for a pattern, from z to 0. Empty: there are none."""


class SiteScript(Struct, frozen=True):
    """A script that slurm.conf names: Prolog, Epilog, TaskProlog, TaskEpilog, PrologSlurmctld, EpilogSlurmctld."""

    key: str
    """Its key in slurm.conf."""
    path: str
    file: FileFact | None
    """None: it is not there."""
    text: str | UnknownFact = ""
    """Empty: it is no text."""
    syntax: str | UnknownFact = UnknownFact("not tried")
    """The shell's message about its syntax; empty: none."""

    @property
    def lines(self) -> str:
        """Its text, as far as it could be read."""
        return "" if isinstance(self.text, UnknownFact) else self.text

    @property
    def is_shell(self) -> bool:
        """Return whether it is a script of a shell whose language is that of sh or bash."""
        name = ((self.file.interpreter if self.file else "") or "").rpartition("/")[2]
        first = self.lines.partition("\n")[0].split()
        name = first[1] if name == "env" and len(first) > 1 else name
        return bool(self.lines) and name in shell.SHELLS


# --- Facts: Slurm ----------------------------------------------------------------------------------------------------

Values = Mapping[str, Shown]
"""Settings of slurm.conf by lower-case key; keys that may be repeated have several values."""


class SiteNode(Struct, frozen=True):
    """A node as listed by the controller."""

    name: str
    gres: str
    """For example gpu:a100:4,shard:16; empty: none."""
    states: Shown
    reason: str = ""
    version: str = ""
    """Version of its slurmd; empty: it has not registered."""
    partitions: Shown = ()


class SitePartition(Struct, frozen=True):
    """A partition as listed by the controller."""

    name: str
    nodes: Shown
    options: Mapping[str, str]
    """Options by lower-case key, as written by `scontrol show partition`."""


class SharedJob(Struct, frozen=True):
    """A job that the controller accepted as a shared job, as its AdminComment says."""

    job_id: int
    share: str
    partition: str


class SlurmFacts(Struct, frozen=True):
    """Slurm's state as known on this host."""

    commands: str = "/usr/bin"
    """Folder of scontrol; empty: not found."""
    are_in_path: bool = True
    """Whether the caller's PATH has that folder."""
    file: str = ""
    """Path of slurm.conf; empty: there is none."""
    munge_problem: str = ""
    """Why munged does not answer on this host; empty: it does, or Slurm does not use it."""
    objection: str | UnknownFact = UnknownFact("not tried")
    """Why Slurm's programs cannot read slurm.conf; empty: they can."""
    written: Values | UnknownFact = UnknownFact("not read")
    """Settings in the file, includes followed."""
    live: Values | UnknownFact = UnknownFact("not asked")
    """Settings of the running controller."""
    is_silent: bool = False
    """Whether it was asked and did not answer in time."""
    down: Shown = ()
    """Controllers that did not answer, including backups."""
    version: str | UnknownFact = UnknownFact("not asked")
    """Version of the installed Slurm, such as 26.05.5."""
    differs: str = ""
    """Difference that `scontrol` reports between this host's slurm.conf and the controller's."""
    nodes: tuple[SiteNode, ...] | UnknownFact = UnknownFact("not asked")
    """All nodes on a controller; elsewhere only this one."""
    partitions: tuple[SitePartition, ...] | UnknownFact = UnknownFact("not asked")
    gpu_limits: tuple[GpuLimit, ...] | UnknownFact = UnknownFact("not asked")
    """Limits on gres/gpu without one on gres/shard."""
    written_gres: Mapping[str, str] = {}
    """Gres= of slurm.conf by node. Empty: no node line was read."""
    written_partitions: Mapping[str, Mapping[str, str]] = {}
    """Lines of slurm.conf by partition, with lower-case keys. Empty: none was read."""
    controller_mode: str | UnknownFact = UnknownFact("not asked")
    """Mode of the controller (on, observe, off), from its job_submit.lua's answer to a refused job."""
    asked_partition: str = ""
    """Partition of that job; empty: the default one."""
    skew_s: float | UnknownFact = UnknownFact("not asked")
    """This host's clock minus the controller's, in whole seconds."""
    jobs_here: frozenset[int] | UnknownFact = UnknownFact("not asked")
    """Jobs that Slurm has on this node and that are not over."""
    are_all_jobs: bool = True
    """False: Slurm was asked only about jobs that this node knows; others may be here, too."""
    shared_here: tuple[SharedJob, ...] = ()
    """Those of them that job_submit.lua made shared jobs."""
    cgroup: Values | UnknownFact = UnknownFact("there is no cgroup.conf")
    containers: str | UnknownFact = UnknownFact("not read")
    """Text of job_container.conf or namespace.yaml; empty: there is none."""
    plugstack: tuple[str, ...] | UnknownFact | None = UnknownFact("not read")
    """Lines of plugstack.conf, includes followed, with carriage returns at their ends. None: there is no such file."""
    plugstack_file: str = ""
    prologs: tuple[ConfiguredHook, ...] | UnknownFact = UnknownFact("not read")
    epilogs: tuple[ConfiguredHook, ...] | UnknownFact = UnknownFact("not read")
    controller_scripts: tuple[tuple[str, str | UnknownFact], ...] = ()
    """Path and text of each PrologSlurmctld and EpilogSlurmctld, on a controller."""
    scripts: tuple[SiteScript, ...] | UnknownFact = UnknownFact("not read")
    """Scripts of the site, without our own programs."""
    lua: str | UnknownFact | None = None
    """Text of the site's job_submit.lua; None: there is none, or this is no controller."""
    lua_of_package: str | None = None
    """Text of this package's job_submit.lua."""
    lua_object: str | UnknownFact = UnknownFact("not looked for")
    """Path of Slurm's job_submit_lua.so; empty: the other plugins are here, but not this one."""
    lua_problem: str | UnknownFact = UnknownFact("not looked for")
    """Lua's error about the site's job_submit.lua; empty: none."""
    lua_settings: str | UnknownFact = UnknownFact("not read")
    """Why job_submit.lua treats sharing as switched off, whatever config.toml says; empty: it does not."""
    owned: tuple[FileFact, ...] = ()
    """slurm.conf, the files next to it and those that they include: who can write them runs programs as root on all
    nodes."""
    slurm_uid: int = 0
    """Uid of SlurmUser."""


class PluginFacts(Struct, frozen=True):
    """The SPANK plugin's object on this host."""

    path: str
    file: FileFact | None
    release: str | UnknownFact
    """Slurm release that it was built for, such as 26.05."""
    link: str = ""
    """Target if the path is a link."""
    releases: Shown = ()
    """Folders next to it with objects for other releases: 26.05, built/26.05."""
    has_chooser: bool = False
    """Whether the package's slurm-share-plugin, which makes that link, is here."""
    load_problems: tuple[tuple[str, str], ...] | UnknownFact = UnknownFact("not tried")
    """(Slurm program that does not load it, error): each was started with it in a separate process. An error of an
    ordinary user alone begins with AS_USER."""


# --- Facts: the host -------------------------------------------------------------------------------------------------


class Mount(Struct, frozen=True):
    """A mounted file system."""

    point: str
    kind: str
    options: Shown = ()


class HostFacts(Struct, frozen=True):
    """Facts of the operating system that matter to shares and MPS."""

    daemons: frozenset[str] = frozenset()
    """Running daemons of slurmctld, slurmd, sackd, munged and systemd-logind."""
    stopped: Mapping[str, int] = {}
    """Those that are stopped (SIGSTOP), with their pids."""
    mounts: tuple[Mount, ...] = ()
    node: str = ""
    """Node name given to slurmd; empty: none."""
    open_files: int | UnknownFact = UnknownFact("no slurmd runs here")
    """Limit of open files of slurmd and its hooks."""
    ptrace_scope: int | UnknownFact = UnknownFact("this kernel has no Yama")
    unheld: tuple[str, ...] | UnknownFact = UnknownFact("not looked at")
    """Limits of users' MPS daemons that this node cannot enforce, in a few words each."""
    removes_ipc: bool | UnknownFact = UnknownFact("no systemd-logind runs here")
    adopt_files: Shown = ()
    """PAM files that name pam_slurm_adopt."""
    missed: str = ""
    """Why none of this could be read; empty: it was."""
    shm_mode: int | None = None
    """Permission bits of /dev/shm with the sticky bit; None: unknown."""
    shm_free_percent: int | None = None
    """Free space in /dev/shm: bytes or files, whichever is less."""
    container_files: tuple[tuple[str, bool], ...] = ()
    """Configuration files of the container programs here that list mounts, and whether they name the state folder."""
    selinux: str | None = None
    """Label of the state folder if SELinux is enforcing; else None."""


class LostPath(Struct, frozen=True):
    """A missing file or folder of a job that runs here."""

    job_id: int
    uid: int
    path: str


class StateFacts(Struct, frozen=True):
    """slurm-share's state on this node."""

    root: str
    folder: FileFact | None = None
    is_mount: bool = False
    free_percent: int | None = None
    """Free space in the folder: bytes or files, whichever is less."""
    user_folder: FileFact | None = None
    """Folder below which users can write."""
    user_is_mount: bool = False
    user_free_percent: int | None = None
    own_used_percent: tuple[tuple[int, int], ...] = ()
    """Users with a file system of their own in `user_folder`, and the used space or files of each."""
    ledger: Ledger | UnknownFact = UnknownFact("not read")
    broken: str = ""
    """Why the ledger could not be parsed."""
    folders: tuple[tuple[int, float], ...] = ()
    """Jobs that have a folder, and when it was last changed."""
    live_jobs: frozenset[int] = frozenset()
    """Jobs with a slurmstepd here."""
    abandoned: tuple[LedgerJob, ...] = ()
    """Jobs whose clean-up is not complete: the hook was killed, or ran out of time."""
    lost: tuple[LostPath, ...] = ()
    folders_of_root: tuple[FileFact, ...] = ()
    """Folders that hooks make below the state folder, without those that users own."""
    lock_holder: str = ""
    """Process that held the ledger's lock for longer than any hook needs; empty: none."""
    now: float = 0.0
    """Unix time in seconds, the clock of files."""
    uptime_s: float = 0.0
    """Seconds since boot at the same moment, the clock of the ledger."""
    helper_folder: FileFact | None = None
    """Folder of the hooks' helper's socket."""
    helper: str = ""
    """Description of the hooks' helper; empty: none runs."""
    helper_did_not_start: bool = False
    """Whether the last helper that a hook started never became ready."""
    log: FileFact | None = None
    log_is_writable: bool = True
    log_problem: str = ""
    has_journal: bool = False
    """True: journald's socket is there."""
    log_free_percent: int | None = None
    """Free space on the log's file system: bytes or files, whichever is less."""
    has_left_proof: bool = False
    """True: a `slurm-share prove` was killed, and nobody has removed what it left."""


class SeenGpu(Struct, frozen=True):
    """A GPU as described by the driver."""

    gpu: Gpu
    compute_mode: int | None = None
    """NVML's number; None: unknown."""
    persistence: bool | None = None
    problems: Shown = ()
    """Problems of the GPU, in the driver's terms."""
    processes: tuple[NodeProcess, ...] = ()
    """Processes on it, including those of MPS."""
    accounting: bool | None = None
    """Whether the driver's accounting mode is on; None: the GPU does not have it."""


class HostGpus(Struct, frozen=True):
    """GPUs of this node and their driver."""

    driver: str | UnknownFact = UnknownFact("not asked")
    gpus: tuple[SeenGpu, ...] = ()
    cuda: tuple[int, int] | None = None
    """Newest CUDA that the driver supports, such as (12, 4); None: unknown."""
    toolkit: str = ""
    """Version of the CUDA toolkit here (/usr/local/cuda); empty: there is none."""
    why_no_limits: str = ""
    """Why the driver does not limit the memory of cgroups here, though its release can; empty: it does, or cannot."""
    limits_by: str = ""
    """How it counts a cgroup's memory: dmem or misc."""
    limit_groups: tuple[str, ...] = ()
    """Cgroups with memory limits of ours that are empty: left of jobs that have ended, or about to be removed."""


class AgentFacts(Struct, frozen=True):
    """`slurm-share agent` on this node."""

    wanted: str = ""
    """Why it should run; empty: it is not needed."""
    problem: str = ""
    """Why it did not answer; empty: it did."""
    token: FileFact | None = None
    node: str = ""
    """The node's name in its answer; empty: there was none."""
    tls_problem: str | UnknownFact = ""
    """Why callers refuse its certificate, or it cannot be used; empty: they do not, or it has none."""


class ArchiveFacts(Struct, frozen=True):
    """The systemd units of `slurm-share archive` on this host."""

    is_on: bool = False
    """Whether the timer is enabled or active."""
    failure: str = ""
    """How the last run failed, in systemd's words; empty: it did not, or none has run since boot."""


class Facts(Struct, frozen=True):
    """All facts of one host."""

    host: str
    roles: tuple[Role, ...]
    is_root: bool = True
    slurm: SlurmFacts = SlurmFacts()
    config: Configuration | UnknownFact = UnknownFact("not read")
    """UnknownFact: why it could not be parsed."""
    config_file: FileFact | None = None
    plugin: PluginFacts = PluginFacts("", None, UnknownFact("not read"))
    hooks: Mapping[str, FileFact | None] = {}
    """Our hook programs on this host by path."""
    package: FileFact | None = None
    """Folder from which our Python package was loaded."""
    broken_modules: tuple[tuple[str, str], ...] | UnknownFact = ()
    """(Python module of ours or of a bundled library, error when it is imported)."""
    mode_file: str | UnknownFact = ""
    """Content of the file that mode_file names; empty: there is none."""
    has_operators_group: bool | UnknownFact = True
    """Whether this host knows the group operators_group."""
    host_facts: HostFacts = HostFacts()
    state: StateFacts = StateFacts("")
    gpus: HostGpus = HostGpus()
    backends: Mapping[str, Health] | UnknownFact = {}
    """Health of each backend of share/backends/ by name."""
    agent: AgentFacts = AgentFacts()
    archive: ArchiveFacts | UnknownFact = UnknownFact("not asked")
