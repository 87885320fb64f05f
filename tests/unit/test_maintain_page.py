"""packaging/docs/maintain.md: its tables of formats and deadlines, and its invariants, are those of the code."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_share.core.settings import Settings

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "packaging/docs/maintain.md"
TEXT = PAGE.read_text(encoding="utf-8")

# ---- Formats ----

SOURCES = (
    "slurm_share/**/*.py",
    "tui/**/*.py",
    "prolog/*.py",
    "prolog/*.c",
    "plugins/*.h",
    "plugins/*.c",
    "plugins/*.lua",
)
CONSTANT = re.compile(
    r"^(?:#define )?(_?(?:[A-Z]+_)*(?:VERSION|MAGIC|FORMAT|SCHEMA))"
    r"(?: *(?:: [\w\[\], ]+)? = | )[bf]?(\"[^\"\n]*\"|\d+)",
    re.MULTILINE,
)
FIELD = re.compile(r"^(?:    | +\")(version|schema)\"?: (?:(?:int|Amount) = )?(\d+),?$", re.MULTILINE)
"""A version in a record that has no constant."""
OF_OTHERS = {
    "slurm_share/slurm/script.py": "the first word of Slurm's lines in a script",
    "slurm_share/share/backends/mps_health.py": "a driver's release",
    "slurm_share/triples/rules/task_files.py": "the first word of a line of options",
    "slurm_share/spmd/ppython/messages.py": "the release of pPython whose names it has",
    "slurm_share/lab/sim_node.py": "counts the changes of a simulated node",
    "prolog/front.c": "the release of the package",
}
"""Files whose constants or fields of these names are no format's."""
QUOTED = re.compile(r"`([\w/]+\.(?:py|c|h|lua)) (\w+) = ([^`]*)`")


def formats_of_the_code() -> set[tuple[str, str, str]]:
    """Return (file, name, value) of each version and each first word of a format."""
    found = set()
    for pattern in SOURCES:
        for file in CHECKOUT.glob(pattern):
            name = str(file.relative_to(CHECKOUT))
            if name in OF_OTHERS:
                continue
            text = file.read_text(encoding="utf-8")
            found |= {(name, one, value.strip('"')) for one, value in CONSTANT.findall(text)}
            found |= {(name, one, value) for one, value in FIELD.findall(text)}
    return found


def test_every_version_of_a_format_in_the_code_has_a_row_on_the_page() -> None:
    of_page = {(file if "/" in file else "", name, value) for file, name, value in QUOTED.findall(TEXT)}
    of_code = formats_of_the_code()
    assert sorted(of_code - of_page) == [], f"no row in {PAGE.name}, section 2"
    assert sorted(of_page - of_code) == [], "a row names a version that the code does not have"


def test_the_search_for_versions_finds_each_way_to_write_one() -> None:
    text = 'VERSION = 1\n_MAGIC = b"\\xe5X"\nSCHEMA: int = 3\n#define SS_PLAN_MAGIC "plan 2"\nMAGIC = f"{A}{VERSION}"\n'
    assert [name for name, _ in CONSTANT.findall(text)] == ["VERSION", "_MAGIC", "SCHEMA", "SS_PLAN_MAGIC", "MAGIC"]
    assert FIELD.findall("    version: int = 1\n    schema: Amount = 2\n    version: int = VERSION\n") == [
        ("version", "1"),
        ("schema", "2"),
    ]


@pytest.mark.parametrize("file", OF_OTHERS)
def test_every_exception_is_still_needed(file: str) -> None:
    text = (CHECKOUT / file).read_text(encoding="utf-8")
    assert CONSTANT.search(text) or FIELD.search(text) or "version: int" in text


# ---- Deadlines ----

OF_SLURM = {"BatchStartTimeout": 10.0, "MessageTimeout": 10.0, "KillWait": 30.0, "UnkillableStepTimeout": 60.0}
"""Slurm's defaults, in seconds (slurm.conf(5))."""
NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
ROW = re.compile(r"^\| `([^`]+)` \| ([\d.]+) \| `([^`]+)` \| ([\d.]+) \| (.+) \|$", re.MULTILINE)
ROWS = ROW.findall(TEXT)


def seconds(name: str) -> float:
    """Return the value behind a name of the table: `slurm.KillWait`, `settings.hook_deadline_s`, `front.ANSWER_MS` of
    front.c, `unit.WatchdogSec` of the agent's unit, `hooks.` and `tui.` packages, else one of slurm_share."""
    first, _, rest = name.partition(".")
    if first == "slurm" and rest in OF_SLURM:
        return OF_SLURM[rest]
    if first == "settings":
        return float(getattr(Settings(), rest))
    if first == "unit":
        text = (CHECKOUT / "packaging/systemd/slurm-share-agent.service").read_text()
        return float(re.search(rf"^{rest}=(\d+)$", text, re.MULTILINE)[1])
    if first == "front":
        text = (CHECKOUT / "prolog/front.c").read_text()
        return float(re.search(rf"^#define {rest} (\d+)", text, re.MULTILINE)[1]) / 1000
    package = {"hooks": "slurm_share_hooks", "tui": "slurm_share_tui"}.get(first)
    module, _, constant = (f"{package}.{rest}" if package else f"slurm_share.{name}").rpartition(".")
    return float(getattr(importlib.import_module(module), constant))


def value_of(text: str) -> float:
    """Return the value of sums and products of names."""
    names = {name: seconds(name) for name in set(NAME.findall(text)) if not name[0].isdigit()}
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, repr(names[name]))
    assert re.fullmatch(r"[\d. +*]+", text), text
    return eval(text)  # digits, + and * only


@pytest.mark.parametrize(("lower", "least", "upper", "most", "why"), ROWS, ids=[row[0] for row in ROWS])
def test_a_deadline_is_below_what_it_must_be_below(lower: str, least: str, upper: str, most: str, why: str) -> None:
    assert (value_of(lower), value_of(upper)) == (float(least), float(most)), "the page has other figures"
    assert value_of(lower) < value_of(upper) or (value_of(lower) == value_of(upper) and why.startswith("at most"))


def test_the_table_of_deadlines_was_read() -> None:
    assert len(ROWS) >= 45
    section = TEXT.partition("## 3.")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| `", section, re.MULTILINE)) == len(ROWS)


# ---- Invariants ----


def test_the_invariants_are_those_of_the_table_of_faults() -> None:
    argv = [sys.executable, CHECKOUT / "tests/faults.py", "--page"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "run tests/faults.py --page --write"
