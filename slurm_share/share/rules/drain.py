"""Decide whether what a hook met drains its node: the table of causes, and the count of refusals.

A drained node is lost to everybody. So a cause drains only if no user can bring it about: what is merely untidy is
logged and cleared later. Imports nothing: hooks load it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Refused = tuple[int, float, str]
    """A refusal that counts: job, seconds of CLOCK_BOOTTIME, cause."""

NOW = "now"
"""Drains the node at once."""
COUNTED = "counted"
"""Refuses a job; the third job in ten minutes drains the node, which would otherwise eat the queue."""
NEVER = "never"
"""Said in the log, and never drains."""

OUTLIVES_SIGKILL = "process-outlives-sigkill"
DRIVER_UNREADABLE = "driver-unreadable"
NO_DRIVER = "no-driver"
NO_SUCH_GPU = "no-such-gpu"
NO_MPS_PROGRAM = "no-mps-program"
STATE_UNWRITABLE = "state-unwritable"
JOB = "job"
OTHER_USER = "other-user"
CROWDED = "crowded"
MPS_FAILED = "mps-failed"
STATE_FULL = "state-full-of-users-files"
NO_JOB = "no-job"
SYSTEM_PROCESS = "system-process"
OUT_OF_TIME = "out-of-time"
HANGS = "hook-hangs"
DEFECT = "defect"

CAUSES = {
    # A GPU or its memory is held by what nobody can end, or nobody can say whether it is.
    OUTLIVES_SIGKILL: NOW,  # a process on a GPU, or of an MPS daemon, sits in the kernel
    DRIVER_UNREADABLE: NOW,  # after a job that had GPUs here: the driver answers no question, or hangs
    # Nothing that a user does makes one of these, and every job of this kind meets it here.
    NO_DRIVER: COUNTED,  # the driver answers no question before a job
    NO_SUCH_GPU: COUNTED,  # gres.conf names a GPU that the driver does not list
    NO_MPS_PROGRAM: COUNTED,  # the site requires MPS (mps_required), and its program is not there
    STATE_UNWRITABLE: COUNTED,  # root's state cannot be written, and no user's file is on its file system
    # What a user can bring about, for himself or by intent for others.
    JOB: NEVER,  # what the job asks for: too many tasks, no GPU, mps=on where there is no MPS
    OTHER_USER: NEVER,  # a job of another user is alive on a node that is for one user
    CROWDED: NEVER,  # other jobs of the same user have the GPU
    MPS_FAILED: NEVER,  # the user's own MPS daemon does not start
    STATE_FULL: NEVER,  # state cannot be written, and users' files are on the same file system
    NO_JOB: NEVER,  # a process of another user on a GPU that no job has: it is ended
    SYSTEM_PROCESS: NEVER,  # a process of a system user there: it is left alone
    OUT_OF_TIME: NEVER,  # clean-up takes longer than the hook may: the next hook goes on
    HANGS: NEVER,  # a hook waits for something else than the driver, such as a user's file system
    DEFECT: NEVER,  # of ours, or of the configuration
}
"""Every cause that a hook knows, and what comes of it."""

MOST_REFUSALS = 3
WINDOW_S = 600.0
"""Two refusals may be two jobs of one unlucky moment; three in ten minutes are a state of the node."""


def drains(causes: Iterable[str]) -> bool:
    """Return whether one of these causes drains the node at once."""
    return any(CAUSES[cause] == NOW for cause in causes)


def is_counted(cause: str) -> bool:
    """Return whether a refusal for that cause counts."""
    return CAUSES[cause] == COUNTED


def of_hang(*, in_driver: bool, before_job: bool) -> str:
    """Return the cause for a hook that is still there after its time: what it waits for tells."""
    if not in_driver:
        return HANGS
    return NO_DRIVER if before_job else DRIVER_UNREADABLE


def of_unwritable_state(*, has_users_files: bool) -> str:
    """Return the cause for state that cannot be written. has_users_files: they are on the same file system."""
    return STATE_FULL if has_users_files else STATE_UNWRITABLE


def note(refused: Sequence[Refused], job_id: int, cause: str, now_s: float) -> tuple[Refused, ...]:
    """Return the refusals of the last ten minutes with one more; each job counts once, from its last one.

    now_s: seconds of CLOCK_BOOTTIME, which nobody sets.
    """
    recent = [one for one in refused if 0 <= now_s - one[1] < WINDOW_S and one[0] != job_id]
    return (*recent[-MOST_REFUSALS:], (job_id, now_s, cause)) if is_counted(cause) else tuple(recent)


def is_too_many(refused: Sequence[Refused]) -> bool:
    """Return whether these refusals drain the node."""
    return len(refused) >= MOST_REFUSALS


def sentence(refused: Sequence[Refused]) -> str:
    """Return what the log says when they do."""
    causes = ", ".join(dict.fromkeys(cause for _, _, cause in refused))
    return f"{len(refused)} jobs refused in {WINDOW_S / 60:g} minutes for a cause of the node's own ({causes})"


def render(boot_id: str, refused: Iterable[Refused]) -> str:
    """Return the text of the record; its moments are whole, since one that is rounded up lies in the future."""
    return "".join([f"{boot_id}\n", *(f"{job_id} {at_s!r} {cause}\n" for job_id, at_s, cause in refused)])


def parse(text: str, boot_id: str) -> tuple[Refused, ...]:
    """Return what `render` wrote; nothing from an earlier boot, and no line that is none of `render`'s."""
    first, *lines = text.split("\n")
    found = []
    for part in (line.split(" ") for line in lines if first == boot_id):
        if len(part) == 3 and part[0].isdecimal() and part[1].replace(".", "", 1).isdecimal():
            found += [(int(part[0]), float(part[1]), part[2])] if part[2] in CAUSES else []
    return tuple(found)
