"""Answer how many tasks a node should run, from the figures of one survey.

Some causes come before any number. Then measured rates decide, or load, within the hard bounds."""

from __future__ import annotations

from ....share import queue
from .. import thresholds
from . import bounds, causes, measured
from .case import Case
from .causes import AdviceDraft


def answer_of(case: Case) -> AdviceDraft:
    """Return the answer for a job that does not run too many tasks."""
    if case.died is not None:
        return AdviceDraft("stay", case.now, case.died)
    found = (
        causes.threads(case.nodes, case.now, _threads(case))
        or (None if case.works else causes.waits(case.nodes, case.now))
        or causes.low_use(case.nodes, case.now)
        or causes.placement(case.nodes, case.now, case.emptier)
        or causes.memory_in_advance(case.nodes, case.now)
    )
    if found is not None:
        return found
    stops = next((soft.bound.resource for soft in case.soft if soft.stops), None)
    if stops is not None:
        return AdviceDraft("stay", case.now, stops)
    if case.most <= case.now:
        return AdviceDraft("stay", case.now, case.tightest.resource)
    level = bounds.level(case.nodes)
    if level is not None:
        # A GPU is full: tasks are added only to the others.
        wanted = min(level, case.most)
        return (
            AdviceDraft("more", wanted, "GPU load") if wanted > case.now else AdviceDraft("stay", case.now, "GPU load")
        )
    growth = case.growth
    assert growth.nppn is not None
    wanted = min(growth.nppn, max(case.doubled, case.by_load))
    if wanted > case.most:
        return AdviceDraft("more", case.most, case.tightest.resource)
    slowest = min(case.soft, key=bounds.room, default=None)
    is_by_load = slowest is not None and case.doubled < wanted == case.by_load
    return AdviceDraft("more", wanted, slowest.bound.resource if slowest is not None and is_by_load else "growth")


def by_rates(case: Case, judged: measured.Judgement) -> AdviceDraft:
    """Return the answer by the measured rates, within the hard bounds."""
    if judged.verdict == "stay":
        return AdviceDraft("stay", case.now, measured.RESOURCE, judged.why, rate_windows=judged.windows)
    if judged.verdict == "fewer":
        assert judged.level is not None
        least = max(1, bounds.in_gpus(judged.level, case.gpus))
        return AdviceDraft("fewer", least, measured.RESOURCE, judged.why, rate_windows=judged.windows)
    wanted = case.doubled if judged.level is None else max(judged.level, case.now)
    if min(wanted, case.most) <= case.now:
        return AdviceDraft("stay", case.now, case.tightest.resource, judged.why, rate_windows=judged.windows)
    decided_by = measured.RESOURCE if wanted <= case.most else case.tightest.resource
    return AdviceDraft("more", min(wanted, case.most), decided_by, judged.why, rate_windows=judged.windows)


def _threads(case: Case) -> int | None:
    """Return NTPP of the job's triple; None without a triple."""
    triple = queue.triple_of(case.jobs[0]) if case.jobs else None
    return int((*triple.strip("[]").split(","), "1")[2]) if triple is not None else None


def fewer(case: Case) -> tuple[int, str] | None:
    """Return (NPPN, resource) if too many tasks run now, else None."""
    found: list[tuple[int, str]] = []
    if case.tightest.nppn is not None and case.now > case.tightest.nppn:
        found.append((max(1, case.most), case.tightest.resource))
    died = case.died
    if found and found[0][1] == died:
        return found[0]  # the bound explains why they died
    least = max(1, case.gpus) if died == "GPU memory" else 1
    if died is not None and case.now > least:  # fewer tasks do not help a task that is alone on its GPU or node
        found.append((max(1, bounds.in_gpus(min(case.most, case.now // thresholds.GROWTH), case.gpus)), died))
    return min(found, key=lambda one: one[0], default=None)
