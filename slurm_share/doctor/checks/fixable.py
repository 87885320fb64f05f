"""Plan the fixes of `slurm-share doctor --fix`: repair slurm-share's own state that no job uses."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...core.installed import CHOOSER, PLUGIN
from ...share import LedgerJob, has_job, registry
from ..facts.records import Facts, UnknownFact
from . import state
from .base import release_of, seen_or

Kind = Literal["epilog", "choose", "relink", "narrow", "mode", "daemon"]


class Fix(Struct, frozen=True):
    """A fix to apply."""

    kind: Kind
    """epilog: finish the clean-up of a job's Epilog. choose: run the package's slurm-share-plugin; relink: set the
    plugin's link, if there is no such program. narrow: remove others' write permission from a path of ours. mode:
    restore the compute mode of a GPU. daemon: stop a daemon of ours that no job uses."""
    what: str
    """Description for the caller."""
    job_id: int = 0
    uid: int = 0
    restart_count: int | None = None
    partition: str | None = None
    path: str = ""
    """Path of the link or file, or of the daemon's folder."""
    target: str = ""
    """New target of the link, the GPU, or the name of the daemon's backend."""


def plan(facts: Facts) -> tuple[Fix, ...]:
    """Return the next fixes. The caller reads the facts again afterwards and plans what is left."""
    if "compute" in facts.roles and (jobs := _epilogs(facts)):
        return jobs
    if "compute" not in facts.roles:
        return _plugin(facts)
    return (*_plugin(facts), *_narrow(facts), *_unused(facts))


def _epilogs(facts: Facts) -> tuple[Fix, ...]:
    """Only for jobs that both Slurm and the kernel say are over. The Epilog checks again under the ledger's lock, and
    leaves a later run of a requeued job alone."""
    found = (*seen_or(state.over(facts), ()), *_abandoned(facts))
    fixes = [
        Fix("epilog", f"job {job.job_id} of uid {job.uid}: what its Epilog left undone", job.job_id, job.uid,
             job.restart_count, job.partition)
        for job in found
    ]  # fmt: skip
    folders = seen_or(state.orphans(facts), ())
    fixes += [Fix("epilog", f"job {job}: its folder, which nobody has any more", job) for job in folders]
    return tuple(fixes)


def _abandoned(facts: Facts) -> tuple[LedgerJob, ...]:
    """Return jobs whose clean-up hook was killed and that neither Slurm nor the kernel has any more."""
    jobs = facts.slurm.jobs_here
    if isinstance(jobs, UnknownFact):
        return ()
    return tuple(job for job in facts.state.abandoned if job.job_id not in jobs | facts.state.live_jobs)


def _plugin(facts: Facts) -> tuple[Fix, ...]:
    """The packages keep an object for each release next to the link. A site's own build is a file, which is left
    alone."""
    plugin, version = facts.plugin, facts.slurm.version
    if isinstance(version, UnknownFact) or plugin.release == release_of(version) or (plugin.file and not plugin.link):
        return ()
    wanted = release_of(version)
    if plugin.has_chooser and plugin.path == PLUGIN:
        return (Fix("choose", f"{CHOOSER}: {plugin.path} for Slurm {wanted}", path=CHOOSER),)
    folder = next((one for one in plugin.releases if one.rpartition("/")[2] == wanted), None)
    if folder is None or not plugin.link:
        return ()
    target = f"{folder}/{plugin.path.rpartition('/')[2]}"
    return (Fix("relink", f"{plugin.path} -> {target}", path=plugin.path, target=target),)


def _narrow(facts: Facts) -> tuple[Fix, ...]:
    last = [file.chain[-1] for file in (facts.state.folder, facts.state.log) if file is not None]
    return tuple(
        Fix("narrow", f"{one.path}: others may not write there any more", path=one.path)
        for one in last
        if one.uid == 0 and one.mode & 0o022
    )


def _unused(facts: Facts) -> tuple[Fix, ...]:
    """Return fixes for modes and daemons that no job uses. The ledger alone is no proof, because it may have been lost:
    nothing is done if Slurm does not answer, or if a job is here that the ledger does not know."""
    ledger, jobs = facts.state.ledger, facts.slurm.jobs_here
    if isinstance(ledger, UnknownFact) or isinstance(jobs, UnknownFact) or not facts.slurm.are_all_jobs:
        return ()
    known = [*ledger.jobs, *(one.job for one in ledger.leaving)]
    if (jobs | facts.state.live_jobs) - {job.job_id for job in known}:
        return ()
    used = {gpu for job in known for gpu in job.gpus}
    found = [
        Fix("mode", f"GPU {one.gpu}: compute mode {one.mode} again", target=one.gpu)
        for one in ledger.modes
        if one.gpu not in used
    ]
    found += [
        Fix(
            "daemon",
            f"{one.folder}: the {registry.get(name).title} daemon of uid {one.uid}, who has no job on it",
            uid=one.uid,
            path=one.folder,
            target=name,
        )
        for name, health in seen_or(facts.backends, {}).items()
        for one in health.daemons
        if one.condition != "hidden" and not has_job(ledger, one.uid, one.folder)
    ]
    return tuple(found)
