"""Checks of the sharing backends; each backend defines its own."""

from __future__ import annotations

from collections.abc import Sequence

from ...share import Backend, BackendCheck, Health, Known, registry
from ..facts.records import Check, Facts, Unseen, Verdict
from .base import COMPUTE, skip


def _check(backend: Backend, check: BackendCheck) -> Check:
    def run(facts: Facts) -> Sequence[Verdict]:
        if isinstance(facts.backends, Unseen):
            return skip(facts.backends)
        gpus = facts.gpus
        known = Known(facts.config, facts.state.ledger, gpus.driver, gpus.cuda, has_gpus=bool(gpus.gpus))
        return check.run(known, facts.backends.get(backend.name, Health()))

    return Check(check.name, COMPUTE, check.asks, check.why, check.fix, run)


CHECKS = tuple(_check(backend, check) for backend in registry.every() for check in backend.checks)
TITLES = ", ".join(backend.title for backend in registry.every() if backend.checks)
