"""The options of one task as text: times, and the `#LLSUB` line that repeats them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.core.errors import UsageError
from slurm_share.packing import TaskSpec
from slurm_share.triples.rules import task_files, task_options


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("1.5s", 1.5), ("10m", 600), ("2h", 7200), ("1d", 86400), ("10", 600), ("10:00", 600),
        ("0:30", 30), ("1:00:00", 3600), ("1-12", 129600), ("1-12:30", 131400), ("1-0:0:5", 86405), ("none", None),
    ],
)  # fmt: skip
def test_times_are_those_of_sbatch_and_a_number_with_a_unit(text: str, seconds: float | None) -> None:
    assert task_options.parse_time(text, "--task-time") == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-1", "10x", "1:2:3:4", "1-", "-5m", "٣", "1e3", "infinite", "400d"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--task-time is a time such as 90s"):
        task_options.parse_time(text, "--task-time")


@given(st.integers(min_value=1, max_value=10**10))
def test_a_time_is_written_as_it_is_read(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert task_options.parse_time(task_options.time_text(seconds), "x") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "spec",
    [
        TaskSpec(),
        TaskSpec(gpu_mem_mib=6144, gpus=2, name="a b"),
        TaskSpec(gpu_mem_percent=12.5, is_half=True, timeout_s=90, priority=-4, cpus=3, mem_mib=1024),
    ],
)
def test_a_line_sets_all_options_again(spec: TaskSpec) -> None:
    base = TaskSpec(gpu_mem_mib=1024, gpus=3, name="x", timeout_s=5, priority=1, cpus=1, mem_mib=512)
    line = task_options.line_of(spec, base, is_packed=True)
    found = task_files.parse(f"#LLSUB {line}\na\n".encode(), "f", base, is_json=False, is_packed=True)
    assert found.specs == (spec,)


def test_a_line_of_a_plain_run_has_only_what_such_a_run_takes() -> None:
    line = task_options.line_of(TaskSpec(timeout_s=90), TaskSpec(), is_packed=False)
    assert line == "--name='' --task-time=90s"
