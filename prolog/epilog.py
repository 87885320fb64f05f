"""Epilog: remove what a job left on this node, and what its user left after his last job.

It works without a Prolog before it, and can run twice."""

from __future__ import annotations

import os
import time

from slurm_share.core import names
from slurm_share.share import hook

NOTES = (names.UNSHARED_FOLDER, names.USAGE_FOLDER, names.GPU_JOBS_FOLDER)
"""The folders in which the Prolog notes a job that has no folder of ours."""


def main() -> int:
    """Run the Epilog of a job. A job without a folder of ours costs one file check."""
    hook.set_up()
    job = os.environ.get("SLURM_JOB_ID", "none")
    if os.path.lexists(f"{names.STATE_ROOT}/{names.JOBS_FOLDER}/{job}"):
        return hook.run("epilog", work)
    # A Prolog that runs with a step gets the option from srun. The Epilog gets it from the controller, if at all.
    has_note = any(os.path.lexists(f"{names.STATE_ROOT}/{folder}/{job}") for folder in NOTES)
    if has_note or names.HOOK_VARIABLE in os.environ or hook.site_may_list_nodes():
        return hook.run("epilog", watch_only)
    return names.EXIT_OK


def work() -> bool:
    """Clean up after a job with a folder here, whatever the present mode is. Return False if the node is unwell."""
    _forget_unshared()
    _tell_exporters()
    settings = hook.load_settings_or_defaults("epilog")
    from slurm_share.core.paths import Paths
    from slurm_share.share import drain, release

    def code(in_driver: bool) -> int:
        is_unwell = drain.drains([drain.of_hang(in_driver=in_driver, before_job=False)])
        return names.EXIT_NODE_UNWELL if is_unwell else names.EXIT_OK

    call_off = hook.watch("epilog", settings.release_deadline_s + release.SLACK_S, code)
    try:
        _note_end()
        return release.release_job(os.environ, Paths(), settings, time.clock_gettime(time.CLOCK_BOOTTIME))
    finally:
        call_off()


def _note_end() -> None:
    """Complete the note about the job's GPUs, if it has one, and start the process that makes the record of it."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if not (job.isascii() and job.isdecimal() and len(job) <= 10):
        return
    if not os.path.lexists(f"{names.STATE_ROOT}/{names.USAGE_FOLDER}/{job}"):
        return
    from slurm_share.core.paths import Paths
    from slurm_share.usage import note

    if note.end(int(job), Paths().root, time.time(), lambda text: hook.report("epilog", text)):
        hook.start_after("epilog", int(job))


def _forget_unshared() -> None:
    """Remove the Prolog's note that the job runs unshared."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if job.isascii() and job.isdecimal() and len(job) <= 10:
        try:
            os.unlink(f"{names.STATE_ROOT}/{names.UNSHARED_FOLDER}/{job}")  # noqa: PTH108
        except OSError:
            pass  # there is no note


def _tell_exporters() -> None:
    """Remove the job from the files about GPUs that exporters read, if it is in them. Never raises."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if not (job.isascii() and job.isdecimal() and len(job) <= 10):
        return
    if not os.path.lexists(f"{names.STATE_ROOT}/{names.GPU_JOBS_FOLDER}/{job}"):
        return
    try:
        from slurm_share.core.paths import Paths
        from slurm_share.usage import gpu_jobs

        gpu_jobs.end(int(job), Paths().root, lambda text: hook.report("epilog", text))
    except Exception as error:  # noqa: BLE001  (what exporters read must not fail a job)
        hook.report("epilog", f"{hook.explain(error)}: exporters are not told that job {job} has ended")


def watch_only() -> bool:
    """Log what would have been done for a job without a folder here, if the site observes."""
    from slurm_share.core.errors import ConfigError

    _forget_unshared()
    _tell_exporters()
    _note_end()
    try:
        settings = hook.load_settings()
    except ConfigError:
        return True  # the job's Prolog has logged it
    if settings.mode == "observe":
        from slurm_share.core.paths import Paths
        from slurm_share.share import observe

        call_off = hook.watch("epilog", settings.release_deadline_s, lambda _: names.EXIT_OK)
        try:
            observe.departure(os.environ, Paths(), settings)
        finally:
            call_off()
    return True
