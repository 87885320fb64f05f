"""Rules of runs with ranks that send messages to each other (`llsub --spmd`): valid options, commands, sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ...core.errors import UsageError, shown
from ...core.text import counted
from ...packing import RankWait
from ...spmd.names import MOST_RANKS, MOST_RANKS_PER_NODE, VERSION
from ..records import Run, Triple

MODULE = "slurm_share.spmd"
_ONE_TASK = "each process is one rank, and the triple sets their number"
_AT_ONCE = "all ranks start at once, each on its own GPU and cores"
_ANEW = "a rank that has ended cannot join the run again"
REFUSED = {
    "tasks": _ONE_TASK, "ntasks": _ONE_TASK, "sweep": _ONE_TASK, "zip": _ONE_TASK, "distribution": _ONE_TASK,
    "retries": _ANEW, "max_failures": _ANEW, "oom_retries": _ANEW,
    "pack": _AT_ONCE, "gpu_mem": _AT_ONCE, "gpus_per_task": _AT_ONCE, "name": _AT_ONCE, "max_per_gpu": _AT_ONCE,
    "order": _AT_ONCE, "memory_guard": _AT_ONCE, "estimate": _AT_ONCE, "hang": _AT_ONCE, "undo": _AT_ONCE,
    "slot": _AT_ONCE, "compare_sharing": _AT_ONCE,
    "task_cpus": _AT_ONCE, "task_mem": _AT_ONCE, "task_time": "ranks end together, and -T limits their job",
}  # fmt: skip
"""Options of llsub (names of the arguments) that conflict with --spmd, and why."""
COMMENT = "# When a rank fails, the other ranks are ended. llsub --resume starts all ranks again."


def check(written: Sequence[str], triple: Triple) -> None:
    """Raise UsageError for options that conflict with --spmd. `written`: names of the written options."""
    for name in written:
        if name in REFUSED:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} conflicts with --spmd: {REFUSED[name]}; remove {option}")
    if triple.is_auto:
        raise UsageError(f"{triple} conflicts with --spmd: {_AT_ONCE}; write the number of ranks per node for auto")
    if triple.per_node > MOST_RANKS_PER_NODE or triple.nodes * triple.per_node > MOST_RANKS:
        raise UsageError(
            f"{triple} has {triple.nodes * triple.per_node} ranks, but a run with --spmd has at most {MOST_RANKS}, and "
            f"{MOST_RANKS_PER_NODE} on a node; write fewer, or use mpi4py with srun"
        )


def check_resume(asked: Mapping[str, object]) -> None:
    """Raise UsageError for options of llsub --resume that conflict with --spmd. `asked`: values; None: not given."""
    for name, value in asked.items():
        if name in REFUSED and value is not None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} conflicts with --spmd: {REFUSED[name]}; remove {option}")


def check_nodes(nodes: int, between_nodes: str) -> None:
    """Raise UsageError for a run on several nodes if the site does not allow messages between nodes."""
    if nodes > 1 and between_nodes == "off":
        raise UsageError(
            f"this site does not allow messages between nodes (messages.between_nodes), and the run has {nodes} nodes; "
            "write one node, or use mpi4py with the site's MPI: srun --mpi=... python prog.py"
        )


def is_between_nodes(run: Run) -> bool:
    return run.together and run.triple is not None and run.triple.nodes > 1


def command_of(python: str, program: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of a rank that runs a Python file."""
    return (python, "-u", "-m", MODULE, program, *arguments)


def python_of(run: Run) -> str | None:
    """Return the Python that runs the ranks' program; None: the program is executed itself."""
    return run.command[0] if run.together and run.command[1:4] == ("-u", "-m", MODULE) else None


def missing_text(python: str, line: str) -> str:
    """Return the message for a Python without our package. `line`: the command that installs it."""
    return f"{python} has no {MODULE}, which ranks need to send messages; install it there with: {line}"


def version_text(python: str, version: str, line: str) -> str:
    """Return the message for a Python with our package of another release. `line`: the command that installs it."""
    return (
        f"{python} has {MODULE} with protocol version {shown(version)}, but this slurm-share has {VERSION}; install "
        f"the same release there with: {line}"
    )


def is_module_missing(log_tail: bytes) -> bool:
    """Return whether the end of a rank's output shows that its Python has no slurm_share."""
    return re.search(rb"No module named '?slurm_share\b", log_tail) is not None


def again_text(run: Run, folder: str) -> str:
    return f"llsub --resume {folder} {'starts all ranks again' if run.together else 'runs what is left'}"


def unfinished_text(run: Run) -> str:
    what = "if a rank is not done, all ranks run again" if run.together else "unfinished tasks run again"
    how = "with llsub --resume" if run.until_done is None else "in the next job (--until-done)"
    return f"{what} {how}"


def left_sentences(run: Run, done: int, saved: int, folder: str) -> list[str]:
    """Return what follows for a run in which not all ranks are done. `done`, `saved`: the number of such ranks."""
    said = []
    if done and saved:
        said.append(
            f"{counted(saved, 'rank')} saved and {done} ended with exit code 0: the run is not done, and all ranks "
            "start again"
        )
    if run.until_done is None:  # else next_job.py says what follows
        said.append(again_text(run, folder))
    return said


def short_reason(sentence: str) -> str:
    """Return the reason of a run's end, without the list of waiting ranks and the count of ended ones."""
    return sentence.partition(": ")[0].partition("; the other")[0]


def waits_text(waits: Sequence[RankWait], now: float) -> str:
    """Return the longest wait, such as: rank 7 waits in recv for (3, 'x') since 40 s. Empty: no rank waits."""
    if not waits:
        return ""
    one = min(waits, key=lambda one: (one.since, one.rank))
    more = f" and {counted(len(waits) - 1, 'rank')} more" if len(waits) > 1 else ""
    return f"rank {one.rank} waits {one.what} since {max(0.0, now - one.since):.0f} s{more}"
