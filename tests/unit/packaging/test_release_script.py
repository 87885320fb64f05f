"""packaging/release.sh checks all that it can before it builds, and changes nothing in the tree it is called in."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
FILES = ("packaging/release.sh", "pyproject.toml", "packaging/CHANGELOG.md")
VERSION = re.search(r'^version = "(.*)"', (CHECKOUT / "pyproject.toml").read_text(), re.MULTILINE)[1]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a small git tree with the script and what it reads."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((CHECKOUT / name).read_bytes())
    (tmp_path / FILES[0]).chmod(0o755)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(tree: Path, *words: str) -> str:
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    return subprocess.run(["git", *who, *words], cwd=tree, check=True, capture_output=True, text=True).stdout


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "Begin")


def release(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = ["bash", tree / "packaging/release.sh", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def changelog(tree: Path, text: str) -> None:
    (tree / "packaging/CHANGELOG.md").write_text(text)
    commit(tree)


def test_a_dry_run_prints_the_text_of_the_tag_and_makes_nothing(tree: Path) -> None:
    changelog(
        tree, "# Changes\n\n## 9.1 (not released)\n\nSharing\n\n- `llsub` is new.\n\n## 0.1.0 (2026-01-02)\n\n- Old.\n"
    )
    done = release(tree, "--dry-run", "9.1")
    assert (done.returncode, done.stderr) == (0, "")
    head, _, text = done.stdout.partition("\n")
    assert head.endswith(f" Begin: slurm-share 9.1 (now {VERSION})")
    assert text == "slurm-share 9.1\n\nSharing\n\n- llsub is new.\n"
    assert git(tree, "status", "--porcelain") == git(tree, "tag") == ""
    assert not (tree / "build").exists()


def test_the_changelog_of_this_tree_fits_the_next_release(tree: Path) -> None:
    done = release(tree, "--dry-run", VERSION)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_problems_are_named_at_once(tree: Path) -> None:
    changelog(tree, "# Changes\n\n## 0.0.9 (not released)\n\n## 0.0.8 (2026-01-02)\n\n- Old.\n")
    git(tree, "tag", "v0.0.1")
    (tree / "left").touch()
    done = release(tree, "--dry-run", f"--out={tree}", "0.0.1")
    assert done.returncode == 1
    assert [line.removeprefix("packaging/release.sh: ") for line in done.stderr.splitlines()] == [
        "the tree has changes; commit or remove them: left",
        "the tag v0.0.1 exists; a release is made once: choose the next version",
        f"0.0.1 is below {VERSION}, the version in pyproject.toml",
        "packaging/CHANGELOG.md begins with '## 0.0.9 (not released)'; its first section has to be "
        "'## 0.0.1 (not released)'",
        "packaging/CHANGELOG.md says nothing about 0.0.1",
        f"{tree} is not empty: remove what another release has left there, or name another folder with --out",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "which version? see --help"),
        (["1.x"], "'1.x' is no version; write it as 1.2.3 or 1.2.3~rc1"),
        (["1.0", "2.0"], "one version, not '1.0' and '2.0'; see --help"),
        (["--push", "1.0"], "there is no option --push; see --help"),
        (["--out"], "--out needs a value; see --help"),
    ],
)
def test_a_mistake_is_a_sentence(tree: Path, words: list[str], said: str) -> None:
    done = release(tree, *words)
    assert (done.returncode, done.stderr) == (2, f"packaging/release.sh: {said}\n")


@pytest.mark.parametrize(
    ("last", "version", "is_next"),
    [("1.2", "1.10", True), ("1.2rc1", "1.2", True), ("1.2", "1.2~rc1", False), ("1.2", "1.2", True)],
)
def test_versions_rise(tree: Path, last: str, version: str, is_next: bool) -> None:
    project = tree / "pyproject.toml"
    project.write_text(project.read_text().replace(f'version = "{VERSION}"', f'version = "{last}"', 1))
    changelog(tree, f"# Changes\n\n## {version} (not released)\n\n- New.\n")
    done = release(tree, "--dry-run", version)
    assert (done.returncode == 0) is is_next, done.stderr


@pytest.mark.weekly
def test_a_release_has_all_its_parts_and_leaves_the_tree_as_it_was(tmp_path: Path) -> None:
    tree, out = tmp_path / "tree", tmp_path / "out"
    git(CHECKOUT, "clone", "--quiet", "--shared", str(CHECKOUT), str(tree))
    (tree / ".venv").symlink_to(CHECKOUT / ".venv")
    git(tree, "config", "user.name", "test")
    git(tree, "config", "user.email", "test@localhost")
    (tree / ".git/info/exclude").write_text(".venv\n")
    head = git(tree, "rev-parse", "HEAD")
    argv = ["bash", tree / "packaging/release.sh", "--out", out, VERSION]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    kinds = {re.sub(r"[-_]?\d[\w.~+-]*?(?=\.(?:whl|tar\.gz|deb|rpm|so)$)", "", one.name) for one in out.iterdir()}
    assert {"TAG", "SHA256SUMS", "CHANGELOG.md", "slurm-share.deb", "slurm-share-spank.deb", "share_gpu.so"} <= kinds, (
        kinds
    )
    assert re.search(r"git merge --ff-only (\w{40})\n", done.stdout)
    assert (git(tree, "rev-parse", "HEAD"), git(tree, "tag"), git(tree, "status", "--porcelain")) == (head, "", "")
    subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=out, check=True, timeout=60)
