"""The pictures in the README and the pages are those that the dashboard draws."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
FOLDER = CHECKOUT / "packaging" / "docs" / "pictures"
PAGES = ("README.md", "packaging/docs/index.md", "packaging/docs/tui.md")


def test_the_pictures_are_what_is_drawn_now():
    command = [sys.executable, str(CHECKOUT / "packaging" / "screenshots.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_picture_is_shown_somewhere_and_says_that_it_is_simulated():
    shown = set()
    for page in PAGES:
        text = (CHECKOUT / page).read_text()
        for path in re.findall(r"!\[[^\]]+\]\(([^)]*pictures/[^)]+\.svg)\)", text):
            shown.add(((CHECKOUT / page).parent / path).resolve())
    pictures = {file.resolve() for file in FOLDER.glob("*.svg")}
    assert shown == pictures
    for file in pictures:
        svg = file.read_text()
        assert "SIMULATED\u00a0CLUSTER" in svg
        assert not re.search(r"https?://(?!www\.w3\.org|www\.textualize\.io)", svg)
