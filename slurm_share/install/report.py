"""Record of what `slurm-share install` found and did, for `--json`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ..core.errors import UsageError
from ..doctor import Finding, every
from ..slurm.conf_text import Edit
from .rules.choices import OpenChoice
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


class InstallReport(Struct):
    """Output of `slurm-share install --json`: one action on the files of one site."""

    action: Action
    slurm_conf: str
    exit_code: int
    """Exit code of the command: 0 nothing is missing, or done; 1 lines are missing, or a check warns; 2 a check fails,
    or the administrator must decide or repair something first."""
    changed: bool
    """Whether any file was written."""
    files: tuple[FileReport, ...] = ()
    chosen: tuple[str, ...] = ()
    """Values of `--with`."""
    choices: tuple[OpenChoice, ...] = ()
    """Open choices; nothing is written while one of them is needed."""
    refusals: tuple[str, ...] = ()
    """Reasons why nothing can be, or was, written."""
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    """FAIL and WARN of the checks of `slurm-share doctor` that need only the configuration, on the files as they are
    with the lines."""
    nodes: NodesSeen = NodesSeen()
    error: str = ""
    """The message on standard error; empty: none."""
    kind: Literal["install"] = "install"
    schema: int = 1


class ReportPrinter:
    """Collects an InstallReport and prints the same for people."""

    def __init__(self, action: Action, chosen: Iterable[str], say: Callable[[str], None]) -> None:
        """Begin the report of one action. say: prints one or more lines."""
        self.say = say
        self.record = InstallReport(action, slurm_conf="", exit_code=0, changed=False, chosen=tuple(chosen))

    def note(self, text: str) -> None:
        """Print and record a note that the administrator should check."""
        self.say(f"note: {text}")
        self.record.notes += (text,)

    def record_findings(self, findings: Sequence[Finding]) -> None:
        """Print and record what is wrong with the configuration, failures first."""
        wrong = [one for outcome in ("FAIL", "WARN") for one in findings if one.outcome == outcome]
        self.record.findings = tuple(wrong)
        for one in wrong:
            self.say("\n".join(every.shown(one)))

    def record_missing(self, before: Mapping[str, str], after: Mapping[str, str], edits: Sequence[Edit]) -> None:
        """Record the missing lines."""
        self.record.files = tuple(
            FileReport(
                file,
                file not in before,
                tuple(LineReport(one.add, one.key, one.instead, one.at) for one in edits if one.file == file),
                difference(file, before.get(file, ""), text),
            )
            for file, text in after.items()
        )

    def record_written(self, copies: Mapping[str, str]) -> None:
        """Record that the files were written; `copies`: file -> copy of the old one."""
        self.record.changed = True
        self.record.files = tuple(replace(one, copy=copies.get(one.file, "")) for one in self.record.files)

    def refuse(self, heading: str, sentences: Sequence[str]) -> UsageError:
        """Record the refusals and return them as an error."""
        self.record.refusals += tuple(sentences)
        return UsageError(as_list(heading, sentences))

    def done(self, exit_code: int, error: str = "") -> InstallReport:
        """Return the finished record."""
        return replace(self.record, exit_code=exit_code, error=error)
