"""`slurm-share doctor --fix`: does what is planned, one thing after the other, and says how each went."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from ..core.errors import SlurmShareError, StateError
from ..core.installed import EPILOG_NAME
from ..core.paths import Paths
from ..core.process import Deadline
from ..core.settings import Configuration, Settings
from ..node import processes
from ..node.gpus import compute_mode
from ..share import ledger_file, state
from ..share.backends import registry
from ..share.backends.base import Host, Leftovers, UserGpu
from ..share.records import Ledger
from ..share.rules import reconcile, site
from . import fix_actions
from .checks import fixable
from .checks.fixable import Mend
from .facts.records import Facts

PASSES = 3
"""What an Epilog leaves is seen at the second look, what that leaves at the third."""
LOCK_S = 5.0
ASK_S = 3.0
"""For a daemon's answer about its clients."""
START_S = 5.0
"""For the start of an Epilog, beyond what it may take."""


STILL = "it is as before; the hooks' log may say why"


class Mended(Struct, frozen=True):
    """One thing that was to be put right."""

    what: str
    problem: str = ""
    """Why it is not; empty: it is."""


def mend_all(facts: Facts, look_again: Callable[[], Facts]) -> tuple[Facts, tuple[Mended, ...]]:
    """Do what is planned, look again, and so on; the last look, and all that was done. Nothing is tried twice; what
    the last look still finds was not done, whatever the program that was to do it answered."""
    done: list[Mended] = []
    for _ in range(PASSES):
        tried = {one.what for one in done}
        todo = [one for one in fixable.plan(facts) if one.what not in tried]
        if not todo:
            break
        done += _do(todo, facts)
        facts = look_again()
    still = {one.what for one in fixable.plan(facts)}
    return facts, tuple(replace(one, problem=STILL) if one.what in still and not one.problem else one for one in done)


def _do(todo: Iterable[Mend], facts: Facts) -> list[Mended]:
    settings = facts.config.settings if isinstance(facts.config, Configuration) else Settings()
    found = []
    for one in todo:
        try:
            _one(one, facts, settings)
        except (SlurmShareError, OSError) as error:
            found.append(Mended(one.what, str(error)))
        else:
            found.append(Mended(one.what))
    return found


def _one(one: Mend, facts: Facts, settings: Settings) -> None:
    if one.kind == "epilog":
        state.prepare(Paths())
        state.make_job_folder(Paths(), one.job_id)  # without one the Epilog takes the job for one without a share
        fix_actions.run_epilog(
            next(path for path in facts.hooks if path.endswith(EPILOG_NAME)),
            one.job_id,
            one.uid,
            facts.host,
            restart_count=one.restart_count,
            partition=one.partition,
            timeout_s=site.hook_needs_s(settings)[1] + START_S,
        )
    elif one.kind == "choose":
        fix_actions.choose_plugin(one.path)
    elif one.kind == "relink":
        fix_actions.relink(one.path, one.target)
    elif one.kind == "narrow":
        fix_actions.narrow(one.path)
    elif one.kind == "mode":
        _restore_mode(one.target, settings)
    else:
        _stop_daemon(one, settings)


def _restore_mode(gpu: str, settings: Settings) -> None:
    """Under the ledger's lock, and only where still no job has the GPU: a Prolog may have come meanwhile."""
    paths = Paths()
    with state.exclusive(paths, Deadline.after(LOCK_S)):
        ledger = ledger_file.read_ledger(paths, ledger_file.read_boot_id())
        before = next((one for one in ledger.modes if one.gpu == gpu), None)
        if before is None or reconcile.is_in_use(ledger, gpu):
            return
        if unknown := _unknown_jobs(ledger):
            raise StateError(gpu, _may_have_it(unknown))
        compute_mode.set_compute_mode(gpu, before.mode)
        state.write_ledger(paths, reconcile.forget_mode(ledger, gpu), settings)


def _unknown_jobs(ledger: Ledger) -> list[int]:
    """Jobs that have a step here and are not in the ledger, which may have been lost since it was looked at."""
    known = {job.job_id for job in (*ledger.jobs, *(one.job for one in ledger.leaving))}
    return [job.job_id for job in processes.read_live_jobs() if job.job_id not in known]


def _may_have_it(jobs: list[int]) -> str:
    return f"is left alone: job {jobs[0]} is here, the ledger does not know it, and it may have it"


def _stop_daemon(one: Mend, settings: Settings) -> None:
    """Stop it as an Epilog does, and only where nobody has it: no job in the ledger, none that the ledger does not
    know, and no program. Raises StateError with who has it."""
    paths = Paths()

    def read_in_use() -> Mapping[UserGpu, int]:
        with state.exclusive(paths, Deadline.after(LOCK_S)):
            ledger = ledger_file.read_ledger(paths, ledger_file.read_boot_id())
        if unknown := _unknown_jobs(ledger):
            raise StateError(one.path, _may_have_it(unknown))
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
