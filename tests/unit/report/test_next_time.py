"""The request for next time: options with reasons, and complete commands."""

from __future__ import annotations

from typing import Any

import pytest
import report_cases as cases

from slurm_share.core.settings import Settings
from slurm_share.report.records import JobReport
from slurm_share.report.rules import evidence, figures, next_time
from slurm_share.slurm.rules import submitted
from slurm_share.usage import GpuSeries, UseSeries


def options(report: JobReport) -> list[str]:
    return [one.option for one in next_time.requests(report, figures.figures(report))]


def cpu_job(**changed: Any) -> JobReport:
    """Return a job without GPUs that used all it had for most of its time."""
    values: dict[str, Any] = {
        "gpus": 0, "asked_gpus": 0, "cpus": 8, "tasks": 1, "cpu_s": 4700.0, "limit_s": 900.0,
        "memory_asked_mib": 8192, "memory_peak_mib": 8000, "admin_comment": "",
    }  # fmt: skip
    return cases.report(starts=(cases.accounted(**values | changed),), uses=(), share="")


def test_a_job_that_used_what_it_asked_for_is_left_alone() -> None:
    assert options(cpu_job()) == []


@pytest.mark.parametrize(
    ("changed", "option"),
    [
        ({"memory_peak_mib": 2000}, "--mem=3G"),
        ({"memory_peak_mib": 300}, "--mem=384M"),
        ({"cpu_s": 600.0}, "--cpus-per-task=2"),
        ({"limit_s": 86400.0}, "--time=00:15:00"),
        ({"state": "TIMEOUT", "elapsed_s": 900.0, "cpu_s": 7000.0}, "--time=00:25:00"),
        ({"state": "OUT_OF_MEMORY"}, "--mem=12G"),
    ],
)
def test_one_thing_is_changed(changed: dict[str, Any], option: str) -> None:
    assert options(cpu_job(**changed)) == [option]


def test_what_failed_comes_first() -> None:
    report = cpu_job(state="OUT_OF_MEMORY", cpu_s=600.0)
    assert options(report) == ["--mem=12G", "--cpus-per-task=2"]


def test_the_peak_of_one_task_says_nothing_of_a_job_with_more() -> None:
    assert options(cpu_job(tasks=8, memory_peak_mib=500)) == []


def test_a_failed_job_gets_no_shorter_limit() -> None:
    assert options(cpu_job(state="FAILED", exit_code=1, limit_s=86400.0)) == []


def test_a_running_job_is_not_judged() -> None:
    assert options(cpu_job(state="RUNNING", end=None, memory_peak_mib=100)) == []


def test_gpus_that_were_idle_are_proposed_away() -> None:
    gpus = (cases.gpu(0), cases.gpu(1, idle_s=590.0))
    whole = cases.accounted(admin_comment="", memory_asked_mib=13 * 1024)
    report = cases.report(starts=(whole,), uses=(cases.use(gpus=gpus, share=None, memory_limit_mib=13_000),), share="")
    assert options(report) == ["--gpus-per-node=1"]


def test_a_job_of_some_seconds_says_nothing_about_its_gpus() -> None:
    gpus = (cases.gpu(0, measured_s=9.0, idle_s=0.0), cases.gpu(1, measured_s=9.0, idle_s=9.0))
    report = cases.report(uses=(cases.use(gpus=gpus, memory_limit_mib=13_000),))
    assert "--gpus-per-node=1" not in options(report)


def test_more_tasks_are_advised_from_the_whole_time_of_a_share() -> None:
    advice = next_time.advice(cases.report(), Settings(), None)
    assert advice is not None
    assert (advice.verdict, advice.now, advice.next, advice.decided_by) == ("more", 4, 8, "growth")
    assert advice.change[0] == "--share-gpu=4"


def test_tasks_that_ran_out_of_gpu_memory_are_fewer_next_time() -> None:
    tasks = tuple(cases.task(n, outcome="gpu memory" if n == 3 else "done") for n in range(8))
    report = cases.report(run="LLSUB.1", triple="[1,4,4]", tasks=tasks, run_tasks=8)
    advice = next_time.advice(report, Settings(), None)
    assert advice is not None
    assert (advice.verdict, advice.next) == ("fewer", 2)


def test_a_packed_task_that_got_more_gpu_memory_afterwards_makes_no_fewer_tasks() -> None:
    """It had more than its booking; the GPU was not full."""
    booked = cases.gpu(0, memory_booked_mib=768, memory_peak_mib=None, energy=None)
    failed = cases.task(3, outcome="gpu memory", gpus=(booked,))
    tasks = (failed, *(cases.task(n) for n in range(8)))
    for attempts, verdict in ((tasks, "more"), ((*tasks, failed), "fewer")):
        report = cases.report(run="LLSUB.1", triple="[1,4,4]", tasks=attempts, run_tasks=8)
        advice = next_time.advice(report, Settings(), None)
        assert advice is not None
        assert advice.verdict == verdict


def test_no_advice_without_a_measured_gpu() -> None:
    assert next_time.advice(cases.report(uses=()), Settings(), None) is None
    assert next_time.advice(cpu_job(), Settings(), None) is None


def test_the_most_tasks_at_once_are_counted_from_their_times() -> None:
    tasks = [cases.task(n, began=cases.BEGAN + 30.0 * n, seconds=60.0) for n in range(5)]
    assert evidence.most_at_once(cases.use(), tasks, None) == 2


def test_the_most_tasks_at_once_are_read_from_the_series() -> None:
    gpus = [GpuSeries(uuid="a", tasks=[1, 3, None]), GpuSeries(uuid="b", tasks=[1, 2, 1])]
    series = UseSeries(job=4711, uid=2001, node="n1", every_s=5.0, at=[1.0, 2.0, 3.0], gpus=gpus)
    assert evidence.most_at_once(cases.use(), (), series) == 5
    assert evidence.most_at_once(cases.use(), (), None) == 4  # N on each of two GPUs
    part = cases.use(share=4, slots=1, gpus=(cases.gpu(0),))
    assert evidence.most_at_once(part, (), None) == 1


# ---- The command ----


@pytest.mark.parametrize(
    ("line", "option", "command"),
    [
        ("sbatch train.sh a b", "--mem=4G", "sbatch --mem=4G train.sh a b"),
        ("/usr/bin/sbatch --mem=64G -n1 train.sh", "--mem=4G", "sbatch -n1 --mem=4G train.sh"),
        ("sbatch --mem-per-cpu 4G x.sh", "--mem=4G", "sbatch --mem=4G x.sh"),
        ("sbatch -t 60 -w n1 x.sh", "--time=00:10:00", "sbatch -w n1 --time=00:10:00 x.sh"),
        ("sbatch --gres=gpu:4 x.sh", "--gpus-per-node=1", "sbatch --gpus-per-node=1 x.sh"),
    ],
)
def test_options_take_the_place_of_those_of_the_last_submission(line: str, option: str, command: str) -> None:
    words = submitted.with_options(line, [option])
    assert words is not None
    assert " ".join(words) == command


@pytest.mark.parametrize(
    "line",
    [
        "sbatch --wrap sleep 2",
        "srun x",
        "sbatch",
        "sbatch --chdir=/x y.sh",
        "sbatch -J a  b x.sh",
        "sbatch a\nb x.sh",
        "",
    ],
)
def test_no_command_is_made_of_a_line_that_is_not_certain(line: str) -> None:
    assert submitted.with_options(line, ["--mem=4G"]) is None


def test_gpus_of_the_script_are_not_contradicted_on_the_command_line() -> None:
    assert submitted.with_options("sbatch x.sh", ["--gpus-per-node=1"]) is None


def test_without_its_script_there_is_no_command() -> None:
    found = next_time.requests(cpu_job(memory_peak_mib=2000), figures.figures(cpu_job(memory_peak_mib=2000)))
    assert next_time.line(found, "sbatch train.sh", script_is_there=False) == ""
    assert next_time.line(found, "sbatch train.sh", script_is_there=True) == "sbatch --mem=3G train.sh"
    assert next_time.script_of("sbatch -n1 jobs/train.sh", "/home/alice") == "/home/alice/jobs/train.sh"


def test_an_option_and_its_reason_have_a_colon_between_them() -> None:
    report = cpu_job(limit_s=86400.0)
    then = next_time.NextTime(requests=next_time.requests(report, figures.figures(report)))
    (said,) = next_time.short_lines(then)
    assert said.startswith("--time=00:15:00: it took 10 min of ")


def test_short_lines_have_option_and_reason() -> None:
    report = cases.report()
    then = next_time.NextTime(
        advice=next_time.advice(report, Settings(), None), requests=next_time.requests(report, figures.figures(report))
    )
    assert next_time.short_lines(then) == [
        "more tasks: --share-gpu=4 (decided by growth)",
    ]
