"""Parse and render the value of `--share-gpu`. `plugins/options.c` does the same in C; a contract test compares them.

The plugin refuses a wrong value at submission and says what is wrong. This parser reads what the plugin has accepted,
and what reaches a hook from a program that does not load the plugin: it refuses the rest in one wording.
"""

from __future__ import annotations

from ..core import names, numbers
from ..core.errors import OptionError, UsageError, shown
from ..core.patterns import pattern
from ..core.records import ShareRequest, SharingChoice
from ..core.settings import parse_sm
from .records import BACKEND_MPS, BACKEND_TIME_SLICING

_SIZE = pattern(r"(?ai)([1-9][0-9]*)(?:([MGT])(?:I?B)?)?")
_MIB_PER = {"": 1, "M": 1, "G": 1024, "T": 1024 * 1024}


SHARING_WORDS: tuple[SharingChoice, ...] = ("auto", "mps", "time-slicing", "exclusive")
"""The values of `sharing=`, and of --sharing of llsub and llmapreduce."""
_OLDER: dict[str, SharingChoice] = {names.MPS_ON: "mps", names.MPS_OFF: "time-slicing"}


def parse(text: str) -> ShareRequest | None:
    """Return the request in `text`; None for `off`.

    Raises OptionError for a text that is not of names.OPTION_FORM.
    """
    if text == names.OPTION_OFF:
        return None
    count, *settings = text.split(",") if len(text) <= names.OPTION_MAX_BYTES else [""]
    per_gpu = None if count.startswith("0") else numbers.whole(count, names.SHARE_MAX)
    if per_gpu is None:
        raise OptionError(text)
    given: dict[str, str] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key in given:
            raise OptionError(text)
        given[key] = value
    mem, sm = given.pop(names.OPTION_MEM, None), given.pop(names.OPTION_SM, None)
    word, older = given.pop(names.OPTION_SHARING, None), given.pop(names.OPTION_MPS, None)
    if given or (older is not None and older not in _OLDER):
        raise OptionError(text)
    try:
        mem_least_mib, mem_mib = (None, None) if mem is None else parse_memory_mib(mem, f"{names.OPTION_MEM}=")
        sm_choice = None if sm is None else parse_sm(sm)
        sharing = None if word is None else parse_sharing(word)
    except OptionError as error:
        raise OptionError(text, error.why) from None
    except ValueError:
        raise OptionError(text) from None
    if older is not None:
        if sharing not in (None, _OLDER[older]):
            why = (
                f"{names.OPTION_MPS}={older} is an older word for {names.OPTION_SHARING}={_OLDER[older]}, and cannot "
                f"go with {names.OPTION_SHARING}={sharing}: write one of them"
            )
            raise OptionError(text, why)
        sharing = _OLDER[older]
    request = ShareRequest(per_gpu, mem_mib, sm_choice, sharing, mem_least_mib)
    why_not = conflict(request)
    if why_not is not None:
        raise OptionError(text, why_not)
    return request


def conflict(request: ShareRequest) -> str | None:
    """Return why the parts of a request do not go together; None: they do."""
    sharing = request.sharing
    if sharing not in ("time-slicing", "exclusive"):
        return None
    alone = f"--{names.OPTION}=1,{names.OPTION_SHARING}={names.SHARING_EXCLUSIVE}"
    if sharing == "exclusive" and request.per_gpu != 1:
        return (
            f"{names.OPTION_SHARING}={sharing} gives each task a GPU of its own, and {request.per_gpu} tasks are asked "
            f"for on each: {alone}"
        )
    if sharing == "exclusive" and request.mem_mib is not None:
        return (
            f"a task with a GPU of its own has all of its memory, so {names.OPTION_MEM}= cannot go with "
            f"{names.OPTION_SHARING}={sharing}: {alone}"
        )
    if request.sm not in (None, names.SM_FREE):
        return (
            f"MPS holds the cap on multiprocessors, so {names.OPTION_SM}= cannot go with "
            f"{names.OPTION_SHARING}={sharing}, except {names.OPTION_SM}={names.SM_FREE}"
        )
    return None


def render(request: ShareRequest | None) -> str:
    """Return the canonical text of a request, as the plugin passes it to the hooks."""
    return _render(request, is_older=False)


def is_canonical(request: ShareRequest, text: str) -> bool:
    """Return whether a text is the canonical one of its request, or the one of releases before `sharing=`."""
    return text in (_render(request, is_older=False), _render(request, is_older=True))


def _render(request: ShareRequest | None, *, is_older: bool) -> str:
    if request is None:
        return names.OPTION_OFF
    parts = [str(request.per_gpu)]
    if request.mem_mib is not None:
        least = "" if request.mem_least_mib is None else f"{request.mem_least_mib}M:"
        parts.append(f"{names.OPTION_MEM}={least}{request.mem_mib}M")
    if request.sm is not None:
        parts.append(f"{names.OPTION_SM}={request.sm}")
    older = next((word for word, sharing in _OLDER.items() if sharing == request.sharing), None)
    if is_older and older is not None:
        parts.append(f"{names.OPTION_MPS}={older}")
    elif request.sharing is not None:
        parts.append(f"{names.OPTION_SHARING}={request.sharing}")
    return ",".join(parts)


def sharing_of(request: ShareRequest | None, site: SharingChoice) -> SharingChoice:
    """Return the way of sharing that applies to a request: the user's, else the site's (the setting `sharing`).

    A user's cap comes before the site's time-slicing, under which nothing may enforce it.
    """
    if request is not None and request.sharing is not None:
        return request.sharing
    has_cap = request is not None and (request.mem_mib is not None or request.sm not in (None, names.SM_FREE))
    return "auto" if has_cap and site == "time-slicing" else site


def backend_of(request: ShareRequest | None, site: SharingChoice) -> str | None:
    """Return the name of the only backend that may serve a request; None: the node chooses."""
    sharing = sharing_of(request, site)
    if sharing in ("time-slicing", "exclusive"):  # a task alone needs no daemon
        return BACKEND_TIME_SLICING
    return BACKEND_MPS if request is not None and insists(request) else None


def insists(request: ShareRequest) -> bool:
    """Return whether a request is to be refused if its backend cannot serve it."""
    return request.sharing == BACKEND_MPS or request.sm == names.SM_STATIC


def insisting(request: ShareRequest) -> str:
    """Return the text with which a request insists on its backend."""
    return INSISTING if request.sharing == BACKEND_MPS else f"{names.OPTION_SM}={request.sm}"


INSISTING = f"{names.OPTION_SHARING}={names.SHARING_MPS}"
"""The text with which a user requires MPS."""
RENOUNCING = f"{names.OPTION_SHARING}={names.SHARING_TIME_SLICING}"
"""The text with which a user excludes MPS."""


def with_sharing(written: str | None, word: str | None) -> str | None:
    """Return the value of --share-gpu= with the way of sharing that --sharing names, if it names one.

    Raises UsageError if the two say different things. The value may be settings without a number.
    """
    if word is None:
        return written
    added = f"{names.OPTION_SHARING}={word}"
    if written is None:
        return f"1,{added}" if word == names.SHARING_EXCLUSIVE else added
    parts = written.split(",")
    older = next((f"{names.OPTION_MPS}={older}" for older, sharing in _OLDER.items() if sharing == word), None)
    said = next((one for one in parts if one.startswith((f"{names.OPTION_SHARING}=", f"{names.OPTION_MPS}="))), None)
    if said in (added, older) and said is not None:
        return written
    if written == names.OPTION_OFF or said is not None:
        raise UsageError(
            f"--{names.OPTION}={shown(written, 64)} and --{names.OPTION_SHARING}={word} say two things; remove one of "
            "them"
        )
    return f"{written},{added}"


def parse_sharing(value: str) -> SharingChoice:
    """Return the way of sharing with that name. Raises ValueError, with a sentence without subject."""
    for word in SHARING_WORDS:
        if value == word:
            return word
    raise ValueError(f"must be {', '.join(SHARING_WORDS[:-1])} or {SHARING_WORDS[-1]}")


def parse_memory_mib(value: str, name: str) -> tuple[int | None, int]:
    """Return the sizes in MiB of `8G:20G`, what a task is sure of and the most it may take, or None and one size.

    Raises ValueError with a sentence that begins with `name`, the text before the value; OptionError if the sizes are
    valid and do not go together.
    """
    first, colon, second = value.partition(":")
    if not colon:
        return None, parse_size_mib(value, name)
    least_mib, most_mib = parse_size_mib(first, name), parse_size_mib(second, name)
    if least_mib == most_mib:
        raise OptionError(value, f"{name}{value} names one size twice: {name}{second}")
    if least_mib > most_mib:
        why = (
            f"{name}{value}: the first size is what a task is sure of, the second the most it may take, and {second} "
            f"is less than {first}: {name}{second}:{first}"
        )
        raise OptionError(value, why)
    return least_mib, most_mib


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
