"""For all tests, wherever they are."""

from __future__ import annotations

import pytest

REPORT = "build/screens.html"


def pytest_configure(config: pytest.Config) -> None:
    """What pytest-textual-snapshot writes is kept with all else that is made, wherever pytest was started from."""
    if getattr(config.option, "snapshot_report", "") == "snapshot_report.html":  # its default; nobody asked for another
        config.option.snapshot_report = str(config.rootpath / REPORT)
    # It asks the clock in a way that Python 3.12 and later warn of, and here warnings are errors.
    config.addinivalue_line("filterwarnings", "ignore:datetime.datetime.utcnow:DeprecationWarning")
