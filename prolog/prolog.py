"""Prolog: decide about a shared job on this node, and write the plan for its tasks."""

from __future__ import annotations

import os
import time

from slurm_share.core import names
from slurm_share.share import hook

TYPE_CHECKING = False  # as in hook.py
if TYPE_CHECKING:
    from slurm_share.core.paths import Paths
    from slurm_share.core.settings import Settings


def main() -> int:
    """Run the Prolog of a job. For an ordinary job it takes the start of the interpreter and two file checks, unless a
    shared job is or was on this node, or the site keeps some nodes to one user at a time."""
    hook.set_out()
    if names.HOOK_VARIABLE not in os.environ and not _knows_jobs() and not hook.site_may_list_nodes():
        return names.EXIT_OK
    return hook.run("prolog", work)


def _knows_jobs() -> bool:
    try:
        return bool(os.listdir(f"{names.STATE_ROOT}/{names.JOBS_FOLDER}"))  # noqa: PTH208  (pathlib: see hook.py)
    except OSError:
        return False


def _drop_plan() -> None:
    """Remove the plan of an earlier run of the job, which names GPUs that the job may no longer have."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if job.isascii() and job.isdecimal():
        for path in (f"{names.JOBS_FOLDER}/{job}/{names.PLAN_FILE}", f"{names.UNSHARED_FOLDER}/{job}"):
            try:
                os.unlink(f"{names.STATE_ROOT}/{path}")  # noqa: PTH108
            except OSError:
                pass  # there is none


def _note_unshared() -> None:
    """Write the reason why a job that asked to share runs unshared on a node whose own mode is `on`. Without this note
    the plugin expects a plan and refuses the tasks; that happens if the disk is full."""
    if names.HOOK_VARIABLE not in os.environ or not hook.why_not_on:
        return
    from slurm_share.core.paths import Paths
    from slurm_share.share import Unshared, option, state
    from slurm_share.slurm import hook_env

    job = hook_env.read(os.environ, option.parse)
    note = Unshared(job.job_id, job.uid, job.node, hook.why_not_on)
    try:
        state.write_unshared(Paths(), note, job.gid)
    except OSError as error:
        if error.errno not in hook.NO_ROOM:
            raise
        hook.report("prolog", f"{hook.explain(error)}: the tasks of job {job.job_id}, which runs unshared, are refused")


def _refuse(error: Exception) -> None:
    """Write a refusal for a shared job that could not be admitted. If that fails, too, the plugin finds no plan and
    refuses the tasks."""
    from slurm_share.core.paths import Paths
    from slurm_share.share import admission

    try:
        admission.refuse_unentered(os.environ, Paths(), hook.explain_to_user(error))
    except Exception as second:  # noqa: BLE001  (the caller logs the first error; the tasks are refused in any case)
        hook.report("prolog", f"the refusal cannot be written: {hook.explain(second)}")


def work() -> bool:
    """Do the Prolog's work, and import what it needs. Return False if the node is unwell."""
    shares = False
    try:
        settings = hook.load_settings()
        if settings.mode != "on":
            _drop_plan()
            _note_unshared()
        if settings.mode == "off":
            return True
        from slurm_share.core.paths import Paths
        from slurm_share.share import admission

        paths = Paths()
        is_on = settings.mode == "on"

        def code(in_driver: bool) -> int:
            return _code_of_hang(paths, in_driver=in_driver) if is_on else names.EXIT_OK

        call_off = hook.watch("prolog", settings.hook_deadline_s + admission.SLACK_S, code)
        try:
            if settings.mode == "observe":
                from slurm_share.share import observe

                observe.arrival(os.environ, paths, settings, time.clock_gettime(time.CLOCK_BOOTTIME))
                return True
            shares = names.HOOK_VARIABLE in os.environ
            return _admit(paths, settings, shares=shares)
        finally:
            call_off()
    except Exception as error:
        _drop_plan()
        if shares:
            _refuse(error)
        raise


def _admit(paths: Paths, settings: Settings, *, shares: bool) -> bool:
    """Admit the job; return False if the node is unwell. If state cannot be written, refuse the job."""
    from slurm_share.share import admission, drain

    try:
        if shares:
            admission.give_users_folder(paths)
        return admission.admit_job(os.environ, paths, settings, time.clock_gettime(time.CLOCK_BOOTTIME))
    except OSError as error:
        if error.errno not in hook.NO_ROOM or not shares:
            raise
        _drop_plan()
        _refuse(error)
        hook.report("prolog", hook.explain(error))
        cause = drain.of_unwritable_state(has_users_files=_has_users_files(paths))
        return hook.count_refusal("prolog", paths, _job_id(), cause)


def _has_users_files(paths: Paths) -> bool:
    """Return whether users' files are on the file system of root's state, so that a user can have filled it."""
    try:
        users = os.stat(f"{paths.root}/user").st_dev  # noqa: PTH116
        return users == os.stat(paths.root).st_dev  # noqa: PTH116
    except OSError:
        return True


def _code_of_hang(paths: Paths, *, in_driver: bool) -> int:
    """Return the exit code of a Prolog that hangs, after counting its job as refused."""
    from slurm_share.share import drain

    cause = drain.of_hang(in_driver=in_driver, before_job=True)
    return names.EXIT_OK if hook.count_refusal("prolog", paths, _job_id(), cause) else names.EXIT_NODE_UNWELL


def _job_id() -> int:
    job = os.environ.get("SLURM_JOB_ID", "")
    return int(job) if job.isascii() and job.isdecimal() else 0
