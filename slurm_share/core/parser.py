"""The parser of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from .errors import shown
from .installed import version
from .text import did_you_mean

_UNKNOWN = "unrecognized arguments: "
"""Beginning of argparse's message about words that it has no use for."""


class Parser(argparse.ArgumentParser):
    """A parser whose epilog keeps its lines. Its sub-commands get such parsers, too."""

    def __init__(self, *, epilog: str | None = None, **options: Any) -> None:
        if epilog is not None:
            options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(epilog=epilog, **options)

    word_advice = ""
    """The advice for an argument that the command does not take (`{}`: the argument); empty: argparse's message."""

    def error(self, message: str) -> NoReturn:
        """Name the first unknown word, and what to write instead."""
        word = message.removeprefix(_UNKNOWN).split(" ", 1)[0]
        if message.startswith(_UNKNOWN) and word.startswith("-"):
            known = [option for action in self._actions for option in action.option_strings]
            hint = did_you_mean(word.partition("=")[0], known, f"see {self.prog} --help")
            message = f"there is no option {shown(word)}{hint}"
        elif message.startswith(_UNKNOWN) and self.word_advice:
            instead = self.word_advice.replace("{}", shown(word))
            message = f"{shown(word)} belongs to no option; {instead}"
        super().error(message)

    def add_version(self) -> None:
        """Add the option --version."""
        self.add_argument(
            "--version", nargs=0, action=_Print, default=argparse.SUPPRESS, help="print the version and exit"
        )


class _Print(argparse.Action):
    """Read the version only if it is asked for: that takes 20 ms."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        print(f"{parser.prog} of slurm-share {version() or '(not installed)'}")
        parser.exit()
