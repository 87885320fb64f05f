"""The browser of the tests: it draws, takes keys, and reports what fails."""

from __future__ import annotations

import struct

PAGE = """<title>one</title><p id=keys></p>
<script>onkeydown = e => keys.textContent += e.key; console.error("complaint");
setTimeout(() => undefinedName, 0)</script>
"""


def test_a_page_takes_keys_and_its_errors_are_kept(chromium, tmp_path):
    (tmp_path / "page.html").write_text(PAGE)
    with chromium.page((tmp_path / "page.html").as_uri(), width=400, height=300, scheme="dark") as page:
        page.press("a", "Enter", "ArrowUp")
        page.wait("keys.textContent == 'aEnterArrowUp'")
        assert page.run("matchMedia('(prefers-color-scheme: dark)').matches")
        picture = page.save(tmp_path / "page.png").read_bytes()
        assert struct.unpack(">II", picture[16:24]) == (400, 300)
        page.wait("true")
        assert [error.split("\n")[0] for error in page.errors] == [
            "complaint",
            "ReferenceError: undefinedName is not defined",
        ]
