"""The named datatypes of MPI, with the sizes of C on 64-bit Linux, as mpi4py has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .datatypes import Datatype


def _named(name: str, dtype: Any) -> Datatype:
    return Datatype(dtype, name=f"MPI_{name}", predefined=True)


def _pair(name: str, value: str) -> Datatype:
    return _named(name, np.dtype([("value", value), ("index", "i4")], align=True))


DATATYPE_NULL = Datatype("u1", 0, name="MPI_DATATYPE_NULL", predefined=True)
PACKED = _named("PACKED", "u1")
BYTE = _named("BYTE", "u1")
AINT = _named("AINT", "i8")
OFFSET = _named("OFFSET", "i8")
COUNT = _named("COUNT", "i8")

CHAR = _named("CHAR", "S1")
WCHAR = _named("WCHAR", "U1")
SIGNED_CHAR = _named("SIGNED_CHAR", "b")
SHORT = SIGNED_SHORT = _named("SHORT", "h")
INT = SIGNED_INT = _named("INT", "i")
LONG = SIGNED_LONG = _named("LONG", "l")
LONG_LONG = SIGNED_LONG_LONG = _named("LONG_LONG_INT", "q")
UNSIGNED_CHAR = _named("UNSIGNED_CHAR", "B")
UNSIGNED_SHORT = _named("UNSIGNED_SHORT", "H")
UNSIGNED = UNSIGNED_INT = _named("UNSIGNED", "I")
UNSIGNED_LONG = _named("UNSIGNED_LONG", "L")
UNSIGNED_LONG_LONG = _named("UNSIGNED_LONG_LONG", "Q")
FLOAT = FLOAT32_T = _named("FLOAT", "f")
DOUBLE = FLOAT64_T = _named("DOUBLE", "d")
LONG_DOUBLE = _named("LONG_DOUBLE", "g")
FLOAT16_T = _named("FLOAT16_T", "e")

C_BOOL = BOOL = _named("C_BOOL", "?")
INT8_T = SINT8_T = _named("INT8_T", "i1")
INT16_T = SINT16_T = _named("INT16_T", "i2")
INT32_T = SINT32_T = _named("INT32_T", "i4")
INT64_T = SINT64_T = _named("INT64_T", "i8")
UINT8_T = _named("UINT8_T", "u1")
UINT16_T = _named("UINT16_T", "u2")
UINT32_T = _named("UINT32_T", "u4")
UINT64_T = _named("UINT64_T", "u8")
C_COMPLEX = C_FLOAT_COMPLEX = _named("C_COMPLEX", "F")
C_DOUBLE_COMPLEX = _named("C_DOUBLE_COMPLEX", "D")
C_LONG_DOUBLE_COMPLEX = _named("C_LONG_DOUBLE_COMPLEX", "G")
CXX_BOOL = _named("CXX_BOOL", "?")
CXX_FLOAT_COMPLEX = _named("CXX_FLOAT_COMPLEX", "F")
CXX_DOUBLE_COMPLEX = _named("CXX_DOUBLE_COMPLEX", "D")
CXX_LONG_DOUBLE_COMPLEX = _named("CXX_LONG_DOUBLE_COMPLEX", "G")

SHORT_INT = _pair("SHORT_INT", "h")
INT_INT = TWOINT = _pair("2INT", "i")
LONG_INT = _pair("LONG_INT", "l")
FLOAT_INT = _pair("FLOAT_INT", "f")
DOUBLE_INT = _pair("DOUBLE_INT", "d")
LONG_DOUBLE_INT = _pair("LONG_DOUBLE_INT", "g")

CHARACTER = _named("CHARACTER", "S1")
LOGICAL = F_BOOL = _named("LOGICAL", "i")
INTEGER = F_INT = _named("INTEGER", "i")
REAL = F_FLOAT = _named("REAL", "f")
DOUBLE_PRECISION = F_DOUBLE = _named("DOUBLE_PRECISION", "d")
COMPLEX = F_COMPLEX = F_FLOAT_COMPLEX = _named("COMPLEX", "F")
DOUBLE_COMPLEX = F_DOUBLE_COMPLEX = _named("DOUBLE_COMPLEX", "D")
INTEGER1 = _named("INTEGER1", "i1")
INTEGER2 = _named("INTEGER2", "i2")
INTEGER4 = _named("INTEGER4", "i4")
INTEGER8 = _named("INTEGER8", "i8")
REAL4 = _named("REAL4", "f4")
REAL8 = _named("REAL8", "f8")
REAL16 = _named("REAL16", "g")
COMPLEX8 = _named("COMPLEX8", "c8")
COMPLEX16 = _named("COMPLEX16", "c16")
COMPLEX32 = _named("COMPLEX32", "G")

BY_LETTER = {
    "?": C_BOOL, "b": SIGNED_CHAR, "B": UNSIGNED_CHAR, "h": SHORT, "H": UNSIGNED_SHORT, "i": INT, "I": UNSIGNED,
    "l": LONG, "L": UNSIGNED_LONG, "q": LONG_LONG, "Q": UNSIGNED_LONG_LONG, "e": FLOAT16_T, "f": FLOAT, "d": DOUBLE,
    "g": LONG_DOUBLE, "F": C_COMPLEX, "D": C_DOUBLE_COMPLEX, "G": C_LONG_DOUBLE_COMPLEX,
}  # fmt: skip
"""Datatypes by NumPy's letter of a dtype."""
