"""Prolog: decide about a shared job on this node, and write the plan for its tasks."""

from __future__ import annotations

import os
import time

from slurm_share.core import names
from slurm_share.share import hook

TELL_S = 3.0
"""The most time for telling exporters who has a GPU: reading the driver, and writing a few files."""
TYPE_CHECKING = False  # as in hook.py
if TYPE_CHECKING:
    from slurm_share.core.paths import Paths
    from slurm_share.core.settings import Settings


def main() -> int:
    """Run the Prolog of a job and return its exit code.

    For an ordinary job it ends after two file checks, unless the node has or had a shared job, or the site reserves
    some nodes for one user at a time.
    """
    hook.set_up()
    if names.HOOK_VARIABLE not in os.environ and not _has_job_folders() and not hook.site_may_list_nodes():
        return hook.run("prolog", record_only) if hook.site_may_record_gpus() else names.EXIT_OK
    return hook.run("prolog", work)


def _has_job_folders() -> bool:
    try:
        return bool(os.listdir(f"{names.STATE_ROOT}/{names.JOBS_FOLDER}"))  # noqa: PTH208  (pathlib: see hook.py)
    except OSError:
        return False


def _drop_plan() -> None:
    """Remove the plan of an earlier run of the job, which names GPUs that the job may no longer have."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if job.isascii() and job.isdecimal() and len(job) <= 10:
        for path in (f"{names.JOBS_FOLDER}/{job}/{names.PLAN_FILE}", f"{names.UNSHARED_FOLDER}/{job}"):
            try:
                os.unlink(f"{names.STATE_ROOT}/{path}")  # noqa: PTH108
            except OSError:
                pass  # the job has no earlier plan


def _note_unshared() -> None:
    """Write why a job that asked to share runs unshared although the node's own mode is `on`.

    The plugin on the node expects a plan or this note. Without one, for example on a full disk, it refuses the tasks.
    """
    if names.HOOK_VARIABLE not in os.environ or not hook.why_not_on:
        return
    from slurm_share.core.paths import Paths
    from slurm_share.share import UnsharedReason, option, state
    from slurm_share.slurm import hook_env

    job = hook_env.read(os.environ, option.parse)
    note = UnsharedReason(job.job_id, job.uid, job.node, hook.why_not_on)
    try:
        state.write_unshared(Paths(), note, job.gid)
    except OSError as error:
        if error.errno not in hook.NO_ROOM:
            raise
        hook.report("prolog", f"{hook.explain(error)}: the tasks of job {job.job_id}, which runs unshared, are refused")


def _refuse(error: Exception) -> None:
    """Write the refusal of a shared job that could not be admitted. If this fails too, the plugin refuses the tasks
    because there is no plan."""
    from slurm_share.core.paths import Paths
    from slurm_share.share import admission

    try:
        admission.refuse_unentered(os.environ, Paths(), hook.explain_to_user(error))
    except Exception as second:  # noqa: BLE001  (the caller logs the first error; tasks without a plan are refused)
        hook.report("prolog", f"the refusal cannot be written: {hook.explain(second)}")


def record_only() -> bool:
    """Note the counters of an ordinary job's GPUs, and tell exporters about them. The rest of an ordinary job's Prolog
    is not needed. Always returns True."""
    _note_ordinary()
    _tell_exporters(names.EXIT_OK)
    return True


def _note_ordinary() -> None:
    """Note the counters of an ordinary job's GPUs. Its time is the driver's and that of the site's file."""
    from slurm_share.core.errors import SlurmShareError
    from slurm_share.core.paths import Paths
    from slurm_share.share import job_note

    try:
        settings = hook.load_settings(decides=False)
        if settings.mode != "off" and settings.usage_record == "gpu":
            job_note.begin_ordinary(os.environ, Paths(), settings)
    except SlurmShareError as error:
        hook.report("prolog", f"{error}: what the job uses of its GPUs is not recorded")


def _tell_exporters(code: int) -> None:
    """Write which job has which GPU into the files that exporters read, if the site wants it. Never raises; a driver or
    file system that hangs ends this process with the exit code of the decision."""
    if not hook.site_may_tell_exporters():
        return
    cancel_watch = hook.watch("prolog", TELL_S, lambda _: code)
    try:
        from slurm_share.core.paths import Paths
        from slurm_share.share import job_note

        settings = hook.site_settings()
        if settings.mode != "off" and (settings.job_mapping_folder or settings.gpustat_folder):
            job_note.tell_exporters(os.environ, Paths(), settings)
    except Exception as error:  # noqa: BLE001  (what exporters read must not fail a job)
        hook.report("prolog", f"{hook.explain(error)}: exporters are not told who has its GPUs")
    finally:
        cancel_watch()


def work() -> bool:
    """Decide about the job, then tell exporters who has its GPUs. Return False if the node is unwell."""
    is_well = False
    try:
        is_well = _decide()
        return is_well
    except Exception:
        is_well = True  # the caller logs it and answers that the node is well
        raise
    finally:
        _tell_exporters(names.EXIT_OK if is_well else names.EXIT_NODE_UNWELL)


def _decide() -> bool:
    """Admit, observe or ignore the job, depending on the mode. Return False if the node is unwell.

    Imports modules only when the mode needs them.
    """
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

        def exit_code_of_hang(in_driver: bool) -> int:
            return _count_hang(paths, in_driver=in_driver) if is_on else names.EXIT_OK

        cancel_watch = hook.watch("prolog", settings.hook_deadline_s + admission.SLACK_S, exit_code_of_hang)
        try:
            if settings.mode == "observe":
                from slurm_share.share import observe

                observe.arrival(os.environ, paths, settings, time.clock_gettime(time.CLOCK_BOOTTIME))
                _note_ordinary()
                return True
            shares = names.HOOK_VARIABLE in os.environ
            is_well = _admit(paths, settings, shares=shares)
            if not shares and hook.site_may_record_gpus():
                _note_ordinary()
            return is_well
        finally:
            cancel_watch()
    except Exception as error:
        _drop_plan()
        if shares:
            _refuse(error)
        raise


def _admit(paths: Paths, settings: Settings, *, shares: bool) -> bool:
    """Admit the job, or refuse it if no state can be written. Return False if the node is unwell."""
    from slurm_share.share import admission, drain

    try:
        if shares:
            admission.mount_users_folder(paths)
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
    """Return whether users' files are on the same file system as root's state, so that a user may have filled it."""
    try:
        users = os.stat(f"{paths.root}/user").st_dev  # noqa: PTH116
        return users == os.stat(paths.root).st_dev  # noqa: PTH116
    except OSError:
        return True


def _count_hang(paths: Paths, *, in_driver: bool) -> int:
    """Count the job of a Prolog that hangs as refused, and return the exit code."""
    from slurm_share.share import drain

    cause = drain.of_hang(in_driver=in_driver, before_job=True)
    return names.EXIT_OK if hook.count_refusal("prolog", paths, _job_id(), cause) else names.EXIT_NODE_UNWELL


def _job_id() -> int:
    job = os.environ.get("SLURM_JOB_ID", "")
    return int(job) if job.isascii() and job.isdecimal() and len(job) <= 10 else 0
