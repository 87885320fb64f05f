"""Checks of the site's own scripts: Prolog, Epilog and their like that always fail, or that work against shares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...core import numbers
from ...slurm.rules import shell
from ..facts.records import CheckVerdict, Facts, SiteScript, UnknownFact
from .base import COMPUTE, CONTROLLER, check, fail, named, ok, seen, skip, warn

_EFFECTS = {
    "Prolog": "the next job drains its node",
    "Epilog": "the next job drains its node",
    "PrologSlurmctld": "slurmctld requeues the job, or ends it",
    "TaskProlog": "every task ends at once",
}
"""The effect of a script that fails, by key of slurm.conf; Slurm only logs it for the others (slurm.conf(5))."""
_DAEMONS = ("/usr/bin/nvidia-cuda-mps-control -d", "nvidia-cuda-mps-server")
_COMM = "nvidia-cuda-mps"
"""Name of both programs to the kernel, which keeps 15 characters."""
_KILL_VALUES = frozenset({"-u", "-U", "-t", "-g", "-G", "-P", "-s", "-F", "-o", "-y"})
"""Options of pkill and killall that have a value."""
_PIDS_OF_MPS = re.compile(r"\$\((?=.*\b(?:pgrep|pidof|ps)\b)(?=.*nvidia-cuda-mps)", re.DOTALL)
_MODES = {"1": "EXCLUSIVE_THREAD", "2": "PROHIBITED", "3": "EXCLUSIVE_PROCESS"}
_KNOWS_SHARES = ("SPANK_SHARE_GPU", "SLURM_SHARE", "/run/slurm-share")
_EXPORT = re.compile(r"^\s*(?:export|unset)\s+(CUDA_VISIBLE_DEVICES|CUDA_MPS_[A-Z_]+)", re.MULTILINE)
_STATE = "/run/slurm-share"


@check(
    "script-fails",
    (*CONTROLLER, *COMPUTE),
    needs="configuration",
    asks="none of the scripts that slurm.conf names fails always",
    why="a Prolog or Epilog that fails drains its node at the next job; a TaskProlog that fails ends every task",
    fix="put the script right, or take it out of slurm.conf",
)
def script_fails(facts: Facts) -> Sequence[CheckVerdict]:
    scripts = seen(facts.slurm.scripts)
    found: list[CheckVerdict] = []
    for one in scripts:
        if isinstance(one.text, UnknownFact):
            found += skip(one.text)
        elif why := _why_it_fails(one):
            effect = _EFFECTS.get(one.key)
            said = f"{one.key} {one.path} {why}"
            found += fail(f"{said}: {effect}") if effect else warn(said)
    return found or ok(f"{len(scripts)} scripts" if scripts else "slurm.conf names none")


def _why_it_fails(script: SiteScript) -> str:
    """Return why a script fails whenever it runs; empty: it need not."""
    file = script.file
    if file is None:
        return "is not there"
    if script.key not in ("Prolog", "Epilog"):  # for these, hook-files says it
        if not file.is_executable:
            return "is not executable"
        if not file.interpreter_is_there:
            return f"wants {file.interpreter}, which is not there"
    if script.lines and file.interpreter is None:
        return "does not begin with #! and the path of a program, so that Slurm cannot run it"
    if not isinstance(script.syntax, UnknownFact) and script.syntax:
        return f"is no valid script ({script.syntax})"
    return always_fails(shell.commands(script.lines)) if script.is_shell else ""


def always_fails(commands: Sequence[shell.ShellCommand]) -> str:
    """Return how a shell script ends whenever it runs, if that is a failure; empty: it is not, or it depends."""
    last = next((one for one in commands if _is_end(one)), None)
    if last is None:
        last = commands[-1] if commands and not commands[-1].function and commands[-1].is_certain else None
        if last is None or last.words != ("false",):
            return ""
    elif not _is_failure(last):
        return ""
    if any(_may_succeed(one) for one in commands):
        return ""
    return f"always ends with `{' '.join(last.words)}`"


def _is_end(command: shell.ShellCommand) -> bool:
    return command.program == "exit" and command.is_certain and not command.function


def _is_failure(command: shell.ShellCommand) -> bool:
    code = command.words[1] if len(command.words) > 1 else ""
    return (numbers.whole(code) or 0) % 256 != 0


def _may_succeed(command: shell.ShellCommand) -> bool:
    """Return whether a command may end the script in another way than with a failure."""
    if command.program == "exit":
        return not _is_failure(command)
    if command.program == "exec":
        return len(command.words) > 1
    return command.program in ("trap", "kill", "source", ".")


@check(
    "script-gpus",
    (*CONTROLLER, *COMPUTE),
    needs="configuration",
    asks="the site's scripts leave the MPS daemons of shares, compute modes and GPUs in use alone",
    why="tasks of running shares lose their MPS daemon and end, or cannot use their GPU",
    fix="take the command out, or run it only where SPANK_SHARE_GPU is not set and no job shares the node's GPUs",
)
def script_gpus(facts: Facts) -> Sequence[CheckVerdict]:
    found: list[CheckVerdict] = []
    for one in seen(facts.slurm.scripts):
        if not one.is_shell or one.key in ("PrologSlurmctld", "EpilogSlurmctld"):
            continue  # those run on the controller, where no GPU is
        commands = shell.commands(one.lines)
        rows = [row for row in one.lines.splitlines() if not row.lstrip().startswith("#")]
        if any(word in row for row in rows for word in _KNOWS_SHARES):
            continue
        for is_failure, what in dict.fromkeys(_harm(commands, is_of_task=one.key.startswith("Task"))):
            found += (fail if is_failure else warn)(f"{one.key} {one.path} {what}")
    return found or ok("none of them concerns shares")


def _harm(commands: Sequence[shell.ShellCommand], *, is_of_task: bool) -> Iterator[tuple[bool, str]]:
    """Yield what a script does to shares, and whether it makes tasks fail."""
    own_daemon = any(name == "CUDA_MPS_PIPE_DIRECTORY" for one in commands for name, _ in _set_by(one))
    for one in commands:
        shown = " ".join(one.words)[:80]
        if one.program in ("pkill", "killall") and _names_mps(one):
            yield True, f"ends every MPS daemon of the node (`{shown}`)"
        elif one.program == "kill" and any(_PIDS_OF_MPS.search(word) for word in one.words):
            yield True, "ends every MPS daemon of the node (`kill` of the processes named nvidia-cuda-mps)"
        elif one.program == "fuser" and _ends_users_of_gpus(one):
            yield True, f"ends every program on the GPUs, MPS daemons too (`{shown}`)"
        elif one.program == "nvidia-cuda-mps-control":
            if re.search(r"\bquit\b", one.stdin) and not own_daemon:
                yield is_of_task, "ends an MPS daemon (`quit` to nvidia-cuda-mps-control)"
            elif "-d" in one.words[1:]:
                yield False, "starts an MPS daemon of the site's own: shares then run without MPS"
        elif one.program == "nvidia-smi":
            if mode := _mode(one):
                yield mode == "PROHIBITED", f"sets the compute mode {mode} (`{shown}`)"
            if {"--gpu-reset", "-r"} & set(one.words):
                yield False, f"resets GPUs (`{shown}`), which fails while another job of the user shares them"


def _set_by(command: shell.ShellCommand) -> Iterator[tuple[str, str]]:
    yield from command.settings
    if command.program == "export":
        for word in command.words[1:]:
            name, equals, value = word.partition("=")
            if equals and not value.startswith(_STATE):
                yield name, value


def _names_mps(command: shell.ShellCommand) -> bool:
    """Return whether pkill or killall ends MPS daemons."""
    words, patterns, is_exact, is_full = list(command.words[1:]), [], False, False
    while words:
        word = words.pop(0)
        if word in _KILL_VALUES and words:
            words.pop(0)
        elif word.startswith("-"):
            is_exact |= word in ("-x", "--exact")
            is_full |= bool(re.fullmatch(r"-[a-z]*f[a-z]*|--full", word))
        else:
            patterns.append(word)
    if command.program == "killall":
        return any(name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server") for name in patterns)
    for pattern in patterns:
        matches = re.fullmatch if is_exact else re.search
        try:
            if "$" not in pattern and any(matches(pattern, text) for text in (_DAEMONS if is_full else (_COMM,))):
                return True
        except re.error:
            continue
    return any(_COMM in pattern for pattern in patterns)


def _ends_users_of_gpus(command: shell.ShellCommand) -> bool:
    ends = any(re.fullmatch(r"-[a-z]*k[a-z]*|--kill", word) for word in command.words[1:])
    return ends and any(word.startswith("/dev/nvidia") for word in command.words[1:])


def _mode(command: shell.ShellCommand) -> str:
    """Return the compute mode that nvidia-smi sets; empty: none, the default one, or one that is not known."""
    words = command.words
    for place, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in ("-c", "--compute-mode"):
            given = (value or (words[place + 1] if place + 1 < len(words) else "")).upper()
            mode = _MODES.get(given, given)
            return mode if mode in _MODES.values() else ""
    return ""


@check(
    "task-prolog",
    COMPUTE,
    needs="configuration",
    asks="the site's TaskProlog does not set GPU variables",
    why="Slurm runs it after the plugin, so its variables take precedence: tasks find another GPU, or run without MPS. "
    "The Prolog refuses shares where that is certain for every task",
    fix="take CUDA_VISIBLE_DEVICES and CUDA_MPS_* out of it, or leave it be where SLURM_SHARE_SLOT is set",
)
def task_prolog(facts: Facts) -> Sequence[CheckVerdict]:
    script = next((one for one in seen(facts.slurm.scripts) if one.key == "TaskProlog"), None)
    if script is None:
        return ok("there is no TaskProlog")
    if found := exported(script):
        return fail(f"TaskProlog {script.path} sets {named(found)}")
    return ok("TaskProlog leaves them alone")


def exported(script: SiteScript) -> tuple[str, ...]:
    """Return the GPU variables that a TaskProlog sets for every task; none if it knows of shares."""
    if "SLURM_SHARE" in script.lines:
        return ()
    if script.is_shell:
        texts = [shell.written(one) for one in shell.commands(script.lines) if one.writes_stdout]
    else:
        rows = script.lines.splitlines()
        texts = [re.sub(r".*?\b(export|unset) ", r"\1 ", row) for row in rows if not row.lstrip().startswith("#")]
    return tuple(dict.fromkeys(match[1] for text in texts for match in _EXPORT.finditer(text)))


CHECKS = (script_fails, script_gpus, task_prolog)
