"""Changes between packaging/docs and the site: links, code blocks, further pages, words of the glossary.

The pages are written for a reader of the checkout and of /usr/share/doc, where they are Markdown as GitHub shows it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
from make import manual  # noqa: E402  (packaging/ is no package that is installed)

ADDED = {
    "contributing.md": CHECKOUT / ".github/CONTRIBUTING.md",
    "changelog.md": CHECKOUT / "packaging/CHANGELOG.md",
    "extra.css": HERE / "extra.css",
    "iframe-worker.js": HERE / "iframe-worker.js",
    **{f"api/{page.name}": page for page in sorted((HERE / "api").glob("*.md"))},
}
"""File of the site -> file of the checkout, for those that are not in packaging/docs."""
ALSO_VERBS = {"plan", "run", "share"}
"""Words of the glossary that are marked behind an article only: elsewhere they may be verbs, or parts of options."""
_FENCE = re.compile(r"(?m)^```(\w+) on (\w+)$")
_CARDS = re.compile(r"\n((?:- \*\*.*\n(?:  .*\n)*)+)")
"""The list of the front page that leads each reader to a first page."""
_CODE = re.compile(r"(`[^`\n]*`)")
_TAG = re.compile(r"(<[^>]*>)")
_UNMARKED = re.compile(r"</?(a|abbr|code|h[1-6]|pre|script|style|svg)\b")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of ADDED."""
    for name, source in ADDED.items():
        files.append(File.generated(config, name, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page with the links, fences and cells that the site's Markdown understands."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
        markdown = _CARDS.sub(r'\n<div class="grid cards" markdown>\n\n\1\n</div>\n', markdown, count=1)
    if page.file.generated_by is None:
        markdown = manual.with_links(markdown, manual.DOCS / page.file.src_uri)
        markdown = _links_within(markdown, files)
    markdown = _FENCE.sub(r'```{.\1 title="on \2"}', markdown)
    return "\n".join(_cells(line) if line.startswith("|") else line for line in markdown.splitlines())


def _links_within(markdown: str, files: Files) -> str:
    """Replace links to documents that the site leaves out by their names in the checkout."""

    def there(found: re.Match[str]) -> str:
        file = files.get_file_from_path(found[2])
        if file is None or file.inclusion.is_included():
            return found[0]  # mkdocs warns of a page that is not there
        return f"{found[1]} (`{PurePosixPath(manual.DOCS) / found[2]}` in the sources)"

    return re.sub(r"(?<!!)\[([^\]\n]+)\]\(([\w.-]+\.md)(?:#[\w-]*)?\)", there, markdown)


def _cells(line: str) -> str:
    r"""Return a row of a table in which a pipe in code stands for itself (GitHub wants `\|`), and `][` in text too."""
    parts = _CODE.split(line)
    parts[1::2] = [code.replace("\\|", "|") for code in parts[1::2]]
    parts[::2] = [text.replace("][", "]\\[") for text in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark the first occurrence of each word of the glossary in a page with its meaning."""
    if page.file.src_uri in ("glossary.md", "changelog.md") or page.file.src_uri.startswith("api/"):
        return html
    words = glossary((CHECKOUT / "packaging/docs/glossary.md").read_text(encoding="utf-8"))
    left, inside, parts = dict(words), 0, []
    for part in _TAG.split(html):
        if part.startswith("<"):
            if _UNMARKED.match(part) and not part.endswith("/>"):
                inside += -1 if part.startswith("</") else 1
        elif inside == 0:
            for word in list(left):
                marked = _marked(part, word, left[word])
                if marked != part:
                    part = marked
                    del left[word]
                    break  # one mark in a piece of text, so that no mark gets into the meaning of another one
        parts.append(part)
    return "".join(parts)


def _marked(text: str, word: str, meaning: str) -> str:
    """Return a piece of text with the first occurrence of a word marked, if it has one."""
    before = r"\b(?:a|the|each|its|this) " if word in ALSO_VERBS else r"(?<![\w/-])"
    found = re.search(rf"{before}({word}s?)(?![\w/-])", text, 0 if word.isupper() else re.IGNORECASE)
    if found is None:
        return text
    return f'{text[: found.start(1)]}<abbr title="{_escaped(meaning)}">{found[1]}</abbr>{text[found.end(1) :]}'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def glossary(text: str) -> dict[str, str]:
    """Return the words of the page glossary.md with their meanings, without marks of Markdown."""
    rows = re.findall(r"(?m)^\| \*\*(.+?)\*\* \| (.+?) \|$", text)
    return {word: re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", meaning).replace("`", "") for word, meaning in rows}
