"""Notice that no step of a shared job loaded the SPANK plugin, and tell it where the plugin cannot.

The Prolog makes an empty file beside the plan (`state.expect_plugin`); the plugin, still as root, writes into it in
every slurmstepd that loads it, whatever the step. An Epilog that finds it empty tries why: of an object that cannot be
loaded Slurm says something in a log only, or nowhere (since 25.11, below SlurmdDebug=verbose), and the tasks run as if
nobody had asked to share.

Then a hook asks slurmctld (otherwise only slurm/job_gpus.py does): nothing else on the node can say a word to the job
(slurm_commands.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..core import numbers
from ..core.errors import StateError
from ..core.paths import Paths
from ..core.process import Deadline
from ..core.records import Owner
from ..core.settings import Settings
from ..slurm import node_plugin
from ..slurm.records import JobContext
from . import hook, slurm_commands, state
from .records import LedgerJob, Refusal
from .rules import allocation, without_plugin
from .slurm_commands import ShownJob

LOCK_S = 2.0
CANCELLED_S = 1.0
"""The wait of a Prolog after it has cancelled its job: slurmd must learn of it before the Prolog ends, or it starts the
script, and ends it a moment later."""
MARK = "share-not-loaded"
"""The word in the AdminComment of a job that ran without the plugin or was cancelled, with the node:
share-not-loaded=n2."""


def judge(
    environ: Mapping[str, str], paths: Paths, settings: Settings, entry: LedgerJob, *, was_loaded: bool, now: float
) -> None:
    """Record in the ledger whether the ended job's steps loaded the plugin. If none did: find out why, and say so in
    the log, in the output of a job with a script, and in its AdminComment. Never raises for the job's sake."""
    job, node = entry.job_id, environ.get("SLURMD_NODENAME", "")
    why = ""
    if not was_loaded:
        why = without_plugin.reason(entry, node_plugin.read_problem(environ.get("SLURM_CONF", "")), now)
        if not why:
            return
    try:
        with state.exclusive(paths, Deadline.after(LOCK_S)):
            ledger = hook.read_ledger(paths, "epilog")
            after = without_plugin.forget(ledger) if was_loaded else without_plugin.note(ledger, job, why)
            if after != ledger:
                state.write_ledger(paths, after, settings)
    except (OSError, StateError) as error:
        hook.report("epilog", f"job {job}: {hook.explain(error)}: not recorded that its steps ran without the plugin")
    if was_loaded:
        return
    sentence = without_plugin.job_sentence(job, node, why)
    hook.report("epilog", sentence)
    known = slurm_commands.show(job, environ)
    if environ.get("SLURM_JOB_UID") == str(entry.uid):
        gid = numbers.whole(environ.get("SLURM_JOB_GID"), numbers.UINT32_MOST)
        if gid is not None:
            slurm_commands.write_output(known, Owner(entry.uid, gid), f"slurm-share: {sentence}", may_make=False)
    if known is not None and "slurmdbd" in node_plugin.read_value(
        environ.get("SLURM_CONF", ""), "AccountingStorageType"
    ):
        # slurmctld changes no job that has ended; slurmdbd does
        comment = _marked(known, f"{MARK}={node}")
        slurm_commands.run(
            environ, "sacctmgr", "-i", "modify", "job", "where", f"jobid={known.id}", "set", f"admincomment={comment}"
        )


def _marked(known: ShownJob, word: str) -> str:
    """Return a job's AdminComment with one more word in front: the share, which job_submit.lua wrote, stays last."""
    words = known.admin_comment.split(";") if known.admin_comment else []
    return ";".join(words if word in words else [word, *words])


def refusal(job: JobContext, environ: Mapping[str, str]) -> Refusal | None:
    """Return the Refusal of a share whose tasks would run unshared; None: the plugin can be loaded again."""
    problem = node_plugin.read_problem(environ.get("SLURM_CONF", ""))
    return allocation.plugin_refusal(job, problem) if problem else None


def end_job(job: JobContext, sentence: str, environ: Mapping[str, str]) -> None:
    """Tell a refused job's user, and cancel the job: without the plugin nothing on the node would stop its tasks."""
    known = slurm_commands.show(job.job_id, environ)
    if not slurm_commands.write_output(known, Owner(job.uid, job.gid), f"slurm-share: {sentence}", may_make=True):
        slurm_commands.run(environ, "scontrol", "notify", str(job.job_id), f"slurm-share: {sentence}")
    if known is not None:
        comment = _marked(known, f"{MARK}={job.node}")
        slurm_commands.run(environ, "scontrol", "update", f"JobId={job.job_id}", f"AdminComment={comment}")
    done = slurm_commands.run(environ, "scancel", str(job.job_id))
    if done is None or done.code != 0:
        why = "it did not answer" if done is None else done.stderr.strip()
        hook.report("prolog", f"job {job.job_id} cannot be cancelled, and runs unshared: scancel: {why}")
        return
    time.sleep(CANCELLED_S)
