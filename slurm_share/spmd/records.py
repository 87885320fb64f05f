"""Frozen records like those of `dataclasses`, but without code generation. Standard library only.

`dataclasses` compiles several functions for each class, which adds 0.4 ms per class to the start of each rank. The
messages to and from the rendezvous process are two dozen classes with few objects each.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar, dataclass_transform

_Some = TypeVar("_Some", bound="Record")


@dataclass_transform(frozen_default=True)
class Record:
    """A value whose fields are the annotated names of its class, in that order. A subclass has no subclasses."""

    fields: ClassVar[dict[str, str]] = {}
    """Annotation of each field, by name."""

    def __init_subclass__(cls) -> None:
        cls.fields = dict(cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        names = self.fields
        given = dict(zip(names, values, strict=False))
        if len(values) > len(names) or not named.keys() <= names.keys() - given.keys():
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(names)}, each is given once")
        given |= named
        for name in names:
            if name not in given and not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} needs a value for {name}")
        vars(self).update((name, given[name] if name in given else getattr(type(self), name)) for name in names)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed: {name}")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def changed(record: _Some, **named: Any) -> _Some:
    """Return a copy of the record in which some fields have other values."""
    return type(record)(**{**vars(record), **named})
