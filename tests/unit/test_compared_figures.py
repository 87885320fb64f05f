"""The figures of packaging/docs/compare.md are those of the bench that it names."""

from __future__ import annotations

import importlib.util
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_figures_of_the_comparison_are_the_benchs():
    """Every row; `python tests/bench/compared.py` writes them anew after a new run of the bench."""
    spec = importlib.util.spec_from_file_location("compared", CHECKOUT / "tests/bench/compared.py")
    compared = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compared)
    page = compared.PAGE.read_text()
    assert len(compared.COST.findall(page)) == 8
    assert len(compared.RATE.findall(page)) == 5
    assert compared.filled(page, compared.RESULT.read_text()) == page
