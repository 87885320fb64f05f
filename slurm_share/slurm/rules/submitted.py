"""Work out how a job was submitted from what Slurm keeps: words in, a Submission out, or None if it is not certain.

Slurm keeps the submit line without its quotes (SubmitLine, since 21.08). It is parsed as sbatch would, and counts only
if the script is then at the path that Slurm has under Command: a value with a blank, a line break or an unknown option
leads to another path. Blanks inside an argument of the script cannot be seen, so arguments stay as Slurm has them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Sequence

from ..records import Submission
from .sbatch_letters import MAYBE_VALUE, WITH_VALUE, WITHOUT_VALUE

_ALONE = frozenset(
    {"contiguous", "exclusive", "get-user-env", "hold", "ignore-pbs", "no-kill", "no-requeue", "overcommit",
     "oversubscribe", "parsable", "quiet", "reboot", "requeue", "share", "spread-job", "test-only", "use-min-nodes",
     "verbose", "wait", "immediate", "stepmgr"}
)  # fmt: skip
"""Long options of sbatch that take no value, or one behind a = alone (sbatch(1) of 24.11 and 26.05)."""
_TRIPLE = re.compile(r"\[[0-9]+,[0-9]+(?:,[0-9]+)?\]")


def of_sbatch(line: str, command: str, folder: str) -> Submission | None:
    """Return the submission of a submit line. `command`: path of its script, `folder`: where the job works."""
    arguments = line.split(" ")
    if not command.startswith("/") or not folder.startswith("/") or "" in arguments or not line.isprintable():
        return None
    if posixpath.basename(arguments[0]) != "sbatch":
        return None
    rest = arguments[1:]
    place = sum(len(option) for _, option in _options(rest))
    if place >= len(rest):
        return None
    # With --chdir the job works elsewhere than where it was submitted; then the script is named in full.
    is_elsewhere = any(name == "chdir" for name, _ in _options(rest))
    script = rest[place]
    if is_elsewhere and posixpath.basename(script) == posixpath.basename(command):
        rest[place] = command
    elif posixpath.normpath(posixpath.join(folder, script)) != posixpath.normpath(command):
        return None
    return Submission(program="sbatch", arguments=tuple(rest), place=place, folder=folder)


_MEMORY = frozenset({"mem", "mem-per-cpu", "mem-per-gpu"})
_GPUS = frozenset({"gpus", "gpus-per-node", "gpus-per-task", "gres"})
"""Options of which a submission has one: a new one takes the place of all of them."""


def script_of(line: str) -> str:
    """Return the script in a submit line of sbatch as it was written; empty: there is none."""
    arguments = line.split(" ")
    if not line.isprintable() or "" in arguments or posixpath.basename(arguments[0]) != "sbatch":
        return ""
    options = list(_options(arguments[1:]))
    place = 1 + sum(len(option) for _, option in options)
    # The command of --wrap, and a folder with --chdir, have lost what would tell where they end.
    if place >= len(arguments) or any(name in ("wrap", "chdir") for name, _ in options):
        return ""
    return arguments[place]


def with_options(line: str, added: Sequence[str]) -> list[str] | None:
    """Return the words of a submit line of sbatch with further options (`--mem=4G`) in place of those that they
    replace; None: it is not certain which words are options. The caller checks that `script_of` exists."""
    if not script_of(line):
        return None
    arguments = line.split(" ")
    place = 1 + sum(len(option) for _, option in _options(arguments[1:]))
    names = {option[2:].partition("=")[0] for option in added}
    names |= {one for kind in (_MEMORY, _GPUS) for one in kind if names & kind}
    words = arguments[1:place]
    if names & _GPUS and not any(name in _GPUS for name, _ in _options(words)):
        return None  # the script asks for GPUs in a way of its own, which a second option would contradict
    kept = without(words, names)
    return None if kept is None else [posixpath.basename(arguments[0]), *kept, *added, *arguments[place:]]


def of_llsub(arguments: Sequence[str], folder: str, tasks: str) -> Submission | None:
    """Return the submission of a call of llsub. `tasks`: file with what llsub read from its standard input."""
    before, _, _ = parted(arguments)
    places = [place for place, argument in enumerate(before) if _TRIPLE.fullmatch(argument)]
    if len(places) != 1 or not all(argument.isprintable() for argument in arguments):
        return None
    named = list(arguments)
    for place, argument in enumerate(before):
        if argument == "--tasks=-":
            named[place] = f"--tasks={tasks}"
        elif argument == "-" and place and before[place - 1] == "--tasks":
            named[place] = tasks
    return Submission(program="llsub", arguments=tuple(named), place=places[0], folder=folder)


def says(submission: Submission, name: str) -> bool:
    """Return whether its line, or its script, has this option of sbatch."""
    if name in submission.directives:
        return True
    own = submission.arguments[: submission.place] if submission.program == "sbatch" else ()
    return any(one == name for one, _ in _options(own))


def without(arguments: Sequence[str], left_out: Collection[str]) -> list[str] | None:
    """Return options of sbatch without those in `left_out` (long names); None if a shortened one may be one of them."""
    found: list[str] = []
    for name, option in _options(arguments):
        if name in left_out:
            continue
        if option[0].startswith("--") and len(name) > 2 and any(one.startswith(name) for one in left_out):
            return None
        found += option
    return found


def without_long(arguments: Sequence[str], name: str) -> list[str]:
    """Return words of llsub without --name VALUE and --name=VALUE."""
    found, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == f"--{name}":
            skip = True
        elif not argument.startswith(f"--{name}="):
            found.append(argument)
    return found


def parted(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the words before --, the -- itself, and the words after it."""
    place = list(arguments).index("--") if "--" in arguments else len(arguments)
    return list(arguments[:place]), list(arguments[place : place + 1]), list(arguments[place + 1 :])


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the long name and the words of each option, up to the first word that is not an option."""
    place = 0
    while place < len(arguments):
        argument = arguments[place]
        if argument.startswith("--") and len(argument) > 2:
            name, equals, _ = argument[2:].partition("=")
            count = 1 if equals or name in _ALONE else 2
        elif argument.startswith("-") and len(argument) > 1 and argument[1] in WITHOUT_VALUE:
            # -HQ: several at once. One that takes a value comes last, and its name counts then.
            last = next((letter for letter in argument[1:] if letter in WITH_VALUE), None)
            name, count = (
                (WITH_VALUE[last], 1 + argument.endswith(last)) if last and argument[1] not in MAYBE_VALUE else ("", 1)
            )
        elif argument.startswith("-") and argument[1:2] in WITH_VALUE:
            name, count = WITH_VALUE[argument[1]], 1 if len(argument) > 2 else 2
        else:
            return
        yield name, tuple(arguments[place : place + count])
        place += count
