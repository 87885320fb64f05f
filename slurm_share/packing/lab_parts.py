"""Load the parts of `slurm_share.lab` that a live run may use for comparisons: the one import of it but its command's.

The laboratory has the policies of the literature (`--pack=lug`) and the estimates from a model's description or a dry
run (`--estimate=static`). The packages of nodes need not contain it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..core.errors import UsageError
from .records import BOOKING, PackRequest, PackSettings
from .rules import place
from .rules.policy import Decide

if TYPE_CHECKING:
    from ..lab import outside_sizes as lab_sizes

OUTSIDE = ("static", "probe")
"""Values of --estimate whose sizes come from the laboratory."""


def check_parts(request: PackRequest) -> None:
    """Raise UsageError if a run needs the laboratory, and it is not installed."""
    policy_of(request.settings)
    outside_sizes(request.estimate, {})


def policy_of(settings: PackSettings) -> Decide:
    """Return the function that decides for a policy. Raises UsageError if it needs the laboratory, which is missing."""
    if settings.policy in BOOKING:
        return place.decide
    try:
        from ..lab import thesis_policies
    except ImportError as error:
        raise _missing(f"--pack={settings.policy}", "--pack") from error
    return thesis_policies.decide


def outside_sizes(how: str, environment: Mapping[str, str]) -> lab_sizes.OutsideSizes | None:
    """Return what `--estimate` takes from outside the history; None: nothing. `environment`: of the tasks. Raises
    UsageError like `policy_of`."""
    if how not in OUTSIDE:
        return None
    try:
        from ..lab import outside_sizes as sizes
    except ImportError as error:
        raise _missing(f"--estimate={how}", "--estimate=history") from error
    return sizes.OutsideSizes(how, environment)


def _missing(option: str, instead: str) -> UsageError:
    return UsageError(
        f"{option} is for comparisons, and needs slurm_share.lab, which is not installed here; write {instead}"
    )
