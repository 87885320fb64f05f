"""What hooks use of msgspec, in plain Python: records, and records to and from JSON.

msgspec is made for many records, and its import costs a Prolog more than all that it does with its few. So a hook puts
this module in its place before any record is made (`use`). The records are written once, for msgspec, and behave the
same with both: tests/contract/test_plain_records.py compares them. What is missing here is missing on purpose, and an
attempt to use it is an ImportError or an AttributeError.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as mypy knows it, without the import of `typing`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


def use() -> bool:
    """Put this module in msgspec's place for the rest of this process; False where msgspec itself is loaded."""
    if "msgspec" in sys.modules:
        return sys.modules["msgspec"] is structs
    sys.modules["msgspec"] = sys.modules["msgspec.structs"] = sys.modules["msgspec.json"] = structs
    return True


json = structs = sys.modules[__name__]
"""`msgspec.json.decode` and the like are found as well."""


class DecodeError(ValueError):
    """A text that is not JSON."""


class ValidationError(DecodeError):
    """JSON that is not of the type that was asked for."""


# ---- Records ----


class Struct:
    """A record: fields are the annotations of its class, in order, with their defaults."""

    __struct_fields__: tuple[str, ...] = ()
    __struct_defaults__: dict[str, Any] = {}  # noqa: RUF012
    __frozen = False
    __kw_only: frozenset[str] = frozenset()

    def __init_subclass__(cls, *, frozen: bool = False, kw_only: bool = False, gc: bool = True) -> None:
        own = tuple(cls.__dict__.get("__annotations__", ()))  # noqa: RUF063  (inspect is half of a hook)
        cls.__struct_defaults__ = cls.__struct_defaults__ | {
            name: cls.__dict__[name] for name in own if name in cls.__dict__
        }
        cls.__kw_only |= frozenset(own if kw_only else ())
        fields = tuple(dict.fromkeys((*cls.__struct_fields__, *own)))
        cls.__struct_fields__ = (
            *(name for name in fields if name not in cls.__kw_only),
            *(name for name in fields if name in cls.__kw_only),
        )
        cls.__frozen = frozen or cls.__frozen
        if not cls.__frozen:
            cls.__hash__ = None  # type: ignore[assignment]

    def __init__(self, *values: Any, **named: Any) -> None:
        fields, have = self.__struct_fields__, self.__dict__
        if len(values) > len(fields) - len(self.__kw_only):
            raise TypeError("Extra positional arguments provided")
        have.update(zip(fields, values, strict=False))
        for name in named:
            if name in have:
                raise TypeError(f"Argument '{name}' given by name and position")
            if name not in fields:
                raise TypeError(f"Unexpected keyword argument '{name}'")
        have.update(named)
        if len(have) < len(fields):
            defaults = self.__struct_defaults__
            for name in fields:
                if name not in have:
                    if name not in defaults:
                        raise TypeError(f"Missing required argument '{name}'")
                    default = defaults[name]
                    # An empty list or dictionary is nobody else's.
                    have[name] = default.copy() if isinstance(default, (list, dict, set)) else default

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__frozen:
            raise AttributeError(f"immutable type: '{type(self).__name__}'")
        if name not in self.__struct_fields__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a field of '{type(self).__name__}' cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *(self.__dict__[name] for name in self.__struct_fields__)))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({values})"


def replace(record: Any, /, **changes: Any) -> Any:
    """Return the record with other values in some fields. Raises TypeError for a field that it does not have."""
    fields = record.__struct_fields__
    for name in changes:
        if name not in fields:
            raise TypeError(f"`{type(record).__name__}` has no field '{name}'")
    new = object.__new__(type(record))
    new.__dict__.update(record.__dict__)
    new.__dict__.update(changes)
    return new


class Meta:
    """Bounds of a value. No record that a hook reads from a file has one: `decode` refuses a type with it."""

    def __init__(self, **bounds: Any) -> None:
        self.bounds = bounds


# ---- JSON ----


def encode(value: Any) -> bytes:
    """Return records, dictionaries with text keys, sequences and plain values as JSON."""
    parts: list[str] = []
    _write(value, parts.append)
    return "".join(parts).encode()


def _write(value: Any, out: Callable[[str], object]) -> None:
    if value is None or value is True or value is False:
        out({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, str):
        out(_quoted(value))
    elif isinstance(value, int):
        out(int.__repr__(value))
    elif isinstance(value, float):
        # There is no JSON for infinity and for what is no number.
        out(float.__repr__(value) if value - value == 0 else "null")
    elif isinstance(value, (list, tuple)):
        _write_all("[", ((None, one) for one in value), "]", out)
    elif isinstance(value, Struct):
        _write_all("{", ((name, value.__dict__[name]) for name in value.__struct_fields__), "}", out)
    elif isinstance(value, dict):
        _write_all("{", value.items(), "}", out)
    else:
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def _write_all(begin: str, items: Iterable[tuple[str | None, Any]], end: str, out: Callable[[str], object]) -> None:
    mark = begin
    for name, value in items:
        out(mark if name is None else f"{mark}{_quoted(name)}:")
        _write(value, out)
        mark = ","
    out(begin + end if mark == begin else end)


_ESCAPES = {**{number: f"\\u{number:04x}" for number in range(32)}, ord('"'): '\\"', ord("\\"): "\\\\"} | {
    ord(character): escape for character, escape in zip("\b\t\n\f\r", ("\\b", "\\t", "\\n", "\\f", "\\r"), strict=True)
}


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def decode(data: bytes | str, *, type: type[Struct]) -> Any:
    """Return the record of that type in a JSON text. Fields that it does not know are passed over, as a later release
    may have written them.

    Raises DecodeError, its kind ValidationError, UnicodeDecodeError, RecursionError.
    """
    text = data if isinstance(data, str) else data.decode("utf-8")
    return _record(_parse(text), type, "$")


class _Context:
    """What CPython's JSON scanner wants to know."""

    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float = float
    parse_int = int
    memo: dict[str, str] = {}  # noqa: RUF012

    @staticmethod
    def parse_constant(name: str) -> Any:
        raise DecodeError(f"JSON has no {name}")


def _parse(text: str) -> Any:
    """The JSON value in `text`.

    The scanner of the standard library's `json` is taken without that package, whose import costs a hook's time for the
    error messages alone. Where another Python has it no more, or not so, `json` itself does it.
    """
    text = text.strip(" \t\r\n")
    try:
        try:
            from _json import make_scanner

            scan = make_scanner(_Context)  # type: ignore[arg-type]
        except (ImportError, AttributeError, TypeError):
            import json

            scan = json.JSONDecoder(parse_constant=_Context.parse_constant).scan_once  # type: ignore[attr-defined]
        value, end = scan(text, 0)
    except StopIteration as error:
        raise DecodeError(f"not JSON at character {error.value}") from None
    except DecodeError:
        raise
    except ValueError as error:  # json's own, and a number of too many digits
        raise DecodeError(str(error)) from None
    if end != len(text):
        raise DecodeError(f"JSON ends before character {end}")
    return value


_KINDS: dict[str, tuple[Any, ...]] = {"int": (int,), "float": (float, int), "str": (str,), "bool": (bool,)}


def _record(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValidationError(f"Expected `object` - at `{where}`")
    names = vars(sys.modules[kind.__module__])
    found = {}
    for base in reversed(kind.__mro__):
        for name, annotation in base.__dict__.get("__annotations__", {}).items():  # noqa: RUF063
            if name in value and name in kind.__struct_fields__:
                found[name] = _as(value[name], annotation, names, f"{where}.{name}")
            elif name in kind.__struct_fields__ and name not in kind.__struct_defaults__:
                raise ValidationError(f"Object missing required field `{name}` - at `{where}`")
    return kind(**found)


def _as(value: Any, annotation: str, names: dict[str, Any], where: str) -> Any:
    """A JSON value as an annotation says, which is text in our modules (`from __future__ import annotations`)."""
    choices = _split(annotation, "|")
    if value is None and "None" in choices:
        return None
    choices = [one for one in choices if one != "None"]
    if len(choices) > 1:
        for one in choices:
            if type(value) in _KINDS.get(one, ()):
                return value
        raise ValidationError(f"Expected `{annotation}` - at `{where}`")
    (kind,) = choices
    name, _, rest = kind.partition("[")
    if name in _KINDS:
        if type(value) not in _KINDS[name]:
            raise ValidationError(f"Expected `{name}`, got `{type(value).__name__}` - at `{where}`")
        if name == "str" and not value.isascii():
            _refuse_surrogates(value, where)
        return float(value) if name == "float" else value
    if name in ("tuple", "list"):
        return _sequence(value, name, _split(rest[:-1], ","), names, where)
    if name == "dict":
        if not isinstance(value, dict):
            raise ValidationError(f"Expected `object` - at `{where}`")
        _, of = _split(rest[:-1], ",")
        return {key: _as(one, of, names, f"{where}[...]") for key, one in value.items()}
    if not rest and isinstance(names.get(name), type) and issubclass(names[name], Struct):
        return _record(value, names[name], where)
    raise TypeError(f"a hook cannot read a field of type {annotation}: see prolog/plain_records.py")


def _refuse_surrogates(text: str, where: str) -> None:
    """JSON can name one half of a character, which is no text and cannot be written."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValidationError(f"Expected `str`, got half a character - at `{where}`") from None


def _sequence(value: Any, kind: str, of: list[str], names: dict[str, Any], where: str) -> Any:
    if not isinstance(value, list):
        raise ValidationError(f"Expected `array` - at `{where}`")
    if kind == "list" or of[1:] == ["..."]:
        of = [of[0]] * len(value)
    if len(of) != len(value):
        raise ValidationError(f"Expected `array` of length {len(of)} - at `{where}`")
    found = [_as(one, its, names, f"{where}[...]") for one, its in zip(value, of, strict=True)]
    return found if kind == "list" else tuple(found)


def _split(text: str, mark: str) -> list[str]:
    """The parts of an annotation between marks that are in no bracket."""
    parts, depth, begin = [], 0, 0
    for place, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == mark and depth == 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    return [*parts, text[begin:].strip()]
