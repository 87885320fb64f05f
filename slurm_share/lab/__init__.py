"""The laboratory of packing: a simulator, readers of published logs, policies and estimators of the literature.

Only its command imports it, and `packing/lab_parts.py` where a live run compares policies.
"""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from . import outside_sizes, requests, score, thesis_policies

__getattr__, __all__ = exports(__name__, modules=["outside_sizes", "requests", "score", "thesis_policies"])
