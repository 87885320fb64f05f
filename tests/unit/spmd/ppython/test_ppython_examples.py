"""pPython's own example programs run unchanged. tests/bench/ppython_examples.py runs them on more ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench/ppython_examples.py"
CHECKOUT = os.environ.get("PPYTHON_CHECKOUT")
PYTHON = os.environ.get("PPYTHON_PYTHON", sys.executable)


@pytest.mark.slow
@pytest.mark.skipif(
    CHECKOUT is None,
    reason="PPYTHON_CHECKOUT is not set: a clone of github.com/Accla/pPython, whose examples are run; and "
    "PPYTHON_PYTHON: a Python with NumPy, SciPy, SymPy and Matplotlib",
)
def test_the_examples_that_check_themselves_are_right_on_four_ranks() -> None:
    chosen = "AddOne,FFT,HPL,IO,Param_Sweep,RandomAccess"
    done = subprocess.run(
        [PYTHON, str(BENCH), str(CHECKOUT), "--ranks", "4", "--only", chosen, "--show"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of 6 runs of 6 programs are right" in done.stdout
