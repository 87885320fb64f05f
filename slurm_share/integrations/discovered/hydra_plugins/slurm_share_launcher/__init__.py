"""Hydra's launcher `slurm_share`. Hydra imports this in every program, so the rest is imported in `launch`."""

# No `from __future__ import annotations`: Hydra executes this before it is in sys.modules, where dataclasses look.

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, List, Optional

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class SlurmShareLauncherConf:
    """The keys of `hydra.launcher`: arguments of `slurm_share.Executor`."""

    _target_: str = "hydra_plugins.slurm_share_launcher.SlurmShareLauncher"
    triple: Optional[List[int]] = None
    share: Any = None
    pack: bool = False
    gpu_mem: Any = None
    timeout: Optional[float] = None
    """Seconds."""
    retries: int = 0
    partition: Optional[str] = None
    time: Any = None
    options: Optional[str] = None
    local: bool = False
    name: str = "${hydra.job.name}"


ConfigStore.instance().store(
    group="hydra/launcher", name="slurm_share", node=SlurmShareLauncherConf, provider="slurm_share"
)


class SlurmShareLauncher(Launcher):
    """Runs the jobs of a sweep in the slots of one Slurm job, which serves all batches of the sweep."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.executor: Any = None
        self.config: DictConfig | None = None
        self.task_function: TaskFunction | None = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take what Hydra gives."""
        self.config, self.task_function, self.hydra_context = config, task_function, hydra_context

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run one batch of the sweep; return what its jobs return, in their order."""
        from slurm_share.integrations.hydra import launch

        return launch(self, job_overrides, initial_job_idx)
