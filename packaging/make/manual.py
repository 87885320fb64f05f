"""Install the documents: README, pages and pictures in one folder, with links that are valid on a host.

`python manual.py TARGET` writes them to TARGET.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path, PurePosixPath

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = PurePosixPath("packaging/docs")
_LINK = re.compile(r"(!?)\[([^\]\n]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def write(folder: Path) -> None:
    """Write every document and picture into `folder`."""
    for source in [CHECKOUT / "README.md", *sorted((CHECKOUT / DOCS).rglob("*.*"))]:
        where = PurePosixPath(source.relative_to(CHECKOUT))
        target = folder / str(installed(where))
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(with_links(source.read_text(encoding="utf-8"), where), encoding="utf-8")
        else:
            target.write_bytes(source.read_bytes())
        target.chmod(0o644)


def installed(path: PurePosixPath) -> PurePosixPath | None:
    """Return the path of a checkout's file below the package's documents; None: it is not installed."""
    if path == PurePosixPath("README.md"):
        return path
    for top, place in ((DOCS, "."), (PurePosixPath("packaging/share/examples"), "examples")):
        if top in path.parents:
            return PurePosixPath(place) / path.relative_to(top)
    if path == PurePosixPath("packaging/CHANGELOG.md"):
        return PurePosixPath("CHANGELOG.md")
    return None


def with_links(text: str, where: PurePosixPath) -> str:
    """Return a document with links for its place on a host; `where` is its path in the checkout. A link to a file that
    is not installed becomes the file's name in the checkout."""
    own = installed(where)
    assert own is not None

    def there(found: re.Match[str]) -> str:
        picture, words, link, part = found[1], found[2], found[3], found[4] or ""
        if not link or "://" in link or link.startswith("mailto:"):
            return found[0]
        path = PurePosixPath(os.path.normpath(where.parent / link))
        place = installed(path)
        if place is None:
            return f"{words} (`{path}` in the sources)" if str(path) not in words else words
        return f"{picture}[{words}]({os.path.relpath(place, own.parent)}{part})"

    return _LINK.sub(there, text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
