from __future__ import annotations

import pytest

from slurm_share.packing.rules.estimate import static


def test_formulas():
    model = static.ModelSummary(parameters=1 << 20, activations=1 << 18, batch=32)
    assert static.adam_mib(model) == 1440 + 16 + 8 * 8
    assert static.weights_mib(1000) == 1200 + 1440
    assert static.probe_mib(10_000) == pytest.approx(13_350)
