"""Checks of the sharing backends; each backend defines its own."""

from __future__ import annotations

from collections.abc import Sequence

from ...share import Backend, BackendCheck, Health, Known, registry
from ..facts.records import Check, Facts, Verdict
from .base import COMPUTE, seen
from .base import check as as_check


def _check(backend: Backend, check: BackendCheck) -> Check:
    def run(facts: Facts) -> Sequence[Verdict]:
        health, gpus = seen(facts.backends), facts.gpus
        known = Known(facts.config, facts.state.ledger, gpus.driver, gpus.cuda, has_gpus=bool(gpus.gpus))
        return check.run(known, health.get(backend.name, Health()))

    return as_check(check.name, COMPUTE, asks=check.asks, why=check.why, fix=check.fix)(run)


CHECKS = tuple(_check(backend, check) for backend in registry.every() for check in backend.checks)
TITLES = ", ".join(backend.title for backend in registry.every() if backend.checks)
