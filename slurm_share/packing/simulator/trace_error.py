"""The error for a trace that cannot be used."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import UsageError, shown


class TraceError(UsageError):
    """Raised for a trace that cannot be used, with file, line and reason."""

    def __init__(self, file: Path, line: int | None, why: str) -> None:
        self.file, self.line, self.why = file, line, why
        super().__init__(file, line, why)

    def __str__(self) -> str:
        where = shown(str(self.file), 400) if self.line is None else f"{shown(str(self.file), 400)}, line {self.line}"
        return f"{where}: {self.why}"
