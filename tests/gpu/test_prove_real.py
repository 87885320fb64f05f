"""Which promises the driver of this machine keeps, and how it limits the memory of a cgroup.

    pytest -m gpu tests/gpu/test_prove_real.py

as root, on an idle machine with a GPU; needs neither Slurm nor PyTorch. The answers are in
tests/gpu/results/prove-<driver>.json and tests/gpu/results/memory-limits-<driver>.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from slurm_share.core.errors import DriverError
from slurm_share.core.settings import Settings
from slurm_share.mps import daemons
from slurm_share.node.gpus import driver as nvml
from slurm_share.prove import proof, stage
from slurm_share.share import drivers, node_offer

pytestmark = pytest.mark.gpu
RESULTS = Path(__file__).resolve().parent / "results"
NOBODY = 65534
CAP_MIB = 4096
ROUNDS = 20


@pytest.fixture
def offer() -> Any:
    """Return what this machine has; skip, aloud, without a real GPU or root."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root may start programs as a user and limit their memory")
    found = node_offer.read_offer(Settings())
    if found.driver is None or any(gpu.simulated for gpu in found.gpus):
        pytest.skip(f"NOT TESTED: no real GPU ({found.problem or found.driver})")
    return found


def write(name: str, driver: str, found: Any) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}-{driver}.json").write_text(json.dumps(found, indent=2) + "\n")


def test_the_driver_holds_what_is_promised_of_it(offer: Any) -> None:
    made = proof.prove(Settings(), None, "nobody", lambda _proof: None, lambda _verdict: None)
    write("prove", made.driver, to_builtins(made))
    assert not made.simulated
    assert [(one.promise, one.why) for one in made.broken] == []


@contextlib.contextmanager
def staged(offer: Any) -> Iterator[stage.Stage]:
    with stage.alone(Settings().mps_control):
        owner = daemons.owner(NOBODY, NOBODY)
        made = stage.Stage(offer.gpus[0], owner, Settings().mps_control, CAP_MIB, 5 * CAP_MIB)
        try:
            yield made
        finally:
            made.reset()


def test_how_the_driver_limits_the_memory_of_a_cgroup(offer: Any) -> None:
    """The back end, the time of a call, total and free memory as a program sees them, with and without MPS, and what
    remains when the cgroup has gone."""
    if not drivers.offers(offer.driver, drivers.MEMORY_LIMITS) or offer.cgroup != 2:
        pytest.skip(f"NOT TESTED: driver {offer.driver}, cgroup {offer.cgroup}")
    found: dict[str, Any] = {"driver": offer.driver, "kernel": os.uname().release, "controllers": offer.controllers}
    with staged(offer) as made:
        made.limit("task", CAP_MIB)
        folder = made._folder("task")
        for name, call in (
            ("set_s", lambda: nvml.set_memory_limits(made.gpu.uuid, folder, 0, CAP_MIB * stage.MIB)),
            ("get_s", lambda: nvml.read_memory_limits(made.gpu.uuid, folder)),
        ):
            began = time.monotonic()
            for _ in range(ROUNDS):
                call()
            found[name] = round((time.monotonic() - began) / ROUNDS, 6)
        for mps in (False, True):
            client = made.client(made.environment(mps=mps), "context", "most:device:8192", "info", group="task")
            found[f"mps={mps}"] = [client.wait_for(step)[0] for step in ("context", "most", "info")]
            made.end_clients()
        made.reset()
        try:
            found["after_the_cgroup"] = str(nvml.read_memory_limits(made.gpu.uuid, folder))
        except DriverError as error:
            found["after_the_cgroup"] = error.reason
    write("memory-limits", offer.driver, found)
    assert found["mps=False"][0]["total_mib"] == pytest.approx(CAP_MIB, rel=0.02)
