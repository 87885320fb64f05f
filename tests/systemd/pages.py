"""The pages for administrators, followed on the machine line by line."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from documents import DOCUMENTS, Line, lines_of
from whole_machine import WholeMachine

CONFIG = "/etc/slurm-share/config.toml"
_BUILD = "packaging/build.sh"
"""The packages are there: test_packages.py builds them by that line."""


@dataclass(frozen=True)
class Followed:
    """A line of a page that was run, and its result."""

    line: Line
    code: int
    text: str


def follow(machine: WholeMachine, page: str, *, below: str = "", above: str = "") -> dict[str, Followed]:
    """Run the lines of a page's console blocks, root's in the folder of the packages and the user's at home.

    Settings that a page shows as TOML are written before the first line that reads them. `below` and `above`: only the
    lines between these two headings. A line that must not end with 0 is for the caller to judge.
    """
    file = next(file for file in DOCUMENTS if file.name == page)
    text = file.read_text().splitlines()
    begin = text.index(below) if below else 0
    end = text.index(above) if above else len(text)
    settings = [match[1] for match in re.finditer(r"```toml\n(.*?)```", "\n".join(text[begin:end]), re.DOTALL)]
    ran = {}
    for line in lines_of(file):
        if not line.in_order or not begin < line.number <= end or line.text == _BUILD:
            continue
        if line.text == "slurm-share config print" and settings:
            _write(machine, settings)
        ran[line.text] = _run(machine, line)
    return ran


def unexpected(ran: Collection[Followed], codes: dict[str, int]) -> list[str]:
    """Return the lines that ended with another code than `codes`, by pattern, or else 0."""
    found = []
    for one in ran:
        wanted = next((code for pattern, code in codes.items() if re.fullmatch(pattern, one.line.text)), 0)
        if one.code != wanted or "Traceback" in one.text:
            found.append(f"{one.line}: {one.code}\n{one.text}")
    return found


def _run(machine: WholeMachine, line: Line) -> Followed:
    if not line.root:
        said = machine.run(line.text, user="alice", check=False)
    else:
        folder = "cd packages" if line.text.startswith("apt install") else "true"
        said = machine.run(line.text, before=folder, answer="y", check=False)
    return Followed(line, said.code, said.text)


def _write(machine: WholeMachine, settings: list[str]) -> None:
    have = machine.ask(f"cat {CONFIG}")
    present = tomllib.loads(have)
    missing = [text for text in settings if not _has(present, tomllib.loads(text))]
    if missing:
        machine.run(f"printf %s {shlex.quote(chr(10) + chr(10).join(missing))} >>{CONFIG}")


def _has(present: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return whether the settings are there already, as another page wrote them."""
    return all(
        _has(present.get(key, {}), value) if isinstance(value, dict) else present.get(key) == value
        for key, value in wanted.items()
    )
