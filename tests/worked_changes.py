"""The worked changes of packaging/docs/extending.md: each section's diff, applied to a copy of this checkout.

change = change_of("A metric")
assert len(change.product_files) <= MOST_PRODUCT_FILES
tree = changed_tree(change, tmp_path)
assert "tensor_percent" in python(tree, "from slurm_share.load import columns; print(columns.NAMES)")
"""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path

from faults import copy_tree

PAGE = Path(__file__).resolve().parents[1] / "packaging/docs/extending.md"
MOST_PRODUCT_FILES = 3
"""The largest number of product files that a worked change may touch."""
_SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
_BLOCK = re.compile(r"^( *)```diff\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_HEAD = re.compile(r"^--- (?:a/)?(\S+)\n\+\+\+ (?:b/)?(\S+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Change:
    """One section's change: a unified diff as `git diff` prints it."""

    section: str
    diff: str

    @property
    def product_files(self) -> tuple[str, ...]:
        """Return the files that the change touches, without tests and documents."""
        names = {name for pair in _HEAD.findall(self.diff) for name in pair if name != "/dev/null"}
        other = ("tests/", "packaging/docs/", ".github/")
        return tuple(sorted(name for name in names if not name.startswith(other) and Path(name).suffix != ".md"))


def changes() -> tuple[Change, ...]:
    """Return the change of every section that has one; several diff blocks of a section are one change."""
    found = []
    for section, text in _SECTION.findall(PAGE.read_text(encoding="utf-8")):
        blocks = [textwrap.dedent(body) if indent else body for indent, body in _BLOCK.findall(text)]
        if blocks:
            found.append(Change(section, "".join(blocks)))
    return tuple(found)


def change_of(section: str) -> Change:
    """Return the change of a section. Raises KeyError for a section without a diff."""
    return {change.section: change for change in changes()}[section]


def apply(change: Change, tree: Path, *options: str) -> None:
    """Apply the change to a tree with `git apply`. Raises AssertionError, with git's message, where the tree has other
    lines. `options`: `--check` tries it only."""
    # One line of context on each side, or git takes a hunk for the end of the file. --recount: a person may edit a hunk
    # without counting its lines; git then ends a hunk only where a line begins with "diff".
    text = _HEAD.sub(lambda head: f"diff -u\n{head[0]}", change.diff)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    kept |= {"GIT_CEILING_DIRECTORIES": str(tree.resolve().parent), "GIT_CONFIG_GLOBAL": "/dev/null"}
    argv = ["git", "apply", "--recount", *options, "-"]
    done = subprocess.run(argv, cwd=tree, env=kept, input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"the diff of {change.section!r} does not apply:\n{done.stderr}"


def changed_tree(change: Change, target: Path) -> Path:
    """Copy this checkout with its virtual environment into the empty folder `target`, and apply the change there."""
    copy_tree(target)
    apply(change, target)
    return target


def python(tree: Path, code: str, *args: str) -> str:
    """Run code in the tree's interpreter and return what it prints. Raises AssertionError with stderr if it fails.

    The code can import `localcluster`, `make` and the modules of tests/.
    """
    return _run(tree, "-c", code, *args)


def pytest(tree: Path, *tests: str) -> None:
    """Run tests of the tree, files or test ids. Raises AssertionError with pytest's text where one fails."""
    _run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)


def _run(tree: Path, *argv: str) -> str:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST_"))}
    folders = (tree / "packaging/demo", tree / "packaging", tree / "tests")
    env = {**kept, "PATH": f"{tree}/.venv/bin:{os.environ['PATH']}", "PYTHONPATH": ":".join(map(str, folders))}
    done = subprocess.run([tree / ".venv/bin/python", *argv], cwd=tree, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
