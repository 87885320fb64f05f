"""Read the weights of the learned estimator from the file next to this one. Only `--estimate=learned` needs them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from ..core.errors import StateError
from .rules.estimate import learned

FILE = Path(__file__).with_name("learned_weights.json")


@cache
def read_weights() -> learned.Weights:
    """Return the weights. Raises StateError if the installed file is damaged or missing."""
    try:
        weights = msgspec.json.decode(FILE.read_bytes(), type=learned.Weights)
    except (OSError, msgspec.DecodeError) as error:
        raise StateError(str(FILE), f"the weights of the learned estimator cannot be read ({error})") from error
    if not learned.is_usable(weights):
        raise StateError(str(FILE), "the weights of the learned estimator are of another version")
    return weights
