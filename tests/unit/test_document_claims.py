"""The claims of the documents: the tests, files and figures that they name exist."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "packaging/docs"
SECURITY = [DOCS / name for name in ("security.md", "security-root.md", "security-attacks.md")]
RESULTS = CHECKOUT / "tests/bench/results"
NAMES = {
    name
    for file in (CHECKOUT / "tests").rglob("test_*.py")
    for name in re.findall(r"^ *(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_every_test_that_a_page_quotes_exists(page: Path) -> None:
    assert set(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))) <= NAMES


def test_the_readme_is_read_in_two_minutes() -> None:
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 70
    assert len(re.findall(r"(?<!!)\[[^\]]+\]\(", text)) <= 16


def test_every_row_of_the_failure_modes_has_a_test_named_after_it() -> None:
    rows = re.findall(r"^\| (\d+) \|.*", (DOCS / "failure-modes.md").read_text(encoding="utf-8"), re.MULTILINE)
    numbered = {int(n) for name in NAMES for n in re.findall(r"(?:^test_rows?_|_and_)(\d\d)(?=_)", name)}
    assert [int(row) for row in rows] == list(range(1, 31))
    assert set(range(1, 31)) <= numbered


def test_the_figures_of_chaos_are_those_of_its_last_run() -> None:
    page = (DOCS / "failure-modes.md").read_text(encoding="utf-8")
    rows = json.loads((RESULTS / "chaos.json").read_text(encoding="utf-8"))["rows"]
    lines = ["| " + row["what"] + " | " + f"{row['value']:.12g} {row['unit']}".strip() + " |" for row in rows]
    assert "\n".join(lines) in page


def test_the_figures_of_the_comparison_are_those_of_the_bench() -> None:
    spec = importlib.util.spec_from_file_location("compared", CHECKOUT / "tests/bench/compared.py")
    compared = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compared)
    page = compared.PAGE.read_text()
    assert len(compared.COST.findall(page)) == 8
    assert len(compared.RATE.findall(page)) == 5
    assert compared.filled(page, compared.RESULT.read_text()) == page


def test_every_test_behind_a_claim_on_security_exists() -> None:
    """`file.py: part of a test's name`; a quoted part without a file is of the last file named."""
    text = re.sub(r"\s+", " ", "\n".join(page.read_text(encoding="utf-8") for page in SECURITY))
    file, claims = "", []
    for quoted in re.findall(r"`([^`]+)`", text):
        if named := re.fullmatch(r"(test_\w+\.py)(?:: (.+))?", quoted):
            file = named[1]
            claims.append((file, named[2] or ""))
        elif file and re.fullmatch(r"[a-z0-9]+(?: [a-z0-9]+){2,}", quoted):
            claims.append((file, quoted))
    assert len(claims) > 35
    sources = {path.name: path.read_text(encoding="utf-8") for path in (CHECKOUT / "tests").rglob("test_*.py")}
    pattern = r"^(?:async )?def test_\w*{}"
    assert [
        (file, part)
        for file, part in claims
        if not re.search(pattern.format(part.replace(" ", "_")), sources.get(file, ""), re.MULTILINE)
    ] == []


def test_the_shell_scripts_that_are_shipped_are_those_of_the_page() -> None:
    shipped = ("packaging/share", "packaging/systemd", "packaging/deb", "slurm_share", "prolog", "tui", "plugins")
    files = [file for folder in shipped for file in (CHECKOUT / folder).rglob("*") if file.is_file()]
    scripts = [file for file in files if re.match(rb"#!.*\b(?:ba|da|z|k)?sh\b", file.read_bytes()[:80])]
    others = {file.name for file in scripts if file.parent.name != "deb"}
    assert others == {"configure", "slurm-confs", "slurm-share-health", "slurm-share-plugin"}
    page = (DOCS / "security-root.md").read_text(encoding="utf-8")
    assert [name for name in others if name not in page] == []


@pytest.mark.parametrize("page", [*SECURITY, *(CHECKOUT / ".github").glob("*.md")], ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    paths = re.findall(r"(?:^    |`)((?:packaging|tests|plugins|slurm_share)/[\w./-]+)", text, re.MULTILINE)
    assert links or paths
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert [path for path in paths if not (CHECKOUT / path).exists()] == []
