"""Triples mode: planning, submission, task list, launcher, results."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from . import (
        chains,
        failed_tasks,
        follow,
        growing,
        job_output,
        map_planning,
        map_submitting,
        next_job,
        pack_explain,
        planning,
        rank_python,
        result_files,
        result_rows,
        run_folder,
        run_jobs,
        submitting,
        task_names,
        task_stream,
    )
    from .job_output import LogFile, Tail
    from .launcher import report
    from .launcher.growth import seal_at_end
    from .launcher.guard import launch_node
    from .map_planning import MapPlan, plan_map
    from .pack_explain import DryRun, explain_groups, explain_task
    from .rates_file import read_rates
    from .records import DISTRIBUTIONS, ENV_RANK, ENV_TASK, TASKS_MAX, Ended, Run, Triple
    from .rules import (
        checkpoint,
        log_counts,
        mapreduce,
        pack_options,
        result_table,
        submission,
        task_options,
        together,
        triple,
        turns,
        until_done,
    )
    from .rules.mapreduce import Request
    from .rules.pack_options import PackOptions
    from .rules.progress import TaskCounts, as_text
    from .rules.task_files import Tasks
    from .run_jobs import read_submission

__getattr__, __all__ = exports(
    __name__,
    modules=[
        "chains",
        "follow",
        "growing",
        "job_output",
        "launcher.report",
        "failed_tasks",
        "map_planning",
        "map_submitting",
        "next_job",
        "pack_explain",
        "planning",
        "rank_python",
        "result_files",
        "result_rows",
        "rules.checkpoint",
        "rules.log_counts",
        "rules.mapreduce",
        "rules.pack_options",
        "rules.result_table",
        "rules.submission",
        "rules.task_options",
        "rules.together",
        "rules.triple",
        "rules.turns",
        "rules.until_done",
        "run_folder",
        "run_jobs",
        "submitting",
        "task_stream",
        "task_names",
    ],
    names={
        "job_output": ["LogFile", "Tail"],
        "launcher.growth": ["seal_at_end"],
        "launcher.guard": ["launch_node"],
        "map_planning": ["MapPlan", "plan_map"],
        "pack_explain": ["DryRun", "explain_groups", "explain_task"],
        "rates_file": ["read_rates"],
        "records": ["DISTRIBUTIONS", "ENV_RANK", "ENV_TASK", "TASKS_MAX", "Ended", "Run", "Triple"],
        "rules.mapreduce": ["Request"],
        "rules.pack_options": ["PackOptions"],
        "rules.progress": ["TaskCounts", "as_text"],
        "rules.task_files": ["Tasks"],
        "run_jobs": ["read_submission"],
    },
)
