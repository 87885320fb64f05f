"""Formulas over a description of a model."""

from __future__ import annotations

import pytest

from slurm_share.packing.rules.estimate import static

MODEL = static.ModelSummary(parameters=1 << 20, activations=1 << 18, batch=32)


def test_horus_counts_activations_and_gradients_for_each_sample():
    """8 Mi activations, 32 Mi gradients and 1 Mi parameters of 4 bytes."""
    assert static.horus_mib(MODEL) == 4 * (8 + 32 + 1)
    assert static.horus_mib(MODEL, context_mib=500) == 4 * (8 + 32 + 1) + 500


@pytest.mark.parametrize(
    ("parameters", "activations", "batch", "published"),
    [(25_557_032, 31_839_720, 32, 7903.9316), (138_357_544, 27_104_744, 128, 82_119.9297)],
    ids=["ResNet50", "VGG16"],
)
def test_horus_gives_the_published_figures(parameters, activations, batch, published):
    """Of GPUMemNet's comparison; elements of the models' public summaries."""
    model = static.ModelSummary(parameters=parameters, activations=activations, batch=batch)
    assert static.horus_mib(model, context_mib=800) == pytest.approx(published, rel=1e-6)


def test_horus_takes_other_gradients_where_they_are_given():
    """None: an inference."""
    inference = static.ModelSummary(parameters=1 << 20, activations=1 << 18, batch=32, gradients=0)
    assert static.horus_mib(inference) == 4 * (8 + 1)


def test_training_with_adam_takes_16_bytes_a_parameter_and_8_an_activation():
    """And the context of an A100."""
    assert static.adam_mib(MODEL) == 1440 + 16 + 8 * 8


@pytest.mark.parametrize(("is_training", "expected"), [(False, 1200), (True, 4000)])
def test_a_weights_file_is_a_fifth_more_or_four_times_its_size(is_training, expected):
    """Inference, and training with Adam."""
    assert static.weights_mib(1000, is_training=is_training, context_mib=0) == expected


def test_a_probe_is_corrected_by_the_published_fit():
    """1.12 times the sum of fake tensors, and 2.1 GiB."""
    assert static.probe_mib(10_000) == pytest.approx(13_350)
