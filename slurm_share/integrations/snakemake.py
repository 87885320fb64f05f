"""Snakemake: the jobs of a workflow in the slots of one Slurm job (`snakemake --executor slurm-share`).

Snakemake finds the plugin itself in `discovered/snakemake_executor_plugin_slurm_share`; here is what it does.
"""

# No `from __future__ import annotations`: Snakemake takes the types of ExecutorSettings' fields for types of arguments.
# It imports this in every run, also with other executors, so cloudpickle may be missing: the executor is imported late.

import subprocess
import sys
from collections.abc import AsyncGenerator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from slurm_share.executor import ExecutorError

if TYPE_CHECKING:
    import slurm_share.executor

LAST_BYTES = 4000
"""How much of a failed job's output goes into Snakemake's own log."""
CHECK_S = 0.5
"""Seconds between two looks at the futures, which costs nothing but memory reads."""

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=True,
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=0,
)


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Options `--slurm-share-*` of Snakemake: arguments of `slurm_share.Executor`.

    Snakemake reads the annotations as types of arguments, so they are `Optional`.

    Args:
        triple: Nodes, slots on each[, threads of each], such as 1,8.
        share: As after `llsub --share-gpu`, such as mem=8G.
        gpu_mem: GPU memory of a job without the resource gpu_mem, such as 6G.
        pack: Choose the GPU of each job when it starts, as `llsub --pack` does.
        partition: Partition of the Slurm job.
        time: Time limit of the Slurm job, such as 4:00:00.
        options: Further options, as for sbatch.
        local: Without Slurm, on this machine.
    """

    triple: Optional[str] = field(
        default=None, metadata={"help": "nodes,slots on each[,threads of each], for example 1,8", "required": False}
    )
    share: Optional[str] = field(default=None, metadata={"help": "as after llsub --share-gpu, for example mem=8G"})
    gpu_mem: Optional[str] = field(
        default=None, metadata={"help": "GPU memory of a job without the resource gpu_mem, for example 6G"}
    )
    pack: bool = field(default=False, metadata={"help": "choose the GPU of each job when it starts (llsub --pack)"})
    partition: Optional[str] = field(default=None, metadata={"help": "Slurm partition"})
    time: Optional[str] = field(default=None, metadata={"help": "time limit of the Slurm job, for example 4:00:00"})
    options: Optional[str] = field(default=None, metadata={"help": "further options of sbatch"})
    local: bool = field(default=False, metadata={"help": "without Slurm, on this machine"})


class Executor(RemoteExecutor):
    """Runs each job of the workflow as one call of an executor. Each group is one call too."""

    def __post_init__(self) -> None:
        """Submit the Slurm job. Raises WorkflowError."""
        settings = self.workflow.executor_settings or ExecutorSettings()
        self.next_seconds_between_status_checks = CHECK_S
        self.started = start(settings)
        self.logger.info(
            f"slurm-share: the jobs run in {self.started.folder}"
            + f", Slurm job {self.started.job}" * bool(self.started.job)
        )

    def run_job(self, job: JobExecutorInterface) -> None:
        """Submit one job, or one group."""
        gpu_mem, minutes = job.resources.get("gpu_mem"), job.resources.get("runtime")
        try:
            # A resource that is not known yet is an object that says so (TBDString).
            calls = self.started.with_options(
                gpu_mem=f"{gpu_mem}M" if isinstance(gpu_mem, int) else str(gpu_mem) if type(gpu_mem) is str else None,
                timeout=60 * minutes if isinstance(minutes, int | float) and minutes > 0 else None,
            )
            future = calls.submit(run, self.format_job_exec(job))
        except (ExecutorError, ValueError, RuntimeError, OSError) as error:
            self.report_job_error(SubmittedJobInfo(job), msg=f"slurm-share: {error}\n")
            return
        self.report_job_submission(SubmittedJobInfo(job, external_jobid=future.key, aux={"future": future}))

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report the jobs that have ended; yield the others."""
        for info in active_jobs:
            future: Future[tuple[int, str]] = info.aux["future"]
            if not future.done():
                yield info
            elif (why := failure(future)) is None:
                self.report_job_success(info)
            else:
                self.report_job_error(info, msg=f"slurm-share: {why}\n")

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Drop what has not begun, and end the Slurm job."""
        self.started.shutdown(wait=False, cancel_futures=True)
        if self.started.job:
            subprocess.run(["scancel", self.started.job], check=False, stdin=subprocess.DEVNULL)

    def shutdown(self) -> None:
        """End the Slurm job after the last job of the workflow."""
        super().shutdown()
        self.started.shutdown(wait=False)


def start(settings: ExecutorSettings) -> "slurm_share.executor.Executor":
    """Start the executor of a workflow. Raises WorkflowError with the sentence of what is wrong."""
    if settings.triple is None and not settings.local:
        raise WorkflowError("--executor slurm-share: write --slurm-share-triple, for example --slurm-share-triple 1,8")
    try:
        triple = None if settings.triple is None else [int(part) for part in settings.triple.strip("[]").split(",")]
    except ValueError:
        raise WorkflowError(f"--slurm-share-triple {settings.triple}: write numbers, for example 1,8") from None
    from slurm_share.executor import Executor as Slots

    try:
        return Slots(
            triple=triple,
            share=settings.share,
            pack=settings.pack,
            gpu_mem=settings.gpu_mem,
            partition=settings.partition,
            time=settings.time,
            options=settings.options,
            local=settings.local,
            name="snakemake",
        )
    except (ExecutorError, ImportError, ValueError, OSError) as error:
        raise WorkflowError(f"--executor slurm-share: {error}") from error


def run(command: str) -> tuple[int, str]:
    """Run Snakemake's command of one job, in a worker; return its exit code and the end of its output.

    All of it is in the log of the worker's task.
    """
    last = b""
    words = ["/bin/sh", "-c", command]
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
    ) as made:
        assert made.stdout is not None
        while part := made.stdout.read(65536):
            sys.stdout.buffer.write(part)
            sys.stdout.flush()
            last = (last + part)[-LAST_BYTES:]
    return made.returncode, last.decode(errors="replace")


def failure(future: Future[tuple[int, str]]) -> str | None:
    """Return why a job that has ended failed; None: it did not."""
    try:
        code, last = future.result()
    except (Exception, CancelledError) as error:  # noqa: BLE001  (whatever it is, it is this job's)
        return f"{type(error).__name__}: {error}"
    return None if code == 0 else f"exit code {code}; the end of its output:\n{last}"
