"""For all tests, wherever they are."""

from __future__ import annotations

import signal

import pytest

REPORT = "build/screens.html"


def pytest_configure(config: pytest.Config) -> None:
    """What pytest-textual-snapshot writes is kept with all else that is made, wherever pytest was started from."""
    if getattr(config.option, "snapshot_report", "") == "snapshot_report.html":  # its default; nobody asked for another
        config.option.snapshot_report = str(config.rootpath / REPORT)
    # A shell without job control has what it starts with & ignore Ctrl-C, and so would every program of a test.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    # It asks the clock in a way that Python 3.12 and later warn of, and here warnings are errors.
    config.addinivalue_line("filterwarnings", "ignore:datetime.datetime.utcnow:DeprecationWarning")
