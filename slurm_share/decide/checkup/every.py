"""All checks, in the order in which they are looked at, and what they say of one host."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ...checkup import Check, Facts, Finding, Outcome
from . import gpus, hooks, plugin, policy, slurm, state, system

THEMES: tuple[tuple[str, tuple[Check, ...]], ...] = (
    ("Slurm", slurm.CHECKS),
    ("Plugin, programs and settings", plugin.CHECKS),
    ("Prolog and Epilog", hooks.CHECKS),
    ("What the controller makes of a shared job", policy.CHECKS),
    ("The operating system, and what jobs are confined with", system.CHECKS),
    ("GPUs and MPS", gpus.CHECKS),
    ("What slurm-share keeps on a node", state.CHECKS),
)
ALL: tuple[Check, ...] = tuple(check for _, checks in THEMES for check in checks)
ORDER: tuple[Outcome, ...] = ("FAIL", "WARN", "SKIP", "PASS")


def examine(facts: Facts, without: Collection[str] = ()) -> tuple[Finding, ...]:
    """What every check for this host's roles says; of checks that are named in `without`, nothing."""
    return tuple(
        Finding(check.name, verdict.outcome, verdict.what, _fix(check, verdict.outcome, verdict.fix))
        for check in ALL
        if set(check.roles) & set(facts.roles) and check.name not in without
        for verdict in check.look(facts)
    )


def _fix(check: Check, outcome: Outcome, said: str) -> str:
    return (said or check.fix) if outcome in ("WARN", "FAIL") else ""


def exit_code(findings: Iterable[Finding]) -> int:
    """0: all well; 1: warnings; 2: something fails."""
    outcomes = {finding.outcome for finding in findings}
    return 2 if "FAIL" in outcomes else 1 if "WARN" in outcomes else 0
