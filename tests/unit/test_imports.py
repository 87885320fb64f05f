"""Modules and packages import each other in one direction only.

A package offers names of its modules in its __init__.py and loads a module when one of its names is asked for
(slurm_share/core/lazy.py). lint-imports sees the package only. Here `from ..share import Plan` counts as an import of
share.records, and the imports by which an __init__.py tells mypy where each name is do not count.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

OPEN = ("core", "node", "slurm", "mps", "spmd")
"""Feature packages whose modules every other one may import one by one."""
LOADS_LAB = "slurm_share.packing.lab_parts"
"""Loads policies of the laboratory by name, for comparisons; the laboratory looks inside packing on purpose."""
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
CONTRACTS = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]


@pytest.fixture(scope="module")
def written():
    """Return the names that each importer takes, by (importer, imported) as the statements say."""
    graph = grimp.build_graph("slurm_share", "slurm_share_hooks", "slurm_share_tui", cache_dir=None)
    return {
        (module, to): taken(module, to)
        for module in graph.modules
        for to in graph.find_modules_directly_imported_by(module)
    }


@pytest.fixture(scope="module")
def edges(written):
    """Return (importer, imported), with the module behind each name that a package offers."""
    found = set()
    for (importer, imported), names in written.items():
        if imported not in offered(importer).values():
            found |= {(importer, offered(imported).get(name, imported)) for name in names} or {(importer, imported)}
    return found


@cache
def parsed(module):
    return ast.parse(Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8"))


@cache
def folder_of(module):
    """Return the package whose folder holds a module's file; for a package, the package itself."""
    is_package = importlib.util.find_spec(module).submodule_search_locations is not None
    return module if is_package else module.rpartition(".")[0]


def feature_of(module):
    """Return the feature package of a module: `share` for slurm_share.share.option."""
    root, *rest = module.split(".")
    return rest[0] if root == "slurm_share" and rest else root


def names_of(block, package):
    """Yield (module, name, name it gets here) of every `from ... import` below a statement."""
    for node in ast.walk(block):
        if isinstance(node, ast.ImportFrom):
            home = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from ((home, alias.name, alias.asname or alias.name) for alias in node.names)


@cache
def is_module(name):
    package = name.rpartition(".")[0]
    return folder_of(package) == package and importlib.util.find_spec(name) is not None


def taken(importer, imported):
    """Return the names that a module takes from another one, without modules inside that one."""
    if folder_of(imported) != imported:
        return set()
    names = names_of(parsed(importer), folder_of(importer))
    return {name for home, name, _ in names if home == imported and not is_module(f"{imported}.{name}")}


@cache
def offered(package):
    """Return the names that a package's __init__.py offers, with the module behind each, as mypy is told."""
    homes = {}
    for block in parsed(package).body if folder_of(package) == package else ():
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for home, name, alias in names_of(block, package):
                homes[alias] = f"{home}.{name}" if is_module(f"{home}.{name}") else home
    return homes


def assert_no_cycle(pairs):
    """Raise graphlib.CycleError, which names the cycle, if the pairs have one."""
    order = TopologicalSorter()
    for one, other in pairs:
        if one != other:
            order.add(one, other)
    order.prepare()


def test_no_modules_import_each_other(edges):
    assert_no_cycle((one, other) for one, other in edges if one != LOADS_LAB)


def test_no_features_import_each_other(edges):
    assert_no_cycle((feature_of(one), feature_of(other)) for one, other in edges if one != LOADS_LAB)


def test_no_folders_import_each_other(edges):
    """A folder and the folders inside it may."""
    folders = {(folder_of(one), folder_of(other)) for one, other in edges if one != LOADS_LAB}
    assert_no_cycle(
        (one, other) for one, other in folders
        if not f"{one}.".startswith(f"{other}.") and not f"{other}.".startswith(f"{one}.")
    )  # fmt: skip


def test_features_take_of_each_other_what_the_packages_offer(written):
    def is_inside(module):
        package, name = module.rpartition(".")[::2]
        return package.count(".") > 1 or (
            package.count(".") == 1 and name not in getattr(importlib.import_module(package), "__all__", ())
        )

    assert [
        (importer, imported)
        for importer, imported in written
        if feature_of(importer) not in (feature_of(imported), "lab")
        and feature_of(imported) not in OPEN
        and is_inside(imported)
    ] == []


def test_every_name_that_is_taken_of_a_package_is_offered_by_it(written):
    """mypy accepts any name of a package that finds its names when they are asked for."""
    assert [
        (importer, imported, name)
        for (importer, imported), names in written.items()
        if offered(imported)
        for name in names - set(importlib.import_module(imported).__all__)
    ] == []


def named(patterns, modules):
    """Return the modules that names in a contract stand for: `*` is any one part, a package all that is in it."""
    every = [re.escape(pattern).replace(r"\*", "[^.]+") + r"(\..*)?" for pattern in patterns]
    return {module for module in modules if any(re.fullmatch(one, module) for one in every)}


@pytest.mark.parametrize(
    "contract", [one for one in CONTRACTS if one["type"] == "forbidden"], ids=lambda one: one["name"]
)
def test_no_contract_is_evaded_by_a_name_that_a_package_offers(edges, contract):
    modules = {module for edge in edges for module in edge}
    sources = named(contract["source_modules"], modules)
    assert sources
    sources -= {one.partition(" -> ")[0] for one in contract.get("ignore_imports", ())}
    found = {imported for importer, imported in edges if importer in sources}
    while not contract.get("allow_indirect_imports", False):
        if not (more := {imported for importer, imported in edges if importer in found} - found):
            break
        found |= more
    assert found & named(contract["forbidden_modules"], modules) == set()
