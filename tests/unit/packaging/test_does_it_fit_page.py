"""packaging/docs/does-it-fit.md says what the records say that run on the cluster, and its checks and tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from configurations import PAGE, TABLE, page, read

from slurm_share.doctor.checks.every import ALL
from slurm_share.doctor.checks.faults import FAULTS
from slurm_share.slurm.releases import TESTED

CHECKOUT = Path(__file__).resolve().parents[3]
ROWS = read(TABLE.read_text())


def test_the_page_is_made_of_the_records():
    assert PAGE.read_text() == page(ROWS), "make it with: tests/configurations.py --write"


def test_install_links_the_page():
    assert f"]({PAGE.name})" in PAGE.with_name("install.md").read_text()


def test_names_are_unique():
    names = [row.name for row in ROWS]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_record_names_checks_and_tests_that_exist(row):
    assert set(row.doctor) <= {check.name for check in ALL}
    assert row.release in ("", *TESTED)
    assert row.fits in ("yes", "no", "refused")
    if row.by:
        file, _, test = row.by.partition("::")
        text = (CHECKOUT / "tests/cluster" / file).read_text()
        assert test in {fault.name for fault in FAULTS} or re.search(rf"^def {test}\b", text, re.MULTILINE), row.by


@pytest.mark.parametrize("row", [row for row in ROWS if row.fits == "no" and not row.wrong], ids=lambda row: row.name)
def test_doctor_names_what_does_not_fit(row):
    assert row.doctor
