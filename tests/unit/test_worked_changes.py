"""A section's diff is found in the page, applied to a copy, and its files are counted."""

from __future__ import annotations

import pytest
from worked_changes import MOST_PRODUCT_FILES, Change, apply, change_of, changed_tree, changes, python, refreshed

PAGE = """# How to

## A fruit

Say which.

```diff
--- a/slurm_share/fruit.py
+++ b/slurm_share/fruit.py
@@ -7,2 +7,3 @@
 apple
+pear
 last
```

and where it is shown:

  ```diff
  --- /dev/null
  +++ b/slurm_share/plate.py
  @@ -0,0 +1 @@
  +plate
  --- a/tests/unit/test_fruit.py
  +++ b/tests/unit/test_fruit.py
  @@ -1 +1 @@
  -one
  +two
  ```

## Nothing

```console
# true
```
"""


@pytest.fixture
def page(tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path / "page.md"


@pytest.fixture
def tree(tmp_path):
    """A checkout of two files."""
    (tmp_path / "tree/slurm_share").mkdir(parents=True)
    (tmp_path / "tree/tests/unit").mkdir(parents=True)
    (tmp_path / "tree/slurm_share/fruit.py").write_text("first\napple\nlast\n")
    (tmp_path / "tree/tests/unit/test_fruit.py").write_text("one\n")
    return tmp_path / "tree"


def test_a_section_s_blocks_are_one_change(page):
    change = change_of("A fruit", page)
    assert changes(page) == (change,)
    assert change.files == ("slurm_share/fruit.py", "slurm_share/plate.py", "tests/unit/test_fruit.py")
    with pytest.raises(LookupError, match="no section 'Nothing' with a diff"):
        change_of("Nothing", page)


def test_product_files_are_all_but_tests_and_documents():
    names = (
        "plugins/step.c",
        "packaging/build.sh",
        "packaging/docs/x.schema.json",
        "README.md",
        "tests/a.py",
        "tui/a.py",
    )
    diff = "".join(f"--- a/{name}\n+++ b/{name}\n" for name in names)
    assert Change("", diff).product_files == ("packaging/build.sh", "plugins/step.c", "tui/a.py")


def test_a_change_is_applied_where_its_lines_are(page, tree):
    apply(change_of("A fruit", page), tree)
    assert (tree / "slurm_share/fruit.py").read_text() == "first\napple\npear\nlast\n"
    assert (tree / "slurm_share/plate.py").read_text() == "plate\n"
    assert (tree / "tests/unit/test_fruit.py").read_text() == "two\n"


def test_a_change_of_other_lines_is_refused(page, tree):
    (tree / "slurm_share/fruit.py").write_text("cherry\n")
    with pytest.raises(AssertionError, match=r"'A fruit' does not apply:\n.*slurm_share/fruit.py"):
        apply(change_of("A fruit", page), tree)


def test_a_refreshed_diff_makes_the_same_change(page, tree, tmp_path):
    before = {file: file.read_text() for file in tree.rglob("*.py")}
    change = change_of("A fruit", page)
    again = refreshed(change, tree)
    after = {file: file.read_text() for file in tree.rglob("*.py")}
    assert "@@ -2,2 +2,3 @@\n apple\n+pear\n last\n" in again
    (tree / "slurm_share/plate.py").unlink()
    for file, text in before.items():
        file.write_text(text)
    apply(Change("again", again), tree)
    assert {file: file.read_text() for file in tree.rglob("*.py")} == after


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.section)
def test_every_worked_change_touches_few_product_files(change, tmp_path):
    assert len(change.product_files) <= MOST_PRODUCT_FILES
    tree = changed_tree(change, tmp_path)
    assert python(tree, "import slurm_share; print(slurm_share.__file__)").startswith(str(tree))
