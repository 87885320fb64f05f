"""Links of the installed documents."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from make import manual


def dead(folder: Path) -> list[str]:
    """Return links of the texts in `folder` that lead nowhere."""
    found = []
    for text in sorted(folder.rglob("*.md")):
        for link in re.findall(r"\]\(([^)\s]+)\)", text.read_text()):
            path, _, part = link.partition("#")
            target = Path(os.path.normpath(text.parent / path)) if path else text
            if "://" in link:
                continue
            if not target.is_file() or not target.is_relative_to(folder):
                found.append(f"{text.name}: {link}")
            elif part and part not in anchors(target.read_text()):
                found.append(f"{text.name}: {link}, no such heading")
    return found


def anchors(text: str) -> set[str]:
    """Return the headings of a page as links name them."""
    heads = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_no_link_of_the_installed_documents_is_dead(tmp_path: Path) -> None:
    manual.write(tmp_path)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert {"README.md", "install.md", "pictures/nodes.svg", "snapshot.schema.json"} <= names
    # these two are put there by the package's other hands
    (tmp_path / "CHANGELOG.md").touch()
    assert dead(tmp_path) == []


def test_links_are_those_of_the_place() -> None:
    page = PurePosixPath("packaging/docs/x.md")
    assert manual.with_links("[a](../../README.md#b)", page) == "[a](README.md#b)"
    assert manual.with_links("![a](pictures/p.svg)", page) == "![a](pictures/p.svg)"
    assert manual.with_links("[a](../share/examples/e.conf)", page) == "[a](examples/e.conf)"
    assert manual.with_links("[a](../../tests/t.py)", page) == "a (`tests/t.py` in the sources)"
    assert manual.with_links("[a](https://x.org/y)", page) == "[a](https://x.org/y)"
    top = PurePosixPath("README.md")
    assert manual.with_links("[a](packaging/docs/x.md#b)", top) == "[a](x.md#b)"
    assert manual.with_links("[a](#b)", top) == "[a](#b)"


def test_the_changelog_is_installed_as_it_is_and_has_no_links_to_files():
    """Each package brings it, also those without the pages."""
    text = (manual.CHECKOUT / "packaging/CHANGELOG.md").read_text(encoding="utf-8")
    assert [link[2] for link in manual._LINK.findall(text) if "://" not in link[2]] == []
