"""Parse llsub's options for packing: `--pack[=POLICY]` and those that have an effect only beside it."""

from __future__ import annotations

import difflib
import re
import signal
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from ...core import names
from ...core.errors import UsageError, shown
from ...packing import BOOKING, POLICIES, Guard, Order, PackRequest, PackSettings, PolicyName, TaskSpec, Undo
from ...share import option as share_option

Estimates = Literal["history", "static", "learned", "probe", "none"]
Hang = Literal["say", "kill"]
ORDERS: tuple[Order, ...] = get_args(Order)
GUARDS: tuple[Guard, ...] = get_args(Guard)
ESTIMATES: tuple[Estimates, ...] = get_args(Estimates)
UNDOS: tuple[Undo, ...] = get_args(Undo)
HANGS: tuple[Hang, ...] = get_args(Hang)
DEFAULT_POLICY: PolicyName = "gain"
TRIED_POLICY: PolicyName = "booked"
"""Of runs whose number of tasks, or whose way of sharing, is found by trials: memory alone limits a level."""
EQUAL_PATIENCE_S = 1e9
"""Equal tasks never keep a GPU free for one that has waited long: each of them fits where another one ended."""
SM_TRIED = f"{names.OPTION_SM}=auto"
"""What is written behind --share-gpu= for shares of the multiprocessors that are found by trials. It is llsub's word:
neither the plugin nor a hook ever gets it."""
LEARNED = "learned"
"""In place of a size: the size is to be learned, as without the option."""
NAME_MAX = 200
GPUS_MAX = 256
"""More GPUs than any node has, for one task."""
_HAVE_CONDITIONS: frozenset[PolicyName] = frozenset({"rr", "magm", "lug", "mug", "first-fit", "best-fit", "worst-fit"})
"""Policies that ask how much of a GPU's memory is free, and how busy it is (Yousefzadeh 2025, 6.2.2 and 6.3.3)."""
_STOPS = "no program saves its state on it: it stops, or goes on"
_NOT_CAUGHT = {
    signal.SIGKILL: "no program can act on it",
    signal.SIGSTOP: "no program can act on it",
    signal.SIGCONT: _STOPS,
    signal.SIGTSTP: _STOPS,
    signal.SIGTTIN: _STOPS,
    signal.SIGTTOU: _STOPS,
    signal.SIGCHLD: "programs get it whenever a process that they have started ends",
}
"""Signals that cannot mean "save your state", and why."""
_CONDITIONS = "book, smact_max=RATIO|none, free_min=SIZE|none"
_RATIO = re.compile(r"[0-9]{0,4}(?:\.[0-9]{1,6})?", re.ASCII)


class PackOptions(Struct, frozen=True, kw_only=True):
    """The options as written; None, or False: not written."""

    pack: str | None = None
    """What stands behind `--pack=`."""
    gpu_mem: str | None = None
    gpus_per_task: int | None = None
    name: str | None = None
    oom_retries: int | None = None
    max_per_gpu: int | None = None
    order: Order | None = None
    memory_guard: Guard | None = None
    estimate: Estimates | None = None
    hang: Hang | None = None
    undo: Undo | None = None
    checkpoint_signal: str | None = None
    min_speed: str | None = None
    keep_going: bool = False
    compare_sharing: bool = False

    def without_pack(self) -> tuple[str, ...]:
        """Return the options that have no effect because --pack is not there."""
        if self.pack is not None or self.compare_sharing:
            return ()
        return tuple(
            f"--{name.replace('_', '-')}" for name in self.__struct_fields__ if is_written(getattr(self, name))
        )


def is_written(value: object) -> bool:
    """Return whether this is the value of an option that somebody wrote; 0 is."""
    return value is not None and value is not False


def request(written: PackOptions, retries: int, *, is_auto: bool = False) -> PackRequest | None:
    """Return how a run is to be packed; None: it is not. Raises UsageError.

    retries: how often a task is tried again that failed for another reason than memory. is_auto: the number of
    processes is `auto`, which without --pack means a run of equal tasks whose number is found by trials.
    """
    is_tuned = is_auto and written.pack is None
    if is_tuned or written.compare_sharing:
        _check_trials(written)
        written = replace(written, pack=TRIED_POLICY)
    idle = written.without_pack()
    if idle:
        raise UsageError(f"{idle[0]} goes with --pack; write --pack too, or leave {idle[0]} away")
    if written.pack is None:
        return None
    settings = replace(
        parse_policy(written.pack),
        retries=retries,
        max_per_gpu=written.max_per_gpu,
        keep_going=written.keep_going,
    )
    if settings.policy not in BOOKING and written.order not in (None, "fifo"):
        raise UsageError(
            f"--order={written.order} has no effect on {settings.policy}, which takes the tasks in their order; leave "
            f"it away, or write --pack={DEFAULT_POLICY}"
        )
    if is_tuned or written.compare_sharing:
        settings = replace(settings, patience_s=EQUAL_PATIENCE_S)
    if written.oom_retries is not None:
        settings = replace(settings, oom_retries=written.oom_retries)
    _refuse_without_speed(written, settings.policy)
    if written.min_speed is not None:
        settings = replace(settings, min_speed=parse_min_speed(written.min_speed))
    settings = replace(settings, undo=written.undo or settings.undo)
    settings = replace(settings, order=written.order or settings.order, guard=written.memory_guard or settings.guard)
    spec = TaskSpec(
        gpu_mem_mib=None if written.gpu_mem is None else parse_gpu_mem(written.gpu_mem, "--gpu-mem="),
        gpus=1 if written.gpus_per_task is None else written.gpus_per_task,
        name="" if written.name is None else parse_name(written.name, "--name"),
    )
    default = PackRequest()
    return PackRequest(
        settings=settings,
        spec=spec,
        estimate=written.estimate or default.estimate,
        hang=written.hang or default.hang,
        checkpoint_signal=None
        if written.checkpoint_signal is None
        else parse_checkpoint_signal(written.checkpoint_signal),
        is_tuned=is_tuned,
        is_compared=written.compare_sharing,
    )


def _check_trials(written: PackOptions) -> None:
    """Raise UsageError for what does not go with trials on equal tasks."""
    what = "--compare-sharing" if written.compare_sharing else "a triple with auto and without --pack"
    if written.pack is not None:
        raise UsageError(
            f"{what} counts what equal tasks do together, and --pack is for tasks that are unlike; leave one of them "
            "away"
        )
    if written.gpus_per_task not in (None, 1):
        raise UsageError(
            f"{what} tries numbers of tasks on a GPU, and --gpus-per-task={written.gpus_per_task} gives each whole "
            "GPUs; leave it away, or write the number of processes"
        )
    for option in _of_speed(written):
        raise UsageError(
            f"{what} measures equal tasks, which have no neighbours to choose, and {option} is about neighbours; leave "
            "it away, or write --pack"
        )


def _of_speed(written: PackOptions) -> list[str]:
    """Return the options that were written and that only the policy knows which measures speed."""
    options = ("undo", "checkpoint_signal", "min_speed")
    return [f"--{name.replace('_', '-')}" for name in options if getattr(written, name) is not None]


def take_sm_tried(written: str | None) -> tuple[str | None, bool]:
    """Return what stands behind --share-gpu= without `sm=auto`, and whether that was there. Raises UsageError."""
    parts = (written or "").split(",")
    if SM_TRIED not in parts:
        return written, False
    left = [part for part in parts if part != SM_TRIED]
    twice = next((part for part in left if part.startswith(f"{names.OPTION_SM}=")), None)
    if len(left) < len(parts) - 1 or twice is not None:
        raise UsageError(f"--{names.OPTION}={written}: {names.OPTION_SM}= is written twice; leave one of them away")
    if f"{names.OPTION_MPS}={names.MPS_OFF}" in left:
        raise UsageError(
            f"--{names.OPTION}={written}: MPS holds a task to its share, and it is off; leave mps=off away"
        )
    return ",".join(left) or None, True


def refuse_sm_tried(written: str | None, where: str) -> None:
    """Raise UsageError for `sm=auto` where nothing tries shares. where: what the run is, and what to do."""
    if written is not None and SM_TRIED in written.split(","):
        raise UsageError(f"--{names.OPTION}={written}: {SM_TRIED} finds each task's share by trials, {where}")


def _refuse_without_speed(written: PackOptions, policy: PolicyName) -> None:
    """Refuse the options that only the policy knows which measures speed."""
    for option in _of_speed(written) if policy != "gain" else ():
        raise UsageError(
            f"{option} has no effect on {policy}, which places tasks without asking for their speed; leave it "
            "away, or write --pack=gain"
        )
    if written.checkpoint_signal is not None and written.undo != "pause":
        raise UsageError(
            f"--checkpoint-signal={shown(written.checkpoint_signal)} has an effect only with --undo=pause, which moves "
            "tasks to other GPUs; write --undo=pause too, or leave it away"
        )


def parse_min_speed(text: str) -> float:
    """Return the least speed that a task is to keep; 0 for `none`. Raises UsageError."""
    return _ratio(text, "--min-speed") or 0.0


def parse_checkpoint_signal(text: str) -> int:
    """Return the number of a signal that is written as USR1 or SIGUSR1. Raises UsageError."""
    name = text.upper().removeprefix("SIG")
    if name.startswith("RT"):
        raise UsageError(
            f"--checkpoint-signal={shown(text)}: a real-time signal has another number on other systems; take USR1 or "
            "USR2"
        )
    found = signal.Signals.__members__.get(f"SIG{name}")
    if found is None:
        known = [member.removeprefix("SIG") for member in signal.Signals.__members__]
        close = difflib.get_close_matches(name, [one for one in known if not one.startswith("RT")], n=1)
        hint = f"did you mean {close[0]}?" if close else "write a name such as USR1"
        raise UsageError(f"--checkpoint-signal={shown(text)} is the name of no signal; {hint}")
    if found in _NOT_CAUGHT:
        raise UsageError(
            f"--checkpoint-signal={shown(text)}: {_NOT_CAUGHT[found]}; take the one on which your program saves its "
            "state, such as USR1"
        )
    return int(found)


def parse_gpu_mem(text: str, name: str) -> int | None:
    """Return a task's GPU memory in MiB; None for `learned`. Raises UsageError, which begins with `name`."""
    if text == LEARNED:
        return None
    return _size_mib(text, name)


def parse_name(text: str, option: str) -> str:
    """Return the name of a kind of tasks; empty: none. Raises UsageError, which begins with `option`."""
    if len(text) > NAME_MAX or not text.isprintable():
        raise UsageError(f"{option} {shown(text)} has to be printable, with at most {NAME_MAX} characters")
    return text


def _size_mib(text: str, name: str) -> int:
    try:
        return share_option.parse_size_mib(text, name)
    except ValueError as error:
        also = "" if text and f"{name}{text}" in str(error) else f", and not {shown(text) or 'empty'}"
        raise UsageError(f"{error}{also}") from error


def parse_policy(text: str) -> PackSettings:
    """Return the settings in `POLICY[,book][,smact_max=RATIO|none][,free_min=SIZE|none]`. Raises UsageError."""
    word, *conditions = text.split(",")
    policy = next((name for name in POLICIES if name == word), None)
    if policy is None:
        raise UsageError(f"--pack={shown(text)}: {_why_no_policy(word)}")
    settings = PackSettings(policy=policy)
    if policy == "rr":
        # Round robin has no conditions of its own (the same thesis, Table 6.3, "no condition").
        settings = replace(settings, smact_max=None, free_min_mib=None)
    seen: set[str] = set()
    for condition in conditions:
        key, equals, value = condition.partition("=")
        if key in seen or not _is_condition(key, equals):
            raise UsageError(f"--pack={shown(text)}: {shown(condition) or repr('')} is not one of {_CONDITIONS}, once")
        seen.add(key)
        if policy not in _HAVE_CONDITIONS:
            known = ", ".join(name for name in POLICIES if name in _HAVE_CONDITIONS)
            raise UsageError(
                f"--pack={shown(text)}: {key} has no effect on {policy}; leave it away, or take one of {known}"
            )
        if key == "book":
            settings = replace(settings, uses_booking=True)
        elif key == "smact_max":
            settings = replace(settings, smact_max=_ratio(value, f"--pack={shown(text)}: {key}"))
        else:
            settings = replace(
                settings, free_min_mib=None if value == "none" else _size_mib(value, f"--pack={word},{key}=")
            )
    return settings


def _is_condition(key: str, equals: str) -> bool:
    return (key == "book" and not equals) or (key in ("smact_max", "free_min") and bool(equals))


def _why_no_policy(word: str) -> str:
    if word == "oracle-lug":
        return "oracle-lug knows the true size of every task, which only slurm-share pack simulate does; write --pack"
    close = difflib.get_close_matches(word, POLICIES, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"there is no policy {shown(word) or repr('')}: there are {', '.join(POLICIES)}{hint}"


def _ratio(text: str, where: str) -> float | None:
    if text == "none":
        return None
    value = float(text) if text and _RATIO.fullmatch(text) else 0.0
    if 1 < value <= 100:
        raise UsageError(f"{where} is a ratio from 0 to 1, and {text} is more; write {value / 100:g}")
    if not 0 < value <= 1:
        given = shown(text) or "empty"
        raise UsageError(f"{where} is a ratio above 0 and up to 1, such as 0.8, or none, and not {given}")
    return value
