"""`slurm-share doctor`: facts of a host, checks on them, fixes."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from . import cluster, examination, page
    from .checks import every
    from .cluster import HostAnswer
    from .facts.lua import OBJECT, find_object
    from .facts.programs import read_hooks
    from .facts.records import Facts, Finding, UnknownFact
    from .fixes import FixResult

__getattr__, __all__ = exports(
    __name__,
    modules=["checks.every", "cluster", "examination", "page"],
    names={
        "cluster": ["HostAnswer"],
        "facts.lua": ["OBJECT", "find_object"],
        "facts.programs": ["read_hooks"],
        "facts.records": ["Facts", "Finding", "UnknownFact"],
        "fixes": ["FixResult"],
    },
)
