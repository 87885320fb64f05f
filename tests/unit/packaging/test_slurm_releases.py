"""The releases of Slurm that everything is tested on stand in one place; what cannot ask there says the same."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from make.fetch import SUITES

from localcluster.pyslurm import FITS
from localcluster.records import CURRENT, RELEASES, STABLE
from slurm_share.doctor.checks.slurm import TESTED
from slurm_share.install.rules.lines import OLDEST

CHECKOUT = Path(__file__).resolve().parents[3]


def test_what_doctor_knows_is_what_is_tested():
    """The library is installed without the local cluster, so it has a list of its own."""
    assert set(TESTED) == set(RELEASES)


def test_the_packages_have_an_object_for_each():
    """From the Debian suite that the local cluster has it from."""
    assert {release.suite: name for name, release in RELEASES.items()} == SUITES
    build = (CHECKOUT / "packaging/build.sh").read_text()
    assert f"=~ ^({'|'.join(SUITES)})$" in build
    assert f"({', '.join(f'{suite}: {release}' for suite, release in SUITES.items())})" in build


def test_the_oldest_is_the_oldest_that_install_takes():
    """And the page says from which to which."""
    numbers = sorted(tuple(int(part) for part in release.split(".")) for release in RELEASES)
    assert numbers[0] == OLDEST
    first, last = (f"{major}.{minor:02}" for major, minor in (numbers[0], numbers[-1]))
    assert f"For Slurm {first} to {last} with" in (CHECKOUT / "packaging/docs/install.md").read_text()


def test_what_else_names_releases_names_these():
    """pyslurm for some of them; an upgrade from the one to the other."""
    assert set(FITS) <= set(RELEASES)
    assert {STABLE, CURRENT} <= set(RELEASES)


def test_the_run_of_everything_knows_them():
    """It may be the first program of a bare machine, and reads the list without Python."""
    run = CHECKOUT / "tests/run.sh"
    said = subprocess.run(["bash", run, "--help"], capture_output=True, text=True, check=True).stdout
    assert re.search(r"--slurm (\S+)\]", said)[1].split("|") == ["usual", "all", *RELEASES]
    refused = subprocess.run(["bash", run, "--slurm", "2.6"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "not '2.6'" in refused.stderr
