"""Read the lines of a plan's text, with errors that name the line."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..core import names
from ..core.errors import OptionError, StateError
from ..core.patterns import pattern
from ..core.records import ShareRequest
from . import option
from .records import Assignment

_ASSIGNMENT = pattern(r"(?a)([A-Za-z_][A-Za-z0-9_]*)(\??)=([!-~]*)")
_NUMBER = pattern(r"(?a)0|[1-9][0-9]{0,8}")


def is_printable(text: str) -> bool:
    """Return whether the text is printable ASCII, from blank to tilde."""
    return text.isascii() and text.isprintable()


def is_value(text: str) -> bool:
    """Return whether the text is printable ASCII without a blank."""
    return is_printable(text) and " " not in text


class Lines:
    """A reader of a plan's lines, in order. Each method raises StateError, which names the file and the line."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.lines = text.split("\n")
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

    def number(self, key: str) -> int:
        """Return the number after the key on the next line."""
        return self.numbers(self.rest(key))[0]

    def count(self, key: str) -> int:
        """Return the number after the key on the next line, from 1 to names.PLAN_MAX_SLOTS."""
        found = self.number(key)
        if not 1 <= found <= names.PLAN_MAX_SLOTS:
            raise self.wrong(f"'{key}' is a number from 1 to {names.PLAN_MAX_SLOTS}")
        return found

    def numbers(self, value: str) -> list[int]:
        """Return the numbers in a comma-separated list."""
        try:
            return [int(part) for part in value.split(",")]
        except ValueError:
            raise self.wrong("a number was expected here") from None

    def share(self) -> ShareRequest:
        """Return the request on the next line."""
        try:
            request = option.parse(self.rest("share"))
        except OptionError as error:
            raise self.wrong(error.why) from None
        if request is None:
            raise self.wrong("a plan is never 'off'")
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
        if not _NUMBER.fullmatch(text):
            raise self.wrong(f"'{name}' is a number")
        return int(text)

    def part(self, text: str, parts: int) -> int:
        """Return the I of I/P, where P is `parts` and I is below P."""
        part, _, whole = text.partition("/")
        if whole != str(parts) or not _NUMBER.fullmatch(part) or int(part) >= parts:
            raise self.wrong(f"'part=I/{parts}' with I below {parts} was expected here")
        return int(part)

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
