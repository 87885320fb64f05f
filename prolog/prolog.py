"""Prolog: decide about a shared job on this node, and write the plan that its tasks will carry out."""

from __future__ import annotations

import os
import time

from slurm_share import names

from . import hook


def main() -> int:
    """The Prolog of every job; an ordinary one costs the start of the interpreter and two looks, unless a shared job
    is, or was, on this node, or the site keeps some nodes to one user at a time."""
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
    """Where no plan is made: one of the job's earlier run must not send tasks to GPUs it no longer has."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if job.isascii() and job.isdecimal():
        try:
            os.unlink(f"{names.STATE_ROOT}/{names.JOBS_FOLDER}/{job}/{names.PLAN_FILE}")  # noqa: PTH108
        except OSError:
            pass  # there is none


def work() -> bool:
    """Imported only where there is something to do. False: the node is unwell."""
    try:
        settings = hook.load_settings()
        if settings.mode == "off":
            _drop_plan()
            return True
        from slurm_share.paths import Paths

        from . import admission

        paths = Paths()
        call_off = hook.watch("prolog", settings.hook_deadline_s + admission.SLACK_S, names.EXIT_OK)
        try:
            if settings.mode == "observe":
                from . import observe

                _drop_plan()
                observe.arrival(os.environ, paths, settings, time.clock_gettime(time.CLOCK_BOOTTIME))
                return True
            return admission.admit_job(os.environ, paths, settings, time.clock_gettime(time.CLOCK_BOOTTIME))
        finally:
            call_off()
    except Exception:
        _drop_plan()
        raise


def program() -> None:
    """The program that slurmd starts."""
    hook.be_program(main)


if __name__ == "__main__":
    program()
