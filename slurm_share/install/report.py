"""What `slurm-share install` found and did, as a record for `--json`; a person is told the same in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from ..core.errors import UsageError
from ..slurm.conf_text import Edit
from .rules.choices import Choice
from .rules.edits import difference
from .rules.partial import NodesSeen

Action = Literal["check", "apply", "undo"]


class LineReport(Struct, frozen=True):
    """One line of ours."""

    line: str
    """The whole text if the file is ours alone."""
    key: str = ""
    """Its keyword; empty: a comment, or a file without keywords."""
    instead: tuple[str, ...] = ()
    """The lines whose place it takes."""
    at: int = 0
    """Before, or in the place of, the line of this number; 0: at the end."""


class FileReport(Struct, frozen=True):
    """One file that lacks lines, or from which ours are taken."""

    file: str
    is_new: bool
    """Whether it is not there."""
    lines: tuple[LineReport, ...]
    """Those that are missing; at an undo none."""
    diff: str
    """What changes, as `diff -u` writes it."""
    copy: str = ""
    """Where the file is kept as it was; empty: it was not written, or is new."""


class NodesReport(Struct, frozen=True):
    """Which nodes have the package, as far as they could be asked."""

    having: tuple[str, ...] = ()
    lacking: Mapping[str, tuple[str, ...]] = {}
    """Node -> the files that are not there."""
    not_checked: tuple[str, ...] = ()


class InstallReport(Struct, frozen=True):
    """What `slurm-share install --json` prints: one action on the files of one site."""

    action: Literal["check", "apply", "undo"]
    slurm_conf: str
    exit_code: int
    """That of the command: 0 nothing is missing, or it is done; 1 lines are missing; 2 somebody has to settle something
    first."""
    changed: bool
    """Whether a file was written."""
    files: tuple[FileReport, ...] = ()
    chosen: tuple[str, ...] = ()
    """The words of `--with`."""
    choices: tuple[Choice, ...] = ()
    """What is for somebody to choose; nothing is written as long as one of them is needed."""
    refusals: tuple[str, ...] = ()
    """Why nothing can be written, or was."""
    notes: tuple[str, ...] = ()
    nodes: NodesReport = NodesReport()
    error: str = ""
    """The sentence that standard error has; empty: there was none."""
    kind: Literal["install"] = "install"
    schema: int = 1


class Report:
    """An InstallReport in the making, and where a person is told the same."""

    def __init__(self, action: Action, chosen: Sequence[str], say: Callable[[str], None]) -> None:
        """`say` is given what a person is told, lines at a time."""
        self.action = action
        self.chosen = tuple(chosen)
        self.say = say
        self.slurm_conf = ""
        self.changed = False
        self.files: list[FileReport] = []
        self.choices: tuple[Choice, ...] = ()
        self.refusals: list[str] = []
        self.notes: list[str] = []
        self.nodes = NodesReport()

    def note(self, text: str) -> None:
        """Say something that is worth a look."""
        self.say(f"note: {text}")
        self.notes.append(text)

    def lacks(self, before: Mapping[str, str], after: Mapping[str, str], edits: Sequence[Edit]) -> None:
        """Keep which lines are missing."""
        self.files = [
            FileReport(
                file,
                file not in before,
                tuple(LineReport(one.add, one.key, one.instead, one.at) for one in edits if one.file == file),
                difference(file, before.get(file, ""), text),
            )
            for file, text in after.items()
        ]

    def wrote(self, copies: Mapping[str, str]) -> None:
        """Keep that the files were written; `copies`: where the old ones are."""
        self.changed = True
        self.files = [msgspec.structs.replace(one, copy=copies.get(one.file, "")) for one in self.files]

    def saw(self, seen: NodesSeen) -> None:
        """Keep which nodes have the package."""
        self.nodes = NodesReport(seen.having, seen.lacking, seen.silent)

    def refuse(self, heading: str, sentences: Sequence[str]) -> UsageError:
        """Keep the refusals and return them as an error."""
        self.refusals += sentences
        return UsageError("\n".join([heading, *(f"- {sentence}" for sentence in sentences)]))

    def done(self, exit_code: int, error: str = "") -> InstallReport:
        """Return the finished record."""
        return InstallReport(
            self.action,
            self.slurm_conf,
            exit_code,
            self.changed,
            tuple(self.files),
            self.chosen,
            self.choices,
            tuple(self.refusals),
            tuple(self.notes),
            self.nodes,
            error,
        )
