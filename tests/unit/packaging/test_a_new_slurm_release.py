"""With the one product file of extending.md changed, everything that names Slurm's releases names a new one."""

from __future__ import annotations

import subprocess

import pytest
import worked_changes

pytestmark = pytest.mark.weekly

SECTION = "A Slurm release"


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Return a copy of this checkout with the change of the page."""
    return worked_changes.changed_tree(worked_changes.change_of(SECTION), tmp_path_factory.mktemp("tree"))


def test_one_product_file_is_touched():
    assert worked_changes.change_of(SECTION).product_files == ("slurm_share/slurm/releases.py",)


def test_every_place_follows(changed):
    worked_changes.pytest(
        changed,
        "tests/unit/packaging/test_slurm_releases.py",
        "tests/unit/cli/test_doctor_command.py::test_the_page_is_made_of_the_checks",
    )


def test_the_doctor_takes_it_for_tested(changed):
    code = "from slurm_share.doctor.checks.slurm import TESTED; print(*TESTED)"
    assert worked_changes.python(changed, code).split() == ["24.11", "26.05", "26.11"]
    code = "from localcluster.records import CURRENT, STABLE; print(CURRENT, STABLE)"
    assert worked_changes.python(changed, code).split() == ["26.11", "26.05"]


@pytest.mark.parametrize(
    "program", ["packaging/build.sh", "packaging/demo/cluster", "packaging/demo.sh", "tests/run.sh"]
)
def test_every_program_offers_it(changed, program):
    said = subprocess.run([changed / program, "--help"], cwd=changed, capture_output=True, text=True, check=False)
    assert "26.11" in said.stdout + said.stderr
