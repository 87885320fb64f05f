"""Read the lines of a plan's text, with errors that name the line."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..core import names, numbers
from ..core.errors import OptionError, StateError
from ..core.patterns import pattern
from ..core.records import ShareRequest
from . import option
from .records import Assignment

_ASSIGNMENT = pattern(r"(?a)([A-Za-z_][A-Za-z0-9_]*)(\??)=([!-~]*)")
_MOST, _CPUS_MAX = 999_999_999, 8192
"""The limits of the plugin's reader: numbers in fields, and CPUs of a node."""


def _whole(text: str, most: int) -> int | None:
    """Return the number in a text, which has no leading zero; None: it is none, or above `most`."""
    return None if text.startswith("0") and text != "0" else numbers.whole(text, most)


def is_printable(text: str) -> bool:
    """Return whether the text is printable ASCII, from blank to tilde."""
    return text.isascii() and text.isprintable()


def is_value(text: str) -> bool:
    """Return whether the text is printable ASCII without a blank."""
    return is_printable(text) and " " not in text


class PlanLines:
    """A reader of a plan's lines, in order. Each method raises StateError, which names the file and the line."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.lines = text.split("\n")
        self.at = 0
        if len(text) > names.PLAN_MAX_BYTES:
            raise self.wrong(f"the plan is longer than {names.PLAN_MAX_BYTES} bytes")
        for number, line in enumerate(self.lines):
            self.at = number  # for the error
            if len(line) >= names.PLAN_MAX_LINE:
                raise self.wrong(f"longer than {names.PLAN_MAX_LINE} bytes")
            if not is_printable(line):
                raise self.wrong("a byte that is not printable ASCII")
        self.at = 0
        if self.lines[-2:] != ["end", ""]:
            self.at = len(self.lines) - 1
            raise self.wrong("the plan is truncated: its last line is not 'end'")

    def follows(self, key: str) -> bool:
        """Return whether the next line begins with the key."""
        return self.lines[self.at + 1].startswith(f"{key} ")

    def rest(self, key: str) -> str:
        """Return the text after the key on the next line."""
        self.at += 1
        name, _, rest = self.lines[self.at].partition(" ")
        if name != key or not rest:
            raise self.wrong(f"'{key} ...' was expected here")
        return rest

    def rest_of(self, key: str, number: int) -> str:
        """Return the text after the key and the number on the next line."""
        found, _, rest = self.rest(key).partition(" ")
        if found != str(number) or not rest:
            raise self.wrong(f"'{key} {number} ...' was expected here")
        return rest

    def number(self, key: str, least: int, most: int) -> int:
        """Return the number after the key on the next line, which is from `least` to `most`."""
        found = _whole(self.rest(key), most)
        if found is None or found < least:
            raise self.wrong(f"'{key}' is a number from {least} to {most}")
        return found

    def cores(self) -> tuple[tuple[int, ...], ...]:
        """Return the CPUs of each core on the next line."""
        found = [[_whole(cpu, _CPUS_MAX - 1) for cpu in core.split(",")] for core in self.rest("cores").split(" ")]
        if sum(map(len, found)) > _CPUS_MAX or any(None in core for core in found):
            raise self.wrong(f"a CPU is a number from 0 to {_CPUS_MAX - 1}")
        return tuple(tuple(cpu for cpu in core if cpu is not None) for core in found)

    def share(self) -> ShareRequest:
        """Return the request on the next line."""
        text = self.rest("share")
        try:
            request = option.parse(text)
        except OptionError as error:
            raise self.wrong(str(error)) from None
        if request is None or not option.is_canonical(request, text):
            raise self.wrong("the share is not in its canonical form")
        return request

    def assignment(self, value: str) -> Assignment:
        """Return the variable in NAME=value or NAME?=value."""
        match = _ASSIGNMENT.fullmatch(value)
        if not match:
            raise self.wrong(f"{value[:80]!r} is not NAME=value")
        return Assignment(match[1], match[3], match[2] == "?")

    def fields(self, values: Sequence[str], required: Collection[str], optional: Collection[str]) -> dict[str, str]:
        """Return name -> value of the fields, each of them `name=value`."""
        found: dict[str, str] = {}
        for field in values:
            name, _, value = field.partition("=")
            if name in found or not value or not is_value(value) or not (name in required or name in optional):
                raise self.wrong(f"{field[:80]!r} is not a field of this line")
            found[name] = value
        missing = [name for name in required if name not in found]
        if missing:
            raise self.wrong(f"'{missing[0]}=...' was expected here")
        return found

    def field_number(self, fields: dict[str, str], name: str) -> int | None:
        """Return the number in a field; None: the line does not have the field."""
        text = fields.get(name)
        if text is None:
            return None
        number = _whole(text, _MOST)
        if number is None:
            raise self.wrong(f"'{name}' is a number from 0 to {_MOST}")
        return number

    def part(self, text: str, parts: int) -> int:
        """Return the I of I/P, where P is `parts` and I is below P."""
        written, _, whole = text.partition("/")
        part = _whole(written, parts - 1)
        if whole != str(parts) or part is None:
            raise self.wrong(f"'part=I/{parts}' with I below {parts} was expected here")
        return part

    def end(self) -> None:
        """Check that the next line is the last."""
        self.at += 1
        if self.at != len(self.lines) - 2:
            raise self.wrong("'end' was expected here")

    def wrong(self, why: str) -> StateError:
        """Return the error that names the file, this line and the reason."""
        return StateError(self.file, f"line {self.at + 1}: {why}")


def sentence(text: str) -> str:
    """Return the text as one line of printable ASCII of bounded length: a note can quote the driver."""
    flat = " ".join(text.split()).encode("ascii", "replace").decode("ascii")
    return "".join(c if c.isprintable() else "?" for c in flat)[: names.PLAN_MAX_LINE - 100]
