"""Rules of runs whose ranks send messages to each other (`llsub --spmd`): which options they take, and sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...core.errors import UsageError, shown
from ...core.text import counted
from ...spmd.names import MOST_RANKS, MOST_RANKS_PER_NODE, VERSION
from ..records import Run, Triple, Wait

MODULE = "slurm_share.spmd"
_ONE_TASK = "each process is one rank, and the triple says how many there are"
_AT_ONCE = "all ranks start at once, each in its own place"
_ANEW = "a rank that has ended cannot come back into the run"
REFUSED = {
    "tasks": _ONE_TASK, "ntasks": _ONE_TASK, "distribution": _ONE_TASK,
    "retries": _ANEW, "max_failures": _ANEW, "oom_retries": _ANEW,
    "pack": _AT_ONCE, "gpu_mem": _AT_ONCE, "gpus_per_task": _AT_ONCE, "name": _AT_ONCE, "max_per_gpu": _AT_ONCE,
    "order": _AT_ONCE, "memory_guard": _AT_ONCE, "estimate": _AT_ONCE, "hang": _AT_ONCE, "undo": _AT_ONCE,
    "checkpoint_signal": _AT_ONCE, "min_speed": _AT_ONCE, "compare_sharing": _AT_ONCE,
}  # fmt: skip
"""Options of llsub that do not go with --spmd, by their names in the program, and why."""
AGAIN = "a run of ranks that talk is submitted anew"
COMMENT = "# When one rank fails the others are ended, and the run is submitted anew."
"""For the run's script."""


def check(written: Sequence[str], triple: Triple) -> None:
    """Raise UsageError for what does not go with --spmd. `written`: names of the options that were written."""
    for name in written:
        if name in REFUSED:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} does not go with --spmd: {REFUSED[name]}; leave {option} away")
    if triple.is_auto:
        raise UsageError(f"{triple} does not go with --spmd: {_AT_ONCE}; write the number of ranks of a node for auto")
    if triple.per_node > MOST_RANKS_PER_NODE or triple.nodes * triple.per_node > MOST_RANKS:
        raise UsageError(
            f"{triple} has {triple.nodes * triple.per_node} ranks, and a run with --spmd at most {MOST_RANKS}, of "
            f"which {MOST_RANKS_PER_NODE} on a node; write fewer, or take mpi4py with srun"
        )


def check_nodes(nodes: int, between_nodes: str) -> None:
    """Raise UsageError for a run of several nodes where the site lets no messages go between nodes."""
    if nodes > 1 and between_nodes == "off":
        raise UsageError(
            f"this site lets --spmd send no messages between nodes (messages.between_nodes), and the run has {nodes}; "
            "write one node, or use mpi4py with the site's MPI: srun --mpi=... python prog.py"
        )


def is_between_nodes(run: Run) -> bool:
    """Return whether ranks of a run send messages between nodes."""
    return run.together and run.triple is not None and run.triple.nodes > 1


def command_of(python: str, program: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of a rank whose program is a file of Python."""
    return (python, "-u", "-m", MODULE, program, *arguments)


def python_of(run: Run) -> str | None:
    """Return the Python that runs the program; None: the program is started itself."""
    return run.command[0] if run.together and run.command[1:4] == ("-u", "-m", MODULE) else None


def missing_text(python: str, line: str) -> str:
    """Return what to do where the user's Python cannot import our package. `line`: a command that installs it."""
    return f"{python} has no {MODULE}, through which ranks send messages; install it there with: {line}"


def version_text(python: str, version: str, line: str) -> str:
    """Return what to do where the package in the user's Python is of another release. `line`: as above."""
    return (
        f"{python} has {MODULE} with version {shown(version)} of its messages, and this slurm-share has {VERSION}; "
        f"install the same one there with: {line}"
    )


def is_module_missing(log_tail: bytes) -> bool:
    """Return whether a rank ended because its Python has no package of ours, by the end of what it printed."""
    return re.search(rb"No module named '?slurm_share\b", log_tail) is not None


def again_text(run: Run, folder: str) -> str:
    """Return how what a run has not finished is run."""
    return AGAIN if run.together else f"llsub --resume {folder} runs what is left"


def unfinished_text(run: Run) -> str:
    """Return how tasks of a run that were ended are run again."""
    return AGAIN if run.together else "unfinished tasks run again with llsub --resume"


def short_reason(sentence: str) -> str:
    """Return why a run ended, without the list of who waits for whom, and without what became of the others."""
    return sentence.partition(": ")[0].partition("; the other")[0]


def waits_text(waits: Sequence[Wait], now: float, most: int = 1) -> str:
    """Return which ranks wait for what: rank 7 waits for (3, 'x') since 40 s. Empty: none."""
    longest = sorted(waits, key=lambda one: (one.since, one.rank))
    said = [f"rank {one.rank} waits {one.what} since {max(0.0, now - one.since):.0f} s" for one in longest[:most]]
    more = len(longest) - len(said)
    return ", ".join(said) + (f" and {counted(more, 'rank')} more" if more else "")
