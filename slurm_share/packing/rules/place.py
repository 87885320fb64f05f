"""Decide which waiting task starts on which GPU.

The default policy of llsub, `gain`, books memory (`booked_policy`) and chooses neighbours by speed (`gain_policy`). The
policies of Yousefzadeh 2025 are in `thesis_policies`, the common base is in `policy`, and the reasons for which a task
does not start are in `refusals`.
"""

from __future__ import annotations

from ..decision_records import Decision
from ..records import PackView
from .booked_policy import Booked
from .gain_policy import Gain
from .thesis_policies import Thesis


def decide(view: PackView) -> Decision:
    """Return the actions and refusals that follow from a view.

    Uses no clock and no randomness; ties go to the lower GPU index, then to the lower task number.
    """
    policy = {"gain": Gain, "booked": Booked}.get(view.settings.policy, Thesis)(view)
    policy.run()
    return Decision(actions=tuple(policy.actions), refused=tuple(policy.refused))
