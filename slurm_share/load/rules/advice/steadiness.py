"""Keep an advice against noise: the advice of the survey before is an input of the next one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ....core.settings import Settings
from ...snapshot import Advice, Bound, WorkClass
from .. import thresholds
from . import answers, bounds, evidence
from .case import Case
from .causes import AdviceDraft


class JudgedLoads(Struct, frozen=True):
    """The judged loads of a job: the newest ones, or the running means."""

    gpu_percents: tuple[float, ...]
    """Load of each GPU with tasks, percent."""
    cpu_percent: float | None
    """CPU time of the job, percent of its CPUs."""
    average_percent: float | None
    """Load average of its nodes, percent of their CPUs."""
    dram_percent: float | None
    """Memory bandwidth of the GPU that uses most of it."""


def steadied(case: Case, previous: Advice | None) -> tuple[Case, JudgedLoads]:
    """Return the case with the running means of the loads, and these."""
    gpus = tuple(card.load or 0.0 for node in case.nodes for card in node.busy)
    cpu, average = bounds.cpu_percent(case.nodes), bounds.average_percent(case.nodes)
    dram = max((node.dram_percent for node in case.nodes if node.dram_percent is not None), default=None)
    if previous is None:
        return case, JudgedLoads(gpus, cpu, average, dram)
    nodes = list(case.nodes)
    if len(gpus) == len(previous.gpu_percents):
        gpus = tuple(_mean_of(now, before) for now, before in zip(gpus, previous.gpu_percents, strict=True))
        left = list(gpus)
        for place, node in enumerate(case.nodes):
            steadied = evidence.with_cards(node, left[: len(node.busy)])
            nodes[place] = replace(steadied, dram_percent=node.dram_percent)
            del left[: len(node.busy)]
    if dram and previous.dram_percent is not None:
        mean = _mean_of(dram, previous.dram_percent)
        nodes = [
            node if node.dram_percent is None else replace(node, dram_percent=node.dram_percent * mean / dram)
            for node in nodes
        ]
        dram = mean
    if cpu and previous.cpu_percent is not None:
        mean = _mean_of(cpu, previous.cpu_percent)
        nodes = [evidence.with_load(node, cpu=mean / cpu) for node in nodes]
        cpu = mean
    if average and previous.load_average_percent is not None:
        mean = _mean_of(average, previous.load_average_percent)
        nodes = [evidence.with_load(node, average=mean / average) for node in nodes]
        average = mean
    return replace(case, nodes=tuple(nodes)), JudgedLoads(gpus, cpu, average, dram)


def _mean_of(now: float, before: float) -> float:
    return before + thresholds.STEADY_WEIGHT * (now - before)


LASTING = ("more", "stay", "change", "waits", "look")
"""Verdicts that depend on load, and are kept against noise. The others change at once."""
_NEAR = (1.0, 1 / thresholds.STEADY_RISE, thresholds.STEADY_FALL)
"""Factors of a load at which the previous verdict may still be right."""
_NEAR_MEMORY = (1.0, 1 / thresholds.STEADY_MEMORY, thresholds.STEADY_MEMORY)
"""Factors of the tasks' memory at which it may."""
_OF_MEMORY = ("GPU memory", "host memory")


def _with_memory(case: Case, factor: float) -> Case:
    """Return the case as if the tasks needed so many times the memory."""
    if factor == 1.0:
        return case

    def scaled(one: Bound) -> Bound:
        if one.resource not in _OF_MEMORY or not one.nppn:
            return one
        return replace(one, nppn=bounds.in_gpus(max(1, case.gpus, int(one.nppn / factor)), case.gpus))

    hard = tuple(map(scaled, case.hard))
    nodes = tuple(
        node if node.peak_mib is None else replace(node, peak_mib=round(node.peak_mib * factor)) for node in case.nodes
    )
    return replace(case, hard=hard, nodes=nodes)


def fewer_kept(case: Case, previous: Advice | None) -> tuple[tuple[int, str] | None, bool]:
    """Return (what `answers.fewer` returns, whether it is the previous advice although the newest figures would not say
    it). Too many tasks count at once; that they fit counts only if they fit by more than noise."""
    fresh = answers.fewer(case)
    if previous is None or previous.verdict != "fewer" or previous.decided_by not in _OF_MEMORY or not previous.next:
        return fresh, False
    kept = previous.next, previous.decided_by
    if fresh is not None:
        is_near = kept[0] <= fresh[0] <= thresholds.STEADY_NUMBER * kept[0] + case.gpus
        return (kept, kept != fresh) if is_near else (fresh, False)
    near = answers.fewer(_with_memory(case, thresholds.STEADY_MEMORY))
    return (None, False) if near is None else (kept, True)


def kept(fresh: AdviceDraft, case: Case, previous: Advice) -> tuple[AdviceDraft, bool]:
    """Return (answer, whether it is the previous one although the newest figures alone would give another)."""
    if fresh.verdict not in LASTING or previous.verdict not in LASTING:
        return fresh, False
    cause = previous.decided_by if previous.verdict == "change" else ""
    near = (one for one in _near(fresh, case, previous) if (one.verdict, one.cause) == (previous.verdict, cause))
    alike = next((one for one in near if one.verdict != "more" or (one.nppn or 0) <= case.most), None)
    if alike is None:
        return fresh, False
    before, now = previous.next, alike.nppn
    if alike.verdict == "more" and before is not None and now is not None and case.now < before <= case.most:
        is_near = max(before, now) <= thresholds.STEADY_NUMBER * min(before, now) + case.gpus
        alike = replace(alike, nppn=before, decided_by=previous.decided_by) if is_near else alike
    return alike, (alike.verdict, alike.nppn) != (fresh.verdict, fresh.nppn)


def _near(fresh: AdviceDraft, case: Case, previous: Advice) -> Iterator[AdviceDraft]:
    """Yield the answer, and those for figures that noise could have changed to the present ones."""
    yield fresh
    if previous.verdict == "change":
        yield answers.answer_of(replace(case, emptier=thresholds.STEADY_EMPTIER))
    averages = _NEAR if bounds.average_percent(case.nodes) is not None else (1.0,)
    for memory, average, cpu, gpu in itertools.product(_NEAR_MEMORY, averages, _NEAR, _NEAR if case.gpus else (1.0,)):
        other = _with_memory(case, memory)
        nodes = tuple(evidence.with_load(node, gpu, cpu, average) for node in other.nodes)
        yield answers.answer_of(replace(other, nodes=nodes))


def kept_class(base: Advice, case: Case, settings: Settings, previous: Advice) -> WorkClass:
    """Return the class of the work: the previous one, if noise alone could have changed it."""
    if not case.now or previous.work == base.work:
        return base.work
    near = ([evidence.with_load(node, one, one, one) for node in case.nodes] for one in _NEAR[1:])
    classes = {bounds.work_class(nodes, case.hard, settings) for nodes in near}
    return previous.work if previous.work in classes else base.work
