"""Import the public names of a package when they are first used.

Every hook imports `slurm_share.share` and needs few of its modules; the others are not loaded.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as mypy knows it; importing `typing` costs more than all this
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Mapping, Sequence
else:
    import _signal  # built into the interpreter; a hook would have to load `signal`


def exports(
    package: str, modules: Sequence[str] = (), names: Mapping[str, Sequence[str]] = {}
) -> tuple[Callable[[str], object], list[str]]:
    """Return `__getattr__` and `__all__` for the `__init__.py` of a package.

    modules: modules exported under their last name (`limits` for "rules.limits"). names: exported names by module.
    mypy cannot follow this, so the same names are imported under `if TYPE_CHECKING`; a test compares the two.

    Each use looks the name up in its module, so a test that replaces it there replaces it here.
    """
    home = {name: module for module, listed in names.items() for name in listed}
    whole = {module.rpartition(".")[2]: module for module in modules}

    def find(name: str) -> object:
        if name in whole:
            return _loaded(f"{package}.{whole[name]}")
        if name in home:
            return getattr(_loaded(f"{package}.{home[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, sorted({**home, **whole})


def _loaded(module: str) -> object:
    """Return the module. Holds Ctrl-C back while it is imported: msgspec 0.22 crashes if one comes while it makes a
    decoder, and a module that is imported in part may not be used. Another thread may still take the signal."""
    if module not in sys.modules:
        before = _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGINT,))
        try:
            __import__(module)  # importlib.import_module does the same; a hook would have to load importlib for it
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
    else:
        __import__(module)  # waits until another thread has imported the whole of it
    return sys.modules[module]
