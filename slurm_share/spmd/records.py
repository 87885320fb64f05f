"""Frozen values with named fields, as `dataclasses` makes them, but made without compiling code. Standard library only.

`dataclasses` compiles several functions for each class, 0.4 ms of each rank's start. The messages to and from the
rendezvous process are two dozen classes, of which a run uses few objects.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar, dataclass_transform

_Some = TypeVar("_Some", bound="Record")


@dataclass_transform(frozen_default=True)
class Record:
    """A value whose fields are the annotated names of its class, in their order. A subclass has no subclasses."""

    fields: ClassVar[dict[str, str]] = {}
    """Name and annotation of each field."""

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
    """Return the record with other values of some fields."""
    return type(record)(**{**vars(record), **named})
