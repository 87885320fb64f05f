"""Implement `slurm-share install --undo`: revert exactly what `--apply` wrote."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..core.errors import UsageError
from ..slurm.conf import read_conf, read_text
from ..slurm.conf_text import ConfText, Edit
from ..slurm.remote_hosts import read_hooks_in_force
from . import files as install_files
from . import text as install_text
from .apply import as_bytes, settle_and_report
from .journal import NAME, FileChange
from .present import known_files, read_shares
from .report import FileReport, ReportPrinter
from .rules.edits import difference
from .rules.hosts import WRAPPERS, is_wrapper, wrapper
from .rules.undo import undone
from .trial import validate_undo


def undo(conf: Path, report: ReportPrinter, *, force: bool = False) -> None:
    """Revert what --apply wrote. Raises UsageError if a line of ours was changed by hand, StateError for a file that
    cannot be written."""
    with install_files.locked(conf.parent):
        known = known_files(conf)
        settled = settle_and_report(conf.parent, known, report)
        journal = install_files.read_journal(conf.parent, known)
        if journal is None:
            if not _remove_wrappers(conf, report, force=force):
                report.say("nothing to take back" + ("" if settled else f": there is no {conf.parent / NAME}"))
            return
        texts = {file: read_text(Path(file)) for file in sorted(known) if Path(file).exists()}
        slurm = read_conf(conf) if str(conf) in texts else ConfText(conf, ())
        files = tuple(map(str, slurm.files))
        edits = {change.file: change.edits for change in journal.changes}
        for change in journal.changes:
            if is_wrapper(change.file, texts.get(change.file, "")):
                edits.pop(change.file)  # slurmd runs it until the reconfigure; removing it now would drain the node
        without = undone(edits, texts, files, str(conf.with_name("job_submit.lua")), force=force)
        if without.by_hand:
            for edit in without.by_hand:
                report.say(_changed_lines(edit, texts.get(edit.file, "")))
            raise UsageError(
                "nothing was taken back: the lines above are ours and were changed by hand since, so that our values "
                "cannot be told from yours. Make each what the + line says, or remove it, then run --undo again; "
                "--undo --force removes them whole"
            )
        validate_undo(slurm, without.texts, report)
        first = {change.file: change.first for change in journal.changes}
        # a file that was removed meanwhile stays removed
        changes = [
            FileChange(
                file,
                as_bytes(now),
                None if now is None else _as_before_us(without.texts.get(file, now), first.get(file, as_bytes(now))),
            )
            for file in dict.fromkeys([*edits, *without.texts])
            for now in (texts.get(file),)
        ]
        install_files.undo(conf.parent, journal, tuple(changes), known)
    for change in changes:
        if change.before != change.after:
            report.say(f"{'removed' if change.after is None else 'took our lines out of'} {change.file}")
            before, after = ((data or b"").decode("utf-8", "surrogateescape") for data in (change.before, change.after))
            report.record.files += (FileReport(change.file, False, (), difference(change.file, before, after)),)
            report.record.changed = True
    _remove_wrappers(conf, report, force=force)
    for note in without.notes:
        report.note(note)
    report.say(install_text.running_shares(read_shares()))
    report.say(install_text.UNDONE)


def _remove_wrappers(conf: Path, report: ReportPrinter, *, force: bool) -> bool:
    """Remove the wrappers that neither slurm.conf nor the configuration in force names; return whether there was one. A
    wrapper changed by hand is removed only with `force`."""
    ours = {conf.with_name(name): wrapper(key) for key, name in WRAPPERS.items()}
    there = [file for file in ours if file.exists() and is_wrapper(str(file), read_text(file))]
    if not there:
        return False
    named = _names(value for key in WRAPPERS for value in read_conf(conf).values(key)) if conf.exists() else set()
    in_force = read_hooks_in_force()
    for file in there:
        if file.name in named or in_force is None or file.name in _names(in_force):
            why = "Slurm does not answer, and " if in_force is None else ""
            report.note(
                f"{file} stays: {why}slurmd runs it until the reconfigure; after that `slurm-share install --undo` "
                "removes it"
            )
        elif not force and read_text(file).strip() != ours[file]:
            report.note(
                f"{file} stays: it is not as slurm-share wrote it; `slurm-share install --undo --force` removes it"
            )
        else:
            install_files.remove(file)
            report.record.changed = True
            report.say(f"removed {file}")
    return True


def _names(values: Iterable[str]) -> set[str]:
    """Return file names without folders: a site may have written the wrapper's whole path."""
    return {value.rpartition("/")[2] for value in values}


def _as_before_us(text: str, first: bytes | None) -> bytes | None:
    """Return a file's content after undo: None if the file was new and is empty now, and without a final newline if it
    had none before."""
    data = text.encode("utf-8", "surrogateescape")
    if first is None:
        return data if text.strip() else None
    return first if data.rstrip(b"\n") == first.rstrip(b"\n") else data


def _changed_lines(edit: Edit, now: str) -> str:
    like = [line for line in now.splitlines() if edit.word in line]
    return difference(edit.file, "\n".join(like), edit.add)
