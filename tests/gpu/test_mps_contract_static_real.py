"""The contract of tests/contract/test_mps_contract_static.py, held against NVIDIA's own control program. Needs a GPU
with driver 590 or newer and compute capability 8.0."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "contract"))

from test_mps_contract import Program
from test_mps_contract_real import find_program
from test_mps_contract_static import *  # noqa: F403  (every test of it, and its fixtures)

pytestmark = pytest.mark.gpu

RELEASES = (590, 595, 610, 615)
"""Those with tests of their own; a real driver is held to the newest that is not newer than itself."""


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Program:
    found = find_program()
    if found.driver < 590:
        pytest.skip(f"NOT TESTED: static partitions need driver 590 or newer, and this is {found.driver}")
    asked = getattr(request, "param", None)
    if asked is not None and int(asked) != max(release for release in RELEASES if release <= found.driver):
        pytest.skip(f"NOT TESTED: what release {asked} does, and this is {found.driver}")
    return found
