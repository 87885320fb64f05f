"""Which modules and packages of the product import which: `.venv/bin/python tests/imports.py`.

Prints the imports between folders and between feature packages, and every cycle. One module that imports another counts
once, however many names it takes. A feature package is a package directly under slurm_share/; prolog/ and tui/ are one
each; a module directly under slurm_share/ is one by itself. A folder and the folders inside it may import each other.
Each figure is counted three times:

    all      with the imports under `if TYPE_CHECKING`, which only mypy follows
    run      what may be imported when the programs run: without those
    load     what is imported when a module is loaded: also without imports inside functions

A package offers names of its modules in its __init__.py and loads a module when one of its names is asked for
(slurm_share/core/lazy.py). An import of such a name counts as one of the module behind it: `from ..share import Plan`
as one of share.records. The imports by which an __init__.py tells mypy where each name is do not count. So a cycle of
modules is found also where it leads through packages.

`--public` also prints the names that each feature package's __init__.py offers, `--private` the imports that reach past
the __init__.py of another feature package. core, node, slurm, mps and spmd are open to all. `--write FILE` writes the
figures as JSON, under "after", or under `--as before`; the other ones in the file stay.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import grimp

ROOTS = ("slurm_share", "slurm_share_hooks", "slurm_share_tui")
OPEN = ("core", "node", "slurm", "mps", "spmd")
"""Feature packages whose modules every other one may import by themselves."""

Edge = tuple[str, str]
"""Importer and imported."""


@dataclass(frozen=True)
class Graph:
    """The imports between modules, counted in one of the three ways."""

    written: frozenset[Edge]
    """As the statements say: a package whose name is taken."""
    edges: frozenset[Edge]
    """What follows from these: the module behind the name."""


Graphs = dict[str, Graph]
"""all, run, load."""


HOW_COUNTED = {
    "modules": "Python modules of slurm_share, prolog and tui",
    "imports": "pairs of modules of which one imports the other, by itself or by a name that its package offers",
    "between folders": "of these, pairs in different folders",
    "between features": "of these, pairs in different feature packages",
    "past __init__": "of these, pairs whose imported module is inside a feature package other than " + ", ".join(OPEN),
    "inside a feature, between folders": "pairs in one feature package and in different folders",
    "cycles": "groups of modules, folders or feature packages in which each reaches each other",
    "all, run, load": "with imports under `if TYPE_CHECKING`; without these; also without imports inside functions",
}


def read_graphs() -> Graphs:
    """Read the imports of the product that this interpreter finds."""
    lines: dict[str, dict[Edge, frozenset[int]]] = {}
    for name, without_types in (("all", False), ("run", True)):
        graph = grimp.build_graph(*ROOTS, exclude_type_checking_imports=without_types, cache_dir=None)
        lines[name] = {
            (module, to): _lines(graph, module, to)
            for module in graph.modules
            for to in graph.find_modules_directly_imported_by(module)
        }
    at_load = {edge: numbers - _lines_of_functions(edge[0]) for edge, numbers in lines["run"].items()}
    lines["load"] = {edge: numbers for edge, numbers in at_load.items() if numbers}
    return {name: Graph(frozenset(found), behind(found, _taker(found), offered)) for name, found in lines.items()}


def _lines(graph: grimp.ImportGraph, importer: str, imported: str) -> frozenset[int]:
    details = graph.get_import_details(importer=importer, imported=imported)
    return frozenset(detail["line_number"] for detail in details)


def _taker(lines: Mapping[Edge, Collection[int]]) -> Callable[[Edge], frozenset[str]]:
    return lambda edge: taken(*edge, lines[edge])


def behind(
    written: Collection[Edge], taken: Callable[[Edge], Collection[str]], offered: Callable[[str], Mapping[str, str]]
) -> frozenset[Edge]:
    """Return the imports with the modules behind the names that packages offer.

    taken: the names that an import takes of what it imports. offered: the names that a package offers, with the module
    of each; none for a module that is no package.
    """
    found: set[Edge] = set()
    for importer, imported in written:
        if imported in offered(importer).values():
            continue
        homes = offered(imported)
        names = taken((importer, imported)) if homes else ()
        found |= {(importer, homes.get(name, imported)) for name in names} or {(importer, imported)}
    return frozenset(found)


def taken(importer: str, imported: str, lines: Collection[int]) -> frozenset[str]:
    """Return the names that the statements on some lines of a module take of another one, without its own modules."""
    package = folder_of(importer)
    names: set[str] = set()
    for node in ast.walk(_parsed(importer)):
        if isinstance(node, ast.ImportFrom) and node.lineno in lines:
            home = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names |= {alias.name for alias in node.names if home == imported}
    return frozenset(name for name in names if not _is_module(f"{imported}.{name}"))


@cache
def _is_module(name: str) -> bool:
    package = name.rpartition(".")[0]
    return folder_of(package) == package and importlib.util.find_spec(name) is not None


@cache
def offered(package: str) -> Mapping[str, str]:
    """Return the names that a package's __init__.py offers, with the module behind each, as mypy is told."""
    homes: dict[str, str] = {}
    if folder_of(package) == package:
        for block in _parsed(package).body:
            if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
                homes |= _imported(block, package)
    return homes


def _imported(block: ast.If, package: str) -> dict[str, str]:
    homes: dict[str, str] = {}
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            home = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                whole = f"{home}.{alias.name}"
                homes[alias.asname or alias.name] = whole if _is_module(whole) else home
    return homes


def not_offered(graph: Graph) -> list[tuple[str, str]]:
    """Return the modules that take a name of a feature package which its __init__.py does not offer, with the name.

    mypy takes any name of a package whose names are found when they are asked for.
    """
    missing: set[tuple[str, str]] = set()
    for importer, imported in graph.written:
        if offered(imported):
            names = taken(importer, imported, _all_lines(importer))
            missing |= {(importer, f"{imported}.{name}") for name in names - set(public(imported))}
    return sorted(missing)


def _all_lines(module: str) -> range:
    return range(1, 1 + len(_source(module).splitlines()))


@cache
def _lines_of_functions(module: str) -> frozenset[int]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in ast.walk(_parsed(module)) if isinstance(node, kinds)]
    return frozenset(line for node in functions for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))


@cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(_source(module))


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    return Path(spec.origin).read_text(encoding="utf-8")


def feature_of(module: str) -> str:
    """Return the feature package of a module: `share` of slurm_share.share.option, `tui` of slurm_share_tui.app."""
    root, *rest = module.split(".")
    if root != "slurm_share":
        return {"slurm_share_hooks": "prolog", "slurm_share_tui": "tui"}[root]
    return rest[0] if rest else root


@cache
def folder_of(module: str) -> str:
    """Return the package whose folder holds a module's file; of a package, itself."""
    spec = importlib.util.find_spec(module)
    assert spec, module
    return module if spec.submodule_search_locations is not None else module.rpartition(".")[0]


def between(edges: Iterable[Edge], place: Callable[[str], str]) -> Counter[Edge]:
    """Count the imports between two places, of different modules' ones."""
    pairs = ((place(importer), place(imported)) for importer, imported in edges)
    return Counter((one, other) for one, other in pairs if one != other)


def apart(edges: Iterable[Edge]) -> set[Edge]:
    """Return the pairs of packages that import one another, without a package and one inside it: these are one."""
    return {
        (one, other)
        for one, other in edges
        if not f"{one}.".startswith(f"{other}.") and not f"{other}.".startswith(f"{one}.")
    }


def cycles(edges: Iterable[Edge]) -> list[list[str]]:
    """Return the groups in which each reaches each other: strongly connected components of two and more, the largest
    first."""
    follow: dict[str, set[str]] = {}
    for one, other in edges:
        follow.setdefault(one, set()).add(other)
    reached = {one: _reached(one, follow) for one in follow}
    groups = {
        frozenset(two for two in found if one in reached.get(two, ())) for one, found in reached.items() if one in found
    }
    return sorted((sorted(group) for group in groups if len(group) > 1), key=lambda group: (-len(group), group))


def _reached(start: str, follow: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        for other in follow.get(ahead.pop(), set()) - found:
            found.add(other)
            ahead.append(other)
    return found


def private(edges: Iterable[Edge], feature: Callable[[str], str] = feature_of) -> list[Edge]:
    """Return the imports of a module inside another feature package that is not open to all, but for the modules that
    the package itself offers."""
    return sorted(
        (importer, imported)
        for importer, imported in edges
        if feature(importer) != feature(imported) and feature(imported) not in OPEN and _is_inside(imported)
    )


def _is_inside(module: str) -> bool:
    package, name = module.rpartition(".")[::2]
    return package.count(".") > 1 or (package.count(".") == 1 and name not in _offered(package))


@cache
def _offered(package: str) -> frozenset[str]:
    return frozenset(getattr(importlib.import_module(package), "__all__", ()))


def public(package: str) -> list[str]:
    """Return the names that a package's __init__.py offers: its __all__, or all that it imports or defines."""
    if (names_of_all := getattr(importlib.import_module(package), "__all__", None)) is not None:
        return sorted(names_of_all)
    names: set[str] = set()
    for node in _parsed(package).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            if getattr(node, "module", "") != "__future__":
                names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return sorted(name for name in names if not name.startswith("_"))


def figures(graph: Graph, feature: Callable[[str], str] = feature_of) -> dict[str, Any]:
    """Return the figures of one graph, for the file."""
    edges = graph.edges
    inside = [edge for edge in edges if feature(edge[0]) == feature(edge[1])]
    return {
        "imports": len(edges),
        "between folders": sum(between(edges, folder_of).values()),
        "between features": len(edges) - len(inside),
        "past __init__": len(private(graph.written, feature)),
        "inside a feature, between folders": sum(between(inside, folder_of).values()),
        "cycles of modules": cycles(edges),
        "cycles of folders": cycles(apart(between(edges, folder_of))),
        "cycles of features": cycles(between(edges, feature)),
    }


def print_report(graphs: Graphs) -> None:
    """Print the counts, the tables of the imports at run time, and the cycles of each graph."""
    for name, graph in graphs.items():
        counts = {what: value for what, value in figures(graph).items() if isinstance(value, int)}
        print(f"{name:4}  " + ", ".join(f"{what} {value}" for what, value in counts.items()))
    for what, place in (("feature packages", feature_of), ("folders", folder_of)):
        found = between(graphs["run"].edges, place)
        print(f"\nimports between {what}, at run time")
        width = max(len(one) for one, _ in found)
        for (one, other), count in sorted(found.items()):
            print(f"  {one:<{width}} -> {other:<{width}}  {count:4}")
    print()
    for name, graph in graphs.items():
        for what, found in figures(graph).items():
            if what.startswith("cycles"):
                print(f"{name:4}  {what}: {'none' if not found else ''}")
                for group in found:
                    print(f"        {len(group)}: {', '.join(group)}")


def write(file: Path, part: str, graphs: Graphs) -> None:
    """Put the figures into a file as its "before" or "after"; what else it holds stays."""
    kept = json.loads(file.read_text()) if file.exists() else {}
    modules = {module for edge in graphs["all"].edges for module in edge}
    kept |= {"bench": "imports", "counted": HOW_COUNTED}
    kept[part] = {
        "date": time.strftime("%Y-%m-%d"),
        "modules": len(modules),
        **{name: figures(graph) for name, graph in graphs.items()},
    }
    file.write_text(json.dumps(kept, indent=2) + "\n")


def main() -> int:
    """Read the imports; print and write what the options ask for."""
    parser = argparse.ArgumentParser(description="which modules and packages of the product import which")
    parser.add_argument("--public", action="store_true", help="also the names that each feature package offers")
    parser.add_argument("--private", action="store_true", help="also each import past another package's __init__.py")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the figures, as JSON")
    parser.add_argument("--as", dest="part", choices=("before", "after"), default="after", help="default: after")
    asked = parser.parse_args()
    graphs = read_graphs()
    print_report(graphs)
    if asked.public:
        folders = {folder_of(module) for edge in graphs["all"].edges for module in edge}
        print("\npublic names")
        for package in sorted(name for name in folders if name.startswith("slurm_share.") and name.count(".") == 1):
            print(f"  {package}: {', '.join(public(package)) or 'none'}")
    if asked.private:
        print("\nimports past the __init__.py of another feature package, at run time")
        for importer, imported in private(graphs["run"].written):
            print(f"  {importer} -> {imported}")
    if asked.write:
        write(asked.write, asked.part, graphs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
