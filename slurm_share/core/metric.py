"""Metadata of measured fields: declared at the field, used to show, sum, export and hide its values.

The field's name ends in its unit. Prometheus's unit follows from it: bytes, seconds, watts, ratios of 1.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Struct

Seen = Literal["own", "free", "all"]
"""Who sees a figure of a GPU, besides root and operators. own: users with processes on it. free: everybody, too, while
nobody uses it. all: everybody, also while others use it, such as a MIG parent."""
Together = Literal["", "sum", "most", "first"]
"""How to combine the values of two parts of a job or user. Empty: both parts already hold the value of the whole."""


class Metric(Struct, frozen=True):
    """Metadata of a field, inside its `Annotated`."""

    help: str
    """Description, one sentence."""
    series: str = ""
    """Name in Prometheus without the record's prefix; empty: the field's name with Prometheus's unit."""
    counter: bool = False
    """True: it only rises, from the start of the driver, the job or the node."""
    exported: bool = True
    """False: not exported to Prometheus."""
    seen: Seen = "own"
    together: Together = ""
    demo: float | None = None
    """Value of a fully busy GPU in the demonstration; None: set in `load/sources/demo.py`, or not shown there."""


_UNITS: dict[str, tuple[str, float]] = {
    "_percent": ("_ratio", 0.01),
    "_mib": ("_bytes", 1048576.0),
    "_mhz": ("_hertz", 1e6),
    "_w": ("_watts", 1.0),
    "_j": ("_joules", 1.0),
    "_c": ("_celsius", 1.0),
    "_s": ("_seconds", 1.0),
}
"""Suffix of the field's name -> suffix of the series' name, and the factor from the field's to the series' unit."""
WINDOWS = "_windows"
"""Suffix of fields that hold the means of a figure over several windows."""


class MetricField(Struct, frozen=True):
    """A field with a Metric."""

    name: str
    json: str
    """Name in JSON."""
    metric: Metric
    series: str
    """Name in Prometheus without the record's prefix."""
    factor: float
    """Factor from the field's unit to the series' unit."""
    is_whole: bool
    default: Any

    @property
    def is_windows(self) -> bool:
        """Whether the field holds the means of another figure over several windows."""
        return self.name.endswith(WINDOWS)


@functools.cache
def measured(record: type[Struct]) -> tuple[MetricField, ...]:
    """Return the fields of a record that have a Metric, in their order."""
    hints = get_type_hints(record, include_extras=True)
    found = []
    for field in msgspec.structs.fields(record):
        metric = next((one for one in getattr(hints[field.name], "__metadata__", ()) if isinstance(one, Metric)), None)
        if metric is None:
            continue
        figure = field.name.removesuffix(WINDOWS)
        unit = next((unit for unit in _UNITS if figure.endswith(unit)), "")
        end, factor = _UNITS.get(unit, ("", 1.0))
        found.append(
            MetricField(
                field.name,
                field.encode_name,
                metric,
                metric.series or figure.removesuffix(unit) + end,
                factor,
                int in _types(hints[field.name]),
                field.default,
            )
        )
    return tuple(found)


def _types(hint: Any) -> set[Any]:
    """Return the plain types in an annotation."""
    if isinstance(hint, type):
        return {hint}
    return {found for part in get_args(hint) for found in _types(part)}
