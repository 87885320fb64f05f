"""Choose the nodes and jobs of a survey to show, and their order."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...core import nodelist, terminal
from ...core.errors import UsageError, shown
from ...core.text import natural
from ..snapshot import Survey
from . import figures, flags


class SurveyChoice(Struct, frozen=True, kw_only=True):
    """Which nodes of a survey are shown, and in which order."""

    nodes: tuple[str, ...] = ()
    """Only these nodes; empty: all."""
    flagged: bool = False
    """Only nodes with a flag."""
    sort: tuple[str, bool] | None = None
    """(column of `figures.COLUMNS` or `figures.HOSTNAME`, whether the largest comes first)."""
    top: int | None = None
    """Only that many nodes: the first by `sort`, else those with the highest CPU load per CPU."""


def choose(survey: Survey, choice: SurveyChoice) -> tuple[Survey, str]:
    """Return (the survey with the chosen nodes in order, why some are left out). Raises UsageError for a node that is
    not in the survey."""
    nodes, why = survey.nodes, []
    if choice.nodes:
        missing = [name for name in choice.nodes if name not in {node.name for node in nodes}]
        if missing:
            there = terminal.safe(nodelist.fold(node.name for node in nodes))
            raise UsageError(f"there is no node {shown(missing[0])} in the recording; there are {there}")
        nodes = tuple(node for node in nodes if node.name in choice.nodes)
    if choice.flagged:
        nodes = tuple(node for node in nodes if flags.flags(node))
        why.append("flagged")
    if choice.sort is not None:
        nodes = figures.in_order(nodes, choice.sort[0], down=choice.sort[1])
    if choice.top is not None:
        nodes = figures.busiest(nodes, choice.top) if choice.sort is None else nodes[: choice.top]
        why.append("the highest CPU load per CPU" if choice.sort is None else f"first by {choice.sort[0]}")
    return replace(survey, nodes=nodes), ", ".join(why)


def of_jobs(survey: Survey, jobs: Sequence[str], *, must_be: bool) -> Survey:
    """Return the survey with only these jobs; with all if none is named. `must_be`: raise UsageError for a job that is
    not in the survey."""
    if not jobs:
        return survey
    missing = set(jobs).difference(*(job.names for job in survey.jobs))
    if missing and must_be:
        there = ", ".join(sorted({terminal.safe(job.id) for job in survey.jobs}, key=natural)[:20])
        raise UsageError(
            f"job {min(missing)} is not in the recording at that time; there {f'are {there}' if there else 'is none'}"
        )
    return replace(survey, jobs=tuple(job for job in survey.jobs if job.names & set(jobs)))
