"""The report for programs."""

from __future__ import annotations

import csv
import json

import report_cases as cases

from slurm_share.report import rows
from slurm_share.report.rules import figures, next_time


def test_json_has_records_sums_and_what_to_ask_for() -> None:
    report = cases.report(starts=(cases.accounted(state="OUT_OF_MEMORY"),))
    then = next_time.NextTime(requests=next_time.requests(report, figures.figures(report)))
    built = json.loads(rows.as_json([(report, figures.figures(report), then)]))
    assert built["schema"] == 1
    (one,) = built["reports"]
    assert (one["title"], one["uses"][0]["node"], one["figures"]["cpu_percent"]) == ("4711", "n1", 20.0)
    assert one["next"]["requests"][0]["option"] == "--mem=96G"
    assert one["figures"]["by"]["cpu_s"] == "cgroup"


def test_json_is_ascii() -> None:
    """Names may hold characters that reorder what a terminal shows."""
    report = cases.report(starts=(cases.accounted(name="\u202eevil"),))
    assert rows.as_json([(report, figures.figures(report), next_time.NextTime())]).isascii()


def test_csv_has_a_row_for_each_gpu() -> None:
    found = list(csv.DictReader(rows.as_csv([cases.report()])))
    assert [(row["gpu"], row["idle_s"], row["energy_j"]) for row in found] == [
        ("0", "120", "180000.0"), ("1", "120", "180000.0"),
    ]  # fmt: skip


def test_csv_has_a_row_for_each_task_where_tasks_are_known() -> None:
    report = cases.report(run="LLSUB.1", tasks=(cases.task(0), cases.task(1, gpus=())))
    found = list(csv.DictReader(rows.as_csv([report])))
    assert [(row["task"], row["outcome"], row["gpu_memory_peak_mib"]) for row in found] == [
        ("0", "done", "2048"), ("1", "done", ""),
    ]  # fmt: skip


def test_csv_takes_no_formula_from_a_user() -> None:
    report = cases.report(title="=1+1", run="LLSUB.1", tasks=(cases.task(0),))
    assert list(rows.as_csv([report]))[1].startswith("'=1+1,")
