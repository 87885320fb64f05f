"""Reads the files of the archive: samples of some days, in order of time, however their lines came to be broken."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..core.errors import StateError, shown
from . import records
from .records import Sample


class Archive:
    """A folder of day files, `2026-11-21.tsv` or, kept smaller by the administrator, `2026-11-21.tsv.gz`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.skipped = 0
        """Lines that hold no sample, so far: torn by a power cut, or written by something else."""

    def days(self) -> tuple[str, ...]:
        """The days there are, 2026-11-21, in order. Raises StateError for a folder that is not there or not for this
        user to read."""
        try:
            names = [file.name for file in self.folder.iterdir()]
        except OSError as error:
            raise _refused(self.folder, error) from error
        return tuple(sorted({name.partition(".")[0] for name in names if name.endswith((".tsv", ".tsv.gz"))}))

    def read(self, since: int, until: int) -> Iterator[Sample]:
        """The samples whose interval begins in [since, until), Unix time. Raises StateError as `days` does, and for a
        file that cannot be read."""
        first, last = records.time_text(since)[:10], records.time_text(until - 1)[:10]
        for day in self.days():
            if first <= day <= last:
                found = [one for one in self._of_day(day) if since <= one.time < until]
                yield from sorted(found, key=lambda one: one.time)

    def _of_day(self, day: str) -> Iterator[Sample]:
        for suffix in (".tsv.gz", ".tsv"):
            file = self.folder / f"{day}{suffix}"
            try:
                with _opened(file) as raw, gzip.open(raw) if suffix.endswith("gz") else raw as opened:
                    for line in opened:
                        _check_version(file, line)
                        sample = self._sample(line)
                        if sample is not None:
                            yield sample
            except FileNotFoundError:
                continue
            except (EOFError, zlib.error, gzip.BadGzipFile):
                self.skipped += 1  # cut off, or none of gzip's: what came before it counts
            except OSError as error:
                raise _refused(file, error) from error

    def _sample(self, line: bytes) -> Sample | None:
        if line.startswith(b"#") or line == _COLUMNS:
            return None
        try:
            if not line.endswith(b"\n"):
                raise ValueError("torn")
            return records.parse(line[:-1].decode("utf-8"))
        except ValueError:
            self.skipped += 1
            return None


_COLUMNS = records.HEAD.splitlines(keepends=True)[1].encode()


def _opened(file: Path) -> BinaryIO:
    """Raises OSError, and StateError for what is no file: of a pipe, somebody would wait for ever."""
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StateError(str(file), "is not a file; move it away")
    return os.fdopen(fd, "rb")


def _check_version(file: Path, line: bytes) -> None:
    is_whole = line.startswith(b"#") and line.endswith(b"\n")
    version = records.foreign_version(line.decode("utf-8", "replace")) if is_whole else None
    if version is not None:
        why = f"was written by a newer slurm-share (form {shown(version)}; this one knows {records.VERSION})"
        raise StateError(str(file), why)


def _refused(file: Path, error: OSError) -> StateError:
    hint = "; it is for root and the operators' group" if isinstance(error, PermissionError) else ""
    if isinstance(error, FileNotFoundError):
        hint = "; slurm-share archive makes it (archive_folder in the configuration says where)"
    return StateError(str(file), f"cannot be read: {error.strerror or error}{hint}")
