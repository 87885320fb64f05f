"""Fixtures and settings of all tests."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from chromium import Chromium

REPORT = "build/screens.html"
PLUGINS = Path(__file__).resolve().parents[1] / "plugins"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="write the sentences of the product to the golden files, for git diff",
    )
    parser.addoption(
        "--random-examples",
        action="store_true",
        help="give tests of properties other examples in each run; without it they have the same in every run",
    )
    parser.addoption("--examples", type=int, default=25, help="examples of a test of properties (default: %(default)s)")


def pytest_configure(config: pytest.Config) -> None:
    """Keep what pytest-textual-snapshot writes in the build folder, wherever pytest was started."""
    if getattr(config.option, "snapshot_report", "") == "snapshot_report.html":  # its default; nobody asked for another
        config.option.snapshot_report = str(config.rootpath / REPORT)
    # A shell without job control has what it starts with & ignore Ctrl-C, and so would every program of a test.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    # So would they a closed terminal under nohup. With a handler, pytest still does, and programs do not inherit it.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    # It asks the clock in a way that Python 3.12 and later warn of, and here warnings are errors.
    config.addinivalue_line("filterwarnings", "ignore:datetime.datetime.utcnow:DeprecationWarning")
    if not config.pluginmanager.hasplugin("hypothesispytest"):
        return  # a machine with a GPU and little else
    from hypothesis import HealthCheck, settings

    # How long an example takes says how busy the machine is. A change is not to fail by an old mistake that only some
    # examples show; tests/weekly.sh looks for these.
    settings.register_profile(
        "slurm-share",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=not config.getoption("random_examples"),
        max_examples=config.getoption("examples"),
    )
    settings.load_profile("slurm-share")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name an example that is too long to read by its length: some are megabytes."""
    return f"{argname} of {len(val)}" if isinstance(val, str | bytes) and len(val) > 200 else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep Python's collector from going through all tests again and again: they stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def signals_of_tasks_as_before() -> Iterator[None]:
    """Undo what a command run in this process does with SIGUSR1 and SIGUSR2: programs of later tests inherit it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a comparison of a text with a file beside the test, `goldens/NAME`. One that differs is what users are to
    read from now on, or a mistake: `pytest --update-goldens TEST` writes the file, and git diff shows the sentences."""

    def compare(name: str, text: str) -> None:
        file = request.path.parent / "goldens" / name
        if request.config.getoption("update_goldens"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert text.splitlines() == file.read_text(encoding="utf-8").splitlines(), f"see the fixture in {__file__}"

    return compare


@pytest.fixture(scope="session")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Build a program of tests/plugins with sanitizers. All test processes of a run share one folder, so that common
    parts are compiled once."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "c-programs"

    def build(name: str) -> Path:
        folder.mkdir(exist_ok=True)
        with open(folder / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            subprocess.run(["make", "-s", "-C", PLUGINS, f"BUILD={folder}", folder / name], check=True)
        return folder / name

    return build


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """Start a browser for all tests of this worker; skip them, aloud, where there is none."""
    from chromium import Chromium, NotHere

    try:
        browser = Chromium()
    except NotHere as error:
        pytest.skip(f"NOT TESTED in a browser: {error}")
    yield browser
    browser.close()
