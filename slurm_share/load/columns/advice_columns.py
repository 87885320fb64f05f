"""The columns of the table of advice: for each running job, the tasks that a node has and should have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ..snapshot import CONFIDENCES, VERDICTS, Advice, Verdict
from ..text import NONE, UNKNOWN, Letter, fold, named, number
from .base import Column

SIGNS: Mapping[Verdict, str] = {
    "release": "! release",
    "more": "▲ more",
    "fewer": "▼ fewer",
    "stay": "= stay",
    "change": "! change",
    "waits": "! waits",
    "look": "! look",
    "unknown": "no advice",
}
ORDER = {verdict: place for place, verdict in enumerate(reversed(VERDICTS))}
"""Value for sorting: jobs that should be changed come first, jobs at risk before others."""
SAID: Mapping[Verdict, tuple[str, str]] = {
    "release": ("uses none of its GPUs", "use none of their GPUs"),
    "fewer": ("should run fewer tasks", "should run fewer tasks"),
    "change": ("should change something else", "should change something else"),
    "waits": ("waits for storage or locks", "wait for storage or locks"),
    "look": ("hardly uses what it has", "hardly use what they have"),
    "more": ("could run more tasks", "could run more tasks"),
    "stay": ("stays", "stay"),
    "unknown": ("not known yet", "not known yet"),
}
"""The verdicts in words, for one job and for several, as every line with their numbers says them."""
WANTS_CHANGE: frozenset[Verdict] = frozenset({"release", "fewer", "change", "waits", "look"})
"""Verdicts about jobs that waste something, or are at risk; `more` is a hint."""


def counts(found: Iterable[Advice | None]) -> dict[Verdict, int]:
    """Return the number of jobs with each verdict, the most urgent first; an array is one job. Several rows may have
    the same advice, such as the elements of an array. None: a row without advice."""
    once = {(one.job, one.user, one.nodes if one.job is None else ()): one.verdict for one in found if one is not None}
    counted = Counter(once.values())
    return {verdict: counted[verdict] for verdict in VERDICTS if counted[verdict]}


def said(verdict: Verdict, count: int) -> str:
    """Return a number of jobs with a verdict as text: 3 should run fewer tasks."""
    return f"{count} {SAID[verdict][count != 1]}"


def job(advice: Advice) -> str:
    """Return Slurm's number of the job; for an array, the array's number."""
    return number(advice.job, NONE)


def advised(advice: Advice) -> str:
    """Return the advised number of tasks on a node; - if the advice has no number."""
    return number(advice.next, NONE)


def _letter(advice: Advice) -> Letter:
    return "H" if advice.verdict in WANTS_CHANGE else ""


ADVICE: tuple[Column[Advice], ...] = (
    Column(
        "job", "JOB", "Slurm's number; for an array, the array's number",
        text=job, value=job,
        least=6, most=14, whole=job, alias=("id",),
    ),
    Column(
        "user", "USER", "the job's user",
        text=lambda advice: named(advice.user), value=lambda advice: advice.user or None,
        least=5, most=16, goes=4, cut="middle", repeats=True, whole=lambda advice: named(advice.user),
    ),
    Column(
        "now", "NOW", "tasks on a node (NPPN)",
        text=lambda advice: number(advice.now), value=lambda advice: advice.now,
        right=True, least=4, most=5, sorts_down=True,
    ),
    Column(
        "next", "NEXT", "tasks on a node, as advised",
        text=advised, value=lambda advice: advice.next,
        right=True, least=4, most=5, sorts_down=True,
    ),
    Column(
        "verdict", "VERDICT", "more, fewer, stay; release: the job uses none of its GPUs; change: something else "
        "first; waits: for storage or locks; look: find the cause first",
        text=lambda advice: SIGNS[advice.verdict], value=lambda advice: ORDER[advice.verdict],
        least=7, most=10, letter=_letter, sorts_down=True,
    ),
    Column(
        "decided", "DECIDED BY", "the bound that decided",
        text=lambda advice: advice.decided_by or NONE, value=lambda advice: advice.decided_by or NONE,
        least=10, most=14, goes=1, whole=lambda advice: advice.decided_by or NONE, alias=("bound", "by"),
    ),
    Column(
        "work", "WORK", "the class of the job's load, such as idle or CPU-bound",
        text=lambda advice: advice.work, value=lambda advice: advice.work,
        least=9, keeps=24, most=24, goes=2,
    ),
    Column(
        "confidence", "CONF", "confidence: low, medium, high",
        text=lambda advice: advice.confidence,
        value=lambda advice: CONFIDENCES.index(advice.confidence),
        least=4, most=10, goes=3, alias=("sure",), sorts_down=True,
    ),
    Column(
        "nodes", "NODES", "the job's nodes",
        text=lambda advice: fold(advice.nodes) or UNKNOWN, value=lambda advice: fold(advice.nodes) or None,
        least=5, keeps=16, most=24, goes=5, cut="middle", alias=("node",),
    ),
    Column(
        "sentence", "WHY", "the advice in one sentence",
        text=lambda advice: advice.sentence, value=lambda advice: advice.sentence,
        least=20, most=40, goes=6, alias=("why",),
    ),
)  # fmt: skip
