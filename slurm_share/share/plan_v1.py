"""Read plans of version 1, in which a slot has only environment variables; no other module derives values from them.

A node that is upgraded while jobs run has plans of the previous release. This module, its counterpart in plugins/plan.c
(read_slots_v1) and names.PLAN_MAGIC_1 can be removed in 0.2, one release after the first that writes version 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from ..core import names
from ..core.records import ShareRequest
from ..node.records import Gpu
from .plan_lines import Lines
from .records import BACKEND_MPS, BACKEND_TIME_SLICING, Plan, Slot
from .rules.environment import NO_MPS

_MAX_DIGITS = 9


def read(lines: Lines, share: ShareRequest, gpus: int, slots: int) -> tuple[tuple[Gpu, ...], tuple[Slot, ...]]:
    """Return the GPUs and slots in a plan's slot lines. Raises StateError, which names the line."""
    is_part = slots < share.per_gpu * gpus
    found = tuple(_slot(lines, number, slots, is_part=is_part) for number in range(slots))
    return tuple(dict.fromkeys(slot.gpu for slot in found)), found


def _slot(lines: Lines, number: int, parts: int, *, is_part: bool) -> Slot:
    part, *fields = lines.rest_of("slot", number).split(" ")
    name, _, place = part.partition("=")
    if name != "part":
        raise lines.wrong(f"'slot {number} part=I/{parts} ...' was expected here")
    place_on_cores = lines.part(place, parts)
    values = {one.name: one.value for one in map(lines.assignment, fields)}
    directory = values.get(names.ENV_MPS_PIPE, NO_MPS)
    return Slot(
        number=number,
        gpu=_gpu(values),
        part=place_on_cores,
        memory_cap_mib=_cap_mib(values.get(names.ENV_MPS_MEMORY, "")),
        memory_ratio=values.get(names.ENV_JAX_FRACTION),
        sm_percent=_percent(values.get(names.ENV_MPS_THREADS, "")),
        mps_directory=None if directory == NO_MPS else directory,
        backend=BACKEND_TIME_SLICING if directory == NO_MPS else BACKEND_MPS,
        on_gpu=_number(values.get(names.ENV_SLOT, "")) if is_part else None,
    )


def _gpu(values: Mapping[str, str]) -> Gpu:
    uuid = values.get(names.ENV_GPU_UUID) or values.get(names.ENV_VISIBLE_DEVICES, "")
    index = _number(values.get(names.ENV_GPU_INDEX, "")) or 0
    minor = _number(values.get(names.ENV_GPU_MINOR, ""))
    return Gpu(uuid, index, index if minor is None else minor, "", None, simulated=names.ENV_SIMULATED in values)


def _number(text: str) -> int | None:
    """Return the number in a text; None for any other text, since the plan's user can have changed it."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None


def _cap_mib(text: str) -> int | None:
    digits = text.removeprefix("0=").removesuffix("M")
    return _number(digits) if text == f"0={digits}M" else None


def _percent(text: str) -> float | None:
    whole, _, tenths = text.partition(".")
    return None if _number(whole + tenths) is None else float(text)


def with_sizes(plan: Plan, listed: Iterable[Gpu]) -> Plan:
    """Return the plan with the names and sizes of its GPUs from the driver's list: version 1 has neither."""
    known = {gpu.uuid: gpu for gpu in listed}
    gpus = {gpu: _with_size(gpu, known) for gpu in plan.gpus}
    return replace(
        plan,
        gpus=tuple(gpus.values()),
        slots=tuple(replace(slot, gpu=gpus[slot.gpu]) for slot in plan.slots),
    )


def _with_size(gpu: Gpu, known: Mapping[str, Gpu]) -> Gpu:
    if gpu.memory_total_mib is not None or gpu.uuid not in known:
        return gpu
    return replace(gpu, name=known[gpu.uuid].name, memory_total_mib=known[gpu.uuid].memory_total_mib)
