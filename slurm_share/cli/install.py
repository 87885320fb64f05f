"""`slurm-share install`: the lines that Slurm's files need, shown, written, taken back."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from .. import names
from ..actuators import site_files
from ..conf_text import Edit
from ..decide.site_edits import difference, put_in, take_out
from ..decide.site_lines import Present, SiteLines, site_lines
from ..decide.site_shards import SHARDS_PER_GPU
from ..errors import CommandError, ConfigError, StateError, UsageError
from ..installed import EPILOG, LUA, PLUGIN, PROLOG
from ..readers.slurm_files import read_conf, read_text, slurm_conf_path
from ..readers.slurm_parse import read_objection
from ..site_journal import NAME, Change
from .install_present import named_hooks, named_lua, read_present, without_lua
from .screen import print_lines

EXIT_MISSING = 1
CONFIGLESS = Path("/run/slurm/conf")
DONE = """\
next:
  0. a node without our Prolog is drained by its next job:  clush -a test -x /opt/slurm-share/bin/slurm-share-prolog
  1. where Slurm's files are neither on a shared file system nor sent by the controller: copy them to every host
  2. on the controller:  scontrol reconfigure       (slurmctld and every slurmd; jobs run on, nothing need be restarted)
     where it answers with an error the old configuration stays in force, slurmctld's log says why, and
     `slurm-share install --undo` takes these lines back
  3. on controller, login and compute nodes:  slurm-share doctor"""
UNDONE = """\
next:
  1. let shared jobs end first: from the reconfigure on no Epilog of ours ends their MPS daemons (`slurm-share status`
     on a node lists them; with mode = "off" in config.toml no further one begins)
  2. where every host has its own files: copy these;  then, on the controller:  scontrol reconfigure"""


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
    parser.add_argument("--conf", type=Path, metavar="FILE", help="another slurm.conf than the one Slurm uses here")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises UsageError where somebody has to choose, and where a file cannot be read or written: 1 means that lines
    are missing, and nothing else."""
    if not 0 <= arguments.shards < 2**32:
        raise UsageError(f"--shards={arguments.shards}: from 1 to {2**32 - 1}; without a number it is {SHARDS_PER_GPU}")
    conf = slurm_conf_path(arguments.conf).absolute()
    try:
        if arguments.names_hooks or arguments.names_lua:
            return tell_named(conf, named_lua(conf) if arguments.names_lua else named_hooks(conf))
        if arguments.undo:
            return undo(conf)
        return apply(conf, arguments.shards) if arguments.apply else check(conf, arguments.shards)
    except (StateError, ConfigError) as error:
        raise UsageError(str(error)) from error


def check(conf: Path, shards: int) -> int:
    """Show what is missing."""
    # root's alone: a user is shown the lines, and not whether an --apply was interrupted
    journal = site_files.read_journal(conf.parent) if os.access(conf.parent / NAME, os.R_OK) else None
    if journal is not None and journal.state != "applied":
        raise UsageError(
            f"an --{'apply' if journal.state == 'applying' else 'undo'} was interrupted here on {journal.date}; "
            "write --apply or --undo, either sets right what it left"
        )
    present = read_present(conf)
    lines = site_lines(present, shards)
    show(present, lines)
    if lines.refusals:
        raise UsageError(_one_by_one("nothing can be written before this is settled:", lines.refusals))
    if lines.edits:
        print("to write these lines:  slurm-share install --apply")
        return EXIT_MISSING
    print("no line is missing")
    return names.EXIT_OK


def apply(conf: Path, shards: int) -> int:
    """Write what is missing."""
    if conf.parent == CONFIGLESS:
        raise UsageError(
            f"{conf} was sent by the controller and is written anew at every reconfigure; run this on the controller"
        )
    with site_files.alone(conf.parent):
        _say_settled(conf.parent)
        present = read_present(conf)
        lines = site_lines(present, shards)
        show(present, lines)
        refusals = [*lines.refusals, *_absent(), *without_lua(present.slurm)]
        if refusals:
            raise UsageError(_one_by_one("nothing was written:", refusals))
        if not lines.edits:
            print("no line is missing; nothing was written")
            return names.EXIT_OK
        after = _after(present, lines.edits)
        _validate(present, after, shards)
        date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        changes = tuple(_change(present, name, text, lines.edits, date) for name, text in after.items())
        site_files.apply(conf.parent, changes, date)
    for change in changes:
        kept = change.backup is not None and Path(change.backup).exists()  # only the first --apply makes one
        print(f"wrote {change.file}" + (f"; the old one is {change.backup}" if kept else ""))
    print(DONE)
    return names.EXIT_OK


def undo(conf: Path) -> int:
    """Take back what --apply wrote."""
    with site_files.alone(conf.parent):
        settled = _say_settled(conf.parent)
        journal = site_files.read_journal(conf.parent)
        if journal is None:
            print("nothing to take back" + ("" if settled else f": there is no {conf.parent / NAME}"))
            return names.EXIT_OK
        changes, by_hand = [], []
        for done in journal.changes:
            now = read_text(Path(done.file)) if Path(done.file).exists() else ""
            text, changed = take_out(now, read_conf(Path(done.file), {done.file: now}), done.edits)
            by_hand += [(edit, now) for edit in changed]
            here = now.encode("utf-8", "surrogateescape") if Path(done.file).exists() else None
            # One that somebody has removed meanwhile stays so.
            changes.append(Change(done.file, here, None if here is None else _like_first(text, done.first)))
        if by_hand:
            for edit, now in by_hand:
                print_lines(_as_changed(edit, now).splitlines())
            raise UsageError(
                "nothing was taken back: the lines above are ours and were changed by hand since. Make each what the + "
                "says, or take it out, then write --undo again"
            )
        site_files.undo(conf.parent, journal, tuple(changes))
    for change in changes:
        if change.before != change.after:
            print(f"{'removed' if change.after is None else 'took our lines out of'} {change.file}")
    print(UNDONE)
    return names.EXIT_OK


def tell_named(conf: Path, lines: list[str]) -> int:
    """What is named, for the packages' scripts."""
    print_lines([f"{conf}: {line}" for line in lines])
    return EXIT_MISSING if lines else names.EXIT_OK


def show(present: Present, lines: SiteLines) -> None:
    """The diff of every file, then what is worth a look."""
    for name, text in _after(present, lines.edits).items():
        print_lines(difference(name, present.texts.get(name, ""), text).splitlines())
    for advice in lines.advice:
        print_lines([f"note: {advice}"])
    if not Path(PLUGIN).exists():
        print(f"note: {PLUGIN} is not on this host; login and compute nodes need it (package slurm-share-spank)")


def _after(present: Present, edits: tuple[Edit, ...]) -> dict[str, str]:
    files = dict.fromkeys(edit.file for edit in edits)
    return {file: put_in(present.texts.get(file, ""), [edit for edit in edits if edit.file == file]) for file in files}


def _validate(present: Present, after: dict[str, str], shards: int) -> None:
    """Nothing is written that Slurm's own parser, or a second look, finds wanting. Raises UsageError."""
    slurm = read_conf(present.slurm.file, after)
    try:
        if before := read_objection(present.slurm):
            raise UsageError(f"Slurm does not take {present.slurm.file} as it is ({before}); put that right first")
        if objection := read_objection(slurm):
            raise UsageError(f"nothing was written: Slurm would not take the new lines ({objection})")
    except CommandError:
        print("note: there is no scontrol on this host to try the new lines with; `scontrol reconfigure` will")
    plugstack, gres = (
        read_conf(conf.file, after) if conf.lines or str(conf.file) in after else conf
        for conf in (present.plugstack, present.gres)
    )
    again = msgspec.structs.replace(
        present, slurm=slurm, plugstack=plugstack, gres=gres, texts={**present.texts, **after}
    )
    if left := site_lines(again, shards).edits:
        raise UsageError(f"nothing was written: {left[0].file} would still lack {left[0].add}; put it there by hand")


def _absent() -> list[str]:
    """What the lines name, and is not here: a Prolog that is not there drains every node."""
    return [
        f"{file} is not on this host: install the package slurm-share, here and on every node, before its lines"
        for file in (PROLOG, EPILOG, LUA)
        if not Path(file).exists()
    ]


def _change(present: Present, name: str, text: str, edits: tuple[Edit, ...], date: str) -> Change:
    old = present.texts.get(name)
    return Change(
        name,
        None if old is None else old.encode("utf-8", "surrogateescape"),
        text.encode("utf-8", "surrogateescape"),
        None if old is None else f"{name}.slurm-share-{date}",
        tuple(edit for edit in edits if edit.file == name),
    )


def _like_first(text: str, first: bytes | None) -> bytes | None:
    """A file that was not there goes when nothing is left in it; one that had no newline at its end has none again."""
    data = text.encode("utf-8", "surrogateescape")
    if first is None:
        return data if text.strip() else None
    return first if data.rstrip(b"\n") == first.rstrip(b"\n") else data


def _as_changed(edit: Edit, now: str) -> str:
    like = [line for line in now.splitlines() if edit.word in line]
    return difference(edit.file, "\n".join(like), edit.add)


def _say_settled(folder: Path) -> bool:
    said = site_files.settle(folder)
    if said is not None:
        print(said)
    return said is not None


def _one_by_one(heading: str, sentences: list[str] | tuple[str, ...]) -> str:
    return "\n".join([heading, *(f"- {sentence}" for sentence in sentences)])
