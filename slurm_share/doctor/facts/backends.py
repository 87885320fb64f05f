"""Health of the backends on this node, as each backend's `health` reports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...core.errors import StateError
from ...core.paths import Paths
from ...core.settings import Settings
from ...share import Examination, Health, Host, Ledger, LedgerJob, Plan, ledger_file, registry
from . import programs, state
from .records import LostPath, Mount, Unseen


def read_backends(
    settings: Settings,
    state_root: str,
    root: Path,
    mounts: Sequence[Mount],
    *,
    driver: str | Unseen,
    ledger: Ledger | Unseen,
    asks_daemons: bool,
) -> Mapping[str, Health]:
    """Return the health of each backend by name. Daemons are searched only if the ledger tells which jobs have them."""
    paths = Paths(root=root / state_root.lstrip("/"), cgroup=root / str(Paths().cgroup).lstrip("/"))
    examination = Examination(
        driver,
        lambda path: programs.read_file_fact(path, root, mounts),
        () if isinstance(ledger, Unseen) else read_plans(ledger, paths),
        asks_daemons,
    )
    host = Host(paths=paths, settings=settings, root=root)
    of = () if isinstance(ledger, Unseen) else None
    return {one.name: one.health(host, of, examination=examination) for one in registry.every()}


def lost_of(backends: Mapping[str, Health], state_root: str, root: Path) -> tuple[LostPath, ...]:
    """Return missing files of daemons that jobs need. An Epilog removes a job from the ledger at its end, so only jobs
    that are still in the ledger count."""
    lost = [LostPath(*one) for health in backends.values() for one in health.lost]
    here = state.read_jobs_here(Paths(root=root / state_root.lstrip("/")), root) if lost else frozenset()
    return tuple(one for one in lost if one.job_id in here)


def read_plans(ledger: Ledger, paths: Paths) -> tuple[tuple[LedgerJob, frozenset[str]], ...]:
    """Return the jobs that share, and the daemon folders in each job's plan."""
    return tuple((job, _folders(job, paths)) for job in ledger.jobs if job.share)


def _folders(job: LedgerJob, paths: Paths) -> frozenset[str]:
    """Return the daemon folders in a job's plan; none for a damaged plan, which the hooks report to its job."""
    try:
        plan = ledger_file.read_plan(paths, job.job_id)
    except StateError:
        return frozenset()
    slots = plan.slots if isinstance(plan, Plan) else ()
    return frozenset(slot.mps_directory for slot in slots if slot.mps_directory is not None)
