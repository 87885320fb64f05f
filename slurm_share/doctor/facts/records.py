"""Records of `slurm-share doctor`: the facts about one host, and the findings.

A fact that cannot be seen is an Unseen with the reason, and never a guess: the checks that want it say SKIP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from ...core.settings import Configuration
from ...core.verdicts import FileFact as FileFact
from ...core.verdicts import Outcome as Outcome
from ...core.verdicts import Owned as Owned
from ...core.verdicts import Unseen as Unseen
from ...core.verdicts import Verdict as Verdict
from ...node.records import Gpu, NodeProcess
from ...share import Health, Ledger, LedgerJob

Role = Literal["controller", "login", "compute"]
Shown = tuple[str, ...]
ROLES: tuple[Role, ...] = ("controller", "login", "compute")


# --- Findings --------------------------------------------------------------------------------------------------------


class Check(Struct, frozen=True):
    """One thing that a healthy site has."""

    name: str
    roles: tuple[Role, ...]
    """The hosts on which it is checked."""
    asks: str
    """What is checked, as a statement that is true on a healthy host."""
    why: str
    """What goes wrong where it does not hold."""
    fix: str
    run: Callable[[Facts], Sequence[Verdict]]


class Finding(Struct, frozen=True):
    """One verdict, with the name of its check."""

    check: str
    outcome: Outcome
    what: str
    fix: str = ""


# --- Facts: files ----------------------------------------------------------------------------------------------------


class ConfiguredHook(Struct, frozen=True):
    """One Prolog or Epilog line, as this host finds it."""

    written: str
    files: tuple[FileFact, ...]
    """In the order in which slurmd runs them: of a pattern, from z to 0. Empty: nothing is there."""


# --- Facts: Slurm ----------------------------------------------------------------------------------------------------

Values = Mapping[str, Shown]
"""Settings of slurm.conf by lower-case key; those that may stand several times have several values."""


class SiteNode(Struct, frozen=True):
    """A node as the controller lists it."""

    name: str
    gres: str
    """Such as gpu:a100:4,shard:16; empty: none."""
    states: Shown
    reason: str = ""
    version: str = ""
    """Version of the slurmd there; empty: it has not registered."""
    partitions: Shown = ()


class SitePartition(Struct, frozen=True):
    """A partition as the controller lists it."""

    name: str
    nodes: Shown
    options: Mapping[str, str]
    """As `scontrol show partition` writes them, by lower-case key."""


class SharedJob(Struct, frozen=True):
    """A job that the controller took as a shared one: its AdminComment says so."""

    job_id: int
    share: str
    partition: str


class SlurmFacts(Struct, frozen=True):
    """Slurm as this host knows it."""

    commands: str = "/usr/bin"
    """Folder of scontrol; empty: it was not found."""
    are_in_path: bool = True
    """Whether the caller's PATH has that folder."""
    file: str = ""
    """Path of its slurm.conf; empty: there is none."""
    munge_problem: str = ""
    """Why munged does not answer on this host; empty: it does, or Slurm does without it."""
    written: Values | Unseen = Unseen("not read")
    """What the file says, includes followed."""
    live: Values | Unseen = Unseen("not asked")
    """What the controller runs with."""
    is_silent: bool = False
    """Whether it was asked, and did not answer in time."""
    down: Shown = ()
    """Controllers that did not answer, backups too."""
    version: str | Unseen = Unseen("not asked")
    """Version of the Slurm installed here, such as 26.05.5."""
    differs: str = ""
    """What `scontrol` says where this host's slurm.conf is not the controller's."""
    nodes: tuple[SiteNode, ...] | Unseen = Unseen("not asked")
    """All of them on a controller, elsewhere this one alone."""
    partitions: tuple[SitePartition, ...] | Unseen = Unseen("not asked")
    written_gres: Mapping[str, str] = {}
    """By node: Gres= as slurm.conf has it. Empty: no node line was read."""
    written_partitions: Mapping[str, Mapping[str, str]] = {}
    """By partition: its line of slurm.conf, with lower-case keys. Empty: none was read."""
    controller_mode: str | Unseen = Unseen("not asked")
    """Whether the controller shares GPUs (on, observe, off), by what its job_submit.lua says of a refused job."""
    asked_partition: str = ""
    """The partition that it was asked about; empty: the default one."""
    skew_s: float | Unseen = Unseen("not asked")
    """This host's clock minus the controller's, to the second."""
    jobs_here: frozenset[int] | Unseen = Unseen("not asked")
    """Jobs that Slurm has on this node and that are not over."""
    are_all_jobs: bool = True
    """False: Slurm was asked only about jobs that this node knows of; others may be here, too."""
    shared_here: tuple[SharedJob, ...] = ()
    """Those among them that job_submit.lua made shared jobs."""
    cgroup: Values | Unseen = Unseen("there is no cgroup.conf")
    containers: str | Unseen = Unseen("not read")
    """Text of job_container.conf or namespace.yaml; empty: there is none."""
    plugstack: tuple[str, ...] | Unseen | None = Unseen("not read")
    """Lines of plugstack.conf, includes followed; a carriage return at a line's end is kept. None: it is not there."""
    plugstack_file: str = ""
    prologs: tuple[ConfiguredHook, ...] | Unseen = Unseen("not read")
    epilogs: tuple[ConfiguredHook, ...] | Unseen = Unseen("not read")
    task_prolog: str | Unseen = ""
    """Text of the site's TaskProlog; empty: there is none."""
    lua: str | Unseen | None = None
    """Text of the site's job_submit.lua; None: there is none, or this is no controller."""
    lua_of_package: str | None = None
    """The same of this package."""
    lua_object: str | Unseen = Unseen("not looked for")
    """Path of Slurm's job_submit_lua.so; empty: Slurm's plugins are here, and it is not among them."""
    lua_problem: str | Unseen = Unseen("not looked for")
    """Why Lua does not take the site's job_submit.lua; empty: it does."""
    owned: tuple[FileFact, ...] = ()
    """slurm.conf, what is beside it and what they include: who can change it runs programs as root on every node."""
    slurm_uid: int = 0
    """User id of SlurmUser."""


class PluginFacts(Struct, frozen=True):
    """The SPANK plugin's object as this host has it."""

    path: str
    file: FileFact | None
    release: str | Unseen
    """Release of the Slurm that it was built for, such as 26.05."""
    link: str = ""
    """Where the path is a link, what it points to."""
    releases: Shown = ()
    """Folders beside it with an object for the release that they are named after: 26.05, built/26.05."""
    has_chooser: bool = False
    """Whether the package's slurm-share-plugin is here, which makes that link."""
    load_problems: tuple[tuple[str, str], ...] | Unseen = Unseen("not tried")
    """(Slurm's programs that do not load it, why): each was started with it in a process of its own."""


# --- Facts: the host -------------------------------------------------------------------------------------------------


class Mount(Struct, frozen=True):
    """A mounted file system."""

    point: str
    kind: str
    options: Shown = ()


class HostFacts(Struct, frozen=True):
    """The operating system, as far as it matters to shares and MPS."""

    daemons: frozenset[str] = frozenset()
    """Which of slurmctld, slurmd, sackd, munged and systemd-logind run."""
    stopped: Mapping[str, int] = {}
    """Those among them that were stopped (SIGSTOP), and their process numbers."""
    mounts: tuple[Mount, ...] = ()
    node: str = ""
    """The node that slurmd was told to be; empty: it was told none."""
    open_files: int | Unseen = Unseen("no slurmd runs here")
    """The limit that slurmd, and what its hooks start, has."""
    ptrace_scope: int | Unseen = Unseen("this kernel has no Yama")
    unheld: tuple[str, ...] | Unseen = Unseen("not looked at")
    """What of a user's MPS daemon this node cannot limit, in a few words each."""
    removes_ipc: bool | Unseen = Unseen("no systemd-logind runs here")
    adopt_files: Shown = ()
    """Files of PAM that name pam_slurm_adopt."""
    missed: str = ""
    """Why none of this could be read; empty: it was."""
    shm_mode: int | None = None
    """Permission bits of /dev/shm, the sticky bit among them; None: it is not to be seen."""
    shm_free_percent: int | None = None
    """Room left in /dev/shm: of bytes or of files, whichever is less."""
    container_files: tuple[tuple[str, bool], ...] = ()
    """Files that say what a container sees of this host, of each container program that is set up here, and whether
    they name the state folder."""
    selinux: str | None = None
    """Label of the state folder where SELinux enforces; None: it does not."""


class LostPath(Struct, frozen=True):
    """A file or folder of a job that runs here, which is not there any more."""

    job_id: int
    uid: int
    path: str


class StateFacts(Struct, frozen=True):
    """What slurm-share itself has on this node."""

    root: str
    folder: FileFact | None = None
    is_mount: bool = False
    free_percent: int | None = None
    """Room left in it: of bytes or of files, whichever is less."""
    user_folder: FileFact | None = None
    """What users can write to."""
    user_is_mount: bool = False
    user_free_percent: int | None = None
    ledger: Ledger | Unseen = Unseen("not read")
    broken: str = ""
    """Why the ledger was not understood."""
    folders: tuple[tuple[int, float], ...] = ()
    """Jobs that have a folder, and when it was last changed."""
    live_jobs: frozenset[int] = frozenset()
    """Jobs with a slurmstepd here."""
    abandoned: tuple[LedgerJob, ...] = ()
    """Jobs that were not all cleared up after: the hook was killed, or had no more time."""
    lost: tuple[LostPath, ...] = ()
    folders_of_root: tuple[FileFact, ...] = ()
    """Those that hooks make below the state folder, without the ones that are the users' own."""
    lock_holder: str = ""
    """Who has held the ledger's lock all the time while it was looked at, which is longer than any hook needs; empty:
    nobody."""
    now: float = 0.0
    """Unix time, seconds: the clock of files."""
    uptime_s: float = 0.0
    """Seconds since the node's start, at the same moment: the clock of the ledger."""
    helper_folder: FileFact | None = None
    """Where the hooks' helper is asked."""
    helper: str = ""
    """The hooks' helper, in words; empty: none runs."""
    helper_did_not_start: bool = False
    """Whether the last one that a hook started never became ready."""
    log: FileFact | None = None
    log_is_writable: bool = True
    log_problem: str = ""
    log_free_percent: int | None = None
    """Room left on the log's file system: of bytes or of files, whichever is less."""


class SeenGpu(Struct, frozen=True):
    """A GPU as the driver describes it."""

    gpu: Gpu
    compute_mode: int | None = None
    """NVML's number; None: not told."""
    persistence: bool | None = None
    problems: Shown = ()
    """What is wrong with it, in the driver's terms."""
    processes: tuple[NodeProcess, ...] = ()
    """Programs on it, MPS's own too."""


class GpuFacts(Struct, frozen=True):
    """The GPUs of this node and their driver."""

    driver: str | Unseen = Unseen("not asked")
    gpus: tuple[SeenGpu, ...] = ()
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver serves, such as (12, 4); None: it does not tell."""
    toolkit: str = ""
    """Version of the CUDA that programs here are built with (/usr/local/cuda); empty: there is none."""


class AgentFacts(Struct, frozen=True):
    """`slurm-share agent` on this node."""

    wanted: str = ""
    """Why it should run; empty: nothing here asks for it."""
    problem: str = ""
    """Why it did not answer; empty: it did."""
    token: FileFact | None = None


class Facts(Struct, frozen=True):
    """All that is known of one host when it is examined."""

    host: str
    roles: tuple[Role, ...]
    is_root: bool = True
    slurm: SlurmFacts = SlurmFacts()
    config: Configuration | Unseen = Unseen("not read")
    """Unseen: why it was not understood."""
    config_file: FileFact | None = None
    plugin: PluginFacts = PluginFacts("", None, Unseen("not read"))
    hooks: Mapping[str, FileFact | None] = {}
    """Our own hook programs on this host by path."""
    package: FileFact | None = None
    """The folder that our Python package was loaded from."""
    broken_modules: tuple[tuple[str, str], ...] | Unseen = ()
    """(Python module of ours, or of a library that we bring, why it cannot be imported)."""
    mode_file: str | Unseen = ""
    """What the file says that mode_file names; empty: it is not there, or none is named."""
    has_operators_group: bool | Unseen = True
    """Whether this host knows the group that operators_group names."""
    host_facts: HostFacts = HostFacts()
    state: StateFacts = StateFacts("")
    gpus: GpuFacts = GpuFacts()
    backends: Mapping[str, Health] | Unseen = {}
    """By name, each backend of share/backends/ as it is on this node."""
    agent: AgentFacts = AgentFacts()
