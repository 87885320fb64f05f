"""Generate manual pages and completion from the commands' own parsers.

`python -I pages.py TOOLS TARGET VERSION SITE... -- NAME=MODULE:FUNCTION...`, each command as pyproject.toml has it;
writes below TARGET. A program of its own, so that it imports the packaged code.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ADMIN_COMMANDS = ("slurm-share",)
"""Commands of section 8; all others are for users, section 1."""
PARSERS = {
    "llmapreduce": "slurm_share.cli.llmapreduce_options",
    "slurm_share": "slurm_share.cli.main",
    "llload_tui": "slurm_share_tui.options",
}
"""Module of a command's parser, by its function in `slurm_share.cli.start`, if the names differ."""
_HIDDEN = argparse.SUPPRESS
_FILES = re.compile("FILE|FOLDER|SCRIPT|PROGRAM|COMMAND|INPUT|LLSUB")
"""Parts of the names of arguments that take a file or a folder."""


def main() -> None:
    """Write pages and completion of every command."""
    tools, target, version, *rest = sys.argv[1:]
    cut = rest.index("--")
    sys.path[:0] = [*rest[:cut], tools]
    seen: dict[str, str] = {}
    for word in sorted(rest[cut + 1 :], reverse=True):  # lower case first
        name, _, where = word.partition("=")
        # LLSC's spellings refer to the page of ours
        same = seen.setdefault(where, name)
        parser = _parser(where)
        text = page(parser, version) if same == name else f".so man{section(same)}/{same}.{section(same)}\n"
        _put(f"{target}/man/man{section(name)}/{name}.{section(name)}", text)
        parser = _parser(where)
        parser.prog = name
        _put(f"{target}/bash-completion/completions/{name}", shell_completion(parser, "bash"))
        _put(f"{target}/zsh/vendor-completions/_{name}", shell_completion(parser, "zsh"))
        _put(f"{target}/fish/vendor_completions.d/{name}.fish", fish_completion(parser, name))


def _parser(where: str) -> argparse.ArgumentParser:
    function = where.partition(":")[2]
    made = importlib.import_module(PARSERS.get(function, f"slurm_share.cli.{function}")).parser()
    assert isinstance(made, argparse.ArgumentParser)
    forget_hidden(made)
    return made


def forget_hidden(parser: argparse.ArgumentParser) -> None:
    """Remove sub-commands without help, which only our own programs call."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {choice.dest for choice in action._choices_actions}
            for name in [name for name in action.choices if name not in told]:
                del action.choices[name]
            for child in action.choices.values():
                forget_hidden(child)


def _put(place: str, text: str) -> None:
    file = Path(place)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def section(name: str) -> int:
    """Return the manual's section of a command."""
    return 8 if name in ADMIN_COMMANDS else 1


def page(parser: argparse.ArgumentParser, version: str) -> str:
    """Return the manual page of a command."""
    from argparse_manpage.manpage import Manpage  # type: ignore[import-not-found]

    first = " ".join((parser.description or "").split())
    parser.man_short_description = first.split(": ")[0].rstrip(".")  # type: ignore[attr-defined]
    number = section(parser.prog)
    about = {"project_name": "slurm-share", "version": version, "manual_section": number, "manual_title": "slurm-share"}
    notes, parser.epilog = parser.epilog, None
    made = str(Manpage(parser, _data=about))
    if notes:
        # examples and exit codes, which are laid out by hand
        lines = [line.replace("\\", "\\e").replace("-", "\\-") for line in notes.rstrip().splitlines()]
        lines = [f"\\&{line}" if line.startswith((".", "'")) else line for line in lines]
        made = made.rstrip("\n") + "\n.SH NOTES\n.nf\n" + "\n".join(lines) + "\n.fi\n"
    return made


def shell_completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion for bash or zsh."""
    import shtab  # type: ignore[import-not-found]

    if shell == "zsh":
        _name_files(parser)
    text = shtab.complete(parser, shell)
    assert isinstance(text, str)
    # `default`: complete file names where we offer no word, as after any other command
    text = text.replace("complete -o bashdefault -F", "complete -o bashdefault -o default -F")
    return text.rstrip("\n") + "\n"


def _name_files(parser: argparse.ArgumentParser) -> None:
    """Mark the arguments that take files, since zsh completes files only there."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                _name_files(child)
        elif action.choices is None and _FILES.search(f"{action.dest} {action.metavar}".upper()):
            action.complete = {"zsh": "_files"}  # type: ignore[attr-defined]


def fish_completion(parser: argparse.ArgumentParser, name: str) -> str:
    """Return the completion for fish: options, their values, and sub-commands to any depth."""
    return "".join(f"{line}\n" for line in _fish(parser, name, ()))


def _fish(parser: argparse.ArgumentParser, name: str, before: tuple[str, ...]) -> Iterator[str]:
    deeper = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    below = [word for action in deeper for word in action.choices]
    seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in before)
    here = f"not __fish_seen_subcommand_from {' '.join(below)}" if below else ""
    condition = "; and ".join(filter(None, (seen, here)))
    when = f" -n {_quoted(condition)}" if condition else ""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for word in action.choices:
                yield f"complete -c {name}{when} -f -a {word} -d {_quoted(helps.get(word, ''))}"
        elif action.option_strings and action.help is not _HIDDEN:
            yield f"complete -c {name}{when}{_fish_option(action, parser)}"
    for action in deeper:
        for word, child in action.choices.items():
            yield from _fish(child, name, (*before, word))


def _fish_option(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    words = "".join(
        f" -l {option[2:]}" if option.startswith("--") else f" -s {option[1:]}"
        for option in action.option_strings
        if option.startswith("--") or len(option) == 2
    )
    if action.nargs != 0:
        words += " -x -a " + _quoted(" ".join(map(str, action.choices))) if action.choices else " -r"
    text = action.help or ""
    if "%(" in text or "%%" in text:
        text = parser._get_formatter()._expand_help(action)
    return f"{words} -d {_quoted(text)}" if text else words


def _quoted(text: str) -> str:
    # these two have a meaning in fish's single quotes
    return "'" + " ".join(text.split()).replace("\\", "\\\\").replace("'", "\\'") + "'"


if __name__ == "__main__":
    main()
