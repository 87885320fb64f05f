"""The worked changes of packaging/docs/extending.md: each section's diff, applied to a copy of this checkout.

A test takes a section's change, applies it to a copy, and asks the copy what follows from it:

    def test_a_new_metric_is_in_every_output(tmp_path):
        change = change_of("A metric")
        assert len(change.product_files) <= MOST_PRODUCT_FILES
        tree = changed_tree(change, tmp_path)
        assert "tensor_percent" in python(tree, "from slurm_share.load import columns; print(columns.NAMES)")

`python tests/worked_changes.py` applies every section's diff and prints which product files each touches.
`python tests/worked_changes.py --refresh` also writes each diff anew, with the line numbers and neighbours of today;
what a diff changes stays the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

from faults import copy_tree

CHECKOUT = Path(__file__).resolve().parents[1]
PAGE = CHECKOUT / "packaging/docs/extending.md"
MOST_PRODUCT_FILES = 3
"""How many product files a worked change may touch."""
_SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
_BLOCK = re.compile(r"^( *)```diff\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_HEAD = re.compile(r"^--- (?:a/)?(\S+)\n\+\+\+ (?:b/)?(\S+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Change:
    """One section's change: a unified diff as `git diff` prints it."""

    section: str
    diff: str

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that it changes, makes or removes, from the top of the checkout."""
        return tuple(sorted({name for pair in _HEAD.findall(self.diff) for name in pair if name != "/dev/null"}))

    @property
    def product_files(self) -> tuple[str, ...]:
        """Those that are neither a test nor a document."""
        return tuple(name for name in self.files if is_product(name))


def is_product(name: str) -> bool:
    """Answer whether a file is installed, builds or shows the product: all but tests and documents are."""
    return not name.startswith(("tests/", "packaging/docs/", ".github/")) and Path(name).suffix != ".md"


def change_of(section: str, page: Path = PAGE) -> Change:
    """Return the change of a section; several diff blocks are one change. Raises LookupError where there is none."""
    for found in changes(page):
        if found.section == section:
            return found
    raise LookupError(f"{page} has no section {section!r} with a diff block")


def changes(page: Path = PAGE) -> tuple[Change, ...]:
    """Return the change of every section that has one, in the page's order."""
    found = []
    for section, text in _SECTION.findall(page.read_text(encoding="utf-8")):
        blocks = [textwrap.dedent(body) if indent else body for indent, body in _BLOCK.findall(text)]
        if blocks:
            found.append(Change(section, "".join(blocks)))
    return tuple(found)


def changed_tree(change: Change, target: Path) -> Path:
    """Copy this checkout with its virtual environment into the empty folder `target`, and apply the change there."""
    copy_tree(target)
    apply(change, target)
    return target


def apply(change: Change, tree: Path) -> None:
    """Apply a change to a tree. Raises AssertionError, with what git says, where the tree has other lines."""
    # git finds the place by the lines around it: one on each side, or it takes it for the end of the file. --recount: a
    # person may edit a hunk without counting its lines. It ends a hunk only where a line says "diff".
    text = _HEAD.sub(lambda head: f"diff -u\n{head[0]}", change.diff)
    done = _git(tree, "apply", "--recount", "-", text=text)
    assert done.returncode == 0, f"the diff of {change.section!r} does not apply:\n{done.stderr}"


def python(tree: Path, code: str, *args: str) -> str:
    """Run code in the tree's interpreter, as a program of the tree; return what it prints. Also finds `localcluster`,
    `make` and the modules of tests/. Raises AssertionError with its stderr where it fails."""
    done = subprocess.run(
        [tree / ".venv/bin/python", "-c", code, *args], cwd=tree, env=_environment(tree), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pytest(tree: Path, *tests: str) -> None:
    """Run tests of the tree, files or test ids. Raises AssertionError with pytest's text where one fails."""
    argv = [tree / ".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(argv, cwd=tree, env=_environment(tree), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _environment(tree: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST_"))}
    folders = (tree / "packaging/demo", tree / "packaging", tree / "tests")
    return {**kept, "PATH": f"{tree}/.venv/bin:{os.environ['PATH']}", "PYTHONPATH": ":".join(map(str, folders))}


def _git(tree: Path, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run git in a tree that is in no repository, or is one itself."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    kept |= {"GIT_CEILING_DIRECTORIES": str(tree.resolve().parent), "GIT_CONFIG_GLOBAL": "/dev/null"}
    return subprocess.run(["git", *words], cwd=tree, env=kept, input=text, capture_output=True, text=True)


def refreshed(change: Change, tree: Path) -> str:
    """Return the diff again as git prints it today, one line of context on each side. `tree` is an unchanged copy."""
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "before")):
        done = _git(tree, *words)
        assert done.returncode == 0, done.stderr
    apply(change, tree)
    _git(tree, "add", "-A", "-N")
    printed = _git(tree, "diff", "-U1", "--no-color", "--no-ext-diff").stdout
    # The page needs names, line numbers and lines only.
    printed = re.sub(r"^(?:diff --git|index|new file mode|deleted file mode) .*\n", "", printed, flags=re.MULTILINE)
    return re.sub(r"^(@@ \S+ \S+ @@) .*", r"\1", printed, flags=re.MULTILINE)


def main() -> int:
    """Apply every diff, print what it touches, refresh it if asked; 1 where one touches too many product files."""
    good = True
    for change in changes():
        print(f"{change.section}: {len(change.product_files)} product files: {', '.join(change.product_files)}")
        good &= len(change.product_files) <= MOST_PRODUCT_FILES
        with tempfile.TemporaryDirectory() as folder:
            if "--refresh" not in sys.argv[1:]:
                changed_tree(change, Path(folder))
                continue
            copy_tree(Path(folder))
            _write(change, refreshed(change, Path(folder)))
    return 0 if good else 1


def _write(change: Change, diff: str) -> None:
    """Put a diff in the place of the section's first block; further blocks go."""
    page = PAGE.read_text(encoding="utf-8")
    whole = next(found[0] for found in _SECTION.finditer(page) if found[1] == change.section)
    indent = next(_BLOCK.finditer(whole))[1]
    new = textwrap.indent(f"```diff\n{diff}```", indent)
    first, *more = (found[0] for found in _BLOCK.finditer(whole))
    text = whole.replace(first, new, 1)
    for block in more:
        text = text.replace(f"{block}\n", "", 1)
    PAGE.write_text(page.replace(whole, text), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
