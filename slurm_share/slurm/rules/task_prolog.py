"""Decide which variables of a share a TaskProlog replaces, from its text: only where that is certain."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...core import names, numbers
from . import shell

VARIABLES = (
    names.ENV_VISIBLE_DEVICES,
    names.ENV_MPS_PIPE,
    names.ENV_MPS_THREADS,
    names.ENV_MPS_MEMORY,
)
"""Variables that send a task to another GPU or MPS daemon, or remove its limits."""
_NAMES = "|".join(VARIABLES)
_SETS = re.compile(rf"^(?:export[ \t]+({_NAMES})=(.*)|unset[ \t]+({_NAMES})[ \t]*)$", re.MULTILINE)
"""The lines of its output that slurmstepd obeys (sbatch(1), TaskProlog in slurm.conf(5))."""
_KNOWS_SHARES = re.compile(r"slurm.share|SPANK_SHARE", re.IGNORECASE)
"""A script with such a word is taken to leave shares alone."""
_REDIRECTED_GROUP = re.compile(r"(?:^|[;\s])\}[ \t]*(?:[0-9&]?>|\|)", re.MULTILINE)
"""The output of such a group of commands goes elsewhere; shell.py does not tell."""
_PRINTS = frozenset({"echo", "printf", "cat"})


def replaced(text: str) -> tuple[str, ...]:
    """Return the variables that a TaskProlog sets or unsets for every task, whatever it finds.

    None of a script that is not a shell's or knows of shares, and none that depends on a condition, on a command that
    may end the script well, or on the present value of the variable.
    """
    if not any(name in text for name in VARIABLES) or _KNOWS_SHARES.search(text) or not _is_shell(text):
        return ()
    if _REDIRECTED_GROUP.search(text):
        return ()
    commands = shell.commands(text, fills=False)
    functions = frozenset(one.function for one in commands)
    if any(one.function and one.program in ("exit", "exec") for one in commands):
        return ()
    texts: list[str] = []
    _run("", commands, functions, frozenset(), texts)
    found = dict.fromkeys(
        name
        for match in _SETS.finditer("\n".join(texts))
        if (name := match[1] or match[3]) and not ("$" in (match[2] or "") and _is_read(name, text))
    )
    return tuple(found)


def _run(
    function: str,
    commands: Sequence[shell.ShellCommand],
    functions: frozenset[str],
    within: frozenset[str],
    texts: list[str],
) -> bool:
    """Add what a function, or the script itself, certainly prints to `texts`; return whether the script goes on."""
    for one in commands:
        if one.function != function:
            continue
        name = one.words[0]
        if name in ("exit", "exec", "return") and not _is_failure(one):
            return bool(function) and name == "return" and one.is_certain
        if not one.is_certain or not one.writes_stdout:
            continue
        if name in functions and name not in within:
            if not _run(name, commands, functions, within | {name}, texts):
                return False
        elif name not in functions and one.program in _PRINTS:
            texts.append(shell.written(one))
    return True


def _is_failure(command: shell.ShellCommand) -> bool:
    """Return whether the script fails with this command: slurmstepd then runs no task."""
    code = command.words[1] if len(command.words) > 1 else ""
    return command.words[0] == "exit" and not command.is_certain and (numbers.whole(code) or 0) % 256 != 0


def _is_read(name: str, text: str) -> bool:
    """Return whether a script uses the value that the variable has: then it may set the same again."""
    return len(re.findall(rf"\b{name}\b", text)) > len(re.findall(rf"\b(?:export|unset)[ \t]+{name}\b", text))


def _is_shell(text: str) -> bool:
    first = text.partition("\n")[0]
    words = [word.rpartition("/")[2] for word in first.removeprefix("#!").split()[:2]]
    name = words[1] if words[:1] == ["env"] and len(words) > 1 else next(iter(words), "")
    return first.startswith("#!") and name in shell.SHELLS
