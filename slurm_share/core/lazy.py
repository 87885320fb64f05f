"""A package's public names, imported when they are first asked for.

Every hook imports `slurm_share.share`, and most need one name of it: the modules behind the others are not loaded.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as mypy knows it; importing `typing` costs more than all this
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def exports(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], object], list[str]]:
    """Return `__getattr__` and `__all__` for a package's `__init__.py`.

    modules: the module of each public name, below the package (such as "rules.allocation").
    """

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return find, sorted(modules)
