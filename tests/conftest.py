"""For all tests, wherever they are."""

from __future__ import annotations

import signal
from collections.abc import Iterator

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


@pytest.fixture(autouse=True)
def signals_of_tasks_as_before() -> Iterator[None]:
    """Undo what a command run in this process does with SIGUSR1 and SIGUSR2: programs of later tests inherit it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
