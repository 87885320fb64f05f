"""The contract of tests/contract/test_mps_contract_v3.py, held against NVIDIA's own control program. Needs a GPU with
driver 615 or newer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "contract"))

from test_mps_contract import Program
from test_mps_contract_real import find_program
from test_mps_contract_v3 import *  # noqa: F403  (every test of it, and its fixtures)

pytestmark = pytest.mark.gpu


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Program:
    found = find_program()
    if found.driver < 615:
        pytest.skip(f"NOT TESTED: protocol 3 needs driver 615 or newer, and this is {found.driver}")
    asked = getattr(request, "param", None)
    if asked is not None and int(asked) < 615:
        pytest.skip("NOT TESTED: what an older release does")
    return found
