"""Apply the fixes that `doctor --fix` has planned one by one, and report the results."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from ..core.errors import CommandError, SlurmShareError, StateError
from ..core.installed import EPILOG_NAME
from ..core.paths import Paths
from ..core.process import Deadline, finish
from ..core.settings import Configuration, Settings
from ..mps.control import SEARCH_PATH
from ..node import processes
from ..node.gpus import driver as nvml
from ..share import Host, Ledger, Leftovers, UserGpu, ledger_file, reconcile, registry, site, state
from .checks import fixable
from .checks.fixable import Fix
from .facts.records import Facts

PASSES = 3
"""The second reading finds what an Epilog has left, the third what that one has left."""
LOCK_S = 5.0
ASK_S = 3.0
"""Time limit in seconds for a daemon's answer about its clients."""
START_S = 5.0
"""Seconds for starting an Epilog, in addition to its own time limit."""
CHOOSE_S = 120.0
"""Time limit in seconds for slurm-share-plugin, which may compile the plugin."""


STILL = "it is as before; the hooks' log may say why"


class FixResult(Struct, frozen=True):
    """A fix and its result."""

    what: str
    problem: str = ""
    """Why it failed; empty: it succeeded."""


def fix_all(facts: Facts, read_again: Callable[[], Facts]) -> tuple[Facts, tuple[FixResult, ...]]:
    """Apply the planned fixes and read the facts again, until nothing new is planned. Return the last facts and the
    results.

    No fix is tried twice. A fix that the last facts still need has failed, whatever its program returned.
    """
    done: list[FixResult] = []
    for _ in range(PASSES):
        tried = {one.what for one in done}
        todo = [one for one in fixable.plan(facts) if one.what not in tried]
        if not todo:
            break
        done += _do(todo, facts)
        facts = read_again()
    still = {one.what for one in fixable.plan(facts)}
    return facts, tuple(replace(one, problem=STILL) if one.what in still and not one.problem else one for one in done)


def _do(todo: Iterable[Fix], facts: Facts) -> list[FixResult]:
    settings = facts.config.settings if isinstance(facts.config, Configuration) else Settings()
    found = []
    for one in todo:
        problem = ""
        try:
            _one(one, facts, settings)
        except (SlurmShareError, OSError) as error:
            problem = str(error)
        found.append(FixResult(one.what, problem))
    return found


def _one(one: Fix, facts: Facts, settings: Settings) -> None:
    if one.kind == "epilog":
        state.prepare(Paths())
        state.make_job_folder(Paths(), one.job_id)  # without a folder the Epilog takes the job for one without a share
        program = next(path for path in facts.hooks if path.endswith(EPILOG_NAME))
        run_epilog(program, one, facts.host, timeout_s=site.hook_needs_s(settings)[1] + START_S)
    elif one.kind == "choose":
        choose_plugin(one.path)
    elif one.kind == "relink":
        relink(one.path, one.target)
    elif one.kind == "narrow":
        narrow(one.path)
    elif one.kind == "mode":
        _restore_mode(one.target, settings)
    else:
        _stop_daemon(one, settings)


def _restore_mode(gpu: str, settings: Settings) -> None:
    """Restore a compute mode under the ledger's lock, if still no job has the GPU: a Prolog may have come meanwhile."""
    paths = Paths()
    with state.exclusive(paths, Deadline.after(LOCK_S)):
        ledger = ledger_file.read_ledger(paths, ledger_file.read_boot_id())
        before = next((one for one in ledger.modes if one.gpu == gpu), None)
        if before is None or reconcile.is_in_use(ledger, gpu):
            return
        _refuse_unknown_jobs(ledger, gpu)
        nvml.set_compute_mode(gpu, before.mode)
        state.write_ledger(paths, reconcile.forget_mode(ledger, gpu), settings)


def _refuse_unknown_jobs(ledger: Ledger, what: str) -> None:
    """Raise StateError about `what` if a job has a step here and is not in the ledger, which may have been lost."""
    known = {job.job_id for job in (*ledger.jobs, *(one.job for one in ledger.leaving))}
    for job in processes.read_live_jobs():
        if job.job_id not in known:
            why = f"is left alone: job {job.job_id} is here, the ledger does not know it, and it may have it"
            raise StateError(what, why)


def _stop_daemon(one: Fix, settings: Settings) -> None:
    """Stop a daemon as an Epilog does, if nothing uses it: no job in the ledger, no job unknown to the ledger, and no
    program. Raises StateError naming the user of the daemon."""
    paths = Paths()

    def read_in_use() -> Mapping[UserGpu, int]:
        with state.exclusive(paths, Deadline.after(LOCK_S)):
            ledger = ledger_file.read_ledger(paths, ledger_file.read_boot_id())
        _refuse_unknown_jobs(ledger, one.path)
        jobs = (*ledger.jobs, *(leaving.job for leaving in ledger.leaving))
        return {(job.uid, gpu): job.job_id for job in jobs for gpu in job.gpus}

    host = Host(paths=paths, settings=settings)
    leftovers = Leftovers(read_in_use=read_in_use, only=(one.uid, one.path))
    deadline = Deadline.after(settings.release_deadline_s + LOCK_S + ASK_S)
    done = registry.get(one.target).clean_up(host, leftovers, deadline)
    if done.problems:
        raise SlurmShareError(done.problems[0])
    if done.job_id is not None:
        raise StateError(one.path, f"is left alone: job {done.job_id} has come meanwhile, and has its GPU")
    for user in done.users:
        who = f"process {user.pid} ({user.name or '?'}) of uid {user.uid}"
        raise StateError(one.path, f"is left alone: {who} uses it")


# --- What it does with its own hands. Each can be done twice. --------------------------------------------------------


def run_epilog(program: str, job: Fix, node: str, *, timeout_s: float) -> None:
    """Run our Epilog as slurmd would for a job that is over. Raises CommandError if it fails or does not end.

    It gets the restart count from the ledger, so that it leaves a later run of the job alone.
    """
    environ = {
        "SLURM_JOB_ID": str(job.job_id),
        "SLURM_JOB_UID": str(job.uid),
        "SLURM_JOB_GID": str(_group_of(job.uid)),
        "SLURMD_NODENAME": node,
        "SLURM_SCRIPT_CONTEXT": "epilog_slurmd",
    }
    if job.restart_count is not None:
        environ["SLURM_JOB_RESTART_COUNT"] = str(job.restart_count)
    if job.partition is not None:
        environ["SLURM_JOB_PARTITION"] = job.partition
    _run(program, environ, timeout_s)


def _group_of(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid


def choose_plugin(program: str) -> None:
    """Run the package's slurm-share-plugin, which makes the plugin's link. Raises CommandError with its message."""
    _run(program, {}, CHOOSE_S)


def _run(program: str, environ: Mapping[str, str], timeout_s: float) -> None:
    done = finish([program], timeout_s=timeout_s, env={"PATH": SEARCH_PATH, **environ})
    if done.code:
        raise CommandError((program,), done.code, done.stderr)


def relink(path: str, target: str) -> None:
    """Change the target of a link atomically. Raises StateError if it is not a link, OSError."""
    try:
        os.readlink(path)  # noqa: PTH115
    except FileNotFoundError as error:
        raise StateError(path, "is gone: install slurm-share-spank") from error
    except OSError as error:
        raise StateError(path, "is no link: put the object there by hand") from error
    new = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)  # noqa: PTH108  (of one who was killed here)
    os.symlink(target, new)  # noqa: PTH211
    os.replace(new, path)  # noqa: PTH105


def narrow(path: str) -> None:
    """Remove others' write permission from a file or folder of root's. Raises StateError if it is not root's, OSError
    if it is a link or missing."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        seen = os.fstat(fd)
        if seen.st_uid != 0:
            raise StateError(path, f"belongs to uid {seen.st_uid}: see who put it there, then remove it")
        os.fchmod(fd, stat.S_IMODE(seen.st_mode) & ~0o022)
    finally:
        os.close(fd)
