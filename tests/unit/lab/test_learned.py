from __future__ import annotations

import csv
import math
import statistics
from pathlib import Path

import msgspec
import pytest

from slurm_share.lab import learned
from slurm_share.packing.rules.estimate import conformal

MODEL = learned.Layers(
    convolutions=53, linears=1, norms=53, dropouts=0, depth=126, batch=32, parameters=25_557_032,
    activations=31_839_720, function="relu",
)  # fmt: skip
WIDTH = len(learned.FEATURES)
TABLE = Path(__file__).parents[2] / "data/learned/fake_memory.csv"


def weights(layers, *, low=0.0, high=1.0, lowest=-9.0, highest=9.0):
    return learned.Weights(
        features=learned.FEATURES, low=(low,) * WIDTH, high=(high,) * WIDTH, layers=layers, lowest=lowest,
        highest=highest,
    )  # fmt: skip


def constant(value):
    return (((0.0,) * WIDTH,), (value,))


def test_a_model_without_weights_is_the_closed_form_times_a_factor():
    closed = (16 * 25_557_032 + 8 * 32 * 31_839_720) / (1 << 20)
    assert learned.tensors_mib(MODEL, weights((constant(math.log(0.5)),))) == pytest.approx(closed / 2)
    assert learned.memory_mib(MODEL, weights((constant(0.0),))) == pytest.approx(conformal.probe_mib(closed))


def test_layers_are_sums_of_weights_with_a_hyperbolic_tangent_between_them():
    first = ((1.0,) + (0.0,) * (WIDTH - 1), (0.0,) * WIDTH)
    made = weights(((first, (0.5, 0.0)), (((2.0, 1.0),), (0.25,))))
    factor = learned.tensors_mib(MODEL, made) / learned.closed_mib(MODEL)
    assert math.log(factor) == pytest.approx(2.0 * math.tanh(1.5) + 0.25)


def test_features_outside_of_the_data_count_as_those_at_its_edge():
    made = weights(((((0.1,) * WIDTH,), (0.0,)),))
    large = msgspec.structs.replace(MODEL, parameters=1e15, activations=1e15)
    larger = msgspec.structs.replace(MODEL, parameters=1e18, activations=1e18)
    assert learned.tensors_mib(larger, made) == pytest.approx(1000 * learned.tensors_mib(large, made))


def test_the_factor_stays_within_that_of_the_data():
    made = weights((constant(5.0),), highest=0.5)
    assert learned.tensors_mib(MODEL, made) == pytest.approx(learned.closed_mib(MODEL) * math.exp(0.5))
    made = weights((constant(-5.0),), lowest=-1.0)
    assert learned.tensors_mib(MODEL, made) == pytest.approx(learned.closed_mib(MODEL) * math.exp(-1.0))


def test_an_activation_function_is_a_place_on_a_circle():
    places = {learned.features(msgspec.structs.replace(MODEL, function=name))[-2:] for name in learned.FUNCTIONS}
    assert len(places) == len(learned.FUNCTIONS)
    assert all(math.hypot(*place) == pytest.approx(1.0) for place in places)
    assert learned.features(msgspec.structs.replace(MODEL, function="maxout"))[-2:] == (0.0, 0.0)


@pytest.mark.parametrize("figure", [1e308, 1e200, -1.0, 0.0, -1e308])
def test_figures_that_no_network_has_give_no_error(figure):
    odd = learned.Layers(**dict.fromkeys(set(learned.Layers.__struct_fields__) - {"function"}, figure))
    said = learned.memory_mib(odd, learned.read_weights())
    assert not math.isfinite(said) or said > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"features": ("depth",)},
        {"low": (0.0,)},
        {"layers": ()},
        {"layers": ((((0.0,),), (0.0,)),)},
        {"layers": ((((0.0,) * WIDTH,), (0.0, 0.0)),)},
        {"layers": ((((0.0,) * WIDTH,) * 2, (0.0, 0.0)),)},
    ],
)
def test_weights_of_another_shape_are_not_used(changes):
    good = weights((constant(0.0),))
    assert learned.is_usable(good)
    assert not learned.is_usable(msgspec.structs.replace(good, **changes))


def test_the_weights_that_are_shipped_fit_the_table_from_which_they_were_made():
    made = learned.read_weights()
    assert "not GPU measurements" in made.about
    assert learned.WEIGHTS.stat().st_size < 100_000
    with open(TABLE, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["family"] for row in rows}) == 6
    off = []
    for row in rows:
        counts = {name: float(row[name]) for name in learned.Layers.__struct_fields__ if name != "function"}
        said = learned.memory_mib(learned.Layers(**counts, function=row["activation"]), made)
        off.append(abs(said / conformal.probe_mib(float(row["fake_mib"])) - 1))
    assert statistics.fmean(off) < 0.06
