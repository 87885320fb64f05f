"""The documents as a site: it is built without a warning, every link in it leads somewhere, and nothing is fetched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
DOCS = CHECKOUT / "packaging/docs"
LEFT_OUT = {"slurm-prolog-environment.md"}
"""Pages that the site does not have: this one is a report for Slurm's authors."""
FETCHED = {
    ("link", "href"),
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("object", "data"),
}
"""Files that a browser loads by itself when it shows a page."""


class Parts(HTMLParser):
    """The links, anchors and loaded files of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = {"", "__top"}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif tag == "a" and name == "href" and value is not None:
                self.links.append(value)
            elif (tag, name) in FETCHED and value:
                self.fetched.append(value)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built so that every warning is an error (with --quiet mkdocs would count none)."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    command += ["-f", str(CHECKOUT / "packaging/site/mkdocs.yml"), "-d", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, re.findall("(?m)^(?!INFO ).+", done.stderr)) == (0, []), done.stdout
    return folder


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[Path, Parts]:
    found = {page: Parts(page.read_text(encoding="utf-8")) for page in built.rglob("*.html") if page.name != "404.html"}
    assert len(found) > 40
    return found


def test_every_link_and_anchor_leads_somewhere(pages: dict[Path, Parts]) -> None:
    dead = []
    for page, parts in pages.items():
        for link in parts.links:
            url = urlsplit(link)
            if url.scheme in ("http", "https", "mailto"):
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path not in ("", ".") else page
            if not target.is_file():
                dead.append(f"{page.name}: {link}")
            elif target in pages and unquote(url.fragment) not in pages[target].anchors:
                dead.append(f"{page.name}: {link}, no such anchor")
    assert dead == []


def test_a_page_loads_nothing_from_elsewhere_and_all_that_it_loads_is_there(
    built: Path, pages: dict[Path, Parts]
) -> None:
    for page, parts in pages.items():
        for link in parts.fetched:
            url = urlsplit(link)
            assert (url.scheme, url.netloc) == ("", ""), f"{page.name}: {link}"
            assert (page.parent / unquote(url.path)).is_file(), f"{page.name}: {link}"
    for style in built.rglob("*.css"):
        loaded = re.findall(r"(?:url\(|@import\s*)[\"']?([^\"')]+)", style.read_text(encoding="utf-8"))
        assert [one for one in loaded if not one.startswith(("data:", "#"))] == [], style.name


def test_every_page_is_reached_from_the_navigation(pages: dict[Path, Parts], built: Path) -> None:
    """mkdocs warns of a page that is in no navigation; this says that none is left out on another way."""
    start = pages[built / "index.html"].links
    reached = {(built / unquote(urlsplit(link).path)).resolve() for link in start if not urlsplit(link).scheme}
    wanted = {built / page.with_suffix(".html").name for page in DOCS.glob("*.md") if page.name not in LEFT_OUT}
    assert sorted(page.name for page in wanted - reached) == []
    assert not any((built / name).with_suffix(".html").exists() for name in LEFT_OUT)


def test_search_finds_pages_sections_and_the_python_interface(built: Path) -> None:
    index = json.loads((built / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    places = {entry["location"] for entry in index}
    assert {"users.html", "tasks.html#independent-tasks", "api/executor.html", "glossary.html"} <= places
    assert (built / "search/search_index.js").read_text(encoding="utf-8").startswith("var __index = {")  # for file://


def test_the_python_interface_is_shown_and_every_member_has_a_docstring(pages: dict[Path, Parts]) -> None:
    """A member without a docstring would be left out."""
    from slurm_share import executor, progress, spmd

    shown = set().union(*(parts.anchors for page, parts in pages.items() if page.parent.name == "api"))
    constants = {"ANY_SOURCE", "ANY_TAG", "COMM_WORLD", "MAX", "MIN", "MPI", "PROD", "SUM"}  # named in the page's text
    wanted = [getattr(executor, name) for name in executor.__all__]
    wanted += [progress.tick, progress.report, progress.result]
    wanted += [getattr(spmd, name) for name in spmd.__all__ if name not in constants]
    assert [one.__qualname__ for one in wanted if f"{one.__module__}.{one.__qualname__}" not in shown] == []
    hidden = {"take", "transport", "group"}  # of our own use
    classes = [one for one in wanted if isinstance(one, type)]
    members = {f"{one.__module__}.{one.__qualname__}.{name}" for one in classes for name in vars(one) if name[0] != "_"}
    assert [name for name in sorted(members - shown) if name.rpartition(".")[2] not in hidden] == []


@pytest.mark.parametrize("is_phone", [False, True], ids=["1280x800", "phone"])
def test_the_site_opened_as_a_file_is_searched_and_walked_through(built: Path, chromium: Any, is_phone: bool) -> None:
    width, height = (390, 844) if is_phone else (1280, 800)
    doors = {"Users": "users", "Python": "python", "Administrators": "quickstart", "Maintainers": "architecture"}
    with chromium.page((built / "index.html").as_uri(), width=width, height=height, phone=is_phone) as page:
        assert page.run("[...document.images].every(one => one.naturalWidth > 0 && one.clientWidth > 300)")
        page.press("s")
        page.wait("document.activeElement.matches('.md-search__input')")
        page.press(*"preemption")
        page.wait("document.querySelector('.md-search-result__item a[href*=\"long-runs.html\"]') !== null")
        for door, name in doors.items():
            page.go((built / "index.html").as_uri())
            page.run(
                f"[...document.querySelectorAll('.md-tabs__link, .md-nav__link')].find(one => "
                f"one.href && one.textContent.trim() == '{door}').click()"
            )
            page.wait(f"location.pathname.endsWith('/{name}.html') && document.readyState == 'complete'")
            assert page.run("document.documentElement.scrollWidth <= innerWidth"), door
        assert page.errors == []
        assert {urlsplit(answer["url"]).scheme for answer in page.answers} <= {"file", "data", "blob"}


def test_the_glossary_has_its_words_and_each_is_explained_in_a_sentence() -> None:
    rows = re.findall(r"(?m)^\| \*\*(.+?)\*\* \| (.+?) \|$", (DOCS / "glossary.md").read_text(encoding="utf-8"))
    words = {word for word, _ in rows}
    assert {"share", "slot", "triple", "launcher", "run", "plan", "MPS", "lease", "packing", "booking"} <= words
    assert {"agent", "snapshot", "advice", "SM"} <= words
    assert [word for word, meaning in rows if not 20 < len(meaning) < 200] == []


@pytest.mark.parametrize(
    "page", sorted(page for page in DOCS.glob("*.md") if page.name not in LEFT_OUT), ids=lambda page: page.name
)
def test_a_page_says_for_whom_it_is(page: Path) -> None:
    """Its first sentence begins with the reader: "For users who ..."."""
    title, first = page.read_text(encoding="utf-8").split("\n\n")[:2]
    assert title.startswith("# ")
    assert re.match(r"(A reference )?[Ff]or ", first)
