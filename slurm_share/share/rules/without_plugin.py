"""Decide what follows where no step of a shared job loaded the SPANK plugin: its tasks run unshared, without a word."""

from __future__ import annotations

from msgspec.structs import replace

from ..records import Ledger, LedgerJob

MOST_JOBS = 3
"""Such jobs in a row, after which the node's share is refused while the plugin cannot be loaded. One alone may have met
a package that was just being installed."""
LONG_S = 60.0
"""A job with a batch script that was here longer had a step, so the plugin should have been loaded: slurmd starts the
script within seconds of the Prolog (reconcile.STARTING_S)."""
UNKNOWN = "the plugin can be loaded now; slurmd's log may say why it was not"


def reason(entry: LedgerJob, problem: str, now: float) -> str:
    """Return why the steps of a job, none of which loaded the plugin, ran without it; "": it may have had no step.

    `problem`: why the plugin cannot be loaded here now; "": it can, or that is not known. `now`: as `entry.since`.
    """
    if problem:
        return problem
    return UNKNOWN if entry.has_step and now - entry.since >= LONG_S else ""


def note(ledger: Ledger, job_id: int, why: str) -> Ledger:
    """Return the ledger with one more job in a row of which no step loaded the plugin."""
    others = tuple(one for one in ledger.without_plugin if one != job_id)
    return replace(ledger, without_plugin=(*others, job_id)[-MOST_JOBS:], plugin_problem=why)


def forget(ledger: Ledger) -> Ledger:
    """Return the ledger after a job whose steps loaded the plugin."""
    return replace(ledger, without_plugin=(), plugin_problem="")


def is_in_doubt(ledger: Ledger) -> bool:
    """Return whether so many jobs in a row ran without the plugin that a Prolog tries to load it before it admits
    another one."""
    return len(ledger.without_plugin) >= MOST_JOBS


def node_sentence(ledger: Ledger) -> str:
    """Return the sentence about the node for administrators; "": the last job's steps loaded the plugin."""
    if not ledger.without_plugin:
        return ""
    count, jobs = len(ledger.without_plugin), ", ".join(map(str, ledger.without_plugin))
    which, ran = (
        (f"the last {count} shared jobs here (jobs {jobs})", "they")
        if count > 1
        else (f"the last shared job here (job {jobs})", "it")
    )
    told = f"no step of {which} loaded the plugin: {ran} ran unshared"
    ends = "; further shares are refused until it can be loaded" if is_in_doubt(ledger) else ""
    return f"{told}{ends}; the reason: {ledger.plugin_problem}"


def job_sentence(job_id: int, node: str, why: str) -> str:
    """Return the sentence for the output of a job and for the log."""
    return (
        f"no step of job {job_id} loaded the plugin of slurm-share on {node}: what ran there had no slot and no memory"
        f" cap, but all GPUs of the job on {node}; the reason: {why}; tell your administrators (slurm-share doctor on"
        f" {node}), and submit the job again without that node (sbatch --exclude={node})"
    )
