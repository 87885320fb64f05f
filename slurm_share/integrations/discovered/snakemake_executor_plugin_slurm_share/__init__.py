"""Snakemake's executor plugin `slurm-share`, which Snakemake finds by the name of this package."""

from slurm_share.integrations.snakemake import Executor, ExecutorSettings, common_settings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]
