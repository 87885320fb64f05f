"""A user's own week."""

from __future__ import annotations

import report_cases as cases

from slurm_share.core.settings import Settings
from slurm_share.report import weeks
from slurm_share.report.rules.week import WeekReport, part_within, week_report

WEEK = {"user": "alice", "week": "2026-W48", "since": cases.BEGAN - 3600, "until": cases.BEGAN + 3600}


def week(*reports: object, **changed: object) -> WeekReport:
    return week_report(reports, settings=Settings(), **{**WEEK, **changed})  # type: ignore[arg-type]


def test_jobs_are_added() -> None:
    failed = cases.accounted(job=4712, id="4712", state="FAILED")
    found = week(cases.report(), cases.report(title="4712", starts=(failed,), uses=()))
    assert (found.jobs, found.states) == (2, {"COMPLETED": 1, "FAILED": 1})
    assert round(found.cpu_had_h, 3) == round(2 * 16 / 6, 3)
    assert (round(found.gpu_had_h, 3), round(found.gpu_measured_h, 3), round(found.gpu_idle_h, 3)) == (
        0.667,
        0.333,
        0.067,
    )
    assert (found.energy_j, round(found.energy_gpu_h, 3)) == (360_000, 0.333)
    assert [(one.job, one.advice) for one in found.idle] == [("4711", "more tasks: --share-gpu=4 (decided by growth)")]


def test_of_a_job_at_the_edge_the_part_in_the_week_counts() -> None:
    found = week(cases.report(), since=cases.BEGAN + 300)
    assert (round(found.gpu_had_h, 4), found.energy_j) == (round(1 / 6, 4), 180_000)
    assert part_within(cases.report(), cases.BEGAN + 900, cases.BEGAN + 1000) == 0
    assert week(cases.report(), since=cases.BEGAN + 900).jobs == 0


def test_only_three_jobs_are_named() -> None:
    reports = [
        cases.report(title=str(n), uses=(cases.use(gpus=(cases.gpu(0, idle_s=float(100 + n)),)),)) for n in range(5)
    ]
    assert [one.job for one in week(*reports).idle] == ["4", "3", "2"]


def test_text() -> None:
    assert weeks.lines(week(cases.report()), 80) == [
        "Jobs of alice, 2026-W48 (UTC)",
        "  jobs       1: 1 COMPLETED",
        "  CPU-hours  0.53 used of 2.7 had (20 %)",
        "  GPU-hours  0.33 had: 0.27 used, 0.07 idle",
        "  energy     360.0 kJ",
        "",
        "The jobs with the most idle GPU-hours",
        "  4711  train.sh  0.07 of 0.33 idle",
        "      more tasks: --share-gpu=4 (decided by growth)",
        "",
        "  slurm-share report JOB says more about each",
    ]


def test_an_empty_week() -> None:
    assert weeks.lines(week(), 80) == ["Jobs of alice, 2026-W48 (UTC)", "  none ran in this week"]


def test_unknown_hours_are_told_apart_from_used_ones() -> None:
    said = weeks.lines(week(cases.report(uses=())), 80)
    assert "  GPU-hours  0.33 had, 0.33 unknown" in said
    assert "  energy     unknown: no record of 1 job has it (usage_record in config.toml)" in said
