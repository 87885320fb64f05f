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
    words = line.split(" ")
    if not command.startswith("/") or not folder.startswith("/") or "" in words or not line.isprintable():
        return None
    if posixpath.basename(words[0]) != "sbatch":
        return None
    rest = words[1:]
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
    return Submission(program="sbatch", words=tuple(rest), place=place, folder=folder)


def of_llsub(words: Sequence[str], folder: str, tasks: str) -> Submission | None:
    """Return the submission of a call of llsub. `tasks`: file with what llsub read from its standard input."""
    before, _, _ = parted(words)
    places = [place for place, word in enumerate(before) if _TRIPLE.fullmatch(word)]
    if len(places) != 1 or not all(word.isprintable() for word in words):
        return None
    named = list(words)
    for place, word in enumerate(before):
        if word == "--tasks=-":
            named[place] = f"--tasks={tasks}"
        elif word == "-" and place and before[place - 1] == "--tasks":
            named[place] = tasks
    return Submission(program="llsub", words=tuple(named), place=places[0], folder=folder)


def says(submission: Submission, name: str) -> bool:
    """Return whether its line, or its script, has this option of sbatch."""
    if name in submission.directives:
        return True
    own = submission.words[: submission.place] if submission.program == "sbatch" else ()
    return any(one == name for one, _ in _options(own))


def without(words: Sequence[str], left_out: Collection[str]) -> list[str] | None:
    """Return options of sbatch without those in `left_out` (long names); None if a shortened one may be one of them."""
    found: list[str] = []
    for name, option in _options(words):
        if name in left_out:
            continue
        if option[0].startswith("--") and len(name) > 2 and any(one.startswith(name) for one in left_out):
            return None
        found += option
    return found


def without_long(words: Sequence[str], name: str) -> list[str]:
    """Return words of llsub without --name VALUE and --name=VALUE."""
    found, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == f"--{name}":
            skip = True
        elif not word.startswith(f"--{name}="):
            found.append(word)
    return found


def parted(words: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the words before --, the -- itself, and the words after it."""
    place = list(words).index("--") if "--" in words else len(words)
    return list(words[:place]), list(words[place : place + 1]), list(words[place + 1 :])


def _options(words: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the long name and the words of each option, up to the first word that is not an option."""
    place = 0
    while place < len(words):
        word = words[place]
        if word.startswith("--") and len(word) > 2:
            name, equals, _ = word[2:].partition("=")
            count = 1 if equals or name in _ALONE else 2
        elif word.startswith("-") and len(word) > 1 and word[1] in WITHOUT_VALUE:
            # -HQ: several at once. One that takes a value comes last, and its name counts then.
            last = next((letter for letter in word[1:] if letter in WITH_VALUE), None)
            name, count = (
                (WITH_VALUE[last], 1 + word.endswith(last)) if last and word[1] not in MAYBE_VALUE else ("", 1)
            )
        elif word.startswith("-") and word[1:2] in WITH_VALUE:
            name, count = WITH_VALUE[word[1]], 1 if len(word) > 2 else 2
        else:
            return
        yield name, tuple(words[place : place + count])
        place += count
