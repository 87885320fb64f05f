"""The page on security names a test behind every claim: each of them is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "packaging/docs/security.md"
QUOTED = re.compile(r"`([^`]+)`")
FILE = re.compile(r"(test_\w+\.py)(?:: (.+))?")
SENTENCE = re.compile(r"[a-z0-9]+(?: [a-z0-9]+){2,}")


def claims() -> list[tuple[str, str]]:
    """(file, part of a test's name) of everything the page quotes; a quote without a file is of the file before it."""
    found: list[tuple[str, str]] = []
    file = ""
    for quoted in QUOTED.findall(re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))):
        if named := FILE.fullmatch(quoted):
            file = named[1]
            found.append((file, named[2] or ""))
        elif SENTENCE.fullmatch(quoted) and file:
            found.append((file, quoted))
    return found


def test_every_test_that_the_page_names_is_there() -> None:
    named = claims()
    assert len(named) > 35
    missing = []
    for file, words in named:
        places = list((ROOT / "tests").rglob(file))
        text = places[0].read_text(encoding="utf-8") if len(places) == 1 else ""
        names = re.findall(r"^(?:async )?def test_(\w+)", text, re.MULTILINE)
        if not any(words.replace(" ", "_") in name for name in names):
            missing.append(f"{file}: {words}")
    assert missing == []


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text(encoding="utf-8"))
    assert len(links) >= 4
    assert [link for link in links if not (PAGE.parent / link).exists()] == []


def test_the_shell_scripts_that_are_shipped_are_those_of_the_page() -> None:
    named = PAGE.read_text(encoding="utf-8")
    shipped = ("packaging/share", "packaging/systemd", "packaging/deb", "slurm_share", "prolog", "tui", "plugins")
    files = [file for folder in shipped for file in (ROOT / folder).rglob("*") if file.is_file()]
    scripts = [file for file in files if re.match(rb"#!.*\b(?:ba|da|z|k)?sh\b", file.read_bytes()[:80])]
    others = {file.name for file in scripts if file.parent.name != "deb"}
    assert others == {"configure", "slurm-confs", "slurm-share-health", "slurm-share-plugin"}
    assert len(scripts) > len(others)
    assert [name for name in others if name not in named] == []


def test_no_figure_of_a_run_is_claimed_that_does_not_hold() -> None:
    """Of a file that the page names in support: its bars hold, or the page says what it cost."""
    for link in re.findall(r"\]\(([^)#]+\.json)\)", PAGE.read_text(encoding="utf-8")):
        rows = json.loads((PAGE.parent / link).read_text(encoding="utf-8"))["rows"]
        failed = [row["what"] for row in rows if row["holds"] is False]
        assert [what for what in failed if "slurmctld" not in what] == [], link
