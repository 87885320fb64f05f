"""A plan's bytes: PlanFile <-> text, both directions pure. The format is written down in `names.py`."""

from __future__ import annotations

from ..core import names
from ..core.errors import OptionError, StateError
from ..core.patterns import pattern
from ..core.records import ShareRequest
from . import option
from .records import Assignment, PlanFile, PlanSlot

_PART = pattern(r"(?a)part=([0-9]+)/([0-9]+)")
_ASSIGNMENT = pattern(r"(?a)([A-Za-z_][A-Za-z0-9_]*)(\??)=([!-~]*)")


def render(plan: PlanFile) -> str:
    """The plan's text.

    Raises ValueError for what the format cannot hold: a blank in a value, an over-long line. That is a defect of the
    caller, never of a user, whose words do not reach a plan.
    """
    lines = [names.PLAN_MAGIC, f"job {plan.job_id}", f"uid {plan.uid}", f"node {plan.node}"]
    if plan.refused is not None:
        lines.append(f"refused {_sentence(plan.refused)}")
    elif plan.unshared is not None:
        lines.append(f"unshared {_sentence(plan.unshared)}")
    elif plan.share is not None:
        lines += [f"share {option.render(plan.share)}", f"gpus {plan.gpus}", f"slots {len(plan.slots)}"]
        lines.append("cores " + " ".join(",".join(map(str, core)) for core in plan.cores))
        lines += [f"note {_sentence(note)}" for note in plan.notes]
        lines += [_slot_line(slot, len(plan.slots)) for slot in plan.slots]
    lines.append("end")
    for line in lines:
        if len(line) >= names.PLAN_MAX_LINE or not _is_printable(line):
            raise ValueError(f"not a plan line: {line[:200]!r}")
    return "\n".join(lines) + "\n"


def parse(text: str, file: str = names.PLAN_FILE) -> PlanFile:
    """The plan in `text`. Raises StateError, which names `file` and the line."""
    return _Reader(text, file).plan()


def _is_printable(text: str) -> bool:
    """Whether it is printable ASCII, blank to tilde."""
    return text.isascii() and text.isprintable()


def _sentence(text: str) -> str:
    """One printable line: a note may quote the driver, whose words are not ours to choose."""
    flat = " ".join(text.split()).encode("ascii", "replace").decode("ascii")
    return "".join(c if c.isprintable() else "?" for c in flat)[: names.PLAN_MAX_LINE - 100]


def _slot_line(slot: PlanSlot, parts: int) -> str:
    words = [f"slot {slot.number}", f"part={slot.part}/{parts}"]
    for a in slot.environment:
        if not _is_printable(a.value) or " " in a.value:
            raise ValueError(f"a plan cannot hold {a.name}={a.value!r}")
        words.append(f"{a.name}{'?' if a.unless_set else ''}={a.value}")
    return " ".join(words)


class _Reader:
    """Walks the lines of one plan and remembers where it is, for the error's sake."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.lines = text.split("\n")
        self.at = 0

    def plan(self) -> PlanFile:
        if self.lines[-2:] != ["end", ""]:
            self.at = len(self.lines) - 1
            raise self.wrong("the plan is torn: its last line is not 'end'")
        if self.lines[0] != names.PLAN_MAGIC:
            raise self.wrong(f"not a plan of this version ({names.PLAN_MAGIC!r})")
        job_id, uid, node = self.number("job"), self.number("uid"), self.word("node")
        if self.lines[self.at + 1].startswith("refused "):
            refused = self.word("refused")
            self.finish()
            return PlanFile(job_id, uid, node, refused=refused)
        if self.lines[self.at + 1].startswith("unshared "):
            unshared = self.word("unshared")
            self.finish()
            return PlanFile(job_id, uid, node, unshared=unshared)
        share, gpus, count = self.share(), self.number("gpus"), self.number("slots")
        cores = tuple(tuple(self.numbers(word)) for word in self.word("cores").split())
        notes = []
        while self.lines[self.at + 1].startswith("note "):
            notes.append(self.word("note"))
        slots = tuple(self.slot(number, count) for number in range(count))
        self.finish()
        return PlanFile(job_id, uid, node, None, share, gpus, cores, tuple(notes), slots)

    def finish(self) -> None:
        self.at += 1
        if self.at != len(self.lines) - 2:
            raise self.wrong("'end' was expected here")

    def word(self, key: str) -> str:
        self.at += 1
        name, _, rest = self.lines[self.at].partition(" ")
        if name != key or not rest:
            raise self.wrong(f"'{key} ...' was expected here")
        return rest

    def number(self, key: str) -> int:
        return self.numbers(self.word(key))[0]

    def numbers(self, word: str) -> list[int]:
        try:
            return [int(part) for part in word.split(",")]
        except ValueError:
            raise self.wrong("a number was expected here") from None

    def share(self) -> ShareRequest:
        try:
            request = option.parse(self.word("share"))
        except OptionError as error:
            raise self.wrong(error.why) from None
        if request is None:
            raise self.wrong("a plan is never 'off'")
        return request

    def slot(self, number: int, parts: int) -> PlanSlot:
        where, _, rest = self.word("slot").partition(" ")
        part, *words = rest.split(" ")
        match = _PART.fullmatch(part)
        if where != str(number) or not match or match[2] != str(parts):
            raise self.wrong(f"'slot {number} part=I/{parts} ...' was expected here")
        return PlanSlot(number, int(match[1]), tuple(self.assignment(word) for word in words))

    def assignment(self, word: str) -> Assignment:
        match = _ASSIGNMENT.fullmatch(word)
        if not match:
            raise self.wrong(f"{word[:80]!r} is not NAME=value")
        return Assignment(match[1], match[3], match[2] == "?")

    def wrong(self, why: str) -> StateError:
        return StateError(self.file, f"line {self.at + 1}: {why}")
