"""The machine that all tests of a run share, from its first start to the removal of the packages, and the run's log.

SLURM_SHARE_TEST_QEMU: any text has the machine emulated by qemu. SLURM_SHARE_TEST_LOG: the file of the log.
"""

from __future__ import annotations

import datetime
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import machine_jobs
import pages
import pytest
from whole_machine import WholeMachine, started

from localcluster.errors import Misuse

QEMU = bool(os.environ.get("SLURM_SHARE_TEST_QEMU"))
ORDER = ("installation", "limits", "memory", "daemons", "end")
ABOUT = """\
. /etc/os-release
echo "$PRETTY_NAME, kernel $(uname -r), $(systemctl --version | head -n 1), $(slurmctld -V)"
echo "cgroup v2 with $(cat /sys/fs/cgroup/cgroup.controllers); $(nproc) CPUs; $(systemd-detect-virt)"
"""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the machine in the order of its life: it cannot be installed twice."""
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    turns = iter(sorted(here, key=lambda item: ORDER.index(item.path.stem.removeprefix("test_machine_"))))
    items[:] = [next(turns) if item in here else item for item in items]


@pytest.fixture(scope="session")
def machine() -> Iterator[WholeMachine]:
    """Yield a machine on which slurm-share is not installed. Skips, aloud, where there can be none."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED on a machine with systemd: it needs root")
    folder = Path(tempfile.mkdtemp(prefix="slurm-share-machine.", dir="/var/tmp"))
    try:
        with (
            Path(os.environ.get("SLURM_SHARE_TEST_LOG", os.devnull)).open("w") as log,
            started(folder, qemu=QEMU, log=log) as made,
        ):
            made.note(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}: {made.ask(ABOUT)}")
            yield made
    except Misuse as error:
        pytest.skip(f"NOT TESTED on a machine with systemd: {error}")


@pytest.fixture(scope="session")
def installed(machine: WholeMachine) -> dict[str, pages.Followed]:
    """Install slurm-share as quickstart.md says, to the first shared job; return what each line did."""
    machine.note("\n== quickstart.md, line by line")
    ran = pages.follow(machine, "quickstart.md")
    machine_jobs.finished(machine)
    return ran


@pytest.fixture(autouse=True)
def in_the_log(request: pytest.FixtureRequest) -> Iterator[None]:
    """Write the name of the test above its commands, and end the jobs that it left."""
    machine: WholeMachine = request.getfixturevalue("machine")
    machine.note(f"\n== {request.node.name.removeprefix('test_').replace('_', ' ')}")
    yield
    if "group" not in request.fixturenames and machine.ask("squeue -h -o %i"):  # it failed on the way
        machine.run("squeue -h -o %i | xargs scancel; scontrol update nodename=n1 state=resume", check=False)
        machine_jobs.finished(machine)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Write the outcome of a test below its commands."""
    report = yield
    machine = item.funcargs.get("machine") if isinstance(item, pytest.Function) else None
    if isinstance(machine, WholeMachine) and (report.when == "call" or report.skipped):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if report.failed and hasattr(report.longrepr, "reprcrash"):
            why = report.longrepr.reprcrash.message[:500]
        machine.note(f"-- {report.outcome}{why and ': '}{why}")
    return report
