"""Modules and packages import each other in one direction only."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))
import imports

CHECKOUT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


@pytest.fixture(scope="module")
def graphs():
    return imports.read_graphs()


@pytest.mark.parametrize("name", ["all", "run", "load"])
def test_no_modules_import_each_other(graphs, name):
    assert imports.cycles(graphs[name].edges) == []


@pytest.mark.parametrize("name", ["all", "run", "load"])
def test_no_packages_import_each_other(graphs, name):
    edges = graphs[name].edges
    assert imports.cycles(imports.between(edges, imports.feature_of)) == []
    assert imports.cycles(imports.apart(imports.between(edges, imports.folder_of))) == []


def test_fewer_imports_happen_at_load_than_at_run_time_than_for_types(graphs):
    assert graphs["load"].written < graphs["run"].written < graphs["all"].written
    assert graphs["load"].edges < graphs["run"].edges < graphs["all"].edges


def test_features_take_of_each_other_what_the_packages_offer(graphs):
    assert imports.private(graphs["all"].written) == []


def test_every_name_that_is_taken_of_a_package_is_offered_by_it(graphs):
    assert imports.not_offered(graphs["all"]) == []


def named(patterns, modules):
    """Return the modules that names in a contract stand for: `*` is any one part, a package all that is in it."""
    every = [re.escape(pattern).replace(r"\*", "[^.]+") + r"(\..*)?" for pattern in patterns]
    return {module for module in modules if any(re.fullmatch(one, module) for one in every)}


def reached(sources, edges, indirect):
    """Return what some modules import, also through others if `indirect`."""
    found = {imported for importer, imported in edges if importer in sources}
    while indirect and (more := {imported for importer, imported in edges if importer in found} - found):
        found |= more
    return found


@pytest.mark.parametrize(
    "contract", [one for one in CONTRACTS if one["type"] == "forbidden"], ids=lambda one: one["name"]
)
def test_no_contract_is_evaded_by_a_name_that_a_package_offers(graphs, contract):
    """lint-imports sees that the package is imported, and not which module is loaded for the name."""
    edges = graphs["all"].edges
    modules = {module for edge in edges for module in edge}
    sources = named(contract["source_modules"], modules)
    assert sources
    forbidden = named(contract["forbidden_modules"], modules)
    assert reached(sources, edges, not contract.get("allow_indirect_imports", False)) & forbidden == set()


def test_a_module_is_reached_through_others_only_where_that_counts():
    edges = {("p.one.rules.a", "p.two"), ("p.two", "p.three.x"), ("p.one.b", "p.four")}
    modules = {module for edge in edges for module in edge}
    assert named(["p.*.rules", "p.three"], modules) == {"p.one.rules.a", "p.three.x"}
    assert reached({"p.one.rules.a"}, edges, False) == {"p.two"}
    assert reached({"p.one.rules.a"}, edges, True) == {"p.two", "p.three.x"}


def test_every_cycle_is_found_once():
    edges = {("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "f"), ("f", "e"), ("d", "e")}
    assert imports.cycles(edges) == [["a", "b", "c"], ["e", "f"]]
    assert imports.cycles({("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")}) == [["a", "b", "c"]]
    assert imports.cycles({("a", "b")}) == []


def test_a_folder_and_one_inside_it_are_one_package():
    assert imports.apart({("a.b", "a"), ("a", "a.b"), ("a.b", "a.bc")}) == {("a.b", "a.bc")}


def test_an_import_inside_another_feature_is_private_but_for_the_open_ones(monkeypatch):
    monkeypatch.setattr(imports, "_offered", lambda package: {"slurm_share.share": {"option"}}.get(package, set()))
    edges = {
        ("slurm_share.share.admission", "slurm_share.mps.session.control"),
        ("slurm_share.share.admission", "slurm_share.share.rules.drain"),
        ("slurm_share.cli.llload", "slurm_share.load"),
        ("slurm_share.cli.llload", "slurm_share.load.snapshot"),
        ("slurm_share.cli.llsub", "slurm_share.share.option"),
        ("slurm_share.cli.llsub", "slurm_share.share.rules.option"),
    }
    assert imports.private(edges) == [
        ("slurm_share.cli.llload", "slurm_share.load.snapshot"),
        ("slurm_share.cli.llsub", "slurm_share.share.rules.option"),
    ]


def test_public_names_are_those_of_all_else_all_that_have_no_underscore():
    import slurm_share

    assert imports.public("slurm_share") == slurm_share.__all__
    assert "FakeNvml" in imports.public("slurm_share.testing")
    assert not [name for name in imports.public("slurm_share.testing") if name.startswith("_")]


def test_a_name_that_a_package_offers_counts_as_its_module():
    """The package itself counts where nothing of it is named, and tells mypy where its names are without importing."""
    offered = {"share": {"Plan": "share.records", "queue": "share.rules.queue"}}
    taken = {("load", "share"): {"Plan", "queue"}, ("cli", "share"): set(), ("tui", "share"): {"other"}}
    written = {*taken, ("share", "share.records"), ("share", "core.lazy"), ("load", "share.option")}
    assert imports.behind(written, taken.__getitem__, lambda package: offered.get(package, {})) == {
        ("load", "share.records"),
        ("load", "share.rules.queue"),
        ("load", "share.option"),
        ("cli", "share"),
        ("tui", "share"),
        ("share", "core.lazy"),
    }


def test_the_names_of_a_package_are_those_that_mypy_sees(tmp_path, monkeypatch):
    """Of each, its module is known; modules are names too, wherever they are in the package."""
    package = tmp_path / "made"
    (package / "rules").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "TYPE_CHECKING = False\n"
        "if TYPE_CHECKING:\n"
        "    from . import option\n"
        "    from .records import Plan, Slot as Place\n"
        "    from .rules import queue\n"
    )
    for name in ("option", "records", "rules/__init__", "rules/queue"):
        (package / f"{name}.py").touch()
    (package / "user.py").write_text(
        "from made import Plan, option\ndef later():\n    from . import Place\nfrom made.records import Slot\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert imports.offered("made") == {
        "option": "made.option",
        "Plan": "made.records",
        "Place": "made.records",
        "queue": "made.rules.queue",
    }
    assert imports.offered("made.option") == {}
    assert imports.taken("made.user", "made", range(1, 9)) == {"Plan", "Place"}
    assert imports.taken("made.user", "made", [3]) == {"Place"}
    assert imports.taken("made.user", "made.records", [4]) == {"Slot"}
