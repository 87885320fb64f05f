"""What a backend is: one way of sharing a GPU between the tasks of one user, with five methods.

Hooks, launcher, doctor, status and advice know a backend through these methods only. registry.py lists the backends;
packaging/docs/extending.md shows how one is added.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from msgspec import Struct

from ...core.paths import Paths
from ...core.records import ProcessIdentity
from ...core.settings import Settings
from ..records import Limits
from ..records import Prepared as Prepared
from ..records import Served as Served

TYPE_CHECKING = False  # as mypy knows it, without the import of `typing`: hooks load this module
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import ClassVar

    from ...core.process import Deadline
    from ...core.records import Owner
    from ...core.settings import Configuration
    from ...core.verdicts import FileFact, Unseen, Verdict
    from ...node.records import Gpu
    from ..records import Assignment, Ledger, LedgerJob, Slot

UserGpu = tuple[int, str]
"""A user and a GPU of his jobs: uid, UUID. A backend has at most one daemon for each."""
UNDO_S = 3.0
"""The time that a backend may take beyond its deadline to undo a start that failed."""
NOT_ASKED = "alive"
"""The condition of a daemon that is there and was not asked how it is."""


class Host(Struct, frozen=True, kw_only=True):
    """The node that a backend works on, and for whom."""

    paths: Paths = Paths()
    settings: Settings = Settings()
    own_folder: Path | None = None
    """A launcher without a plan: the folder of its own daemons, which serve its tasks only. None: daemons serve all
    jobs of a user on a GPU."""
    root: Path = Path("/")
    """The file system to read."""


class Leftovers(Struct, frozen=True):
    """What `clean_up` must not touch, and what it needs to know about the rest."""

    read_kept: Callable[[], frozenset[UserGpu]] = frozenset
    """Reads which GPUs' daemons stay: jobs have them, or another hook cleans up there."""
    known: frozenset[UserGpu] = frozenset()
    """GPUs of the jobs that are over. The files of a daemon may tell only a part of its GPU's UUID."""
    read_in_use: Callable[[], Mapping[UserGpu, int]] = dict
    """Reads which GPUs jobs have by now, and which jobs. Asked before a daemon is stopped, when no job can join it any
    more."""
    only: tuple[int, str] | None = None
    """(uid, folder): clean up this one alone, and leave it alone if a program uses it."""


class CleanedUp(Struct, frozen=True):
    """What `clean_up` did."""

    log: tuple[str, ...] = ()
    """Sentences for the hooks' log."""
    problems: tuple[str, ...] = ()
    """Sentences for the job's output: what could not be ended or removed."""
    is_whole: bool = True
    """False: there was not enough time; the next hook goes on."""
    left: tuple[ProcessIdentity, ...] = ()
    """Processes that got SIGKILL and have not ended yet."""
    job_id: int | None = None
    """With `Leftovers.only`: the job that has come meanwhile, so that the folder was left alone."""
    users: tuple[ProcessIdentity, ...] = ()
    """With `Leftovers.only`: the programs that use the folder, so that it was left alone."""


class Daemon(Struct, frozen=True):
    """One daemon of ours, or what is left of it."""

    uid: int
    folder: str
    """Where its clients find it."""
    condition: str
    """fine, alive (not asked), dead, foreign (something else has its place), hidden (this caller may not look), or a
    word of the backend's; `why` explains all but the first two."""
    pid: int | None = None
    """None: it is dead, or the kernel does not show it to this caller."""
    why: str = ""
    """A sentence about what is wrong with it."""
    pids: tuple[int, ...] = ()
    """All its processes, where they were asked for."""

    @property
    def lives(self) -> bool:
        """Return whether the daemon is there."""
        return self.condition not in ("dead", "foreign", "hidden")


class Health(Struct, frozen=True):
    """How a backend's daemons on a node are. A backend's own subclass has what its checks need besides."""

    daemons: tuple[Daemon, ...] = ()
    lost: tuple[tuple[int, int, str], ...] = ()
    """(job, uid, path) of the files that a job's tasks need and that are gone; only with an examination."""


class Examination(Struct, frozen=True):
    """What `slurm-share doctor` gives to `health`, to look at more than the daemons' processes."""

    driver: str | Unseen
    read_file: Callable[[str], FileFact | None]
    """Reads who owns a file and who may change it; None: it is not there."""
    plans: tuple[tuple[LedgerJob, frozenset[str]], ...] = ()
    """The jobs of the node, and the folders of daemons that the plan of each names."""
    asks_daemons: bool = True
    """Whether daemons are asked how they are; for a moment they answer nobody else."""


class Known(Struct, frozen=True):
    """What `slurm-share doctor` knows of a node besides a backend's Health, for the backend's checks."""

    config: Configuration | Unseen
    ledger: Ledger | Unseen
    driver: str | Unseen
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver serves; None: it does not tell."""
    has_gpus: bool = True


class BackendCheck(Struct, frozen=True):
    """A check of `slurm-share doctor` about a backend; the fields as in `doctor.facts.records.Check`."""

    name: str
    asks: str
    why: str
    fix: str
    run: Callable[[Known, Health], Sequence[Verdict]]


class Backend(ABC):
    """One way of sharing a GPU. Instances have no state: what they need is in their arguments."""

    name: ClassVar[str]
    """As the plan and the ledger hold it."""
    title: ClassVar[str]
    """For people."""
    effect: ClassVar[str] = ""
    """What a task meets that a GPU serves in this way, for the notes of a job that was to be served in another."""
    process_name: ClassVar[str] = ""
    """The beginning of the name of its own processes on a GPU, which are no tasks; empty: it has none."""
    needs_no_driver: ClassVar[bool] = False
    """Whether it can serve tasks although the driver does not answer."""
    has_gpu_alone: ClassVar[bool] = False
    """Whether one process of the backend's uses the GPU for all tasks, so that the GPU may admit only one
    (compute_mode)."""
    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that its methods import when they need them. The hooks' helper loads them ahead of time."""

    @property
    def checks(self) -> tuple[BackendCheck, ...]:
        """Return its checks of `slurm-share doctor`."""
        return ()

    def describe(self, slots: int | None = None) -> str:
        """Return how a plan is served, for the log: so many of its slots, or the whole plan."""
        return f"with {self.title}" if slots is None else f"{slots} under {self.title}"

    @abstractmethod
    def limits(self, driver: str | None, host: Host | None = None, *, connections: int | None = None) -> Limits:
        """Return what the backend can enforce with this version of the driver, and why it cannot serve `host`.

        host: None: any node with that driver; nothing is looked at. connections: that each task has to its GPU, if it
        says so itself (CUDA_DEVICE_MAX_CONNECTIONS).
        """

    @abstractmethod
    def prepare(
        self, host: Host, owner: Owner, gpus: Sequence[Gpu], in_use: Collection[str], deadline: Deadline
    ) -> Prepared:
        """Make the GPUs ready for tasks of `owner`: start a daemon for each, or join the one there.

        owner: without supplementary groups. in_use: UUIDs of the GPUs that other jobs of the owner have, so that a
        daemon there must not be replaced.
        Undoing a start that failed may take UNDO_S beyond the deadline.
        """

    @abstractmethod
    def environment(self, slot: Slot) -> tuple[Assignment, ...]:
        """Return the variables that the task in a slot needs for the backend, made of the slot's fields. Those that
        `prepare` returned for its GPU (`Slot.variables`) come besides."""

    @abstractmethod
    def clean_up(self, host: Host, leftovers: Leftovers, deadline: Deadline) -> CleanedUp:
        """End and remove what `prepare` made and no job needs any more. Nothing happens when there is nothing left.

        Of a host with `own_folder`: the daemons of the GPUs in `leftovers.known`.
        """

    @abstractmethod
    def health(
        self,
        host: Host,
        of: Collection[UserGpu] | None = None,
        *,
        folders: Collection[str] = (),
        with_processes: bool = False,
        examination: Examination | None = None,
    ) -> Health:
        """Return how the daemons are: of these GPUs' users; of the caller in these `folders`; None: all of the node.

        Without an examination only the kernel is asked, and no daemon.
        """
