"""Render and parse the text of a plan. `names.py` documents the format."""

from __future__ import annotations

from collections.abc import Iterable

from ..core import names, numbers
from ..core.patterns import pattern
from ..node.records import Gpu
from . import option
from .backends import registry
from .plan_lines import PlanLines, is_printable, is_value, sentence
from .records import Assignment, Plan, Refusal, Slot, UnsharedReason

Contents = Plan | Refusal | UnsharedReason
"""The records that a plan's file can contain."""

_DECIMAL = pattern(r"(?a)[0-9]{1,3}(\.[0-9]{1,3})?")
_NAME_SIZE = 200
_GPU_OPTIONAL = ("minor", "memory_mib", "host_memory", "simulated")
_SLOT_OPTIONAL = (
    "memory_cap_mib",
    "memory_ratio",
    "sm_percent",
    "mps_directory",
    "on_gpu",
    "memory_least_mib",
    "partition",
    "sm_count",
    "cap_by",
    "mps_namespace",
    "backend_variables",
)
_CAP_BY_DRIVER = "driver"


def render(plan: Contents) -> str:
    """Return the plan's text.

    Raises ValueError for what the format cannot express: a blank in a value, a line that is too long. That is a defect
    of the caller: no text of a user gets into a plan.
    """
    lines = [names.PLAN_MAGIC, f"job {plan.job_id}", f"uid {plan.uid}", f"node {plan.node}"]
    if isinstance(plan, Refusal):
        lines.append(f"refused {sentence(plan.sentence)}")
    elif isinstance(plan, UnsharedReason):
        lines.append(f"unshared {sentence(plan.why)}")
    else:
        lines += _plan_lines(plan)
    lines.append("end")
    for line in lines:
        if len(line) >= names.PLAN_MAX_LINE or not is_printable(line):
            raise ValueError(f"not a plan line: {line[:200]!r}")
    return "\n".join(lines) + "\n"


def _plan_lines(plan: Plan) -> list[str]:
    lines = [f"share {option.render(plan.share)}", f"gpus {len(plan.gpus)}", f"slots {len(plan.slots)}"]
    lines.append("cores " + " ".join(",".join(map(str, core)) for core in plan.cores))
    if plan.lost:
        lines.append("lost " + " ".join(plan.lost))
    lines += [f"note {sentence(note)}" for note in plan.notes]
    lines += [_gpu_line(number, gpu) for number, gpu in enumerate(plan.gpus)]
    numbers = {gpu: number for number, gpu in enumerate(plan.gpus)}
    for slot in plan.slots:
        lines.append(_slot_line(slot, numbers[slot.gpu], len(plan.slots)))
        lines.append(_environment_line(registry.slot_environment(plan, slot)))
    return lines


def _gpu_line(number: int, gpu: Gpu) -> str:
    fields = _fields(uuid=gpu.uuid, index=gpu.index, minor=gpu.minor, memory_mib=gpu.memory_total_mib)
    flags = [
        f"{name}=yes" for name, is_set in (("host_memory", gpu.is_host_memory), ("simulated", gpu.simulated)) if is_set
    ]
    return " ".join([f"gpu {number}", *fields, *flags, f"name={sentence(gpu.name)[:_NAME_SIZE]}"])


def _slot_line(slot: Slot, gpu: int, parts: int) -> str:
    fields = _fields(
        gpu=gpu,
        part=f"{slot.part}/{parts}",
        backend=slot.backend,
        memory_cap_mib=slot.memory_cap_mib,
        memory_ratio=slot.memory_ratio,
        sm_percent=None if slot.sm_percent is None else f"{slot.sm_percent:g}",
        mps_directory=slot.mps_directory,
        on_gpu=slot.on_gpu,
        memory_least_mib=slot.memory_least_mib,
        partition=slot.partition,
        sm_count=slot.sm_count,
        cap_by=_CAP_BY_DRIVER if slot.is_cap_of_driver else None,
        mps_namespace=slot.mps_namespace,
        backend_variables=len(slot.variables) or None,
    )
    return " ".join([f"slot {slot.number}", *fields])


def _fields(**values: str | int | None) -> list[str]:
    found = {name: str(value) for name, value in values.items() if value is not None}
    for name, value in found.items():
        if not value or not is_value(value):
            raise ValueError(f"a plan cannot hold {name}={value!r}")
    return [f"{name}={value}" for name, value in found.items()]


def _environment_line(variables: Iterable[Assignment]) -> str:
    values = ["environment"]
    for one in variables:
        if not is_value(one.value):
            raise ValueError(f"a plan cannot hold {one.name}={one.value!r}")
        values.append(f"{one.name}{'?' if one.unless_set else ''}={one.value}")
    return " ".join(values)


def parse(text: str, file: str = names.PLAN_FILE) -> Contents:
    """Return the plan in `text`. Raises StateError, which names `file` and the line."""
    lines = PlanLines(text, file)
    if lines.lines[0] != names.PLAN_MAGIC:
        raise lines.wrong(f"not a plan of this version ({names.PLAN_MAGIC!r})")
    job_id, uid = lines.number("job", 1, numbers.UINT32_MOST), lines.number("uid", 0, numbers.UINT32_MOST)
    node = lines.rest("node")
    if lines.follows("refused"):
        refusal = Refusal(job_id, uid, node, lines.rest("refused"))
        lines.end()
        return refusal
    if lines.follows("unshared"):
        unshared = UnsharedReason(job_id, uid, node, lines.rest("unshared"))
        lines.end()
        return unshared
    share = lines.share()
    gpu_count, slot_count = (lines.number(key, 1, names.PLAN_MAX_SLOTS) for key in ("gpus", "slots"))
    cores = lines.cores()
    lost = tuple(lines.rest("lost").split(" ")) if lines.follows("lost") else ()
    notes = []
    while lines.follows("note"):
        notes.append(lines.rest("note"))
    gpus = tuple(_gpu(lines, number) for number in range(gpu_count))
    slots = tuple(_slot(lines, number, gpus, slot_count) for number in range(slot_count))
    lines.end()
    return Plan(job_id, uid, node, share, gpus, slots, cores, tuple(notes), lost)


def _gpu(lines: PlanLines, number: int) -> Gpu:
    rest, has_name, name = lines.rest_of("gpu", number).partition(" name=")
    if not has_name:
        raise lines.wrong("'name=...' was expected here")
    fields = lines.fields(rest.split(" "), ("uuid", "index"), _GPU_OPTIONAL)
    index = lines.field_number(fields, "index") or 0
    for flag in ("host_memory", "simulated"):
        if fields.get(flag, "yes") != "yes":
            raise lines.wrong(f"'{flag}=yes' was expected here")
    minor, memory_mib = lines.field_number(fields, "minor"), lines.field_number(fields, "memory_mib")
    is_host_memory = "host_memory" in fields
    simulated = "simulated" in fields
    return Gpu(fields["uuid"], index, minor, name, memory_mib, simulated=simulated, is_host_memory=is_host_memory)


def _slot(lines: PlanLines, number: int, gpus: tuple[Gpu, ...], parts: int) -> Slot:
    values = lines.rest_of("slot", number).split(" ")
    fields = lines.fields(values, ("gpu", "part", "backend"), _SLOT_OPTIONAL)
    gpu = lines.field_number(fields, "gpu") or 0
    if gpu >= len(gpus):
        raise lines.wrong(f"'gpu' is a number below {len(gpus)}")
    for name in ("memory_ratio", "sm_percent"):
        if name in fields and not _DECIMAL.fullmatch(fields[name]):
            raise lines.wrong(f"'{name}' is a decimal number")
    if not fields.get("mps_directory", "/").startswith("/"):
        raise lines.wrong("'mps_directory' is an absolute path")
    if fields.get("mps_namespace", "s").startswith("/") or (
        "mps_namespace" in fields and "mps_directory" not in fields
    ):
        raise lines.wrong("'mps_namespace' is a path below 'mps_directory'")
    cap_mib, least_mib = (lines.field_number(fields, name) for name in ("memory_cap_mib", "memory_least_mib"))
    if least_mib is not None and (cap_mib is None or least_mib > cap_mib):
        raise lines.wrong("'memory_least_mib' is at most 'memory_cap_mib'")
    sm_count = lines.field_number(fields, "sm_count")
    if "cap_by" in fields and (fields["cap_by"] != _CAP_BY_DRIVER or cap_mib is None):
        raise lines.wrong(f"'cap_by={_CAP_BY_DRIVER}' with 'memory_cap_mib' was expected here")
    return Slot(
        number=number,
        gpu=gpus[gpu],
        part=lines.part(fields["part"], parts),
        memory_cap_mib=cap_mib,
        memory_ratio=fields.get("memory_ratio"),
        sm_percent=float(fields["sm_percent"]) if "sm_percent" in fields else None,
        mps_directory=fields.get("mps_directory"),
        backend=fields["backend"],
        on_gpu=lines.field_number(fields, "on_gpu"),
        variables=_backend_variables(lines, lines.field_number(fields, "backend_variables") or 0),
        memory_least_mib=least_mib,
        partition=fields.get("partition"),
        sm_count=sm_count,
        is_cap_of_driver="cap_by" in fields,
        mps_namespace=fields.get("mps_namespace"),
    )


def _backend_variables(lines: PlanLines, count: int) -> tuple[Assignment, ...]:
    """Return the last `count` variables of the slot's environment. The others are derived from the slot's fields."""
    found = [lines.assignment(value) for value in lines.rest("environment").split(" ")]
    if count > len(found):
        raise lines.wrong(f"{count} variables of the backend were expected here")
    return tuple(found[len(found) - count :])
