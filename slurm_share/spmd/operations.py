"""Operations that combine the values of ranks: SUM, MAX and others of mpi4py, and those of users.

MIN and MAX follow NumPy, for objects as well: a NaN of any rank is the result. Of several NaNs, that of the lowest rank
is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import buffer_specs
from .datatypes import Datatype
from .errors import UsageError

Flat = NDArray[Any]
Combine = Callable[[Any, Any], Any]

NUMBERS, INTEGERS, PAIRS = "biufcm", "biu", "V"
"""Kinds of dtypes that operations combine: numbers; integers and bools; structures of a value and an index."""
_WITH_NAN = (float, complex, np.inexact, np.datetime64, np.timedelta64)


class Op:
    """An operation. A call combines two values: arrays element by element, objects with Python's operator."""

    def __init__(self, op: Op | None = None) -> None:
        """Make a copy of an operation; None: of OP_NULL."""
        vars(self).update(vars(OP_NULL if op is None else op))

    @classmethod
    def made(
        cls,
        name: str,
        combine: Combine,
        arrays: Callable[..., Any] | None,
        kinds: str,
        *,
        closed: bool = False,
        commutes: bool = True,
        function: Callable[[Any, Any, Any], Any] | None = None,
    ) -> Op:
        """Return an operation of functions for two objects and for two arrays; `function`: one of a user's instead."""
        self = cls.__new__(cls)
        self.name, self._combine, self._arrays, self._kinds = name, combine, arrays, kinds
        self._function = function
        self._identity = name if function is None else object()
        self.is_closed = closed
        self.is_commutative = commutes
        return self

    name: str
    is_closed: bool
    """Whether the result of two arrays of one dtype has that dtype."""
    is_commutative: bool
    """Whether the order of two values makes no difference."""
    _combine: Combine
    _arrays: Callable[..., Any] | None
    _kinds: str
    _function: Callable[[Any, Any, Any], Any] | None
    _identity: object
    """A name, or an object of each operation of a user."""

    @property
    def is_predefined(self) -> bool:
        """Whether this is one of the named operations, such as SUM."""
        return self._function is None

    def __call__(self, left: Any, right: Any) -> Any:
        is_array = isinstance(left, np.ndarray) or isinstance(right, np.ndarray)
        if is_array and self._arrays is not None and self._kinds != PAIRS:
            return self._arrays(left, right)
        return self._combine(left, right)

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return self._identity == other._identity if isinstance(other, Op) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity)

    def __bool__(self) -> bool:
        return self._identity != "OP_NULL"

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._function is not None:
            return Op.Create, (self._function, self.is_commutative)
        named = globals()[self.name]
        return self.name if named is self else (Op, (named,))

    @property
    def by_elements(self) -> bool:
        """Whether parts of two arrays can be combined one by one."""
        return self.is_predefined

    @classmethod
    def Create(cls, function: Callable[[Any, Any, Any], Any], commute: bool = False) -> Op:
        """Return the operation of a function of mpi4py's kind.

        For buffers it gets the memory of two of them and their datatype, and changes the second to "first op second".
        For objects it gets two and None, and returns the result. Values are combined in the order of ranks, whether
        or not they `commute`.
        """
        if not callable(function):
            raise UsageError(f"Op.Create takes a function of two buffers and a datatype, not {function!r}")
        name = f"Op.Create({getattr(function, '__name__', type(function).__name__)})"
        return cls.made(name, lambda a, b: function(a, b, None), None, "", commutes=bool(commute), function=function)

    def Free(self) -> None:
        """Turn this into OP_NULL. Raises UsageError for a named operation."""
        if self.is_predefined:
            raise UsageError(f"{self.name} is one of the named operations, which cannot be freed")
        vars(self).update(vars(OP_NULL))

    free = Free

    def Is_commutative(self) -> bool:
        """Return whether the order of two values makes no difference."""
        return self.is_commutative

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """Combine two buffers of this rank into the second: "first op second"."""
        source = buffer_specs.readable(inbuf, "Reduce_local")
        target = buffer_specs.writable(inoutbuf, "Reduce_local")
        left, right = source.flat, target.flat
        self.check(left.dtype, "Reduce_local")
        buffer_specs.check_alike(source, target, "Reduce_local")
        self.into(left, right.copy(), right)
        target.store()

    def check(self, dtype: np.dtype[Any], call: str) -> None:
        """Raise UsageError unless the operation can combine buffers of such elements."""
        if not self.is_predefined:
            return
        if self._arrays is None:
            raise UsageError(f"{call} cannot use {self.name}, which combines nothing")
        if self._kinds == PAIRS:
            if not is_pair(dtype):
                raise UsageError(
                    f"{call}: {self.name} combines pairs of a value and an index, such as MPI.DOUBLE_INT or a dtype "
                    f"of two fields, not elements of {dtype}"
                )
        elif dtype.kind not in self._kinds:
            what = "integers" if self._kinds == INTEGERS else "numbers"
            raise UsageError(f"{call}: {self.name} combines {what}, not elements of {dtype}; use {call.lower()}()")

    def into(self, left: Flat, right: Flat, out: Flat) -> None:
        """Put "left op right" of two flat arrays into `out`, which may be one of them."""
        if self._function is not None:
            result = right.copy()
            before = left.copy()
            self._function(buffer_specs.raw_bytes(before), buffer_specs.raw_bytes(result), Datatype(right.dtype))
            out[:] = result
            return
        assert self._arrays is not None
        self._arrays(left, right, out=out, casting="unsafe")


def is_pair(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is a structure of a value and an index."""
    if dtype.names is None or len(dtype.names) != 2:
        return False
    value, index = (dtype[name] for name in dtype.names)
    return value.kind in "biufmM" and index.kind in "iu"


def checked(op: Any) -> tuple[str, Combine]:
    """Return the name of an operation and the function of two values. Raises UsageError if it is no operation."""
    if isinstance(op, Op):
        return op.name, op
    if not callable(op):
        raise UsageError(
            f"{op!r} is not a reduction: use SUM, PROD, MIN, MAX, another of MPI's or a function of two values"
        )
    return getattr(op, "__name__", type(op).__name__), op


def for_buffers(op: Any, dtype: np.dtype[Any], call: str) -> Op:
    """Return the operation of a call with buffers. Raises UsageError if it cannot combine such elements."""
    if not isinstance(op, Op):
        raise UsageError(
            f"{call} takes SUM, PROD, MIN or MAX, another of MPI's or one of Op.Create, not {op!r}; "
            f"{call.lower()}() takes any function"
        )
    op.check(dtype, call)
    return op


def _extreme(pick: Callable[[Any, Any], Any], ufunc: np.ufunc) -> Combine:
    """Return the function of MIN or MAX of two objects; the ufunc compares complex numbers."""

    def combine(left: Any, right: Any) -> Any:
        for value in (left, right):
            if isinstance(value, _WITH_NAN) and value != value:
                return value
        if isinstance(left, (complex, np.complexfloating)) or isinstance(right, (complex, np.complexfloating)):
            return left if ufunc(left, right) == left else right
        return pick(left, right)

    return combine


def _extreme_pair(best: Combine) -> Combine:
    def combine(left: Any, right: Any) -> Any:
        (value, index), (other, other_index) = left, right
        if value == other or (value != value and other != other):
            return (value, index) if index <= other_index else (other, other_index)
        picked = best(value, other)
        return picked, other_index if picked is other else index

    return combine


def _pairs_into(better: np.ufunc) -> Callable[..., Flat]:
    """Return the function of MINLOC or MAXLOC of two arrays of pairs."""

    def combine(left: Flat, right: Flat, out: Flat, casting: str = "unsafe") -> Flat:
        value, index = left.dtype.names or ("", "")
        one, other = left[value], right[value]
        lost, other_lost = one != one, other != other
        wins = (lost & ~other_lost) | (better(one, other) & ~other_lost)
        alike = (one == other) | (lost & other_lost)
        values = np.where(wins | alike, one, other)
        indices = np.where(alike, np.minimum(left[index], right[index]), np.where(wins, left[index], right[index]))
        out[value], out[index] = values, indices
        return out

    return combine


def _second(_left: Any, right: Any) -> Any:
    return right


def _second_into(_left: Flat, right: Flat, out: Flat | None = None, casting: str = "unsafe") -> Flat:
    if out is None:
        return right.copy()
    out[:] = right
    return out


_MIN, _MAX = _extreme(min, np.minimum), _extreme(max, np.maximum)

SUM = Op.made("SUM", operator.add, np.add, NUMBERS, closed=True)
PROD = Op.made("PROD", operator.mul, np.multiply, NUMBERS, closed=True)
MIN = Op.made("MIN", _MIN, np.minimum, NUMBERS + "M", closed=True)
MAX = Op.made("MAX", _MAX, np.maximum, NUMBERS + "M", closed=True)
LAND = Op.made("LAND", lambda left, right: bool(left) & bool(right), np.logical_and, NUMBERS)
LOR = Op.made("LOR", lambda left, right: bool(left) | bool(right), np.logical_or, NUMBERS)
LXOR = Op.made("LXOR", lambda left, right: bool(left) ^ bool(right), np.logical_xor, NUMBERS)
BAND = Op.made("BAND", operator.and_, np.bitwise_and, INTEGERS, closed=True)
BOR = Op.made("BOR", operator.or_, np.bitwise_or, INTEGERS, closed=True)
BXOR = Op.made("BXOR", operator.xor, np.bitwise_xor, INTEGERS, closed=True)
MINLOC = Op.made("MINLOC", _extreme_pair(_MIN), _pairs_into(np.less), PAIRS)
MAXLOC = Op.made("MAXLOC", _extreme_pair(_MAX), _pairs_into(np.greater), PAIRS)
REPLACE = Op.made("REPLACE", _second, _second_into, NUMBERS + "MSUV", commutes=False)
NO_OP = Op.made("NO_OP", lambda left, _right: left, None, "", commutes=False)
OP_NULL = Op.made("OP_NULL", lambda _left, _right: _refuse_null(), None, "", commutes=False)


def _refuse_null() -> Any:
    raise UsageError("OP_NULL combines nothing: use SUM or another operation")
