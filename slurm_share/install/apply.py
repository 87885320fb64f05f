"""Implement `slurm-share install --check` and `--apply`: show the lines that Slurm's files lack, and write them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path

from ..core.errors import CommandError, ConfigError, UsageError
from ..core.installed import EPILOG, LUA, PLUGIN, PROLOG
from ..core.nodelist import unfold
from ..core.paths import CONFIG_FILE
from ..core.process import Deadline
from ..doctor import Finding, UnknownFact, every, examination
from ..share import lua_settings
from ..slurm import controllers, remote_hosts
from ..slurm import nodes as slurm_nodes
from ..slurm.conf import read_conf
from ..slurm.conf_text import ConfText, Edit
from ..slurm.rules.free import partition_now
from . import files as install_files
from . import text as install_text
from .config_file import write_lua_settings
from .journal import NAME, FileChange, copy_of
from .present import known_files, read_present, read_shares, without_lua
from .report import ReportPrinter
from .rules.edits import put_in
from .rules.hosts import (
    MODE,
    WRAPPERS,
    ControllersSeen,
    NodesSeen,
    controller_notes,
    controller_refusals,
    is_wrapper,
    node_notes,
    node_refusals,
    starts_ours,
)
from .rules.lines import SiteLines, SlurmFiles
from .text import WantedOptions
from .trial import read_objection, validate

CONFIGLESS = Path("/run/slurm/conf")
"""Folder where slurmd and sackd keep the files that a configless controller sends; slurmd makes it a link."""


_LUA_SETTINGS = {str(CONFIG_FILE.with_name(lua_settings.NAME)): ""}
"""The file that --apply writes beside the lines."""


def check(conf: Path, wanted: WantedOptions, report: ReportPrinter) -> int:
    """Show the missing lines, and what doctor's checks find in the configuration. Return 0: nothing is missing or
    wrong, 1: lines are missing, or a check warns, 2: a check fails. Raises UsageError where the administrator must
    decide first."""
    _refuse_a_copy(conf)
    # only root can read the journal: other users see the lines, but not whether an --apply was interrupted
    readable = os.access(conf.parent / NAME, os.R_OK)
    journal = install_files.read_journal(conf.parent, known_files(conf)) if readable else None
    if journal is not None and journal.state != "applied":
        raise UsageError(
            f"an --{'apply' if journal.state == 'applying' else 'undo'} was interrupted here on {journal.date}; "
            "run --apply or --undo: either repairs it"
        )
    present = read_present(conf, with_limits=bool(wanted.shards))
    lines = wanted.lines(present)
    after = _after(present, lines.edits)
    _show(present, lines, after, report)
    slurm = read_conf(present.slurm.file, after)
    report.record_findings(_findings(slurm, {**after, **(_LUA_SETTINGS if lines.edits else {})}, wanted))
    # only root may use the site's remote command, and a check starts no job
    refusals = [*lines.refusals, *(_check_other_hosts(present, lines, wanted, report) if os.geteuid() == 0 else [])]
    if refusals:
        raise report.refuse("nothing can be written before this is settled:", refusals)
    if journal is not None:
        report.say(install_text.running_shares(read_shares()))
    outdated = lua_settings.problem(CONFIG_FILE) if lines.edits else ""  # else doctor's check says it
    if outdated:
        report.note(f"{outdated}: --apply writes it, and so does `{lua_settings.COMMAND}`")
    if lines.edits:
        report.say(f"to write these lines:  {wanted.command(lines)}")
    else:
        report.say("no line is missing")
    return max(int(bool(lines.edits)), every.exit_code(report.record.findings))


def _findings(slurm: ConfText, after: Mapping[str, str], wanted: WantedOptions) -> Sequence[Finding]:
    """Return what doctor's checks find in the files with the missing lines. after: the files that --apply writes."""
    objection: str | UnknownFact
    try:
        objection = read_objection(slurm) or ""
    except CommandError as error:
        objection = UnknownFact(str(error))
    return examination.examine_configuration(slurm, objection, after, wanted.without)


def apply(conf: Path, wanted: WantedOptions, report: ReportPrinter) -> None:
    """Write the missing lines. Raises UsageError where the administrator must decide first, StateError for a file that
    cannot be written."""
    _refuse_a_copy(conf)
    with install_files.locked(conf.parent):
        known = known_files(conf)
        settle_and_report(conf.parent, known, report)
        present = read_present(conf, with_limits=bool(wanted.shards))
        lines = wanted.lines(present)
        after = _after(present, lines.edits)
        _show(present, lines, after, report)
        slurm = read_conf(present.slurm.file, after)
        report.record_findings(_findings(slurm, {**after, **_LUA_SETTINGS}, wanted))
        refusals = [*lines.refusals, *_absent(), *without_lua(present.slurm)]
        refusals += _check_other_hosts(present, lines, wanted, report, by_jobs=True)
        if any(choice.is_needed for choice in lines.choices):
            refusals.append(f"you have to choose first, see above; to accept the lines:  {wanted.command(lines)}")
        if refusals:
            raise report.refuse("nothing was written:", refusals)
        _write_lua_settings(report)
        if not lines.edits:
            report.say("no line is missing; nothing was written")
            return
        validate(present, after, lines.edits, wanted, report)
        number = _number(known)
        changes = tuple(_change(present, name, text, lines.edits, number) for name, text in after.items())
        date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        install_files.apply(conf.parent, changes, date, known | after.keys())
    report.record_written({change.file: change.copies[0] for change in changes if change.copies})
    for change in changes:
        report.say(f"wrote {change.file}" + (f"; copy of the old file: {change.copies[0]}" if change.copies else ""))
    does_without = WRAPPERS["Prolog"] in read_conf(conf).values("Prolog")
    report.say(install_text.done(does_without=does_without))


def _write_lua_settings(report: ReportPrinter) -> None:
    """Write the settings for job_submit.lua if they differ from config.toml. Raises StateError."""
    if not lua_settings.problem(CONFIG_FILE):
        return
    try:
        file = write_lua_settings(CONFIG_FILE)
    except ConfigError as error:
        report.note(f"{error}; until it is right, and `{lua_settings.COMMAND}` was run, no job is shared")
    else:
        report.say(f"wrote {file}")


def _refuse_a_copy(conf: Path) -> None:
    """Raise UsageError on a configless host: slurmd overwrites the files there, and some exist on the controller
    only."""
    if conf.parent == CONFIGLESS.resolve():
        raise UsageError(
            f"{conf} was sent by the controller and is written anew at every reconfigure; run this on the controller"
        )


def settle_and_report(folder: Path, known: frozenset[str], report: ReportPrinter) -> bool:
    """Roll back or finish an interrupted action and report it; return whether there was one."""
    said = install_files.settle(folder, known)
    if said is not None:
        report.say(said)
    return said is not None


def _after(present: SlurmFiles, edits: tuple[Edit, ...]) -> dict[str, str]:
    files = dict.fromkeys(edit.file for edit in edits)
    return {file: put_in(present.texts.get(file, ""), [edit for edit in edits if edit.file == file]) for file in files}


def _absent() -> list[str]:
    """Return a sentence for each file that the lines name and this host lacks: a missing Prolog drains every node."""
    return [
        f"{file} is not on this host: install the package slurm-share, here and on every node, before its lines"
        for file in (PROLOG, EPILOG, LUA)
        if not Path(file).exists()
    ]


def _show(present: SlurmFiles, lines: SiteLines, after: Mapping[str, str], report: ReportPrinter) -> None:
    """Print the missing lines and record them in the report."""
    report.record_missing(present.texts, after, lines.edits)
    report.record.choices = lines.choices
    for text in install_text.missing(present, lines, after):
        report.say(text)
    for note in install_text.notes_for(lines):
        report.note(note)


def _check_other_hosts(
    present: SlurmFiles, lines: SiteLines, wanted: WantedOptions, report: ReportPrinter, *, by_jobs: bool = False
) -> list[str]:
    """Report which other hosts lack the files that the lines name; return the reasons not to write."""
    if not lines.edits:
        return []
    controllers = check_controllers(present)
    for note in controller_notes(controllers, list(dict.fromkeys(edit.file for edit in lines.edits))):
        report.note(note)
    refusals = list(controller_refusals(controllers))
    if not any(edit.key in WRAPPERS for edit in lines.edits):
        return refusals
    feature = present.settings.node_feature
    featured = nodes_with(present.slurm, feature) if feature else []
    seen = check_nodes(present, by_jobs=by_jobs)
    report.record.nodes = seen
    for note in node_notes(seen, wanted.taken, feature, featured):
        report.note(note)
    return [*refusals, *node_refusals(seen, wanted.taken, feature, featured)]


def _number(known: frozenset[str]) -> int:
    """Return the first number that no copy of an earlier apply has."""
    return next(number for number in count(1) if not any(Path(copy_of(file, number)).exists() for file in known))


def _change(present: SlurmFiles, name: str, text: str, edits: tuple[Edit, ...], number: int) -> FileChange:
    old = present.texts.get(name)
    return FileChange(
        name,
        as_bytes(old),
        text.encode("utf-8", "surrogateescape"),
        () if old is None else (copy_of(name, number),),
        tuple(edit for edit in edits if edit.file == name),
        mode=MODE if is_wrapper(name, text) else 0o644,
    )


def as_bytes(text: str | None) -> bytes | None:
    """Return the bytes of a file's text; None: there is no file."""
    return None if text is None else text.encode("utf-8", "surrogateescape")


DEADLINE_S = 60.0
"""For all nodes together; nodes that have not answered by then are reported."""
CONTROLLERS_S = 15.0
SHOW_S = 30.0
_NEEDED = (PROLOG, EPILOG, PLUGIN)


def check_nodes(present: SlurmFiles, *, by_jobs: bool) -> NodesSeen:
    """Return which nodes have the package. Ask through the site's remote command and, with `by_jobs`, where that does
    not answer, through a short job on each node that can start one at once."""
    partitions = _read_partitions()
    nodes = list(partitions) or nodes_of(present.slurm)
    deadline = Deadline.after(DEADLINE_S)
    there = remote_hosts.read_there(
        nodes, _NEEDED, lambda node: remote_hosts.remote_argv(present.settings.remote_command, node), deadline
    )
    in_force = remote_hosts.read_hooks_in_force()
    # if slurmd starts our hooks already, this job would itself drain a node without them
    if by_jobs and in_force is not None and not starts_ours(in_force):
        for _ in range(2):  # a busy controller may not start the first job at once
            free = {node: place for node, place in partitions.items() if place is not None and node not in there}
            if free:
                there |= _read_by_jobs(free, deadline)
    lacking = {node: tuple(file for file in _NEEDED if file not in there[node]) for node in nodes if node in there}
    return NodesSeen(
        tuple(node for node, files in lacking.items() if not files),
        {node: files for node, files in lacking.items() if files},
        tuple(node for node in nodes if node not in there),
    )


def _read_by_jobs(free: Mapping[str, str], deadline: Deadline) -> dict[str, frozenset[str]]:
    return remote_hosts.read_there(free, _NEEDED, lambda node: remote_hosts.srun_argv(node, free[node]), deadline)


def _read_partitions() -> dict[str, str | None]:
    """Return each node with a partition in which a job may start now; None: there is none. Empty if Slurm does not
    answer."""
    try:
        return {node.name: partition_now(node) for node in slurm_nodes.read_nodes(timeout_s=SHOW_S)}
    except CommandError:
        return {}


def check_controllers(present: SlurmFiles) -> ControllersSeen:
    """Check, through the site's remote command, whether the other controllers have job_submit.lua and the same
    files."""
    all_of_them = controllers.named_in(present.slurm)
    here = os.uname().nodename
    others = [host for host in all_of_them if not controllers.is_same_host(host, here)]
    if len(all_of_them) < 2:
        return ControllersSeen()
    files = sorted(present.texts)
    sums = remote_hosts.read_sums(
        others,
        [LUA, *files],
        lambda host: remote_hosts.remote_argv(present.settings.remote_command, host),
        Deadline.after(CONTROLLERS_S),
    )
    ours = {
        file: hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        for file, text in present.texts.items()
    }
    differing = {host: tuple(file for file in files if found.get(file) != ours[file]) for host, found in sums.items()}
    return ControllersSeen(
        tuple(others),
        len(others) < len(all_of_them),
        tuple(host for host, found in sums.items() if LUA not in found),
        {host: names for host, names in differing.items() if names},
        tuple(host for host in others if host not in sums),
    )


def nodes_of(slurm: ConfText) -> list[str]:
    """Return the nodes that slurm.conf names."""
    return _named(line.pairs[0][1] for line, _ in slurm.node_lines())


def nodes_with(slurm: ConfText, feature: str) -> list[str]:
    """Return the nodes with a feature."""
    lines = slurm.node_lines("Feature", "Features")
    return _named(line.pairs[0][1] for line, features in lines if feature in features.split(","))


def _named(lists: Iterable[str]) -> list[str]:
    found: list[str] = []
    for one in lists:
        try:
            found += unfold(one)
        except UsageError:
            found.append(one)
    return list(dict.fromkeys(found))
