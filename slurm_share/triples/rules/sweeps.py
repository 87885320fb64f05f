"""Parameters of tasks: parse `--sweep NAME=VALUES`, combine the values, and put them into commands.

`lr=1e-3,1e-4` has two values, `seed=0..9` ten. A value with a comma is in double quotes, as in CSV. Ranges are those of
bash's braces: both ends belong to them, `0..100..10` has a step, `00..09` keeps the zeros. With a step, the numbers may
have decimals.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, DecimalException
from itertools import product

import msgspec
from msgspec import Struct

from ...core.errors import UsageError, shown
from ...core.text import counted, did_you_mean

OPTION = "--sweep"
TASKS_MOST = 1_000_000
"""Most tasks of a run with parameters. A launcher needs 640 MB for so many, and llsub 670 MB and 6 s (measured with two
parameters each); without parameters records.TASKS_MAX holds."""
REPEAT = "repeat"
"""Parameter with the number of the repetition, from 0, if --ntasks repeats each combination."""
INPUT, COMMAND = "input", "command"
"""Parameters with the line of the tasks file, if its lines are combined with values: an argument, or a command."""
NOT_PASSED = frozenset({REPEAT, INPUT, COMMAND})
"""Parameters that no program knows as `--NAME=`; an input is passed by itself."""
VARIABLE = "LLSUB_PARAM_"
"""Prefix of a parameter's variable; the name follows in capitals."""
FILE_MARK = "@"
"""First character of VALUES that name a file with a value on each line."""
NAME_MAX = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_FIELD = re.compile(
    r"\{\{\{(?P<inside>[A-Za-z_][A-Za-z0-9_]*)\}\}\}|\{\{(?P<text>[A-Za-z_][A-Za-z0-9_]*)\}\}"
    r"|(?<!\$)\{(?P<field>[A-Za-z_][A-Za-z0-9_]*)\}",
    re.ASCII,
)
"""{name}; {{name}} is the text {name}; {{{name}}} is the value in braces. Other braces are text: those of JSON, awk or
${VARIABLE}."""
_NUMBER = r"[-+]?(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})(?:[eE][-+]?[0-9]{1,3})?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:\.\.({_NUMBER}))?", re.ASCII)
_LOOKS_LIKE_RANGE = re.compile(r"[-+]?\.?[0-9][^,]*\.\.", re.ASCII)
_WHOLE = re.compile(r"[-+]?[0-9]+", re.ASCII)
_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"))


class Parameter(Struct, frozen=True):
    """A parameter and its values."""

    name: str
    values: tuple[str, ...]


def name_of(written: str) -> tuple[str, str]:
    """Return the name and the values, as text, of `--sweep NAME=VALUES`. Raises UsageError."""
    name, equals, values = written.partition("=")
    where = f"{OPTION} {shown(written, 60)}"
    if not equals:
        raise UsageError(f"{where}: write a name and its values, such as lr=1e-3,1e-4 or seed=0..9")
    check_name(name, where)
    if not values or values == FILE_MARK:
        raise UsageError(
            f"{where}: {name} has no values; write {name}=1,2 or {name}=@FILE (is a variable of the shell not set?)"
        )
    return name, values


def check_name(name: str, where: str) -> None:
    """Raise UsageError, which begins with `where`, if a parameter cannot have this name."""
    if _NAME.fullmatch(name) and len(name) <= NAME_MAX:
        return
    said = (
        f"{where}: {shown(name, 60) or 'empty text'} cannot be the name of a parameter, which has letters, digits and _"
    )
    if len(name) > NAME_MAX:
        raise UsageError(f"{said}, at most {NAME_MAX} of them")
    other = re.sub(r"[^A-Za-z0-9_]", "_", name, flags=re.ASCII)
    if _NAME.fullmatch(other):
        said += f"; write {other}, and for a program that has another option -- --{shown(name, 60)}={{{other}}}"
    raise UsageError(said)


def check_names(names: Sequence[str], where: str) -> None:
    """Raise UsageError, which begins with `where`, if two names are the same, or differ in case only."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.get(name.upper())
        if other is None:
            seen[name.upper()] = name
            continue
        if other == name:
            raise UsageError(f"{where}: the name {name} is there twice; rename one of them")
        raise UsageError(
            f"{where}: {other} and {name} differ in case only, and would have one variable {variable(name)}; rename one"
        )


def variable(name: str) -> str:
    """Return the name of a parameter's environment variable."""
    return VARIABLE + name.upper()


# ---- Values ----


def values_of(name: str, text: str) -> tuple[str, ...]:
    """Return the values in `1e-3,1e-4,0..9,"a,b"`. Raises UsageError."""
    where = f"{OPTION} {name}={shown(text, 60)}"
    found: list[str] = []
    items = _split(text, where)
    for place, (item, is_quoted) in enumerate(items):
        if is_quoted:
            found.append(item)
        elif item:
            _check_brackets(name, items, place, where)
            found += _expanded(item, where)
        else:
            raise UsageError(f'{where}: there is no value between two commas or at the end; write "" for an empty one')
        if len(found) > TASKS_MOST:
            raise UsageError(f"{where}: these are more than {TASKS_MOST} values, the most of a run with parameters")
    for value in found:
        check_value(value, where)
    return tuple(found)


def check_value(value: str, where: str) -> None:
    """Raise UsageError, which begins with `where`, for a value with a line end or a NUL."""
    if "\n" in value or "\r" in value or "\0" in value:
        raise UsageError(f"{where}: the value {shown(value, 40)} contains a line end or a NUL; remove it")


def _split(text: str, where: str) -> list[tuple[str, bool]]:
    """Return the items between commas, and whether each was in quotes."""
    items: list[tuple[str, bool]] = []
    rest = text
    while True:
        rest = rest.lstrip(" ")
        if not rest.startswith('"'):
            item, comma, rest = rest.partition(",")
            items.append((item.rstrip(" "), False))
        else:
            match = re.match(r'"((?:[^"]|"")*)" *(,|$)', rest)
            if match is None:
                raise UsageError(
                    f'{where}: a quote is not closed before a comma or the end; a quote inside quotes is "", as in CSV'
                )
            items.append((match[1].replace('""', '"'), True))
            comma, rest = match[2], rest[match.end() :]
        if not comma:
            return items


def _check_brackets(name: str, items: Sequence[tuple[str, bool]], place: int, where: str) -> None:
    """Raise UsageError for a value that a comma inside brackets has cut."""
    if _is_balanced(items[place][0]):
        return
    texts = [item for item, _ in items[place:]]
    whole = next((",".join(texts[:end]) for end in range(2, len(texts) + 1) if _is_balanced(",".join(texts[:end]))), "")
    example = shlex.quote(f'{name}="{(whole or "[64,64]").replace(chr(34), chr(34) * 2)}"')
    raise UsageError(
        f"{where}: the value {shown(items[place][0], 40)} has an open bracket; a value with a comma is in double "
        f"quotes, as in CSV: {OPTION} {shown(example, 80)}"
    )


def _is_balanced(text: str) -> bool:
    return all(text.count(opens) == text.count(closes) for opens, closes in _PAIRS)


def _expanded(item: str, where: str) -> Sequence[str]:
    """Return the values of a range, or the item itself. Raises UsageError for a range that is wrong."""
    match = _RANGE.fullmatch(item)
    if match is not None:
        return _range(match[1], match[2], match[3], f"{where}: {item}")
    if _LOOKS_LIKE_RANGE.match(item):
        raise UsageError(
            f"{where}: {shown(item, 40)} is no range such as 0..9 or 0..100..10; put it in double quotes if it is text"
        )
    return [item]


def _range(first: str, last: str, step: str | None, where: str) -> list[str]:
    """Return the numbers from `first` to `last`. Raises UsageError."""
    is_whole = all(_WHOLE.fullmatch(text) for text in (first, last, step or "1"))
    if step is None and not is_whole:
        raise UsageError(
            f"{where} has numbers that are not whole, and no step; write {first}..{last}..STEP, or the values"
        )
    begin, end = Decimal(first), Decimal(last)
    by = abs(Decimal(step or 1))
    if not by or (step is not None and (step[0] == "-") != (end < begin) and step[0] in "-+"):
        raise UsageError(f"{where} never reaches its end; write a step above 0")
    try:
        count = int(abs(end - begin) // by) + 1
    except DecimalException:
        count = TASKS_MOST + 1
    if count > TASKS_MOST:
        raise UsageError(f"{where} has more than {TASKS_MOST} values, the most of a run with parameters")
    if end < begin:
        by = -by
    if is_whole:
        bare = [text.lstrip("+-") for text in (first, last)]
        padded = any(len(text) > 1 and text[0] == "0" for text in bare)
        width = max(len(first.lstrip("+")), len(last.lstrip("+"))) if padded else 0
        return [f"{int(begin) + number * int(by):0{width}d}" for number in range(count)]
    places = max(0, *(-int(one.as_tuple().exponent) for one in (begin, by)))
    return [f"{begin + number * by:.{places}f}" for number in range(count)]


# ---- Combinations ----


def combinations(parameters: Sequence[Parameter], *, is_zip: bool) -> Iterator[tuple[str, ...]]:
    """Yield a value of each parameter: all combinations, the last parameter fastest; with `is_zip` the first of each,
    then the second of each. Call `count` before."""
    values = [one.values for one in parameters]
    return zip(*values, strict=True) if is_zip and values else product(*values)


def count(parameters: Sequence[Parameter], *, is_zip: bool, lines: int = 1, repeats: int = 1) -> int:
    """Return the number of tasks. Raises UsageError for values of different numbers with `is_zip`, for too many tasks,
    and for names that collide."""
    check_names([one.name for one in parameters], OPTION)
    if is_zip:
        lengths = {len(one.values) for one in parameters}
        if len(lengths) > 1:
            said = ", ".join(f"{one.name} has {counted(len(one.values), 'value')}" for one in parameters)
            raise UsageError(
                f"--zip takes the first value of each {OPTION}, then the second: {said}; write as many of each"
            )
        number = lengths.pop() if lengths else 1
    else:
        number = math.prod(len(one.values) for one in parameters)
    total = number * lines * repeats
    if total > TASKS_MOST:
        parts = ([str(lines)] if lines > 1 else []) + (
            [str(number)] if is_zip else [str(len(one.values)) for one in parameters]
        )
        parts += [str(repeats)] if repeats > 1 else []
        raise UsageError(
            f"{' x '.join(parts)} = {total} tasks, but a run with parameters has at most {TASKS_MOST}; make several"
        )
    return total


# ---- Commands ----


def fields_in(text: str) -> set[str]:
    """Return the names in `{name}`, which stand for values."""
    return {match["field"] or match["inside"] for match in _FIELD.finditer(text) if match["text"] is None}


def quoted_fields(text: str) -> set[str]:
    """Return the names in `{name}` that stand inside quotes of a shell."""
    found: set[str] = set()
    quote, place = "", 0
    while place < len(text):
        match = _FIELD.match(text, place)
        if match is not None:
            if quote and match["text"] is None:
                found.add(match["field"] or match["inside"])
            place = match.end()
            continue
        one = text[place]
        if one == "\\" and quote != "'":
            place += 1
        elif one in ("'", '"') and quote in ("", one):
            quote = "" if quote else one
        place += 1
    return found


def check_fields(text: str, known: Iterable[str], where: str) -> set[str]:
    """Return the names in `{name}` of a text. Raises UsageError, which begins with `where`, for an unknown one."""
    found, names = fields_in(text), list(known)
    for name in sorted(found.difference(names)):
        hint = did_you_mean(name, names, f"the parameters are {', '.join(names)}")
        raise UsageError(
            f"{where}: there is no parameter {{{shown(name, 60)}}}; for this text write {{{{{name}}}}}{hint}"
        )
    return found


def fill(text: str, values: Mapping[str, str], *, for_shell: bool = False) -> str:
    """Return a text with values for `{name}`; a missing one is empty. for_shell: quote them for a command of bash."""

    def of(match: re.Match[str]) -> str:
        if match["text"] is not None:
            return f"{{{match['text']}}}"
        value = values.get(match["field"] or match["inside"], "")
        value = shlex.quote(value) if for_shell and value else value
        return value if match["inside"] is None else f"{{{value}}}"

    return _FIELD.sub(of, text)


def escape(text: str) -> str:
    """Return a text that `fill` turns back into this one."""
    return _FIELD.sub(lambda match: match[0] if match["field"] is None else f"{{{match[0]}}}", text)


def arguments_of(values: Mapping[str, str]) -> list[str]:
    """Return the parameters as `--name=value` arguments."""
    return [f"--{name}={value}" for name, value in values.items() if name not in NOT_PASSED]


def line_of(arguments: Sequence[str]) -> str:
    """Return the arguments of a task as its line of the run's tasks file, for the kind `arguments`."""
    return msgspec.json.encode(list(arguments)).decode()


# ---- Names of tasks ----


def label(values: Mapping[str, str], between: str = " ") -> str:
    """Return the parameters of a task as text for people: `lr=1e-3 seed=4`; values with blanks or quotes are quoted."""
    return between.join(f"{name}={_quoted(value)}" for name, value in values.items())


def _quoted(value: str) -> str:
    if value and not re.search(r'[\s,"=]', value):
        return value
    return '"' + value.replace('"', '""') + '"'


def parse_label(text: str) -> dict[str, str]:
    """Return names and values of `lr=1e-3,seed=4`, also with blanks in place of the commas. Raises UsageError."""
    found: dict[str, str] = {}
    rest = text.strip()
    while rest:
        match = re.match(r'([A-Za-z_][A-Za-z0-9_]*)=("(?:[^"]|"")*"|[^,\s"]*)(?:[,\s]+|$)', rest, re.ASCII)
        if match is None:
            raise UsageError(
                f"{shown(text, 60) or repr('')} is neither the number of a task, from 0, nor its parameters, such as "
                "lr=1e-3,seed=4"
            )
        value = match[2]
        found[match[1]] = value[1:-1].replace('""', '"') if value.startswith('"') else value
        rest = rest[match.end() :]
    return found
