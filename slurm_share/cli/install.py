"""`slurm-share install`: the lines that Slurm's files need, shown, written, taken back."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from ..core import names
from ..core.errors import StateError, UsageError
from ..core.installed import EPILOG, LUA, PROLOG
from ..install import files as install_files
from ..install import text as install_text
from ..install.journal import NAME, Change, copy_of
from ..install.nodes import nodes_with, see_controllers, see_nodes
from ..install.present import (
    known_files,
    named_hooks,
    named_lua,
    read_present,
    read_shares,
    without_lua,
)
from ..install.report import FileReport, Report, as_json
from ..install.rules.choices import WORDS
from ..install.rules.controllers import controller_notes, controller_refusals
from ..install.rules.edits import difference, put_in
from ..install.rules.lines import Present, SiteLines
from ..install.rules.partial import (
    MODE,
    WRAPPERS,
    is_wrapper,
    node_notes,
    node_refusals,
    wrapper,
)
from ..install.rules.shards import SHARDS_PER_GPU
from ..install.rules.undo import undone
from ..install.text import Wanted, harmless, say
from ..install.trial import validate, validate_undo
from ..slurm.conf import read_conf, read_text, slurm_conf_path
from ..slurm.conf_text import ConfText, Edit
from ..slurm.remote_hosts import read_hooks_in_force

EXIT_MISSING = 1
CONFIGLESS = Path("/run/slurm/conf")
"""Where slurmd and sackd put what the controller sends; slurmd makes it a link."""


def add_to(commands: Any) -> None:
    """Add `install`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "install",
        help="the lines that slurm.conf, plugstack.conf and gres.conf need: show, write, take back",
        description="Shows as a diff the lines that Slurm's files on this host lack, writes them, or takes them back. "
        "--check ends with 0 where nothing is missing, 1 where lines are, 2 where somebody has to choose first.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="show what is missing, change nothing (the default)")
    what.add_argument("--apply", action="store_true", help="write it: every file or none, with a copy of the old one")
    what.add_argument("--undo", action="store_true", help="take back what --apply wrote, and nothing else")
    what.add_argument(
        "--names-hooks",
        action="store_true",
        help="which Prolog= and Epilog= of slurm.conf start our hooks on this host: a line each and exit code 1, or 0; "
        "2 where it cannot be told (for the packages, which are not removed under them)",
    )
    what.add_argument(
        "--names-lua",
        action="store_true",
        help="the same of the job_submit.lua beside slurm.conf that calls ours",
    )
    parser.add_argument(
        "--shards",
        nargs="?",
        type=int,
        const=SHARDS_PER_GPU,
        default=0,
        metavar="N",
        help=f"with the lines for parts of a GPU, N shards for each (default {SHARDS_PER_GPU})",
    )
    parser.add_argument(
        "--with",
        dest="taken",
        action="append",
        choices=WORDS,
        default=[],
        help="also a line that changes other people's jobs; --check says which a site lacks, and what each changes",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="with --undo: take out whole lines of ours, also where somebody has added words to them since",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object instead of words, errors too; install.md has its fields"
    )
    parser.add_argument("--conf", type=Path, metavar="FILE", help="another slurm.conf than the one Slurm uses here")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises UsageError where somebody has to choose, and where a file cannot be read or written: 1 means that lines
    are missing, and nothing else."""
    report = Report("undo" if arguments.undo else "apply" if arguments.apply else "check", sorted(set(arguments.taken)))
    return as_json(report, lambda: _run(arguments, report)) if arguments.json else _run(arguments, report)


def _run(arguments: argparse.Namespace, report: Report) -> int:
    if arguments.json and (arguments.names_hooks or arguments.names_lua):
        raise UsageError("--json belongs to --check, --apply and --undo")
    if arguments.force and not arguments.undo:
        raise UsageError("--force belongs to --undo")
    if not 0 <= arguments.shards < 2**32:
        raise UsageError(f"--shards={arguments.shards}: from 1 to {2**32 - 1}; without a number it is {SHARDS_PER_GPU}")
    named = slurm_conf_path(arguments.conf).absolute()
    try:
        conf = named.parent.resolve() / named.name  # one folder, one journal, whatever way leads there
        if arguments.names_hooks or arguments.names_lua:
            return tell_named(conf, named_lua(conf) if arguments.names_lua else named_hooks(conf))
        report.slurm_conf = str(conf)
        if arguments.undo:
            return undo(conf, report, force=arguments.force)
        wanted = Wanted(arguments.shards, frozenset(arguments.taken), arguments.conf)
        return apply(conf, wanted, report) if arguments.apply else check(conf, wanted, report)
    except (StateError, UsageError) as error:
        raise UsageError(harmless(str(error))) from error


def check(conf: Path, wanted: Wanted, report: Report) -> int:
    """Show what is missing."""
    _refuse_a_copy(conf)
    # root's alone: a user is shown the lines, and not whether an --apply was interrupted
    readable = os.access(conf.parent / NAME, os.R_OK)
    journal = install_files.read_journal(conf.parent, known_files(conf)) if readable else None
    if journal is not None and journal.state != "applied":
        raise UsageError(
            f"an --{'apply' if journal.state == 'applying' else 'undo'} was interrupted here on {journal.date}; "
            "write --apply or --undo, either sets right what it left"
        )
    present = read_present(conf)
    lines = wanted.lines(present)
    _show(present, lines, _after(present, lines.edits), report)
    # the site's remote command is root's to use, and a check starts no job
    refusals = [*lines.refusals, *(_others(present, lines, wanted, report) if os.geteuid() == 0 else [])]
    if refusals:
        raise report.refuse("nothing can be written before this is settled:", refusals)
    if journal is not None:
        say(install_text.shares_now(read_shares()))
    if lines.edits:
        say(f"to write these lines:  {wanted.command(lines)}")
        return EXIT_MISSING
    say("no line is missing")
    return names.EXIT_OK


def apply(conf: Path, wanted: Wanted, report: Report) -> int:
    """Write what is missing."""
    _refuse_a_copy(conf)
    with install_files.alone(conf.parent):
        known = known_files(conf)
        _say_settled(conf.parent, known)
        present = read_present(conf)
        lines = wanted.lines(present)
        after = _after(present, lines.edits)
        _show(present, lines, after, report)
        refusals = [*lines.refusals, *_absent(), *without_lua(present.slurm)]
        refusals += _others(present, lines, wanted, report, by_jobs=True)
        if any(choice.is_needed for choice in lines.choices):
            refusals.append(f"this is for you to choose, see above; if it may:  {wanted.command(lines)}")
        if refusals:
            raise report.refuse("nothing was written:", refusals)
        if not lines.edits:
            say("no line is missing; nothing was written")
            return names.EXIT_OK
        validate(present, after, lines.edits, wanted, report)
        number = _number(known)
        changes = tuple(_change(present, name, text, lines.edits, number) for name, text in after.items())
        date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        install_files.apply(conf.parent, changes, date, known | after.keys())
    report.wrote({change.file: change.copies[0] for change in changes if change.copies})
    for change in changes:
        say(f"wrote {change.file}" + (f"; as it was: {change.copies[0]}" if change.copies else ""))
    does_without = WRAPPERS["Prolog"] in read_conf(conf).values("Prolog")
    print(install_text.done(does_without=does_without))
    return names.EXIT_OK


def _refuse_a_copy(conf: Path) -> None:
    """Raises UsageError on a configless host: some of the files are the controller's alone, and none is kept."""
    if conf.parent == CONFIGLESS.resolve():
        raise UsageError(
            f"{conf} was sent by the controller and is written anew at every reconfigure; run this on the controller"
        )


def undo(conf: Path, report: Report, *, force: bool = False) -> int:
    """Take back what --apply wrote."""
    with install_files.alone(conf.parent):
        known = known_files(conf)
        settled = _say_settled(conf.parent, known)
        journal = install_files.read_journal(conf.parent, known)
        if journal is None:
            if not _remove_wrappers(conf, report, force=force):
                say("nothing to take back" + ("" if settled else f": there is no {conf.parent / NAME}"))
            return names.EXIT_OK
        texts = {file: read_text(Path(file)) for file in sorted(known) if Path(file).exists()}
        slurm = read_conf(conf) if str(conf) in texts else ConfText(conf, ())
        files = tuple(map(str, slurm.files))
        edits = {change.file: change.edits for change in journal.changes}
        for change in journal.changes:
            if is_wrapper(change.file, texts.get(change.file, "")):
                edits.pop(change.file)  # slurmd runs it until the reconfigure, and without it drains the node
        without = undone(edits, texts, files, str(conf.with_name("job_submit.lua")), force=force)
        if without.by_hand:
            for edit in without.by_hand:
                say(_as_changed(edit, texts.get(edit.file, "")))
            raise UsageError(
                "nothing was taken back: the lines above are ours and were changed by hand since, so that our words "
                "are not told from yours. Make each what the + says, or take it out, then write --undo again; "
                "--undo --force takes out each of them whole"
            )
        validate_undo(slurm, without.texts, report)
        first = {change.file: change.first for change in journal.changes}
        # One that somebody has removed meanwhile stays so.
        changes = [
            Change(
                file,
                _bytes(now),
                None if now is None else _like_first(without.texts.get(file, now), first.get(file, _bytes(now))),
            )
            for file in dict.fromkeys([*edits, *without.texts])
            for now in (texts.get(file),)
        ]
        install_files.undo(conf.parent, journal, tuple(changes), known)
    for change in changes:
        if change.before != change.after:
            say(f"{'removed' if change.after is None else 'took our lines out of'} {change.file}")
            before, after = ((data or b"").decode("utf-8", "surrogateescape") for data in (change.before, change.after))
            report.files.append(FileReport(change.file, False, (), difference(change.file, before, after)))
            report.changed = True
    _remove_wrappers(conf, report, force=force)
    for note in without.notes:
        report.note(note)
    say(install_text.shares_now(read_shares()))
    print(install_text.UNDONE)
    return names.EXIT_OK


def _remove_wrappers(conf: Path, report: Report, *, force: bool) -> bool:
    """Remove the wrappers that neither slurm.conf nor the configuration in force names; whether there was one. One that
    somebody has changed stays, where it is not to go by `force`."""
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
                f"{file} stays, for {why}slurmd runs it until the reconfigure; after that `slurm-share install --undo` "
                "removes it"
            )
        elif not force and read_text(file).strip() != ours[file]:
            report.note(
                f"{file} stays, for it is not as slurm-share wrote it; `slurm-share install --undo --force` removes it"
            )
        else:
            install_files.remove(file)
            report.changed = True
            say(f"removed {file}")
    return True


def _names(values: Iterable[str]) -> set[str]:
    """File names without their folders: a site may have written the wrapper's whole path."""
    return {value.rpartition("/")[2] for value in values}


def tell_named(conf: Path, lines: list[str]) -> int:
    """What is named, for the packages' scripts."""
    say("\n".join(f"{conf}: {line}" for line in lines))
    return EXIT_MISSING if lines else names.EXIT_OK


def _after(present: Present, edits: tuple[Edit, ...]) -> dict[str, str]:
    files = dict.fromkeys(edit.file for edit in edits)
    return {file: put_in(present.texts.get(file, ""), [edit for edit in edits if edit.file == file]) for file in files}


def _absent() -> list[str]:
    """What the lines name, and is not here: a Prolog that is not there drains every node."""
    return [
        f"{file} is not on this host: install the package slurm-share, here and on every node, before its lines"
        for file in (PROLOG, EPILOG, LUA)
        if not Path(file).exists()
    ]


def _show(present: Present, lines: SiteLines, after: Mapping[str, str], report: Report) -> None:
    """Show what is missing, and keep it."""
    report.lacks(present.texts, after, lines.edits)
    report.choices = lines.choices
    for note in install_text.show(present, lines, after):
        report.note(note)


def _others(present: Present, lines: SiteLines, wanted: Wanted, report: Report, *, by_jobs: bool = False) -> list[str]:
    """Say which other hosts lack what the lines name; why nothing may be written therefore."""
    if not lines.edits:
        return []
    controllers = see_controllers(present)
    for note in controller_notes(controllers, list(dict.fromkeys(edit.file for edit in lines.edits))):
        report.note(note)
    refusals = list(controller_refusals(controllers))
    if not any(edit.key in WRAPPERS for edit in lines.edits):
        return refusals
    feature = present.settings.node_feature
    featured = nodes_with(present.slurm, feature) if feature else []
    seen = see_nodes(present, by_jobs=by_jobs)
    report.saw(seen)
    for note in node_notes(seen, wanted.taken, feature, featured):
        report.note(note)
    return [*refusals, *node_refusals(seen, wanted.taken, feature, featured)]


def _number(known: frozenset[str]) -> int:
    """Of this apply's copies: one that no copy has, whoever made it."""
    return next(number for number in count(1) if not any(Path(copy_of(file, number)).exists() for file in known))


def _change(present: Present, name: str, text: str, edits: tuple[Edit, ...], number: int) -> Change:
    old = present.texts.get(name)
    return Change(
        name,
        _bytes(old),
        text.encode("utf-8", "surrogateescape"),
        () if old is None else (copy_of(name, number),),
        tuple(edit for edit in edits if edit.file == name),
        mode=MODE if is_wrapper(name, text) else 0o644,
    )


def _like_first(text: str, first: bytes | None) -> bytes | None:
    """A file that was not there goes when nothing is left in it; one that had no newline at its end has none again."""
    data = text.encode("utf-8", "surrogateescape")
    if first is None:
        return data if text.strip() else None
    return first if data.rstrip(b"\n") == first.rstrip(b"\n") else data


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")


def _as_changed(edit: Edit, now: str) -> str:
    like = [line for line in now.splitlines() if edit.word in line]
    return difference(edit.file, "\n".join(like), edit.add)


def _say_settled(folder: Path, known: frozenset[str]) -> bool:
    said = install_files.settle(folder, known)
    if said is not None:
        say(said)
    return said is not None
