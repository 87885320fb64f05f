"""Prints the test files that a change concerns: python tests/changed.py [=REV]. `tests/run.sh --changed` runs them.

Changed are the files that differ from REV (default: where this branch left `main`), and new ones. A test is chosen if
it imports a changed module, directly or through others; if it names a changed file, or such a module, in its text;
or if it is in the folder of tests of a changed part that is not Python. A test on a cluster reaches all of the product
through its commands: it is chosen only if it, or what it imports of the tests, has changed.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"slurm_share": "slurm_share", "tui": "slurm_share_tui", "prolog": "slurm_share_hooks"}
"""Folder of the tree -> package, as pyproject.toml has them."""
TESTS_OF = {
    "plugins/": ("tests/plugins/", "tests/contract/", "tests/fuzz/"),
    "prolog/": ("tests/hooks/",),
    "packaging/demo/simgpu/": ("tests/contract/",),
    "packaging/docs/": ("tests/unit/packaging/", "tests/unit/test_document_claims.py"),
    "packaging/site/": ("tests/unit/packaging/",),
}
"""Beginning of the name of a changed file that is not Python -> folders of its tests, or files."""


def module_of(path: str) -> str | None:
    """Return the module of a Python file of the product; None for any other file."""
    folder, _, rest = path.partition("/")
    if folder not in PACKAGES or not rest.endswith(".py"):
        return None
    return ".".join([PACKAGES[folder], *rest.removesuffix(".py").split("/")]).removesuffix(".__init__")


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def offered(package: str) -> dict[str, str]:
    """Return the names that a package's __init__.py offers, with the module of each, as mypy is told."""
    origin = importlib.util.find_spec(package)
    if origin is None or not origin.submodule_search_locations or origin.origin is None:
        return {}
    blocks = [one for one in parsed(Path(origin.origin)).body if isinstance(one, ast.If)]
    return {
        alias.asname or alias.name: f"{package}.{node.module}" if node.module else f"{package}.{alias.name}"
        for block in blocks
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
    }


def imports_of(file: Path, module: str, is_package: bool = False) -> set[str]:
    """Return the modules that a file imports, with the module behind a name that a package offers. What an __init__.py
    imports for mypy only does not count."""
    found = set()
    tree = parsed(file)
    for_mypy = {
        node
        for block in (tree.body if is_package else ())
        if isinstance(block, ast.If)
        for node in ast.walk(block)
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node not in for_mypy:
            package = module if is_package else module.rpartition(".")[0]
            home = importlib.util.resolve_name("." * node.level + (node.module or ""), package or ".")
            known = offered(home) if home.startswith("slurm_share") else {}
            found |= {known.get(alias.name, f"{home}.{alias.name}") for alias in node.names}
            found |= {home} - ({home} if known else set())
    return found


@cache
def importers() -> dict[str, set[str]]:
    """Return for each module of the product those that import it."""
    graph = grimp.build_graph(*PACKAGES.values(), cache_dir=None)
    found: dict[str, set[str]] = {module: set() for module in graph.modules}
    for module in graph.modules:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        for imported in imports_of(Path(spec.origin), module, spec.submodule_search_locations is not None):
            if (home := imported if imported in found else imported.rpartition(".")[0]) in found:
                found[home].add(module)
    return found


def closed(first: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    """Return these and all that follows from them."""
    found, new = set(), list(first)
    while new:
        if (one := new.pop()) not in found:
            found.add(one)
            new += following(one)
    return found


def chosen(changed: Iterable[str]) -> list[str]:
    """Return the test files that changed files concern, each a path from the root of the tree."""
    changed = set(changed)
    concerned = closed(filter(None, map(module_of, changed)), lambda module: importers().get(module, ()))
    files = {str(file.relative_to(ROOT)): file for file in (ROOT / "tests").rglob("*.py")}
    imports = {name: imports_of(file, "") for name, file in files.items()}
    of_tests = {
        name: {part for one in what if not one.startswith("slurm_share") for part in one.split(".")[:2]}
        for name, what in imports.items()
    }

    def users(name: str) -> set[str]:
        """Return the tests' files that import one of them; for a conftest.py, all below it."""
        if Path(name).name == "conftest.py":
            return {one for one in files if one.startswith(str(Path(name).parent) + "/") and one != name}
        stem = Path(name).stem  # in a folder on pytest's path, or in a package of tests/
        return {one for one, what in of_tests.items() if stem in what}

    named = [path for path in changed if not path.startswith("tests/") or not path.endswith(".py")]
    words = {*named, *(Path(path).name for path in named if module_of(path) is None), *concerned}
    pattern = re.compile("|".join(rf"(?<![\w./]){re.escape(word)}(?![\w])" for word in sorted(words)) or r"(?!)")
    own = closed((path for path in changed if path in files), users)
    others = {
        name
        for name, file in files.items()
        if not name.startswith(("tests/cluster/", "tests/gpu/", "tests/systemd/", "tests/bench/"))
        and (
            any(one in concerned or one.rpartition(".")[0] in concerned for one in imports[name])
            or pattern.search(file.read_text(encoding="utf-8"))
        )
    }
    others_changed = [path for path in named if module_of(path) is None]
    folders = tuple(
        folder for first, tests in TESTS_OF.items() for folder in tests
        if any(path.startswith(first) for path in others_changed)
    )  # fmt: skip
    every = own | closed(others, users) | {name for name in files if name.startswith(folders)}
    return sorted(name for name in every if Path(name).name.startswith("test_") and files[name].exists())


def git(*words: str) -> list[str]:
    done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"tests/changed.py: git {words[0]}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def main() -> None:
    rev = "".join(sys.argv[1:]).removeprefix("=") or git("merge-base", "HEAD", "main")[0]
    changed = git("diff", "--name-only", rev, "--") + git("ls-files", "-o", "--exclude-standard")
    print("\n".join(chosen(changed)))


if __name__ == "__main__":
    main()
