"""Parse llsub's options for packing: `--pack[=POLICY]` and the options that need it."""

from __future__ import annotations

import re
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from ...core import names, numbers
from ...core.errors import OptionError, UsageError, shown
from ...core.text import did_you_mean
from ...packing import BOOKING, POLICIES, Guard, Order, PackRequest, PackSettings, PolicyName, TaskSpec, Undo
from ...share import option as share_option

Estimates = Literal["history", "static", "probe", "none"]
Hang = Literal["say", "kill"]
BY_DURATION: tuple[Order, ...] = ("short", "long")
"""Orders by the durations of earlier runs, which only packed runs record."""
ORDERS = (*get_args(Order), "reversed", "random")
GUARDS: tuple[Guard, ...] = get_args(Guard)
ESTIMATES: tuple[Estimates, ...] = get_args(Estimates)
UNDOS: tuple[Undo, ...] = get_args(Undo)
HANGS: tuple[Hang, ...] = get_args(Hang)
DEFAULT_POLICY: PolicyName = "gain"
"""It was better than `booked` where pairs harm, and as good elsewhere, in simulations on which it was not tuned
(packing-measurements.md)."""
TRIED_POLICY: PolicyName = "booked"
"""Policy of runs with trials of the number of tasks or of the sharing method: only memory limits a level."""
EQUAL_PATIENCE_S = 1e9
"""Patience of runs with trials: equal tasks never reserve a GPU, because each fits where another one has ended."""
SM_TRIED = f"{names.OPTION_SM}=auto"
"""Setting of --share-gpu= for multiprocessor parts found by trials. Only llsub knows it, not the plugin or a hook."""
LEARNED = "learned"
"""Value of --gpu-mem for a size that is learned, as without the option."""
NAME_MAX = 200
GPUS_MAX = 256
"""Most GPUs of one task, more than any node has."""
_HAVE_CONDITIONS: frozenset[PolicyName] = frozenset({"rr", "magm", "lug", "mug", "first-fit", "best-fit", "worst-fit"})
"""Policies with conditions on free memory and load of a GPU (Yousefzadeh 2025, 6.2.2 and 6.3.3)."""
_CONDITIONS = "book, smact_max=RATIO|none, free_min=SIZE|none"
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)%", re.ASCII)
_RATIO = re.compile(r"[0-9]{0,4}(?:\.[0-9]{1,6})?", re.ASCII)


class PackOptions(Struct, frozen=True, kw_only=True):
    """The options as written; None or False: not written."""

    pack: str | None = None
    """The value of `--pack=`."""
    gpu_mem: str | None = None
    gpus_per_task: int | float | None = None
    """A whole number, or 0.5."""
    name: str | None = None
    oom_retries: int | None = None
    max_per_gpu: int | None = None
    order: str | None = None
    """One of ORDERS, which needs no --pack if it is not by duration."""
    memory_guard: Guard | None = None
    estimate: Estimates | None = None
    hang: Hang | None = None
    undo: Undo | None = None
    keep_going: bool = False
    compare_sharing: bool = False

    def without_pack(self) -> tuple[str, ...]:
        """Return the written options that have no effect because --pack is missing."""
        if self.pack is not None or self.compare_sharing:
            return ()
        return tuple(
            f"--{name.replace('_', '-')}" if name != "order" else f"--order={self.order}"
            for name in self.__struct_fields__
            if needs_pack(name, getattr(self, name))
        )


def needs_pack(name: str, value: object) -> bool:
    """Return whether a field of PackOptions is written and has an effect with --pack only."""
    return is_written(value) and (name != "order" or value in BY_DURATION)


def parse_order(text: str) -> str:
    """Return the value of --order. Raises UsageError."""
    word, colon, seed = text.partition(":")
    if word not in ORDERS or (colon and (word != "random" or numbers.whole(seed) is None)):
        hint = did_you_mean(word, ORDERS)
        raise UsageError(
            f"--order={shown(text)}: the orders are fifo (as written), reversed, random, random:SEED with a whole "
            f"number, and with --pack short and long{hint}"
        )
    return text


def is_written(value: object) -> bool:
    """Return whether a value, such as 0, is that of an option on the command line."""
    return value is not None and value is not False


def request(written: PackOptions, retries: int, *, is_auto: bool = False) -> PackRequest | None:
    """Return the packing request of a run; None: the run is not packed. Raises UsageError.

    retries: further attempts of tasks that fail for other reasons than memory. is_auto: the number of processes is
    `auto`; without --pack, trials then find the number of equal tasks.
    """
    is_tuned = is_auto and written.pack is None
    if is_tuned or written.compare_sharing:
        _check_trials(written)
        written = replace(written, pack=TRIED_POLICY)
    idle = written.without_pack()
    if idle:
        raise UsageError(f"{idle[0]} needs --pack; write --pack too, or remove {idle[0]}")
    if written.pack is None:
        return None
    settings = parse_policy(written.pack)
    settings = replace(
        settings,
        retries=retries,
        max_per_gpu=written.max_per_gpu,
        keep_going=written.keep_going,
        guard=written.memory_guard or settings.guard,
    )
    if settings.policy in BOOKING:
        by_duration = next((one for one in BY_DURATION if one == written.order), settings.order)
        settings = replace(settings, order=by_duration)
    if is_tuned or written.compare_sharing:
        settings = replace(settings, patience_s=EQUAL_PATIENCE_S)
    if written.oom_retries is not None:
        settings = replace(settings, oom_retries=written.oom_retries)
    if settings.policy == "gain":
        settings = replace(settings, undo=written.undo or settings.undo)

    spec = TaskSpec(name="" if written.name is None else parse_name(written.name, "--name"))
    if written.gpu_mem is not None:
        spec = with_gpu_mem(spec, written.gpu_mem, "--gpu-mem=")
    if written.gpus_per_task is not None:
        spec = with_gpus(spec, str(written.gpus_per_task), "--gpus-per-task")
    default = PackRequest()
    return PackRequest(
        settings=settings,
        spec=spec,
        estimate=written.estimate or default.estimate,
        hang=written.hang or default.hang,
        is_tuned=is_tuned,
        is_compared=written.compare_sharing,
    )


def _check_trials(written: PackOptions) -> None:
    """Raise UsageError for options that conflict with trials of equal tasks."""
    what = "--compare-sharing" if written.compare_sharing else "a triple with auto and without --pack"
    if written.pack is not None:
        raise UsageError(f"{what} is for equal tasks, and --pack is for tasks that differ; remove one of them")
    if written.gpus_per_task not in (None, 1):
        raise UsageError(
            f"{what} tries numbers of tasks on a GPU, but --gpus-per-task={written.gpus_per_task} gives each task "
            "whole GPUs; remove it, or write the number of processes"
        )


def ignored_notes(written: PackOptions, *, is_auto: bool = False) -> list[str]:
    """Return notes on written options and conditions that have no effect in the run that `request` accepts."""
    notes = []
    if written.pack is None:
        policy, why = TRIED_POLICY, "it is about unlike tasks on one GPU, and trials are for equal tasks"
        if not (is_auto or written.compare_sharing):
            return []
    else:
        word, *conditions = written.pack.split(",")
        policy = next(name for name in POLICIES if name == word)
        why = f"{policy} does not measure speed; --pack does"
        if conditions and policy not in _HAVE_CONDITIONS:
            known = ", ".join(name for name in POLICIES if name in _HAVE_CONDITIONS)
            notes.append(f"--pack={written.pack}: {','.join(conditions)} ignored: only {known} have conditions")
    if policy not in BOOKING and written.order in BY_DURATION:
        notes.append(
            f"--order={written.order} ignored: {policy} starts the tasks in the order of the file; --pack has it"
        )
    if policy != "gain" and written.undo is not None:
        notes.append(f"--undo ignored: {why}")
    return notes


def take_sm_tried(written: str | None) -> tuple[str | None, bool]:
    """Return the value of --share-gpu= without `sm=auto`, and whether it contained that. Raises UsageError."""
    parts = (written or "").split(",")
    if SM_TRIED not in parts:
        return written, False
    left = [part for part in parts if part != SM_TRIED]
    twice = next((part for part in left if part.startswith(f"{names.OPTION_SM}=")), None)
    if len(left) < len(parts) - 1 or twice is not None:
        raise UsageError(f"--{names.OPTION}={written}: {names.OPTION_SM}= is written twice; remove one of them")
    without_mps = {
        f"{names.OPTION_MPS}={names.MPS_OFF}",
        share_option.RENOUNCING,
        f"{names.OPTION_SHARING}={names.SHARING_EXCLUSIVE}",
    }
    off = next((part for part in left if part in without_mps), None)
    if off is not None:
        raise UsageError(
            f"--{names.OPTION}={written}: only MPS limits a task's multiprocessors, and it is off; remove {off}"
        )
    return ",".join(left) or None, True


def refuse_sm_tried(written: str | None, where: str) -> None:
    """Raise UsageError for `sm=auto` in a run without trials. where: why there are none, and what to write."""
    if written is not None and SM_TRIED in written.split(","):
        raise UsageError(f"--{names.OPTION}={written}: {SM_TRIED} finds the part of each task by trials, {where}")


def parse_gpu_mem(text: str, name: str) -> int | None:
    """Return a task's GPU memory in MiB; None for `learned`. Raises UsageError, which begins with `name`."""
    if text == LEARNED:
        return None
    return _size_mib(text, name)


def with_gpu_mem(spec: TaskSpec, text: str, name: str) -> TaskSpec:
    """Return the options with GPU memory: a size, the guaranteed one and the most (8G:20G), a percentage of the task's
    GPU, or `learned`. Raises UsageError."""
    if text.endswith("%"):
        match = _PERCENT.fullmatch(text)
        percent = float(match[1]) if match else 0.0
        if not 0 < percent <= 100:
            raise UsageError(
                f"{name} is a size such as 6G, two sizes such as 6G:20G, or a part of the GPU such as 25%, not "
                f"{shown(text)}"
            )
        return replace(spec, gpu_mem_mib=None, gpu_mem_percent=percent, gpu_mem_least_mib=None)
    least_mib, most_mib = (None, None) if text == LEARNED else _sizes_mib(text, name)
    return replace(spec, gpu_mem_mib=most_mib, gpu_mem_percent=None, gpu_mem_least_mib=least_mib)


def gpu_mem_text(spec: TaskSpec) -> str:
    """Return a task's GPU memory as it is written after --gpu-mem=."""
    if spec.gpu_mem_percent is not None:
        return f"{spec.gpu_mem_percent:g}%"
    least = "" if spec.gpu_mem_least_mib is None else f"{spec.gpu_mem_least_mib}M:"
    return LEARNED if spec.gpu_mem_mib is None else f"{least}{spec.gpu_mem_mib}M"


def with_gpus(spec: TaskSpec, text: str, name: str) -> TaskSpec:
    """Return the options with a number of GPUs: whole ones, or a half. Raises UsageError."""
    if text in ("0.5", ".5"):
        return replace(spec, gpus=1, is_half=True)
    number = numbers.whole(text, GPUS_MAX)
    if not number:
        raise UsageError(
            f"{name} is a whole number from 1 to {GPUS_MAX}, or 0.5 for half a GPU, not "
            f"{shown(text) or 'empty'}; other parts of a GPU are sizes: --gpu-mem=25%"
        )
    return replace(spec, gpus=number, is_half=False)


def parse_name(text: str, option: str) -> str:
    """Return the name of a kind of tasks; empty: none. Raises UsageError, which begins with `option`."""
    if len(text) > NAME_MAX or not text.isprintable():
        raise UsageError(f"{option} {shown(text)} must have at most {NAME_MAX} printable characters")
    return text


def _sizes_mib(text: str, name: str) -> tuple[int | None, int]:
    """Return the guaranteed size and the most, in MiB; None for the first: one size is written. Raises UsageError."""
    try:
        return share_option.parse_memory_mib(text, name)
    except OptionError as error:  # the sizes do not go together
        raise UsageError(error.why or str(error)) from error
    except ValueError as error:
        raise _why_no_size(text, name, error) from error


def _size_mib(text: str, name: str) -> int:
    try:
        return share_option.parse_size_mib(text, name)
    except ValueError as error:
        raise _why_no_size(text, name, error) from error


def _why_no_size(text: str, name: str, error: ValueError) -> UsageError:
    also = "" if text and f"{name}{text}" in str(error) else f", not {shown(text) or 'empty'}"
    return UsageError(f"{error}{also}")


def parse_policy(text: str) -> PackSettings:
    """Return the settings in `POLICY[,book][,smact_max=RATIO|none][,free_min=SIZE|none]`. Raises UsageError.

    Conditions are checked, and used where the policy has them (`ignored_notes`).
    """
    word, *conditions = text.split(",")
    policy = next((name for name in POLICIES if name == word), None)
    if policy is None:
        raise UsageError(f"--pack={shown(text)}: {_why_no_policy(word)}")
    settings = PackSettings(policy=policy)
    if policy == "rr":
        # Round robin has no default conditions (the same thesis, Table 6.3, "no condition").
        settings = replace(settings, smact_max=None, free_min_mib=None)
    found = settings
    seen: set[str] = set()
    for condition in conditions:
        key, equals, value = condition.partition("=")
        is_known = not equals if key == "book" else bool(equals) and key in ("smact_max", "free_min")
        if key in seen or not is_known:
            raise UsageError(f"--pack={shown(text)}: {shown(condition) or repr('')} is not one of {_CONDITIONS}, once")
        seen.add(key)
        if key == "book":
            found = replace(found, uses_booking=True)
        elif key == "smact_max":
            found = replace(found, smact_max=_ratio(value, f"--pack={shown(text)}: {key}"))
        else:
            found = replace(found, free_min_mib=None if value == "none" else _size_mib(value, f"--pack={word},{key}="))
    return found if policy in _HAVE_CONDITIONS else settings


def _why_no_policy(word: str) -> str:
    if word == "oracle-lug":
        return "oracle-lug needs the true size of every task, and only slurm-share lab simulate has it; write --pack"
    hint = did_you_mean(word, POLICIES)
    return f"there is no policy {shown(word) or repr('')}: the policies are {', '.join(POLICIES)}{hint}"


def _ratio(text: str, where: str) -> float | None:
    if text == "none":
        return None
    value = float(text) if text and _RATIO.fullmatch(text) else 0.0
    if 1 < value <= 100:
        raise UsageError(f"{where} is a ratio from 0 to 1, and {text} is more; write {value / 100:g}")
    if not 0 < value <= 1:
        given = shown(text) or "empty"
        raise UsageError(f"{where} is a ratio above 0 and up to 1, such as 0.8, or none, not {given}")
    return value
