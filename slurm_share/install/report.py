"""Record of what `slurm-share install` found and did, for `--json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import Struct

from ..core.errors import UsageError
from ..slurm.conf_text import Edit
from .rules.choices import Choice
from .rules.edits import difference
from .rules.hosts import NodesSeen
from .text import as_list

Action = Literal["check", "apply", "undo"]


class LineReport(Struct, frozen=True):
    """One line that a file lacks."""

    line: str
    """The whole text if the file is entirely ours."""
    key: str = ""
    """Keyword of the line; empty: a comment, or a file without keywords."""
    instead: tuple[str, ...] = ()
    """Existing lines that it replaces."""
    at: int = 0
    """Line number before which it is inserted, or that it replaces; 0: appended."""


class FileReport(Struct, frozen=True):
    """One file that lacks lines, or from which ours are removed."""

    file: str
    is_new: bool
    """Whether the file does not exist yet."""
    lines: tuple[LineReport, ...]
    """Missing lines; empty for an undo."""
    diff: str
    """The change in the format of `diff -u`."""
    copy: str = ""
    """Path of the copy of the old file; empty: not written, or new."""


class NodesReport(Struct, frozen=True):
    """Which nodes have the package, as far as they answered."""

    having: tuple[str, ...] = ()
    lacking: Mapping[str, tuple[str, ...]] = {}
    """Node -> files that it lacks."""
    not_checked: tuple[str, ...] = ()


class InstallReport(Struct, frozen=True):
    """Output of `slurm-share install --json`: one action on the files of one site."""

    action: Literal["check", "apply", "undo"]
    slurm_conf: str
    exit_code: int
    """Exit code of the command: 0 nothing is missing, or done; 1 lines are missing; 2 the administrator must decide or
    repair something first."""
    changed: bool
    """Whether any file was written."""
    files: tuple[FileReport, ...] = ()
    chosen: tuple[str, ...] = ()
    """Values of `--with`."""
    choices: tuple[Choice, ...] = ()
    """Open choices; nothing is written while one of them is needed."""
    refusals: tuple[str, ...] = ()
    """Reasons why nothing can be, or was, written."""
    notes: tuple[str, ...] = ()
    nodes: NodesReport = NodesReport()
    error: str = ""
    """The message on standard error; empty: none."""
    kind: Literal["install"] = "install"
    schema: int = 1


@dataclass
class Report:
    """Collects an InstallReport and prints the same for people."""

    action: Action
    chosen: Sequence[str]
    say: Callable[[str], None]
    """Prints one or more lines."""
    slurm_conf: str = ""
    changed: bool = False
    files: list[FileReport] = field(default_factory=list)
    choices: tuple[Choice, ...] = ()
    refusals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    nodes: NodesReport = field(default_factory=NodesReport)

    def note(self, text: str) -> None:
        """Print and record a note that the administrator should check."""
        self.say(f"note: {text}")
        self.notes.append(text)

    def record_missing(self, before: Mapping[str, str], after: Mapping[str, str], edits: Sequence[Edit]) -> None:
        """Record the missing lines."""
        self.files = [
            FileReport(
                file,
                file not in before,
                tuple(LineReport(one.add, one.key, one.instead, one.at) for one in edits if one.file == file),
                difference(file, before.get(file, ""), text),
            )
            for file, text in after.items()
        ]

    def record_written(self, copies: Mapping[str, str]) -> None:
        """Record that the files were written; `copies`: file -> copy of the old one."""
        self.changed = True
        self.files = [msgspec.structs.replace(one, copy=copies.get(one.file, "")) for one in self.files]

    def record_nodes(self, seen: NodesSeen) -> None:
        """Record which nodes have the package."""
        self.nodes = NodesReport(seen.having, seen.lacking, seen.silent)

    def refuse(self, heading: str, sentences: Sequence[str]) -> UsageError:
        """Record the refusals and return them as an error."""
        self.refusals += sentences
        return UsageError(as_list(heading, sentences))

    def done(self, exit_code: int, error: str = "") -> InstallReport:
        """Return the finished record."""
        return InstallReport(
            self.action,
            self.slurm_conf,
            exit_code,
            self.changed,
            tuple(self.files),
            tuple(self.chosen),
            self.choices,
            tuple(self.refusals),
            tuple(self.notes),
            self.nodes,
            error,
        )
