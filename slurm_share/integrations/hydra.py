"""Hydra: the jobs of `--multirun` in the slots of one Slurm job (`hydra/launcher=slurm_share`).

Hydra finds the launcher itself in `discovered/hydra_plugins`; here is what it does.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, run_job, setup_globals
from hydra.errors import CompactHydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from slurm_share.executor import Executor, ExecutorError

if TYPE_CHECKING:
    from hydra_plugins.slurm_share_launcher import SlurmShareLauncher

log = logging.getLogger(__name__)


def launch(launcher: SlurmShareLauncher, job_overrides: Sequence[Sequence[str]], initial: int) -> list[JobReturn]:
    """Run one batch of a sweep; return what its jobs return, in their order. Raises CompactHydraException.

    A job whose result never came (worker lost, time limit) counts as failed with that exception, as a job that raised.
    """
    setup_globals()
    config, context, function = launcher.config, launcher.hydra_context, launcher.task_function
    assert config is not None and context is not None and function is not None  # noqa: PT018  (Hydra called setup)
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    Path(str(config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
    if launcher.executor is None:
        launcher.executor = start(launcher.arguments)
    executor: Executor = launcher.executor
    log.info(
        f"Launching {len(job_overrides)} jobs in {executor.folder}" + (f", job {executor.job}" * bool(executor.job))
    )
    state = Singleton.get_state()
    configs, futures = [], []
    for number, overrides in enumerate(job_overrides, initial):
        log.info(f"\t#{number} : {' '.join(filter_overrides(overrides))}")
        config_of_job = context.config_loader.load_sweep_config(config, list(overrides))
        with open_dict(config_of_job):
            config_of_job.hydra.job.num = number
            config_of_job.hydra.job.id = f"{executor.job or 'local'}_{number}"
        configs.append(config_of_job)
        try:
            futures.append(executor.submit(run, context, function, config_of_job, state))
        except ExecutorError as error:
            raise CompactHydraException(f"slurm_share: {error}") from None
    try:
        return [take(future, one) for future, one in zip(futures, configs, strict=True)]
    except KeyboardInterrupt:
        executor.shutdown(wait=False, cancel_futures=True)
        if executor.job:  # else the interpreter waits at its end for the jobs that run
            subprocess.run(["scancel", executor.job], check=False, stdin=subprocess.DEVNULL)
        raise


def start(arguments: dict[str, Any]) -> Executor:
    """Start the executor of a sweep. Raises CompactHydraException with the sentence of what is wrong."""
    given: dict[str, Any] = {
        name: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        for name, value in arguments.items()
    }
    for name in ("share", "gpu_mem", "time"):
        if given.get(name) is not None:
            given[name] = str(given[name])
    try:
        return Executor(**given)
    except (ExecutorError, ImportError, ValueError, TypeError, OSError) as error:
        hint = "" if given.get("triple") or given.get("local") else "; for example hydra.launcher.triple=[1,8]"
        raise CompactHydraException(f"hydra/launcher=slurm_share: {error}{hint}") from None


def run(context: HydraContext, function: TaskFunction, config: DictConfig, state: Any) -> JobReturn:
    """Run one job, in a worker."""
    Singleton.set_state(state)
    setup_globals()
    HydraConfig.instance().set_config(config)
    try:
        return run_job(
            hydra_context=context,
            task_function=function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
    except SystemExit as error:
        error.__dict__.clear()  # Hydra 1.4 puts a JobReturn there that holds this exception: its pickle has no end
        raise


def take(future: Future[JobReturn], config: DictConfig) -> JobReturn:
    """Wait for a job; return what it returned, or a failed job with the exception that came instead."""
    try:
        return future.result()
    except (Exception, CancelledError, SystemExit) as error:  # noqa: BLE001  (whatever it is, it is this job's)
        task = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        failed = JobReturn(
            overrides=list(config.hydra.overrides.task),
            cfg=task,
            hydra_cfg=OmegaConf.masked_copy(config, ["hydra"]),
            working_dir=str(Path.cwd()),
            task_name=str(config.hydra.job.name),
            status=JobStatus.FAILED,
        )
        failed.return_value = error
        return failed
