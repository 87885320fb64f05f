"""What a field of a record measures: declared at the field, read by whatever shows, sums, exports or hides it.

The unit is in the field's name; that of Prometheus follows from it: bytes, seconds, watts, ratios of 1.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Struct

Seen = Literal["own", "free", "all"]
"""To whom a figure of a GPU is shown, besides root and operators. own: to who is on the GPU. free: of a GPU that nobody
uses to everybody, too. all: of a GPU that others use as well, which a MIG parent may be."""
Together = Literal["", "sum", "most", "first"]
"""How the figures of two parts of a job or a user become one. Empty: both parts have the whole."""


class Metric(Struct, frozen=True):
    """Metadata of a field, in its `Annotated`."""

    help: str
    """A sentence."""
    series: str = ""
    """Name in Prometheus, without the record's word; empty: the field's, with Prometheus's unit."""
    counter: bool = False
    """True: it only rises, since the driver, the job or the boot began."""
    exported: bool = True
    """False: Prometheus does not have it."""
    seen: Seen = "own"
    together: Together = ""
    demo: float | None = None
    """What a fully busy GPU of the demonstration has; None: `load/sources/demo.py` has its own, or does not say."""


_UNITS: dict[str, tuple[str, float]] = {
    "_percent": ("_ratio", 0.01),
    "_mib": ("_bytes", 1048576.0),
    "_mhz": ("_hertz", 1e6),
    "_w": ("_watts", 1.0),
    "_j": ("_joules", 1.0),
    "_c": ("_celsius", 1.0),
    "_s": ("_seconds", 1.0),
}
"""End of a field's name -> end of the series' name, and what one of the field's is in the series' unit."""
WINDOWS = "_windows"
"""End of the name of a field that has the means of a figure over several windows."""


class Measured(Struct, frozen=True):
    """A field of a record that has a Metric."""

    name: str
    json: str
    """Name in JSON."""
    metric: Metric
    series: str
    """Name in Prometheus, without the record's word."""
    factor: float
    """What one of the field's is in the series' unit."""
    is_whole: bool
    default: Any

    @property
    def is_windows(self) -> bool:
        """Whether it is the means of a figure over several windows, and no figure itself."""
        return self.name.endswith(WINDOWS)


@functools.cache
def measured(record: type[Struct]) -> tuple[Measured, ...]:
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
            Measured(
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
