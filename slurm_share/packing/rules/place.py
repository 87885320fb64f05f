"""Decide which waiting task starts on which GPU.

The default policy of llsub, `gain`, books memory and chooses neighbours by speed: see `gain_policy`, and
`booked_policy` for the memory. The others are those of Yousefzadeh 2025: see `thesis_policies`. What they have in
common is in `policy`, the reasons for which a task does not start in `refusals`.
"""

from __future__ import annotations

from ..decision_records import Decision
from ..records import PackView
from .booked_policy import Booked
from .gain_policy import Gain
from .policy import Policy
from .thesis_policies import Thesis


def decide(view: PackView) -> Decision:
    """Return the starts, holds, reservations and final ends that follow from a view.

    Has no clock and no randomness; ties go to the lower GPU index, then to the lower task number.
    """
    policy: Policy
    if view.settings.policy == "gain":
        policy = Gain(view)
    elif view.settings.policy == "booked":
        policy = Booked(view)
    else:
        policy = Thesis(view)
    policy.run()
    return Decision(actions=tuple(policy.actions), refused=tuple(policy.refused))
