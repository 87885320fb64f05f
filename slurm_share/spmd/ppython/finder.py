"""Import hook for pPython's modules inside a run.

`pPython` and `pRUN` come from here even if pPython is installed. Other names come from here only if no other module has
that name, so a user's own `zeros.py` takes precedence.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .flat_names import FLAT, NO_COUNTERPART

_FIRST = ("pPython", "pRUN")


# No base classes of importlib.abc, whose import would delay each rank by 8 ms.
class _Loader:
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        from .module import make_module

        return make_module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module looks names up when they are used."""


_LOADER: Any = _Loader()


class _Finder:
    def __init__(self, is_first: bool) -> None:
        self.is_first = is_first

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        head = fullname.partition(".")[0]
        if (head in _FIRST) != self.is_first:
            return None
        if head == "pPython":
            from .flat_names import GATHERED

            if fullname not in ("pPython", *(f"pPython.{part}" for part in GATHERED)):
                return None
            return ModuleSpec(fullname, _LOADER, is_package=fullname == "pPython")
        if fullname in FLAT:
            return ModuleSpec(fullname, _LOADER)
        if fullname in NO_COUNTERPART:
            raise ModuleNotFoundError(
                f"pPython's module {fullname!r} belongs to its message files or its schedulers; slurm_share.spmd works "
                "without them and has no module of that name",
                name=fullname,
            )
        return None


def install() -> None:
    """Install the import hook in this process, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(is_first=True))
        sys.meta_path.append(_Finder(is_first=False))
