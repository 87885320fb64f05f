"""The interface of a backend: one method of sharing a GPU between the tasks of one user.

Hooks, launcher, doctor, status and advice use a backend only through this interface. registry.py lists the backends;
packaging/docs/extending.md shows how to add one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from msgspec import Struct

from ...core.paths import Paths
from ...core.records import ProcessIdentity
from ...core.settings import Settings
from ...node.records import Gpu
from ..records import Limits
from ..records import PreparedGpu as PreparedGpu
from ..records import PreparedGpus as PreparedGpus
from ..records import UserRemains as UserRemains

TYPE_CHECKING = False  # mypy takes it for True; hooks load this module, and importing `typing` takes time
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import ClassVar

    from ...core.process import Deadline
    from ...core.records import Owner
    from ...core.settings import Configuration
    from ...core.verdicts import CheckVerdict, FileFact, UnknownFact
    from ...mps.records import Namespace
    from ..records import Assignment, Ledger, LedgerJob, Slot

UserGpu = tuple[int, str]
"""The uid of a user, and the UUID of a GPU of his jobs. A backend has at most one daemon for each."""
UNDO_S = 3.0
"""The time that a backend may take beyond its deadline to undo a start that failed."""
NOT_ASKED = "alive"
"""The condition of a daemon that runs and was not asked for its state."""


class Host(Struct, frozen=True, kw_only=True):
    """The node that a backend works on."""

    paths: Paths = Paths()
    settings: Settings = Settings()
    own_folder: Path | None = None
    """The folder for the daemons of a launcher without a plan, which serve its tasks only. None: daemons serve all jobs
    of a user on a GPU."""
    root: Path = Path("/")
    """The root of the file system to read."""


class Leftovers(Struct, frozen=True):
    """The daemons that `clean_up` must keep, and information about the others."""

    read_kept: Callable[[], frozenset[UserGpu]] = frozenset
    """Returns the GPUs whose daemons stay: jobs have them, or another hook cleans up there."""
    known: frozenset[UserGpu] = frozenset()
    """The GPUs of the ended jobs. The files of a daemon may have only a part of its GPU's UUID."""
    read_in_use: Callable[[], Mapping[UserGpu, int]] = dict
    """Returns the GPUs of jobs at present -> job. Called just before a daemon is stopped, when no job can join it any
    more."""
    read_known: Callable[[], frozenset[int]] = frozenset
    """Returns the users of whom an earlier hook could not remove everything. They get little time: a process that one
    of them left can make files as fast as they are removed, and the hook may be another user's."""
    only: tuple[int, str] | None = None
    """(uid, folder): clean up this daemon only, and only if no program uses it."""


class CleanedUp(Struct, frozen=True):
    """The result of `clean_up`."""

    log: tuple[str, ...] = ()
    """Sentences for the hooks' log."""
    problems: tuple[str, ...] = ()
    """Sentences for the job's output: what could not be ended or removed."""
    remains: tuple[UserRemains, ...] = ()
    """Processes and files that could not be ended or removed; the next hook continues."""
    left: tuple[ProcessIdentity, ...] = ()
    """Processes that got SIGKILL and have not ended yet."""
    job_id: int | None = None
    """With `Leftovers.only`: the new job on the GPU, because of which nothing was cleaned up."""
    users: tuple[ProcessIdentity, ...] = ()
    """With `Leftovers.only`: the programs that use the daemon, because of which nothing was cleaned up."""


class Daemon(Struct, frozen=True):
    """One daemon of ours, or its remains."""

    uid: int
    folder: str
    """The folder through which clients connect."""
    condition: str
    """fine, alive (not asked), dead, foreign (another process has its place), hidden (this caller may not read it), or
    a state of the backend's own; `why` explains all but the first two."""
    pid: int | None = None
    """None: it is dead, or the kernel does not show it to this caller."""
    why: str = ""
    """A sentence about what is wrong with it."""
    pids: tuple[int, ...] = ()
    """All its processes, if the caller wanted them."""

    @property
    def lives(self) -> bool:
        """Return whether the daemon runs."""
        return self.condition not in ("dead", "foreign", "hidden")


class Health(Struct, frozen=True):
    """The state of a backend's daemons on a node. A backend's subclass adds what its checks need."""

    daemons: tuple[Daemon, ...] = ()
    lost: tuple[tuple[int, int, str], ...] = ()
    """(job, uid, path) of the missing files that a job's tasks need; only with an examination."""


class Examination(Struct, frozen=True):
    """The input of `slurm-share doctor` to `health`, to examine more than the daemons' processes."""

    driver: str | UnknownFact
    read_file: Callable[[str], FileFact | None]
    """Returns who owns a file and who may change it; None: there is no such file."""
    plans: tuple[tuple[LedgerJob, frozenset[str]], ...] = ()
    """The jobs of the node, and the folders of daemons in the plan of each."""
    asks_daemons: bool = True
    """Whether to ask daemons for their state; meanwhile they answer nobody else."""


class BackendFacts(Struct, frozen=True):
    """The facts of `slurm-share doctor` for a backend's checks, in addition to the backend's Health."""

    config: Configuration | UnknownFact
    ledger: Ledger | UnknownFact
    driver: str | UnknownFact
    cuda: tuple[int, int] | None = None
    """The newest CUDA version that the driver supports; None: unknown."""
    has_gpus: bool = True
    gpus: tuple[Gpu, ...] = ()


class BackendCheck(Struct, frozen=True):
    """A check of `slurm-share doctor` about a backend, with the fields of `doctor.facts.records.Check`."""

    name: str
    asks: str
    why: str
    fix: str
    run: Callable[[BackendFacts, Health], Sequence[CheckVerdict]]


class Backend(ABC):
    """One method of sharing a GPU. Instances have no state."""

    name: ClassVar[str]
    """The name in plans and the ledger."""
    title: ClassVar[str]
    """The name for users."""
    effect: ClassVar[str] = ""
    """The effect on a task, for the note to a job that another backend should have served."""
    process_name: ClassVar[str] = ""
    """The prefix of the names of its own processes on a GPU, which are no tasks; empty: it has none."""
    needs_no_driver: ClassVar[bool] = False
    """Whether it can serve tasks although the driver does not answer."""
    has_gpu_alone: ClassVar[bool] = False
    """Whether one process of the backend uses the GPU for all tasks, so that the GPU need admit only one process
    (compute_mode)."""
    modules: ClassVar[tuple[str, ...]] = ()
    """The modules that its methods import when needed. The hooks' helper loads them in advance."""

    @property
    def checks(self) -> tuple[BackendCheck, ...]:
        """Return the backend's checks of `slurm-share doctor`."""
        return ()

    def describe(self, slots: int | None = None) -> str:
        """Return how so many slots, or a whole plan, are served, for the log."""
        return f"with {self.title}" if slots is None else f"{slots} under {self.title}"

    @abstractmethod
    def limits(self, driver: str | None, host: Host | None = None, *, connections: int | None = None) -> Limits:
        """Return what the backend can enforce with this version of the driver, and why it cannot serve `host`.

        host: None: any node with that driver. connections: a task's CUDA_DEVICE_MAX_CONNECTIONS, if it sets that.
        """

    @abstractmethod
    def prepare(
        self,
        host: Host,
        owner: Owner,
        gpus: Sequence[Gpu],
        in_use: Collection[str],
        deadline: Deadline,
        *,
        partitions: int = 0,
        namespaces: Mapping[str, tuple[Namespace, ...]] | None = None,
    ) -> PreparedGpus:
        """Prepare the GPUs for tasks of `owner`: start a daemon on each, or join the existing one.

        owner: without supplementary groups. in_use: UUIDs of the GPUs that other jobs of the owner have, whose daemons
        must not be replaced. Undoing a start that failed may take UNDO_S beyond the deadline. partitions: the number of
        static partitions of each GPU's SM, one for each task (`Limits.why_no_partitions`); a GPU that has none for them
        is served without, and is in `PreparedGpus.undivided`. namespaces: GPU -> the namespaces for the tasks, in a
        daemon with protocol 3; None or empty: daemons have protocol 2.
        """

    @abstractmethod
    def environment(self, slot: Slot) -> tuple[Assignment, ...]:
        """Return the variables of the task in a slot that follow from the slot's fields. Variables that `prepare`
        returned for the GPU (`Slot.variables`) are added to them."""

    @abstractmethod
    def clean_up(self, host: Host, leftovers: Leftovers, deadline: Deadline) -> CleanedUp:
        """End and remove what `prepare` made and no job needs any more. A second call does nothing.

        On a host with `own_folder`: end the daemons of the GPUs in `leftovers.known`.
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
        """Return the state of the daemons of these users on their GPUs; of the caller's daemons in `folders`; without
        both, of all daemons on the node.

        Without an examination only the kernel is asked, and no daemon.
        """
