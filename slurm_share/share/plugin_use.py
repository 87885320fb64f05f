"""Notice that no step of a shared job loaded the SPANK plugin, and tell it where the plugin cannot.

The Prolog makes an empty file beside the plan (`state.expect_plugin`); the plugin, still as root, writes into it in
every slurmstepd that loads it, whatever the step. An Epilog that finds it empty tries why: of an object that cannot be
loaded Slurm says something in a log only, or nowhere (since 25.11, below SlurmdDebug=verbose), and the tasks run as if
nobody had asked to share.

Then a hook asks slurmctld (otherwise only slurm/job_gpus.py does): nothing else on the node can say a word to the job.
Each command has a time limit, and a hook goes on without its answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from ..core import numbers, text_files
from ..core.errors import CommandError, StateError
from ..core.paths import Paths
from ..core.process import Deadline, Finished, exchange
from ..core.records import Owner
from ..core.settings import Settings
from ..slurm import job_gpus, node_plugin
from ..slurm.records import JobContext
from . import hook, state
from .records import LedgerJob, Refusal
from .rules import allocation, without_plugin

COMMAND_S = 3.0
"""The most time for a command of Slurm's, and for writing into a job's output, which can be on a dead file server."""
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
    known = _show(job, environ)
    if environ.get("SLURM_JOB_UID") == str(entry.uid):
        gid = numbers.whole(environ.get("SLURM_JOB_GID"), numbers.UINT32_MOST)
        if gid is not None:
            _write_output(known, Owner(entry.uid, gid), sentence, may_make=False)
    if known is not None and "slurmdbd" in node_plugin.read_value(
        environ.get("SLURM_CONF", ""), "AccountingStorageType"
    ):
        # slurmctld changes no job that has ended; slurmdbd does
        comment = _marked(known, f"{MARK}={node}")
        _slurm(environ, "sacctmgr", "-i", "modify", "job", "where", f"jobid={job}", "set", f"admincomment={comment}")


def _marked(known: _ShownJob, word: str) -> str:
    """Return a job's AdminComment with one more word in front: the share, which job_submit.lua wrote, stays last."""
    words = known.admin_comment.split(";") if known.admin_comment else []
    return ";".join(words if word in words else [word, *words])


def refusal(job: JobContext, environ: Mapping[str, str]) -> Refusal | None:
    """Return the Refusal of a share whose tasks would run unshared; None: the plugin can be loaded again."""
    problem = node_plugin.read_problem(environ.get("SLURM_CONF", ""))
    return allocation.plugin_refusal(job, problem) if problem else None


def end_job(job: JobContext, sentence: str, environ: Mapping[str, str]) -> None:
    """Tell a refused job's user, and cancel the job: without the plugin nothing on the node would stop its tasks."""
    known = _show(job.job_id, environ)
    if not _write_output(known, Owner(job.uid, job.gid), sentence, may_make=True):
        _slurm(environ, "scontrol", "notify", str(job.job_id), f"slurm-share: {sentence}")
    if known is not None:
        comment = _marked(known, f"{MARK}={job.node}")
        _slurm(environ, "scontrol", "update", f"JobId={job.job_id}", f"AdminComment={comment}")
    done = _slurm(environ, "scancel", str(job.job_id))
    if done is None or done.code != 0:
        why = "it did not answer" if done is None else done.stderr.strip()
        hook.report("prolog", f"job {job.job_id} cannot be cancelled, and runs unshared: scancel: {why}")
        return
    time.sleep(CANCELLED_S)


class _ShownJob(Struct):
    """A job in the answer of scontrol."""

    job_id: int
    admin_comment: str | None = None
    standard_output: str | None = None
    standard_error: str | None = None


class _ShownJobs(Struct):
    jobs: list[_ShownJob]


def _show(job_id: int, environ: Mapping[str, str]) -> _ShownJob | None:
    """Return a job as slurmctld knows it; None: it does not answer.

    As JSON: in text a user's comment or job name may have lines that look like Slurm's.
    """
    done = _slurm(environ, "scontrol", f"--json={job_gpus.JSON}", "show", "job", str(job_id))
    if done is None or done.code != 0:
        return None
    try:
        jobs = msgspec.json.decode(done.stdout, type=_ShownJobs).jobs
    except text_files.NOT_JSON:
        return None
    return next((one for one in jobs if one.job_id == job_id), None)  # of an array's number all elements are shown


def _slurm(environ: Mapping[str, str], name: str, *words: str) -> Finished | None:
    """Run a command of Slurm's, found beside the slurmd that runs here; None: it is not there or does not answer."""
    folder = node_plugin.find_folder()
    places = [] if folder is None else [f"{folder.rpartition('/')[0]}/bin", folder]
    program = next((path for one in (*places, "/usr/bin") if node_plugin.is_of_root(path := f"{one}/{name}")), None)
    if program is None:
        return None
    env = {"PATH": hook.SEARCH_PATH, "LC_ALL": "C", "SLURM_CONF": environ.get("SLURM_CONF", "")}
    try:
        return exchange([program, *words], timeout_s=COMMAND_S, env=env)
    except CommandError:
        return None


def _write_output(known: _ShownJob | None, owner: Owner, sentence: str, *, may_make: bool) -> bool:
    """Append a line to a job's output, as its user; return whether that was possible.

    The user chose the path and can put anything there: dd(1) has no more rights than the user, follows no link in the
    last place, and does not wait for the reader of a pipe. Only a job with a script has such a file.
    """
    outputs = () if known is None else (known.standard_error, known.standard_output)
    file = next((path for path in outputs if path and path.startswith("/")), "")
    if not file:
        return False
    conv = "notrunc" if may_make else "notrunc,nocreat"
    words = ["/usr/bin/dd", f"of={file}", f"conv={conv}", "oflag=append,nofollow,nonblock", "status=none"]
    try:
        env = {"PATH": hook.SEARCH_PATH}
        done = exchange(
            words, timeout_s=COMMAND_S, env=env, text=f"slurm-share: {sentence}\n", owner=owner, umask=0o022
        )
    except CommandError:
        return False
    return done.code == 0
