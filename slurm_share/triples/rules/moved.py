"""Decide what the recorded paths of a run mean after its folder was renamed, moved or copied.

Scripts and the scheduler command contain the path of the folder: Slurm copies the script of a job, so a job cannot find
the folder from its own path. `llsub --resume` writes them again for the folder that the user named. The run's id tells
a job whether the folder at its path is still that of its run.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from ...core.errors import UsageError
from ..records import Run
from .deal import arguments_in

OTHER = (
    "this is another run: the run of this job was renamed or moved after its submission; to run it, write: llsub "
    "--resume and its present folder"
)
"""Why a job refuses the folder at its path."""
GONE = (
    "the folder of this run was renamed, moved or removed after its submission; to run it, write: llsub --resume and "
    "its present folder"
)
WHILE_RUNNING = "was renamed, moved or removed while it ran"


def no_pattern(path: str) -> str:
    """Return a path for --output, in which sbatch replaces no pattern."""
    return path.replace("%", "%%")


def argv_in(argv: Sequence[str], folder: str) -> tuple[str, ...]:
    """Return a scheduler command for the present folder. The last argument is its script, in the recorded folder."""
    old = posixpath.dirname(argv[-1])
    before, after = f"--output={no_pattern(old)}/", f"--output={no_pattern(folder)}/"
    options = (after + one.removeprefix(before) if one.startswith(before) else one for one in argv[:-1])
    return (*options, f"{folder}/{posixpath.basename(argv[-1])}")


def script_in(text: str, old: str, new: str, argv: Sequence[str] = ()) -> str | None:
    """Return a script of the run with the new folder; None: it has no line with the old or the new one.

    `argv`: the recorded command, which a comment shows.
    """
    line, wanted = (f"\nfolder={shlex.quote(one)}\n" for one in (old, new))
    if wanted not in text and line not in text:
        return None
    text = text.replace(line, wanted, 1)
    if argv:
        text = text.replace(one_line(shlex.join(argv)), one_line(shlex.join(argv_in(argv, new))), 1)
    return text.replace(f"{resume_text(old)}\n", f"{resume_text(new)}\n")


def resume_text(folder: str) -> str:
    """Return the command that resumes the run, for a comment of a script."""
    return f"llsub --resume {one_line(shlex.quote(folder))}"


def one_line(text: str) -> str:
    """Return text for a comment of a script."""
    return text.replace("\n", "\\n").replace("\r", "\\r")


def tasks_in(run: Run, lines: Sequence[str], old: str, new: str) -> tuple[str, ...]:
    """Return the lines of the tasks file: those of a map may name a file of inputs in the folder."""
    if run.kind != "llmapreduce":
        return tuple(lines)
    return tuple(_pairs_line(line, old, new) for line in lines)


def _pairs_line(line: str, old: str, new: str) -> str:
    try:
        item = arguments_in(line)
    except ValueError as error:
        raise UsageError(f"{error}; submit the run again") from error
    if len(item) != 1 or not item[0].startswith(f"{old}/"):
        return line
    return msgspec.json.encode((new + item[0].removeprefix(old),)).decode()


def run_in(run: Run, old: str, new: str, exists: Callable[[str], bool]) -> Run:
    """Return the run in its present folder. Raises UsageError if the folder in which its tasks start is gone.

    `exists`: whether there is such a file or folder. A run is made in the folder in which its tasks start. If that
    folder was moved or copied as a whole, the tasks start in the new place: the old one is gone, or the program is
    there too. If the run's folder alone was moved, they start where they did before.
    """
    found = replace(run, folder=new, scheduler=argv_in(run.scheduler, new) if run.scheduler else ())
    if posixpath.dirname(old) == posixpath.dirname(new):
        return found
    candidate = posixpath.dirname(new) if posixpath.dirname(old) == run.cwd else None
    program = run.command[0] if run.command else ""
    below = program.removeprefix(f"{run.cwd}/") if program.startswith(f"{run.cwd}/") else ""
    is_here = exists(run.cwd)
    if candidate is not None and (not is_here or (below and exists(f"{candidate}/{below}"))):
        command = (f"{candidate}/{below}", *run.command[1:]) if below else run.command
        return replace(found, cwd=candidate, command=command)
    if not is_here:
        raise UsageError(
            f"the tasks of {posixpath.basename(new)} start in {run.cwd}, which does not exist; make it again, or a "
            f"link of that name: ln -s FOLDER {shlex.quote(run.cwd)}"
        )
    return found


def moved_text(run: Run, old: str) -> str:
    """Return a sentence on a run that is in another folder than before; empty: it was only renamed."""
    if posixpath.dirname(old) == posixpath.dirname(run.folder):
        return ""
    return f"{posixpath.basename(run.folder)} was moved from {old}; its tasks start in {run.cwd}"
