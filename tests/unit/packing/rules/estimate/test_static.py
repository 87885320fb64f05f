"""Formulas over a description of a model."""

from __future__ import annotations

import pytest

from slurm_share.packing.rules.estimate import static

MODEL = static.ModelSummary(parameters=1 << 20, activations=1 << 18, batch=32)


def test_training_with_adam_takes_16_bytes_a_parameter_and_8_an_activation():
    assert static.adam_mib(MODEL) == 1440 + 16 + 8 * 8


def test_a_weights_file_takes_a_fifth_more_than_its_size_and_a_context_for_inference():
    assert static.weights_mib(1000) == 1200 + 1440


def test_a_probe_is_corrected_by_the_published_fit():
    assert static.probe_mib(10_000) == pytest.approx(13_350)
