"""Decide which waiting task starts on which GPU.

The default policy, `booked`, books memory: see `booked_policy`. The others are those of Yousefzadeh 2025: see
`thesis_policies`. What they have in common is in `policy`, the reasons for which a task does not start in `refusals`.
"""

from __future__ import annotations

from ..records import Decision, PackView
from .booked_policy import Booked
from .thesis_policies import Thesis


def decide(view: PackView) -> Decision:
    """Return the starts, holds, reservations and final ends that follow from a view.

    Has no clock and no randomness; ties go to the lower GPU index, then to the lower task number.
    """
    policy = Booked(view) if view.settings.policy == "booked" else Thesis(view)
    policy.run()
    return Decision(actions=tuple(policy.actions), refused=tuple(policy.refused))
