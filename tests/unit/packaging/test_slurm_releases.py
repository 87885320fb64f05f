"""The releases of Slurm that everything is tested on are defined in one place."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from make.fetch import SUITES

from localcluster.pyslurm import FITS
from localcluster.records import CURRENT, RELEASES, STABLE, Release, releases
from slurm_share.doctor.checks.slurm import slurm_release
from slurm_share.install.rules.lines import OLDEST
from slurm_share.slurm.releases import SUITES as KNOWN

CHECKOUT = Path(__file__).resolve().parents[3]


def test_a_local_cluster_of_each_can_be_brought_up():
    """A testing suite moves on to newer releases by itself; a stable one keeps its own."""
    assert list(RELEASES) == list(KNOWN)
    assert list(KNOWN)[:2] == [CURRENT, STABLE]
    assert set(FITS) <= set(RELEASES)
    assert releases({"26.05": "forky", "24.11": "trixie"}) == {
        "26.05": Release("26.05", "forky", (26, 5), None),
        "24.11": Release("24.11", "trixie", (24, 11), (25, 0)),
    }
    below = [one.below for one in releases({"26.11": "a", "26.05": "b", "24.11": "c"}).values()]
    assert below == [None, (26, 11), (25, 0)]


def test_doctor_names_each():
    assert slurm_release.asks.endswith(f"tested on: {', '.join(reversed(KNOWN))}")
    assert f"is tested on: {', '.join(reversed(KNOWN))}. (" in (CHECKOUT / "packaging/docs/doctor.md").read_text()


def test_the_packages_have_an_object_for_each():
    assert {suite: release for release, suite in reversed(KNOWN.items())} == SUITES
    run = ["bash", CHECKOUT / "packaging/build.sh"]
    usage = subprocess.run([*run, "--help"], capture_output=True, text=True, check=True).stdout
    assert f"({', '.join(f'{suite}: {release}' for suite, release in SUITES.items())})" in usage
    refused = subprocess.run([*run, "--leave-out", "sarge"], capture_output=True, text=True, check=False)
    said = f"packaging/build.sh: --leave-out: 'sarge' is neither {' nor '.join(SUITES)}\n"
    assert (refused.returncode, refused.stderr) == (2, said)


def test_the_oldest_is_the_oldest_that_install_takes():
    numbers = sorted(tuple(int(part) for part in release.split(".")) for release in RELEASES)
    assert numbers[0] == OLDEST
    first, last = (f"{major}.{minor:02}" for major, minor in (numbers[0], numbers[-1]))
    assert f"For Slurm {first} to {last} with" in (CHECKOUT / "packaging/docs/install.md").read_text()


def test_the_run_of_everything_knows_them():
    """It may be the first program of a bare machine, and reads the list without Python."""
    run = CHECKOUT / "tests/run.sh"
    said = subprocess.run(["bash", run, "--help"], capture_output=True, text=True, check=True).stdout
    assert re.search(r"--slurm (\S+)\]", said)[1].split("|") == ["usual", "all", *RELEASES]
    refused = subprocess.run(["bash", run, "--slurm", "2.6"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "not '2.6'" in refused.stderr


def test_the_demo_knows_them():
    demo = CHECKOUT / "packaging/demo.sh"
    said = subprocess.run(["bash", demo, "--help"], capture_output=True, text=True, check=False)
    assert (said.returncode, f"[--slurm {'|'.join(RELEASES)}]" in said.stderr) == (2, True)
