"""Tests, with Slurm's own programs, the files that `slurm-share install` is about to write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

from ..core.errors import CommandError, UsageError
from ..slurm.conf import read_conf
from ..slurm.conf_text import ConfText, Edit, parse
from . import slurm_trial
from .report import Report
from .rules.lines import Present
from .text import Wanted, as_list

_NODES = 8
"""Largest number of nodes tested, of those with new lines in gres.conf."""


def validate(present: Present, after: Mapping[str, str], edits: Sequence[Edit], wanted: Wanted, report: Report) -> None:
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
        if before := slurm_trial.read_objection(present.slurm):
            raise UsageError(f"Slurm rejects {present.slurm.file} as it is ({before}); correct that first")
        if objection := slurm_trial.read_objection(slurm):
            raise UsageError(f"nothing was written: Slurm would reject the new lines ({objection})")
    except CommandError:
        report.note("there is no scontrol on this host to try slurm.conf with; `scontrol reconfigure` will")
    if objections := [*_plugstack(present, again, after, report), *_gres(present, again, edits, report)]:
        raise UsageError(as_list("nothing was written: Slurm would reject the new lines:", objections))
    if left := wanted.lines(again).edits:
        raise UsageError(f"nothing was written: {left[0].file} would still lack {left[0].add}; add it by hand")


def validate_undo(slurm: ConfText, after: Mapping[str, str], report: Report) -> None:
    """Raise UsageError if Slurm accepts the present slurm.conf but would reject it after an --undo."""
    if not slurm.lines:
        return
    try:
        if slurm_trial.read_objection(slurm) is None and (
            objection := slurm_trial.read_objection(read_conf(slurm.file, after))
        ):
            raise UsageError(
                f"nothing was taken back: Slurm would reject {slurm.file} without our lines ({objection}); change "
                "that, then run --undo again"
            )
    except CommandError:
        report.note("there is no scontrol on this host to try slurm.conf with; `scontrol reconfigure` will")


def _plugstack(before: Present, after: Present, texts: Mapping[str, str], report: Report) -> Iterator[str]:
    if not {str(file) for file in after.plugstack.files} & texts.keys():
        return
    try:
        if said := slurm_trial.read_plugstack_objection(before.slurm, before.plugstack, after.plugstack):
            yield f"{after.plugstack.file}: {said} (srun --help)"
    except CommandError:
        report.note("there is no srun on this host to try plugstack.conf with; on a login node: srun --help")


def _gres(before: Present, after: Present, edits: Sequence[Edit], report: Report) -> Iterator[str]:
    nodes = list(_nodes(after.gres, edits))
    if nodes and not slurm_trial.can_try_gres(after.gres):
        report.note("gres.conf has AutoDetect, so it can be tried on a node only; when it is there: slurmd -G")
        return
    for node in nodes:
        try:
            if fault := slurm_trial.read_gres_fault(before.slurm, before.gres, node):
                report.note(
                    f"slurmd on this host rejects {before.gres.file} as it is ({fault}), so the new lines "
                    f"cannot be tried here. If {node} rejects it too (slurmd -G there), correct that "
                    "before the reconfigure: a node whose slurmd has no shards is drained"
                )
                return
            said = slurm_trial.read_gres_objection((before.slurm, before.gres), (after.slurm, after.gres), node)
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
        yield str(NodeSet(name, resolver=RESOLVER_NOGROUP)[0])
