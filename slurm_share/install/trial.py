"""Test the files that `slurm-share install` is about to write, with Slurm's programs, on copies."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ..core import nodelist
from ..core.errors import CommandError, UsageError
from ..core.process import Finished, finish
from ..slurm.conf import READS_CONF, complaints, objection_of, read_conf
from ..slurm.conf_text import ConfText, Edit, parse
from .report import ReportPrinter
from .rules.lines import SlurmFiles
from .text import WantedOptions, as_list

_NODES = 8
"""Largest number of nodes tested, of those with new lines in gres.conf."""
_TIMEOUT_S = 30.0
_MOST_DEVICES = 1024
_NO_DEVICE = "is not a valid character or block device"
"""slurmd's message about a regular file used in place of a device."""
_FILE = re.compile(r'(?i)(\bFile\s*=\s*"?)([^\s"]+)')


def validate(
    present: SlurmFiles, after: Mapping[str, str], edits: Sequence[Edit], wanted: WantedOptions, report: ReportPrinter
) -> None:
    """Raise UsageError if Slurm's programs reject the new files, or if lines would still be missing in them."""
    slurm = read_conf(present.slurm.file, after)
    plugstack, gres = (
        read_conf(conf.file, after) if conf.lines or str(conf.file) in after else conf
        for conf in (present.plugstack, present.gres)
    )
    again = msgspec.structs.replace(
        present, slurm=slurm, plugstack=plugstack, gres=gres, texts={**present.texts, **after}
    )
    try:
        if before := read_objection(present.slurm):
            raise UsageError(f"Slurm rejects {present.slurm.file} as it is ({before}); correct that first")
        if objection := read_objection(slurm):
            raise UsageError(f"nothing was written: Slurm would reject the new lines ({objection})")
    except CommandError:
        report.note("there is no scontrol on this host to try slurm.conf with; `scontrol reconfigure` will")
    if objections := [*_plugstack(present, again, after, report), *_gres(present, again, edits, report)]:
        raise UsageError(as_list("nothing was written: Slurm would reject the new lines:", objections))
    if left := wanted.lines(again).edits:
        raise UsageError(f"nothing was written: {left[0].file} would still lack {left[0].add}; add it by hand")


def validate_undo(slurm: ConfText, after: Mapping[str, str], report: ReportPrinter) -> None:
    """Raise UsageError if Slurm accepts the present slurm.conf but would reject it after an --undo."""
    if not slurm.lines:
        return
    try:
        if read_objection(slurm) is None and (objection := read_objection(read_conf(slurm.file, after))):
            raise UsageError(
                f"nothing was taken back: Slurm would reject {slurm.file} without our lines ({objection}); change "
                "that, then run --undo again"
            )
    except CommandError:
        report.note("there is no scontrol on this host to try slurm.conf with; `scontrol reconfigure` will")


def _plugstack(before: SlurmFiles, after: SlurmFiles, texts: Mapping[str, str], report: ReportPrinter) -> Iterator[str]:
    if not {str(file) for file in after.plugstack.files} & texts.keys():
        return
    try:
        if said := read_plugstack_objection(before.slurm, before.plugstack, after.plugstack):
            yield f"{after.plugstack.file}: {said} (srun --help)"
    except CommandError:
        report.note("there is no srun on this host to try plugstack.conf with; on a login node: srun --help")


def _gres(before: SlurmFiles, after: SlurmFiles, edits: Sequence[Edit], report: ReportPrinter) -> Iterator[str]:
    nodes = list(_nodes(after.gres, edits))
    if nodes and not can_try_gres(after.gres):
        report.note("gres.conf has AutoDetect, so it can be tried on a node only; when it is there: slurmd -G")
        return
    for node in nodes:
        try:
            if fault := read_gres_fault(before.slurm, before.gres, node):
                report.note(
                    f"slurmd on this host rejects {before.gres.file} as it is ({fault}), so the new lines "
                    f"cannot be tried here. If {node} rejects it too (slurmd -G there), correct that "
                    "before the reconfigure: a node whose slurmd has no shards is drained"
                )
                return
            said = read_gres_objection((before.slurm, before.gres), (after.slurm, after.gres), node)
        except CommandError:
            report.note("there is no slurmd on this host to try gres.conf with; on a node, when it is there: slurmd -G")
            return
        if said:
            yield f"{after.gres.file}: {said} (slurmd -G -N {node})"


def _nodes(gres: ConfText, edits: Iterable[Edit]) -> Iterator[str]:
    """Return one node of each new line of gres.conf."""
    lines = [line for edit in edits if edit.file == str(gres.file) for line in parse(edit.add, gres.file)]
    names = dict.fromkeys(line.pairs[0][1] for line in lines)
    for name in list(names)[:_NODES]:
        yield nodelist.parse(name)[0]


# --- Slurm's programs on copies of the files -------------------------------------------------------------------------


def read_objection(conf: ConfText) -> str | None:
    """Return Slurm's objection to a slurm.conf; None: it accepts the file. Raises CommandError if there is no scontrol.

    Includes are inlined first.
    """
    return objection_of(_try(READS_CONF, {"slurm.conf": _flat(conf)})) or None


def read_plugstack_objection(slurm: ConfText, before: ConfText, after: ConfText) -> str | None:
    """Return what `srun --help`, which loads every plugin of plugstack.conf, reports about the new file but not about
    the old; None: nothing. Raises CommandError if there is no srun."""
    return _new_messages(*(_run_srun(slurm, stack) for stack in (before, after)))


def read_gres_objection(before: tuple[ConfText, ConfText], after: tuple[ConfText, ConfText], node: str) -> str | None:
    """Return what `slurmd -G`, which combines a node's slurm.conf and gres.conf and exits, reports about the new pair
    but not about the old; None: nothing, or the old pair fails here already. Regular files replace the node's devices.
    Raises CommandError if there is no slurmd."""
    return _new_messages(*(_run_slurmd(slurm, gres, node) for slurm, gres in (before, after)))


def read_gres_fault(slurm: ConfText, gres: ConfText, node: str) -> str | None:
    """Return why `slurmd -G` rejects a pair of files; None: it accepts them. Raises CommandError if there is no
    slurmd."""
    done = _run_slurmd(slurm, gres, node)
    return None if done.code == 0 else "; ".join(complaints(done)) or f"it ended with {done.code}"


def can_try_gres(gres: ConfText) -> bool:
    """Return whether gres.conf can be tested here: with AutoDetect slurmd needs the GPUs, which only the nodes have."""
    found = [line.get("AutoDetect") for line in gres.lines]
    return all(value is None or value.lower() == "off" for value in found)


def _run_srun(slurm: ConfText, stack: ConfText) -> Finished:
    kept = [line.text for line in slurm.lines if line.get("PlugStackConfig") is None]
    files = {"slurm.conf": _text([*kept, "PlugStackConfig={folder}/plugstack.conf"]), "plugstack.conf": _flat(stack)}
    return _try(["srun", "--help"], files)


def _run_slurmd(slurm: ConfText, gres: ConfText, node: str) -> Finished:
    kept = [line.text for line in slurm.lines if line.get("SlurmdLogFile") is None]
    files = {
        "slurm.conf": _text([*kept, "SlurmdLogFile={folder}/log"]),
        "gres.conf": _text(_FILE.sub(r"\1{folder}/files\2", line.text) for line in gres.lines),
        "cgroup.conf": "CgroupPlugin=disabled\n",
    }
    devices = [name for line in gres.lines if (name := line.get("File"))]
    return _try(["slurmd", "-G", "-N", node], files, _paths(devices))


def _paths(names: Iterable[str]) -> list[str]:
    """Return the files in lists such as /dev/nvidia[0-3]; ignore invalid lists, which slurmd reports."""
    found: list[str] = []
    for name in names:
        with suppress(UsageError):
            found += nodelist.parse_paths(name)[:_MOST_DEVICES]
    return [path for path in found if path.startswith("/") and ".." not in path.split("/")]


def _try(argv: Sequence[str], files: Mapping[str, str], devices: Sequence[str] = ()) -> Finished:
    with tempfile.TemporaryDirectory(prefix="slurm-share-") as folder:
        for path in devices:
            replacement = Path(f"{folder}/files{path}")
            replacement.parent.mkdir(parents=True, exist_ok=True)
            replacement.touch()
        for name, text in files.items():
            whole = text.replace("{folder}", folder)
            Path(folder, name).write_bytes(whole.encode("utf-8", "surrogateescape"))
        env = {"PATH": os.environ.get("PATH", os.defpath), "SLURM_CONF": f"{folder}/slurm.conf"}
        done = finish(argv, timeout_s=_TIMEOUT_S, env=env)
        # each run has its own folder: remove it, so that the messages can be compared
        return Finished(done.code, done.stdout, done.stderr.replace(folder, ""))


def _new_messages(before: Finished, after: Finished) -> str | None:
    """Return the messages of the second run that the first does not have; None: nothing new, or the first failed
    already."""
    if before.code != 0:
        return None
    known = set(complaints(before))
    new = [line for line in complaints(after) if line not in known]
    if after.code == 0:
        return "; ".join(new) or None
    return "; ".join(new or complaints(after)) or f"it ended with {after.code}"


def _flat(conf: ConfText) -> str:
    return _text(line.text for line in conf.lines)


def _text(lines: Iterable[str]) -> str:
    """Return logical lines of a Slurm file in a form that Slurm reads back unchanged."""
    return "".join(f"{line}\n".replace("\\", "\\\\").replace("#", "\\#") for line in lines)
