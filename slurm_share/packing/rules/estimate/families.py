"""Summarise a history by family, for its user to read and for a site to publish."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from ...history_records import SiteFamily, TaskRun
from . import conformal, estimator


class FamilyHistory(Struct, frozen=True, kw_only=True):
    """Summary of the runs of one family on one GPU model."""

    family: str
    script: str
    """Hash of the script's path; empty: not known."""
    gpu_model: str
    runs: int
    commands: int
    """Number of distinct commands."""
    out_of_memory: int
    """Number of runs that ran out of GPU memory."""
    least_mib: int | None
    """Smallest and largest peak of the successful runs; None: no peak was seen."""
    most_mib: int | None
    is_elastic: bool
    """The newest run took all memory that it was given."""
    median_s: float
    last: float
    """Unix time of the newest run."""


def group(runs: Iterable[TaskRun]) -> tuple[FamilyHistory, ...]:
    """Return a summary of each family on each GPU model, newest first. `runs`: oldest first."""
    families: dict[tuple[str, str], list[TaskRun]] = defaultdict(list)
    for run in runs:
        if run.family:
            families[run.family, run.gpu_model].append(run)
    found = [_history(family, model, group) for (family, model), group in families.items()]
    return tuple(sorted(found, key=lambda one: (-one.last, one.family, one.gpu_model)))


def _history(family: str, gpu_model: str, runs: Sequence[TaskRun]) -> FamilyHistory:
    peaks = [run.peak_mib for run in runs if run.kind == "done" and run.peak_mib is not None]
    return FamilyHistory(
        family=family,
        script=next((run.script for run in reversed(runs) if run.script), ""),
        gpu_model=gpu_model,
        runs=len(runs),
        commands=len({run.exact for run in runs}),
        out_of_memory=sum(run.is_censored for run in runs),
        least_mib=min(peaks, default=None),
        most_mib=max(peaks, default=None),
        is_elastic=runs[-1].is_elastic,
        median_s=statistics.median(run.seconds for run in runs),
        last=max(run.when for run in runs),
    )


def publish(runs: Iterable[TaskRun]) -> tuple[SiteFamily, ...]:
    """Return the families with enough runs to be published to other users. They contain no command."""
    families: dict[tuple[str, str], list[int]] = defaultdict(list)
    for run in runs:
        if run.family and run.kind == "done" and run.peak_mib and not run.is_elastic:
            families[run.family, run.gpu_model].append(max(run.peak_mib, estimator.CONTEXT_MIB))
    return tuple(
        SiteFamily(
            family=family,
            gpu_model=gpu_model,
            runs=len(peaks),
            p90_mib=estimator.upper(peaks[-estimator.FAMILY_NEWEST :], estimator.FAMILY_QUANTILE),
            ratio=round(_ratio(peaks), 3),
        )
        for (family, gpu_model), peaks in sorted(families.items())
        if len(peaks) >= estimator.FAMILY_RUNS
    )


def _ratio(peaks: Sequence[int]) -> float:
    """Return the 0.95 quantile of a peak over the 0.9 quantile of earlier peaks; with too few peaks, the default."""
    ratios = [
        peaks[index]
        / estimator.upper(peaks[max(0, index - estimator.FAMILY_NEWEST) : index], estimator.FAMILY_QUANTILE)
        for index in range(max(estimator.FAMILY_RUNS, len(peaks) - conformal.NEWEST), len(peaks))
    ]
    found = conformal.quantile(ratios, conformal.ALPHA)
    return estimator.DEFAULTS["family"] if found is None else found
