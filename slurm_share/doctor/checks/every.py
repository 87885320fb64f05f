"""All checks in order, and their findings about one host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ...share import Backend, BackendCheck, BackendFacts, Health, registry
from ..facts.records import Check, CheckVerdict, Facts, Finding, Needs, Outcome
from . import gpus, hooks, plugin, policy, slurm, state, system
from .base import COMPUTE, seen
from .base import check as as_check


def _check(backend: Backend, check: BackendCheck) -> Check:
    def run(facts: Facts) -> Sequence[CheckVerdict]:
        health, gpus = seen(facts.backends), facts.gpus
        known = BackendFacts(
            facts.config,
            facts.state.ledger,
            gpus.driver,
            gpus.cuda,
            has_gpus=bool(gpus.gpus),
            gpus=tuple(one.gpu for one in gpus.gpus),
        )
        return check.run(known, health.get(backend.name, Health()))

    return as_check(check.name, COMPUTE, asks=check.asks, why=check.why, fix=check.fix)(run)


BACKEND_CHECKS = tuple(_check(backend, check) for backend in registry.every() for check in backend.checks)
BACKEND_TITLES = ", ".join(backend.title for backend in registry.every() if backend.checks)
THEMES: tuple[tuple[str, tuple[Check, ...]], ...] = (
    ("Slurm", slurm.CHECKS),
    ("Plugin, programs and settings", plugin.CHECKS),
    ("Prolog and Epilog", hooks.CHECKS),
    ("The controller and shared jobs", policy.CHECKS),
    ("Operating system and confinement of jobs", system.CHECKS),
    (f"GPUs and {BACKEND_TITLES}", (*gpus.CHECKS, *BACKEND_CHECKS, gpus.cuda)),
    ("State on a node", state.CHECKS),
)
ALL: tuple[Check, ...] = tuple(check for _, checks in THEMES for check in checks)
FORESEES: dict[int, tuple[str, ...]] = {
    1: ("ledger-lock",), 5: ("gpu-processes",), 6: ("mps-health",),
    7: ("state-folder", "mps-daemons"), 9: ("state-folder", "users-folder", "job-folders"),
    10: ("mps-daemons", "exclusive"),
    11: ("foreign-mps",), 12: ("mps-health",), 14: ("mps-daemons",),
    15: ("private-shm", "shared-memory", "job-folders", "containers", "open-files", "remove-ipc", "task-prolog"),
    16: ("compute-mode",), 17: ("mig", "gpu-count"), 19: ("mps-driver",), 20: ("gres", "job-submit"),
    23: ("hook-order",), 24: ("hook-files", "hook-owner"), 26: ("run-in-job",), 27: ("persistence", "hook-time"),
    28: ("slurmd-restarted", "ledger"), 29: ("mps-driver",), 30: ("plugin-release", "plugin", "plugstack"),
}  # fmt: skip
"""Rows of packaging/docs/failure-modes.md -> the checks that find their cause, before or while they happen. The other
rows happen to one job at one moment and cannot be seen on a host before.
"""
ORDER: tuple[Outcome, ...] = ("FAIL", "WARN", "SKIP", "PASS")


def examine(facts: Facts, without: Collection[str] = (), needs: Needs | None = None) -> tuple[Finding, ...]:
    """Return the findings of all checks for this host's roles, except those named in `without`. needs: only checks that
    need this."""
    return tuple(
        Finding(check.name, verdict.outcome, verdict.what, _fix(check, verdict.outcome, verdict.fix))
        for check in ALL
        if set(check.roles) & set(facts.roles) and check.name not in without and needs in (None, check.needs)
        for verdict in check.run(facts)
    )


def _fix(check: Check, outcome: Outcome, said: str) -> str:
    return (said or check.fix) if outcome in ("WARN", "FAIL") else ""


def shown(finding: Finding) -> list[str]:
    """Return a finding as lines for people."""
    said = f"{finding.outcome}  {finding.check}: {finding.what}"
    return [said, *([f"      fix: {finding.fix}"] if finding.fix else [])]


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0: all passed, 1: warnings, 2: failures."""
    outcomes = {finding.outcome for finding in findings}
    return 2 if "FAIL" in outcomes else 1 if "WARN" in outcomes else 0
