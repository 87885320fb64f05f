"""Modules and packages import each other in one direction only."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))
import imports


@pytest.fixture(scope="module")
def graphs():
    return imports.read_graphs()


@pytest.mark.parametrize("name", ["all", "run", "load"])
def test_no_modules_import_each_other(graphs, name):
    """Neither directly nor through others, nor for types alone."""
    assert imports.cycles(graphs[name]) == []


@pytest.mark.parametrize("name", ["all", "run", "load"])
def test_no_packages_import_each_other(graphs, name):
    """A folder and one inside it are one package."""
    assert imports.cycles(imports.between(graphs[name], imports.feature_of)) == []
    assert imports.cycles(imports.apart(imports.between(graphs[name], imports.folder_of))) == []


def test_fewer_imports_happen_at_load_than_at_run_time_than_for_types(graphs):
    """Each graph is part of the one before."""
    assert graphs["load"] < graphs["run"] < graphs["all"]


def test_every_cycle_is_found_once():
    """Two rings that touch are one; a module that is only reached is in none."""
    edges = {("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "f"), ("f", "e"), ("d", "e")}
    assert imports.cycles(edges) == [["a", "b", "c"], ["e", "f"]]
    assert imports.cycles({("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")}) == [["a", "b", "c"]]
    assert imports.cycles({("a", "b")}) == []


def test_a_folder_and_one_inside_it_are_one_package():
    """Neighbours with a common beginning are two."""
    assert imports.apart({("a.b", "a"), ("a", "a.b"), ("a.b", "a.bc")}) == {("a.b", "a.bc")}


def test_an_import_inside_another_feature_is_private_but_for_the_open_ones(monkeypatch):
    """The package itself, and a module that it offers, are its public side."""
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
    """slurm_share says which; slurm_share.testing does not."""
    import slurm_share

    assert imports.public("slurm_share") == slurm_share.__all__
    assert "FakeNvml" in imports.public("slurm_share.testing")
    assert not [name for name in imports.public("slurm_share.testing") if name.startswith("_")]
