"""Reductions and element-wise functions of arrays of every dtype: values, dtypes and refusals are those of NumPy.

What NumPy refuses is refused with the same class of error on all ranks, also on those without elements.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from arrays import RECORD, random_map, spread, whole_array
from hypothesis import given
from hypothesis import strategies as st
from in_threads import on_ranks, run

from slurm_share.spmd.comm import Comm
from slurm_share.spmd.dmat import Dmat
from slurm_share.spmd.rules.maps import Map

KINDS = "? i1 u1 i2 >i4 <i8 u8 >u2 f2 >f2 f4 >f4 f8 >f8 g c8 >c8 c16 >c16 G m8[s] >m8[ms] M8[D] >M8[ns] S3 U2 >U2 V4"
DTYPES = [*map(np.dtype, KINDS.split()), RECORD]
REDUCTIONS = ["sum", "prod", "mean", "min", "max", "any", "all"]
pytestmark = pytest.mark.filterwarnings("ignore")  # not catch_warnings, which all threads share
SEEDS = st.integers(0, 2**32 - 1)
UNARY = [
    *(np.negative, np.absolute, np.sign, np.sqrt, np.sin, np.exp, np.square, np.invert, np.logical_not, np.conjugate),
    *(np.isnan, np.isfinite, np.isnat, np.floor, np.rint, np.reciprocal, np.modf, np.frexp, np.spacing, np.signbit),
]
BINARY = [
    *(np.add, np.subtract, np.multiply, np.true_divide, np.floor_divide, np.remainder, np.power, np.minimum, np.fmax),
    *(np.equal, np.less, np.logical_and, np.bitwise_xor, np.left_shift, np.hypot, np.arctan2, np.divmod, np.gcd),
    *(np.copysign, np.nextafter, np.ldexp, np.float_power, np.heaviside),
]
NUMBERS = [2, -1, 0, 1.5, 2j, True, 300, np.float32(2), np.timedelta64(3, "s"), np.datetime64("2020-01-02"), "a"]


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the class of NumPy or Python of the error that it raises."""
    with np.errstate(all="ignore"):
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - compared
            return next(one for one in type(error).__mro__ if not one.__module__.startswith("slurm_share"))


def values_of(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> np.ndarray[Any, Any]:
    if dtype.kind == "V" and not dtype.names:
        return np.zeros(shape, dtype)
    whole = whole_array(shape, dtype.newbyteorder("=") if dtype.kind in "SU" else dtype, seed % 5)
    whole = whole.astype(dtype)
    if seed % 7 == 0 and whole.size and dtype.kind in "fcmM":
        whole.reshape(-1)[-1] = np.nan if dtype.kind in "fc" else "NaT"
    return whole


def assert_same(found: Any, expected: Any, dtype: np.dtype[Any]) -> None:
    if isinstance(expected, type):
        assert found is expected
        return
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype.kind in "fc":
        rough = min(np.finfo(one).resolution for one in (found.dtype,))
        np.testing.assert_allclose(found, expected, rtol=max(1e-6, 20 * float(rough)), atol=0)
    else:
        np.testing.assert_array_equal(found, expected)


def drawn(seed: int, size: int, empty: bool) -> tuple[np.random.Generator, tuple[int, ...], Map]:
    generator = np.random.default_rng(seed)
    ndim = int(generator.integers(1, 4))
    shape = tuple(generator.integers(0 if empty else 1, 5, ndim).tolist())
    return generator, shape, random_map(generator, ndim, size)


@given(seed=SEEDS, size=st.integers(1, 5), dtype=st.sampled_from(DTYPES), empty=st.booleans())
@on_ranks()
def test_reductions_of_every_dtype_are_those_of_numpy(
    comm: Comm, seed: int, size: int, dtype: np.dtype[Any], empty: bool
) -> None:
    generator, shape, map = drawn(seed, size, empty)
    whole = values_of(shape, dtype, seed)
    array = spread(whole, map, comm)
    ndim = len(shape)
    axes: list[Any] = [None, *range(-ndim, ndim), tuple(range(ndim)), (0,), (), (0, 0), ndim, 0.5, "0", [0]]
    for name in REDUCTIONS:
        options: dict[str, Any] = {"axis": axes[generator.integers(len(axes))], "keepdims": bool(seed % 2)}
        if name in ("sum", "prod", "mean") and options["axis"] in axes[:-5] and generator.random() < 0.3:
            options["dtype"] = ["f4", "i8", "c16", "?", "m8[s]", "U3", ">f8"][generator.integers(7)]
        found = outcome(lambda: getattr(array, name)(**options))  # noqa: B023
        expected = outcome(lambda: getattr(whole, name)(**options))  # noqa: B023
        try:
            assert_same(found, expected, dtype)
        except AssertionError as error:
            raise AssertionError(f"{name}({options}) of {dtype} {shape} by {map}: {error}") from None


@given(seed=SEEDS, size=st.integers(1, 5), dtype=st.sampled_from(DTYPES), empty=st.booleans())
@on_ranks()
def test_functions_of_every_dtype_are_those_of_numpy(
    comm: Comm, seed: int, size: int, dtype: np.dtype[Any], empty: bool
) -> None:
    generator, shape, map = drawn(seed, size, empty)
    whole = values_of(shape, dtype, seed)
    array = spread(whole, map, comm)
    other = DTYPES[generator.integers(len(DTYPES))]
    right = values_of(shape, other, seed)
    also = spread(right, map, comm)
    number = NUMBERS[generator.integers(len(NUMBERS))]
    for _ in range(4):
        function, unary = BINARY[generator.integers(len(BINARY))], UNARY[generator.integers(len(UNARY))]
        for call in (
            lambda x, y: unary(x),  # noqa: B023
            lambda x, y: function(x, y),  # noqa: B023
            lambda x, y: function(x, number),  # noqa: B023
            lambda x, y: function(number, y),  # noqa: B023
            lambda x, y: function(x, y, out=x.copy()),  # noqa: B023
        ):
            expected, found = outcome(lambda: call(whole, right)), outcome(lambda: call(array, also))  # noqa: B023
            here = f"{unary} {function} {dtype} {other} {number!r} {shape} by {map} rank {comm.rank}"
            assert_part(found, expected, map, here)


def assert_part(found: Any, expected: Any, map: Map, here: str) -> None:
    if isinstance(expected, type) or isinstance(found, type):
        assert found is expected, here
        return
    if isinstance(expected, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_part(one, other, map, here)
        return
    assert isinstance(found, Dmat)
    part = expected[np.ix_(*map.stored(expected.shape, found.comm.rank))]
    assert found.dtype == expected.dtype, here
    np.testing.assert_array_equal(found.local, part, err_msg=here)


@pytest.mark.parametrize(
    ("values", "error"),
    [([1e308, 1e308, 1.0, 1.0], FloatingPointError), (["1", "2", "three", "4"], ValueError)],
)
@on_ranks(2)
def test_an_error_that_one_ranks_values_raise_is_raised_on_all_ranks(
    comm: Comm, values: list[Any], error: type[Exception]
) -> None:
    array = spread(np.array(values), Map((2,)), comm)
    with np.errstate(all="raise"), pytest.raises(error):
        array.prod(dtype="f8")
    assert comm.allgather(comm.rank) == [0, 1]


def test_a_number_that_no_element_can_take_is_refused_on_ranks_without_elements() -> None:
    def program(comm: Comm) -> Any:
        array = spread(np.arange(1, 3), Map((3,)), comm)
        return outcome(lambda: array**-1), outcome(lambda: operator.pow(2.0, array))

    for refused, powers in run(3, program):
        assert refused is ValueError
        assert isinstance(powers, Dmat)
