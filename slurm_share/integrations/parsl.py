"""Parsl: an executor with one worker in each slot of a share."""

from __future__ import annotations

import re
from typing import Any

from parsl.executors import HighThroughputExecutor
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider


def gpu_executor(
    share: int | str, gpus: int = 1, *, nodes: int = 1, provider: dict[str, Any] | None = None, **arguments: Any
) -> HighThroughputExecutor:
    """Return a HighThroughputExecutor whose blocks are Slurm jobs with one worker in each slot.

    Args:
        share: As after `--share-gpu`: the number of workers on each GPU, or for example "4,mem=8G".
        gpus: GPUs on each node of a block.
        nodes: Nodes of a block.
        provider: Further arguments of SlurmProvider.
        arguments: Further arguments of HighThroughputExecutor.

    Raises ValueError.

    srun starts one pool in each slot, with one worker. So a worker has the slot's GPU, memory cap and cores, and
    `available_accelerators`, which has numbers of whole GPUs, stays empty.
    """
    count = str(share).partition(",")[0]
    if not re.fullmatch("[1-9][0-9]{0,3}", count, re.ASCII):
        raise ValueError(f"share={share!r}: write the number of workers on each GPU, for example 4 or '4,mem=8G'")
    workers = int(count) * gpus * nodes
    given = dict(provider or {})
    options = f"#SBATCH --share-gpu={share} --gres=gpu:{gpus}\n" + given.pop("scheduler_options", "")
    wrong = {"exclusive", "gres", "gpus_per_node", "nodes_per_block", "launcher"} & set(given)
    if wrong or "available_accelerators" in arguments or "max_workers_per_node" in arguments:
        wrong |= {"available_accelerators", "max_workers_per_node"} & set(arguments)
        raise ValueError(f"{', '.join(sorted(wrong))}: comes from share, gpus and nodes")
    arguments.setdefault("label", "slots")
    return HighThroughputExecutor(
        max_workers_per_node=1,
        cores_per_worker=1e-6,  # a slot may have less than a core; the pool would count the cores
        provider=SlurmProvider(
            nodes_per_block=nodes,
            exclusive=False,
            scheduler_options=options,
            launcher=SrunLauncher(overrides=f"--ntasks={workers}"),
            **given,
        ),
        **arguments,
    )
