"""Decide whether a hook's findings drain its node: the table of causes, and the count of refusals.

A drained node is lost to all users. So a cause drains only if no user can bring it about; anything else is logged, and
later hooks clean up. This module imports little, since every hook loads it.
"""

from __future__ import annotations

from ...core import numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Refused = tuple[int, float, str]
    """A refusal that counts: job, seconds of CLOCK_BOOTTIME, cause."""

NOW = "now"
"""The cause drains the node at once."""
COUNTED = "counted"
"""The cause refuses a job; the third such job in ten minutes drains the node, which would otherwise refuse the rest of
the queue."""
NEVER = "never"
"""The cause is logged and never drains."""

OUTLIVES_SIGKILL = "process-outlives-sigkill"
DRIVER_UNREADABLE = "driver-unreadable"
NO_DRIVER = "no-driver"
NO_SUCH_GPU = "no-such-gpu"
GPU_LOST = "gpu-lost"
NO_MPS_PROGRAM = "no-mps-program"
STATE_UNWRITABLE = "state-unwritable"
JOB = "job"
OTHER_USER = "other-user"
CROWDED = "crowded"
MPS_FAILED = "mps-failed"
STATE_FULL = "state-full-of-users-files"
NO_JOB = "no-job"
SYSTEM_PROCESS = "system-process"
REMAINS = "remains"
HANGS = "hook-hangs"
DEFECT = "defect"
NO_PLUGIN = "no-plugin"

CAUSES = {
    # A process that cannot be ended holds a GPU, or the driver cannot tell whether one does.
    OUTLIVES_SIGKILL: NOW,  # a process on a GPU, or of an MPS daemon, hangs in the kernel, and not in a user's FUSE
    DRIVER_UNREADABLE: NOW,  # after a job that had GPUs here: the driver does not answer, or hangs
    # No user can cause these, and further shared jobs meet them on this node.
    NO_DRIVER: COUNTED,  # before a job: the driver does not answer
    NO_SUCH_GPU: COUNTED,  # gres.conf names a GPU that the driver does not list
    GPU_LOST: COUNTED,  # the driver answers for no GPU of the job; with some it runs on those
    NO_MPS_PROGRAM: COUNTED,  # the site requires MPS (mps_required), and its program is missing
    STATE_UNWRITABLE: COUNTED,  # root's state cannot be written, and no user's file is on its file system
    # A user can cause these, for himself or for others.
    JOB: NEVER,  # the job's request: too many tasks, no GPU, sharing=mps without MPS
    OTHER_USER: NEVER,  # a job of another user is alive on a node that is for one user
    CROWDED: NEVER,  # other jobs of the same user have the GPU
    MPS_FAILED: NEVER,  # the user's own MPS daemon does not start
    STATE_FULL: NEVER,  # state cannot be written, and users' files are on the same file system
    NO_JOB: NEVER,  # a process of another user on a GPU that no job has: it is ended
    SYSTEM_PROCESS: NEVER,  # a process of a system user on such a GPU: it is not ended
    REMAINS: NEVER,  # something of a user cannot be removed, or not in the hook's time: the next hook continues
    HANGS: NEVER,  # a hook hangs outside the driver, for example in a user's file system
    NO_PLUGIN: NEVER,  # the plugin cannot be loaded here: ordinary jobs run as before
    DEFECT: NEVER,  # a defect of ours, or a wrong configuration
}
"""Every cause that a hook can find, and whether it drains the node."""

MOST_REFUSALS = 3
WINDOW_S = 600.0
"""Two refusals may be a coincidence; three in ten minutes are a state of the node."""


def drains(causes: Iterable[str]) -> bool:
    """Return whether one of these causes drains the node at once."""
    return any(CAUSES[cause] == NOW for cause in causes)


def is_counted(cause: str) -> bool:
    """Return whether a refusal for that cause is counted."""
    return CAUSES[cause] == COUNTED


def of_hang(*, in_driver: bool, before_job: bool) -> str:
    """Return the cause for a hook that does not end in time, by whether it hangs in the driver."""
    if not in_driver:
        return HANGS
    return NO_DRIVER if before_job else DRIVER_UNREADABLE


def of_unwritable_state(*, has_users_files: bool) -> str:
    """Return the cause for state that cannot be written. has_users_files: users' files are on its file system."""
    return STATE_FULL if has_users_files else STATE_UNWRITABLE


def note(refused: Sequence[Refused], job_id: int, cause: str, now_s: float) -> tuple[Refused, ...]:
    """Return the refusals of the last ten minutes with one more; each job counts once, with its last refusal.

    now_s: seconds of CLOCK_BOOTTIME, which cannot be set.
    """
    recent = [one for one in refused if 0 <= now_s - one[1] < WINDOW_S and one[0] != job_id]
    return (*recent[-MOST_REFUSALS:], (job_id, now_s, cause)) if is_counted(cause) else tuple(recent)


def is_too_many(refused: Sequence[Refused]) -> bool:
    """Return whether these refusals drain the node."""
    return len(refused) >= MOST_REFUSALS


def sentence(refused: Sequence[Refused]) -> str:
    """Return the log's sentence about refusals that drain the node."""
    causes = ", ".join(dict.fromkeys(cause for _, _, cause in refused))
    return f"{len(refused)} jobs refused in {WINDOW_S / 60:g} minutes for a cause of the node's own ({causes})"


def render(boot_id: str, refused: Iterable[Refused]) -> str:
    """Return the text of the record. Times are not rounded: one that is rounded up would lie in the future."""
    return "".join([f"{boot_id}\n", *(f"{job_id} {at_s!r} {cause}\n" for job_id, at_s, cause in refused)])


def parse(text: str, boot_id: str) -> tuple[Refused, ...]:
    """Return the refusals in the text of the record; skip wrong lines, and everything from an earlier boot."""
    first, *lines = text.split("\n")
    found = []
    for part in (line.split(" ") for line in lines if first == boot_id):
        if len(part) != 3 or part[2] not in CAUSES:
            continue
        job, (at_s, _, fraction) = numbers.whole(part[0]), part[1].partition(".")
        if job is not None and None not in (numbers.whole(at_s), numbers.whole(fraction or "0")):
            found.append((job, float(part[1]), part[2]))
    return tuple(found)
