"""`slurm-share prove`: let the driver of a node show which promises about shared GPUs hold there."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from . import stage
    from .proof import Proof as Proof
    from .proof import prove as prove
    from .rules import promises
    from .rules.promises import Verdict as Verdict

__getattr__, __all__ = exports(
    __name__, modules=("rules.promises", "stage"), names={"proof": ["Proof", "prove"], "rules.promises": ["Verdict"]}
)
