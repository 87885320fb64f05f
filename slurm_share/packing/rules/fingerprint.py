"""Identify a task: reduce its command to hashes and numbers, without the parts that cannot affect its memory.

::

    exact    the script's content, and all arguments that can matter
    series   as exact, with a gap for each number: commands that differ in numbers only
    family   the script's path or the user's name for it, the program's name, the names of the flags in order
    numbers  each argument that is a number, by its flag or position

A shell line whose commands follow each other (`cd x && source y; python ...`) is known by its last one.

These leave out output paths, names and numbers of runs, times of day, and the folder of the run. They contain no text
of the command, and the hashed text never leaves the process.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from ..records import TaskKey

HASH_DIGITS = 32
"""128 bits."""
TAG_DIGITS = 12
NUMBERS_MOST = 16
"""Numbers of a command that are kept; a list of a hundred seeds says nothing about memory."""
TEXT_MOST = 256 * 1024
"""For a longer text, its length and this many bytes from its beginning are hashed."""

INTERPRETERS = re.compile(r"(?a)(python|pypy|perl|ruby|node|lua|Rscript|julia|bash|sh|dash|zsh|ksh)[0-9.]*")
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
WRAPPERS = frozenset(
    {"exec", "nohup", "time", "timeout", "nice", "ionice", "numactl", "stdbuf", "setsid", "env", "command"}
)
"""Programs that run the command after them. Their own options are not part of the task."""
LAUNCHERS = frozenset(
    {
        "torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun", "uv", "poetry", "conda",
        "pixi", "apptainer", "singularity",
    }
)  # fmt: skip
"""Programs that run a script given somewhere among their arguments."""
WITH_VALUE = frozenset({"-W", "-X", "-Q", "-O", "-o"})
"""Options of interpreters that take a value."""
SCRIPT_NAME = re.compile(r".*\.(py|pyc|pyz|sh|R|jl|pl|rb|lua|js|ipynb)")
CONFIG_NAME = re.compile(r"(?i).*\.(ya?ml|json5?|toml|ini|cfg|conf|gin|hocon|properties|xml|jsonnet|py)")
CONFIG_FLAG = re.compile(r"(?i)-{1,2}[a-z0-9_-]*(config|conf|cfg)[a-z0-9_-]*")

_NEVER = re.compile(
    r"(?i)-{0,2}(seed|random[_-]seed|run[_-]?(name|id)|port|master[_-]port|id|job[_-]?id|LLSUB_[A-Z_]+)"
)
"""Flags and variables whose value never affects memory."""
_PATHS = re.compile(r"(?i)-{1,2}(out|save|log)[a-z0-9_-]*")
"""Flags whose value is an output path. A number is kept: --out-channels and --log-every take no path."""
_NUMBER = re.compile(r"(?a)([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)(?:([kKMGTBb])(?:i?B)?)?")
_UNITS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "B": 1e9, "b": 1e9}
"""Units of a number such as 500M or 7B (parameters)."""
_FLAG = re.compile(r"-{1,2}[A-Za-z][A-Za-z0-9_.-]*")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*|\+{0,2}[A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_TIME = re.compile(
    r"(?a)(?<![0-9])(?:19|20)[0-9]{2}"
    r"(?:-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])(?:[T_ -]?[0-2][0-9][:.h-]?[0-5][0-9](?:[:.m-]?[0-5][0-9])?)?"
    r"|(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])[T_-]?[0-2][0-9][:-]?[0-5][0-9](?:[:-]?[0-5][0-9])?)(?![0-9])"
)
_SPECIAL = re.compile(r"[|&;<>()`\n#]")
"""Characters that may end a command or join it to another one."""
_EXPANDED = re.compile(r"\$[({A-Za-z_0-9*@#?]|`|[*?]")
"""Texts that a shell replaces in a command: variables, outputs of commands, names of files."""
_LITERAL = re.compile(r"'[^']*'|\"[^\"$`\\]*\"")
"""Quoted text in which a shell replaces nothing."""
_VALUES = {
    "nice": ("-n",), "ionice": ("-c", "-n"), "stdbuf": ("-i", "-o", "-e"), "env": ("-u", "-S", "-C"),
    "timeout": ("-k", "-s"), "numactl": ("-N", "-m", "-C", "-i", "-p"), "time": ("-o", "-f"),
}  # fmt: skip
"""Wrapper -> its options that take a value."""
_QUOTED = re.compile(r"['\"\\#]")
_PIECE = re.compile(
    r"""(?P<quoted>'[^']*'|"(?:[^"\\]|\\.)*"|\\.)"""
    r"""|(?P<redirected>(?:(?<!\S)[0-9]+|&)?>>?\ *(?:&[0-9-]|'[^']*'|"[^"]*"|[^\s;&|<>()'"]+))"""
    r"""|(?P<end>&&|[;\n])|(?P<tee>\|\s*tee\s[^;&|<>()]*$)|(?P<special>[|&()`<>])|(?P<comment>(?<!\S)\#[^\n]*)|.""",
    re.DOTALL,
)
_KEYWORDS = frozenset(
    {
        "if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac", "select", "function",
        "{", "}", "!", "[[",
    }
)  # fmt: skip
"""Words of a shell that are no command."""


class Command(Struct, frozen=True):
    """A command, split into its parts."""

    program: str
    """Base name of the program."""
    script: str
    """The file that runs: path of a script, name of a module (`is_module`), or the program. Empty: `text` runs."""
    arguments: tuple[str, ...]
    """Environment settings NAME=VALUE, then the arguments after the script."""
    text: str = ""
    """A shell text that cannot be split, or the code after `python -c`."""
    is_module: bool = False
    folder: str = ""
    """Where it runs, from the folder of the task: of `cd x && ...`."""
    before: str = ""
    """The commands of a shell line before this one."""


class ShellLine(Struct, frozen=True):
    """A shell line that is known by its last command."""

    words: list[str]
    folder: str = ""
    before: str = ""


class Argument(Struct, frozen=True):
    """One argument that can affect memory."""

    name: str
    """The flag, or the position from 1."""
    value: str | None
    """None: the flag has no value, or its value does not matter."""
    is_flag: bool = True


def take_apart(argv: Sequence[str]) -> Command:
    """Split a command into program, script and arguments; an empty command has no program."""
    words = list(argv)
    settings: list[str] = []
    folder = before = ""
    while words:
        if _ENVIRONMENT.fullmatch(words[0]) and "/" not in words[0].partition("=")[0]:
            settings.append(words.pop(0))
            continue
        name = words[0].rpartition("/")[2]
        if name in WRAPPERS and len(words) > 1:
            words.pop(0)
            while words and words[0].startswith("-"):
                option = words.pop(0)
                if option in _VALUES.get(name, ()) and words:
                    words.pop(0)
            if name == "timeout" and words:
                words.pop(0)
            continue
        if name in SHELLS:
            inner = _shell_text(words)
            if inner is not None:
                split = split_shell(inner)
                if split is None:
                    return Command(name, "", tuple(settings), inner, folder=folder, before=before)
                words = split.words
                folder = _joined(folder, split.folder)
                before += split.before
                continue
        break
    if not words:
        return Command("", "", tuple(settings))
    return replace(_with_script(words, settings), folder=folder, before=before)


def _shell_text(words: Sequence[str]) -> str | None:
    """Return the text after `sh -c` or a form such as `bash -lc`; None: this shell runs a file."""
    for index, word in enumerate(words[1:], 1):
        if not word.startswith("-") or word == "--":
            return None
        if "c" in word[1:] and not word.startswith("--"):
            return words[index + 1] if index + 1 < len(words) else None
    return None


def split_shell(text: str) -> ShellLine | None:
    """Return the last command of a shell text whose commands follow each other; None: it is more than that.

    Its output may go to a file. `cd` before it changes its folder; other commands before it count by their text.
    """
    if len(text) > TEXT_MOST:
        return None
    commands = _commands(text)
    if not commands:
        return None if commands is None else ShellLine([])
    folder, before = "", []
    for command in commands[:-1]:
        words = _words(command)
        if words is None or (words and words[0] in _KEYWORDS):
            return None
        if len(words) == 2 and words[0] == "cd":
            folder = _joined(folder, words[1])
        else:
            before.append(command)
    words = None if _EXPANDED.search(_LITERAL.sub("", commands[-1])) else _words(commands[-1])
    if words is None or (words and words[0] in _KEYWORDS):
        return None
    return ShellLine(words, folder, "\n".join(before))


def _commands(text: str) -> list[str] | None:
    """Return the commands of a shell text without redirections and comments; None: they do not just follow each other.

    A change of folder or environment in a group (`(cd x; a)`) or in the background does not reach the next command.
    """
    if not _SPECIAL.search(text):
        return [text] if text.strip() else []
    commands = [""]
    for piece in _PIECE.finditer(text):
        kind = piece.lastgroup
        if kind == "special":
            return None
        if kind == "end":
            commands.append("")
        elif kind in ("quoted", None):
            commands[-1] += piece[0]
    return [command.strip() for command in commands if command.strip()]


def _words(command: str) -> list[str] | None:
    if not _QUOTED.search(command):
        return command.split()  # five times as fast as shlex
    try:
        return shlex.split(command)
    except ValueError:  # a quotation without an end
        return None


def _joined(folder: str, further: str) -> str:
    return further if not folder or further.startswith(("/", "~")) else f"{folder}/{further}"


def _with_script(words: Sequence[str], settings: Sequence[str]) -> Command:
    program = words[0].rpartition("/")[2]
    if program in LAUNCHERS:
        for index, word in enumerate(words[1:], 1):
            if SCRIPT_NAME.fullmatch(word):
                return Command(program, word, (*settings, *words[1:index], *words[index + 1 :]))
    elif INTERPRETERS.fullmatch(program):
        index = 1
        while index < len(words):
            word = words[index]
            if word == "-m" and index + 1 < len(words):
                return Command(program, words[index + 1], (*settings, *words[index + 2 :]), is_module=True)
            if word in ("-c", "-e") and index + 1 < len(words):
                return Command(program, "", (*settings, *words[index + 2 :]), words[index + 1])
            if not word.startswith("-"):
                return Command(program, word, (*settings, *words[index + 1 :]))
            index += 2 if word in WITH_VALUE else 1
    return Command(program, words[0], (*settings, *words[1:]))


def name_arguments(arguments: Sequence[str], run_folder: str = "") -> tuple[Argument, ...]:
    """Return the arguments that can matter, each with its flag or position. `run_folder` is removed from all values."""
    named: list[Argument] = []
    position = 0
    index = 0
    while index < len(arguments):
        word = arguments[index]
        index += 1
        assigned = _ASSIGNED.fullmatch(word.lstrip("-")) if "=" in word else None
        if assigned:
            dashes = len(word) - len(word.lstrip("-"))
            name, value = word[:dashes] + assigned[1], assigned[2]
        elif _FLAG.fullmatch(word):
            name = word
            if index < len(arguments) and not _FLAG.fullmatch(arguments[index]):
                value = arguments[index]
                index += 1
            else:
                named.append(Argument(word, None))
                continue
        else:
            position += 1
            named.append(Argument(str(position), _plain(word, run_folder), is_flag=False))
            continue
        named.append(Argument(name, _plain(value, run_folder) if _matters(name, value) else None))
    return tuple(named)


def _matters(name: str, value: str) -> bool:
    if _NEVER.fullmatch(name):
        return False
    return not _PATHS.fullmatch(name) or _NUMBER.fullmatch(value) is not None


def _plain(value: str, run_folder: str) -> str:
    if run_folder and run_folder in value:
        value = value.replace(run_folder, "")
    return _TIME.sub("", value) if "-" in value or "_" in value or "T" in value else value


def read_numbers(arguments: Sequence[Argument]) -> tuple[tuple[str, float], ...]:
    """Return the arguments that are numbers, at most NUMBERS_MOST. A repeated flag counts each time."""
    numbers: dict[str, float] = {}
    for argument in arguments:
        found = _number(argument.value)
        if found is None:
            continue
        name, again = argument.name, 1
        while name in numbers:
            again += 1
            name = f"{argument.name} {again}"
        numbers[name] = found
        if len(numbers) == NUMBERS_MOST:
            break
    return tuple(numbers.items())


def _number(value: str | None) -> float | None:
    found = None if value is None or len(value) > 40 else _NUMBER.fullmatch(value)
    if found is None:
        return None
    number = float(found[1]) * _UNITS.get(found[2], 1.0)
    return number if -1e300 < number < 1e300 else None


def make_key(
    command: Command,
    *,
    script_path: str,
    content: str | None,
    name: str = "",
    run_folder: str = "",
    read: Callable[[Argument], str | None] = lambda argument: None,
) -> TaskKey:
    """Return the key of a command.

    script_path: the script's real path. content: a hash of its content; None: it cannot be read, so `exact` and
    `series` stay empty. name: the user's name for the family, which replaces the computed one. read: returns a hash of
    the file that an argument names; None: the argument counts by its text.
    """
    arguments = name_arguments(command.arguments, run_folder)
    flags = [argument.name for argument in arguments if argument.is_flag]
    family = name_family(name) if name else _hash("family", script_path, command.program, *flags)
    numbers = read_numbers(arguments)
    script = name_script(script_path) if script_path else ""
    if content is None:
        return TaskKey("", family, numbers, "", script)
    exact: list[str] = []
    series: list[str] = []
    for argument in arguments:
        value = "" if argument.value is None else argument.value
        if argument.value is not None and (read_hash := read(argument)) is not None:
            value = read_hash
        exact += (argument.name, value)
        series += (argument.name, "" if _number(argument.value) is not None else "=" + value)
    text = _plain(command.text + command.before, run_folder)
    return TaskKey(
        _hash("exact", content, text, *exact), family, numbers, _hash("series", content, text, *series), script
    )


def name_family(name: str) -> str:
    return _hash("name", name)


def name_script(path: str) -> str:
    """Return the hash of a script's path, by which its history is found."""
    return _hash("script", path)


def name_software(environment: Mapping[str, str]) -> str:
    """Return a hash of the Python environment or the container of a task; empty: it has neither."""
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "CONDA_PREFIX", "VIRTUAL_ENV"):
        if environment.get(name):
            return _hash("software", name, environment[name])
    return ""


def hash_text(text: str) -> str:
    """Return the content hash of a text that runs without a script file."""
    return _hash("text", text)


@lru_cache(maxsize=4096)
def tag(name: str) -> str:
    """Return the hash of a flag's name or of a position, with a `#` before it; a tag is returned unchanged."""
    if len(name) == TAG_DIGITS + 1 and name[0] == "#":
        return name
    return "#" + _hash("number", name)[:TAG_DIGITS]


def _hash(*parts: str) -> str:
    """Return a hash of the parts. Each is preceded by its length, so "ab", "c" differs from "a", "bc"."""
    data = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogateescape")
        data.update(b"%d:" % len(encoded))
        data.update(encoded[:TEXT_MOST])
    return data.hexdigest()[:HASH_DIGITS]
