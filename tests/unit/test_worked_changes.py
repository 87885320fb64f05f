"""The worked changes of packaging/docs/extending.md apply to this checkout."""

from __future__ import annotations

import pytest
from worked_changes import MOST_PRODUCT_FILES, PAGE, apply, changes


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.section)
def test_every_worked_change_touches_few_product_files_and_applies(change):
    assert 1 <= len(change.product_files) <= MOST_PRODUCT_FILES
    apply(change, PAGE.parents[2], "--check")
