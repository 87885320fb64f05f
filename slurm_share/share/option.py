"""Parse and render the value of `--share-gpu`. `plugins/options.c` does the same in C; a contract test compares them.

The plugin refuses a wrong value at submission and says what is wrong. This parser reads what the plugin has accepted,
and what reaches a hook from a program that does not load the plugin: it refuses the rest in one wording.
"""

from __future__ import annotations

from ..core import names, numbers
from ..core.errors import OptionError
from ..core.patterns import pattern
from ..core.records import ShareRequest, SharingChoice, SmChoice
from ..core.settings import parse_sm
from .records import BACKEND_MPS, BACKEND_TIME_SLICING

_SIZE = pattern(r"(?ai)([1-9][0-9]*)(?:([MGT])(?:I?B)?)?")
_MIB_PER = {"": 1, "M": 1, "G": 1024, "T": 1024 * 1024}


def parse(text: str) -> ShareRequest | None:
    """Return the request in `text`; None for `off`.

    Raises OptionError for a text that is not of names.OPTION_FORM.
    """
    if text == names.OPTION_OFF:
        return None
    count, *settings = text.split(",") if len(text) <= names.OPTION_MAX_BYTES else [""]
    per_gpu = None if count.startswith("0") else numbers.whole(count, names.SHARE_MAX)
    mem_mib: int | None = None
    sm: SmChoice | None = None
    sharing: SharingChoice | None = None
    try:
        for setting in settings:
            key, _, value = setting.partition("=")
            if key == names.OPTION_MEM and mem_mib is None:
                mem_mib = parse_size_mib(value, f"{names.OPTION_MEM}=")
            elif key == names.OPTION_SM and sm is None:
                sm = parse_sm(value)
            elif key == names.OPTION_MPS and sharing is None and value in (names.MPS_ON, names.MPS_OFF):
                sharing = "mps" if value == names.MPS_ON else "time-slicing"
            else:
                raise OptionError(text)
    except ValueError:
        raise OptionError(text) from None
    needs_mps = mem_mib is not None or sm not in (None, names.SM_FREE)  # MPS enforces them
    if per_gpu is None or (sharing == BACKEND_TIME_SLICING and needs_mps):
        raise OptionError(text)
    return ShareRequest(per_gpu, mem_mib, sm, sharing)


def render(request: ShareRequest | None) -> str:
    """Return the canonical text of a request, as the plugin passes it to the hooks."""
    if request is None:
        return names.OPTION_OFF
    parts = [str(request.per_gpu)]
    if request.mem_mib is not None:
        parts.append(f"{names.OPTION_MEM}={request.mem_mib}M")
    if request.sm is not None:
        parts.append(f"{names.OPTION_SM}={request.sm}")
    if request.sharing in (BACKEND_MPS, BACKEND_TIME_SLICING):
        parts.append(f"{names.OPTION_MPS}={names.MPS_ON if request.sharing == BACKEND_MPS else names.MPS_OFF}")
    return ",".join(parts)


def backend_of(request: ShareRequest) -> str | None:
    """Return the name of the backend that a request asks for; None: the node chooses."""
    return request.sharing if request.sharing in (BACKEND_MPS, BACKEND_TIME_SLICING) else None


def insists(request: ShareRequest) -> bool:
    """Return whether a request is to be refused if its backend cannot serve it."""
    return request.sharing == BACKEND_MPS


INSISTING = f"{names.OPTION_MPS}={names.MPS_ON}"
"""The text with which a user requires MPS."""
RENOUNCING = f"{names.OPTION_MPS}={names.MPS_OFF}"
"""The text with which a user excludes MPS."""


def parse_size_mib(value: str, name: str) -> int:
    """Return a size of one task's GPU memory, such as 8G or 800M, in MiB.

    Raises ValueError with a sentence that begins with `name`, the text before the value, such as `mem=`.
    """
    match = _SIZE.fullmatch(value)
    mib = int(match[1]) * _MIB_PER[(match[2] or "").upper()] if match and len(match[1]) < 10 else 0
    if not 1 <= mib <= names.MEM_MAX_MIB:
        raise ValueError(f"{name} is a size like 8G or 800M, at most 16T")
    if match and not match[2] and mib < names.MEM_BARE_MIN_MIB:
        raise ValueError(
            f"{name}{value} would be {value} MiB, and a size below {names.MEM_BARE_MIN_MIB} needs its unit: "
            f"{name}{value}G"
        )
    if match and mib < names.MEM_MIN_MIB:
        why = f"{name}{value} is less than any CUDA program needs ({names.MEM_MIN_MIB}M at least): {name}{match[1]}G"
        raise ValueError(why)
    return mib
