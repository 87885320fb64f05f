"""tests/changed.py lists the test files that a change concerns."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import changed

pytestmark = pytest.mark.weekly

QUERY = "tests/unit/tui/test_query.py"


@pytest.mark.parametrize(
    ("file", "test", "other"),
    [
        ("slurm_share/doctor/checks/slurm.py", "tests/unit/doctor/checks/test_checks.py", QUERY),
        ("slurm_share/core/locks.py", "tests/unit/share/test_share_leases.py", QUERY),
        ("tui/query.py", QUERY, "tests/unit/mps/test_mps_folders.py"),
        ("plugins/options.c", "tests/plugins/test_c_programs.py", QUERY),
        ("packaging/docs/security.md", "tests/unit/test_document_claims.py", QUERY),
        ("packaging/docs/users.md", "tests/unit/packaging/test_site.py", QUERY),
        ("tests/unit/load/agents.py", "tests/unit/load/agent/test_agent_http.py", QUERY),
        ("tests/cluster/hooked.py", "tests/cluster/test_share.py", QUERY),
        ("tests/hooks/conftest.py", "tests/hooks/test_hooks.py", QUERY),
    ],
)  # fmt: skip
def test_a_file_concerns_its_tests_and_not_every_one(file: str, test: str, other: str) -> None:
    found = changed.chosen([file])
    assert test in found
    assert other not in found


def test_a_change_of_the_product_concerns_no_test_on_a_cluster() -> None:
    """It would concern all of them."""
    found = changed.chosen(["slurm_share/core/settings.py"])
    assert len(found) > 50
    assert [name for name in found if name.startswith("tests/cluster/")] == []
